"""Files whose constants are held in fewer bits already: by other tools, or by us, in integers, float16, or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import PerAxis, QuantParams, quantize
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidModel
from zeropoint.graph import Model, Tensor
from zeropoint.graph.sparse import dense_data
from zeropoint.ops.execution import execution_of
from zeropoint.runtime import Session

from .. import build
from ..calibration.test_state import lstm
from ..nets import Net, normal, outputs_of, samples_for, worst

UNITS = 40


def float_model() -> Model:
    """Two convolutions and two dense layers; the weights of the first convolution are small."""
    net = Net()
    x = net.conv(net.input(1, 6, 6, 3), normal(8, 3, 3, 3, spread=0.3), normal(8, seed=1), activation=1)
    x = net.conv(x, normal(16, 3, 3, 8, seed=2, spread=0.2), normal(16, seed=3), activation=1)
    x = net("RESHAPE", [x, np.int32([1, 576])], [1, 576])
    x = net.dense(x, normal(UNITS, 576, seed=4, spread=0.1), normal(UNITS, seed=5), name="hidden")
    return net.model(net.dense(x, normal(UNITS, UNITS, seed=6, spread=0.2), name="last"))


def stored(model: Model) -> dict[str, tuple[Array, Any]]:
    """The integer weights, by the name of the op that reads them, directly or unpacked."""
    made = {op.outputs[0]: op.inputs[0] for op in model.main.ops if op.kind == "DEQUANTIZE"}
    weighted = [op for op in model.main.ops if op.kind in ("CONV_2D", "FULLY_CONNECTED")]
    read = {op.name.split("/")[0]: op.inputs[1] for op in weighted}
    constants = {name: made.get(tensor, tensor) for name, tensor in read.items() if tensor is not None}
    return {name: (t.data, t.params) for name, t in constants.items() if t is not None and t.is_quantized}


def held_bytes(model: Model) -> int:
    """What the constants take."""
    return sum(buffer.raw.size for buffer in {t.buffer for t in model.main.tensors} if buffer is not None)


def executions(model: Model) -> set[str]:
    return {execution_of(op) for op in model.main.ops}


@pytest.mark.parametrize("target", ["int8", "int16x8"])
@pytest.mark.parametrize(("mode", "bits"), [("dynamic", 8), ("dynamic", 4), ("weights", 8)])
def test_a_file_with_integer_weights_is_quantized_whole_and_keeps_its_integers(
    mode: str, bits: int, target: str
) -> None:
    file = zeropoint.quantize(float_model(), mode, weight_bits=bits, effort="quick").model
    before = stored(file)
    assert len(before) == 3
    result = zeropoint.quantize(file, target, data=samples_for(file))
    assert result.skipped == ()
    assert executions(result.model) == {"integer", "conversion"}
    after = stored(result.model)
    for name, (data, params) in before.items():
        np.testing.assert_array_equal(after[name][0], data)
        assert after[name][1].scales == params.scales
    label = f"int{bits}"
    count = sum(params.dtype.label == label for _, params in before.values())
    assert f"{count} constants are {label} in the file already: they keep their integers" in result.notes


def test_one_scale_for_a_convolution_is_kept() -> None:
    """As older converters gave them: rounding again, with a scale for each channel, would lose a second time."""
    weights = normal(8, 3, 3, 4, spread=0.2) * np.float32(2.0) ** -np.arange(8).reshape(-1, 1, 1, 1)
    params = QuantParams.from_range(-np.abs(weights).max(), np.abs(weights).max(), DType.INT8, True, True)
    net = Net()
    net.conv(net.input(1, 6, 6, 4), build.const("w", quantize(weights, params), DType.INT8, params), name="conv")
    file = net.model(net.ops[-1].outputs[0])
    result = zeropoint.quantize(file, data=samples_for(file))
    data, kept = stored(result.model)["conv"]
    np.testing.assert_array_equal(data, quantize(weights, params))
    assert kept.scales == params.scales


@pytest.mark.parametrize("mode", ["dynamic", "weights", "float16"])
@pytest.mark.parametrize("origin", ["dynamic", "weights", "float16"])
def test_files_do_not_grow_where_only_weights_are_quantized(origin: str, mode: str) -> None:
    file = zeropoint.quantize(float_model(), origin, min_elements=0).model
    result = zeropoint.quantize(file, mode)
    assert held_bytes(result.model) <= held_bytes(file)
    for name, (data, params) in stored(file).items():
        np.testing.assert_array_equal(stored(result.model)[name][0], data)
        assert stored(result.model)[name][1] == params
    for x in samples_for(file)[:2]:
        wanted, got = Session(file).run(x)[0], Session(result.model).run(x)[0]
        assert np.abs(got - wanted).max() < 0.03 * np.abs(wanted).max()


def test_fewer_bits_than_the_file_has_are_rounded_to() -> None:
    file = zeropoint.quantize(float_model(), "dynamic").model
    result = zeropoint.quantize(file, "dynamic", weight_bits=4, effort="quick")
    assert result.notes[0] == "3 constants are int8 in the file already: 3 of them are rounded once more"
    assert {params.dtype for _, params in stored(result.model).values()} == {DType.INT4}


def test_an_op_that_stays_float_stays_as_it_was() -> None:
    file = zeropoint.quantize(float_model(), "dynamic").model
    result = zeropoint.quantize(file, data=samples_for(file), keep_float=["last"])
    (last,) = (op for op in result.model.main.ops if op.name == "last")
    assert execution_of(last) == "hybrid"
    np.testing.assert_array_equal(stored(result.model)["last"][0], stored(file)["last"][0])


def test_blocks_are_understood() -> None:
    file = zeropoint.quantize(float_model(), "dynamic", weight_bits=4, block=32).model
    result = zeropoint.quantize(file, data=samples_for(file))
    assert executions(result.model) == {"integer", "conversion"}
    again = zeropoint.quantize(file, "dynamic", weight_bits=4, block=32).model
    assert held_bytes(again) == held_bytes(file)


def test_parameters_that_do_not_fit_their_weights_are_left_alone() -> None:
    params = QuantParams((0.1,) * 3, (0,) * 3, DType.INT8, PerAxis(0))
    model = build.one_op(
        "FULLY_CONNECTED",
        [build.act("x", 1, 8), build.const("w", np.ones((4, 8), np.int8), DType.INT8, params)],
        build.act("y", 1, 4),
        options="FullyConnectedOptions",
    )
    with pytest.raises(zeropoint.ZeropointError):
        zeropoint.quantize(model, data=[normal(1, 8)])


def test_recurrent_layers_with_integer_weights_are_quantized_whole() -> None:
    """Their cell states are measured with what the integers stand for."""
    file = zeropoint.quantize(lstm(), "dynamic", min_elements=0).model
    assert executions(file) == {"hybrid"}
    samples = samples_for(file)
    result = zeropoint.quantize(file, data=samples)
    assert executions(result.model) == {"integer", "conversion"}
    wanted, got = outputs_of(file, samples), outputs_of(result.model, samples)
    assert worst(wanted, got) < 0.15  # the state goes on from sample to sample, and so does the error


# Sparse constants.


def sparse_layer(dtype: DType) -> tuple[Model, Array]:
    """A dense layer whose weights are sparse in blocks of 1x4, and these weights."""
    rows, columns = 6, 16
    weights = np.where(np.arange(rows * columns // 4).reshape(rows, -1, 1) % 3 == 0, 1, 0) * np.arange(1, 5)
    weights = weights.astype(dtype.storage).reshape(rows, columns)
    blocks = weights.reshape(rows, -1, 4)
    present = [np.flatnonzero(row.any(axis=1)) for row in blocks]
    ends = np.cumsum([0, *map(len, present)])

    def level(size: int, **values: Any) -> Any:
        return build.default_options("DimensionMetadata", denseSize=size, **values)

    def numbers(values: Array) -> Any:
        return build.default_options("Int32Vector", values=tuple(map(int, values)))

    thin = Tensor("thin", weights.shape, dtype, build.const("", weights[weights != 0]).buffer)
    thin.sparsity = build.default_options(
        "SparsityParameters",
        traversalOrder=(0, 1, 2),
        blockMap=(1,),
        dimMetadata=(
            level(rows, format=0),
            level(
                0,
                format=1,
                arraySegmentsType=1,
                arraySegments=numbers(ends),
                arrayIndicesType=1,
                arrayIndices=numbers(np.concatenate(present)),
            ),
            level(4, format=0),
        ),
    )
    full = build.act("full", rows, columns, dtype=dtype)
    ops = [build.op("DENSIFY", [thin], full, options="DensifyOptions")]
    if dtype is not DType.FLOAT32:
        made = build.act("float", rows, columns)
        ops.append(build.op("DEQUANTIZE", [full], made, options="DequantizeOptions"))
        ops[-1].version = 3
    x, y = build.act("x", 2, columns), build.act("y", 2, rows)
    ops.append(build.op("FULLY_CONNECTED", [x, ops[-1].outputs[0]], y, options="FullyConnectedOptions"))
    return Model([build.graph("main", [x], [y], *ops)]), weights.astype(np.float32)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_sparse_weights_become_integers_too(dtype: DType) -> None:
    model, weights = sparse_layer(dtype)
    samples = samples_for(model)
    np.testing.assert_allclose(Session(model).run(samples[0])[0], samples[0][0] @ weights.T, rtol=1e-5, atol=1e-5)
    result = zeropoint.quantize(model, data=samples)
    assert [op.kind for op in result.model.main.ops] == ["QUANTIZE", "FULLY_CONNECTED", "DEQUANTIZE"]
    data, params = stored(result.model)["y"]
    np.testing.assert_allclose(data * np.float32(params.scales).reshape(-1, 1), weights, atol=0.02)


def test_sparse_weights_stay_sparse_where_only_weights_are_quantized() -> None:
    model, _ = sparse_layer(DType.FLOAT32)
    result = zeropoint.quantize(model, "float16")
    assert [op.kind for op in result.model.main.ops] == ["DENSIFY", "FULLY_CONNECTED"]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_a_model_with_sparse_weights_is_compared_by_what_it_computes(dtype: DType) -> None:
    model, _ = sparse_layer(dtype)
    compared = zeropoint.compare(model, zeropoint.quantize(model, "float16").model, samples_for(model))
    assert [row.label for row in compared.ops] == ["FULLY_CONNECTED"]
    assert compared.snr > 60


DAMAGE = {
    "its segments do not fit": {1: {"arraySegments": (0, 2, 1, 3, 4, 5, 8)}},
    "its segments do not fit its indices": {1: {"arraySegments": (0, 1)}},
    "an element lies outside": {1: {"arrayIndices": (0, 3, 2, 1, 0, 99, 2, 1)}},
    "a dimension of 1000000": {0: {"denseSize": 1000000}},
    "bytes for": {2: {"denseSize": 2}},
}


@pytest.mark.parametrize("words", DAMAGE)
def test_damaged_sparse_constants_are_refused(words: str) -> None:
    model, _ = sparse_layer(DType.FLOAT32)
    sparsity = model.main.ops[0].inputs[0].sparsity
    levels = list(sparsity["dimMetadata"])
    for k, changes in DAMAGE[words].items():
        as_vectors = {
            name: build.default_options("Int32Vector", values=value) if isinstance(value, tuple) else value
            for name, value in changes.items()
        }
        levels[k] = levels[k].replace(**as_vectors)
    model.main.ops[0].inputs[0].sparsity = sparsity.replace(dimMetadata=tuple(levels))
    with pytest.raises(InvalidModel, match=words):
        dense_data(model.main.ops[0].inputs[0])
    with pytest.raises(InvalidModel, match="is damaged"):
        zeropoint.quantize(model, data=[normal(2, 16)])
