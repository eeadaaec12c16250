"""Models that are integer in part only: several graphs, ops that stay float, models that come half made."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.calibration import calibrate
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel
from zeropoint.graph import Model, Op, Tensor
from zeropoint.runtime import Session

from .. import build
from ..calibration.test_state import counter
from ..nets import Net, kinds, normal, outputs_of, quantized, samples_for, steps, worst

IMAGE = (1, 6, 6, 4)


# Several graphs.


def test_every_signature_is_quantized():
    nets = [Net(), Net()]
    models = [
        net.model(net.dense(net.input(1, 8, name="x"), normal(4, 8, seed=k, spread=1 + 9 * k), name="y"))
        for k, net in enumerate(nets)
    ]
    for model, name in zip(models, ("first", "second"), strict=True):
        model.main.name = model.signatures[0].key = name
    model = Model([m.main for m in models], [m.signatures[0] for m in models])
    data = {name: [normal(1, 8, seed=s) for s in range(20)] for name in ("first", "second")}
    result = zeropoint.quantize(model, data=data)
    assert [[op.kind for op in g.ops] for g in result.model.graphs] == [steps("FULLY_CONNECTED")] * 2
    for k, (before, after) in enumerate(zip(model.graphs, result.model.graphs, strict=True)):
        samples = [(x,) for x in data["first"]]
        alone = [Model([g]) for g in (before, after)]
        assert worst(*(outputs_of(m, samples) for m in alone)) < 0.02, k
    one = zeropoint.quantize(model, stats=calibrate(model, {"first": data["first"]}))
    assert [s.reason for s in one.skipped] == ["the range of 'x' is not known"]


def test_what_is_called_takes_floats_even_as_an_entry_of_its_own():
    """A body computes in integers; what calls it passes floats, so callers from outside do as well."""
    model = build.branches()
    samples = [(np.bool_(k % 2), normal(2, seed=k)) for k in range(8)]
    entry = {"serving_default": samples, "just_add": [x for _, x in samples]}
    result = zeropoint.quantize(model, data=entry, input_type="int8", output_type="int8")
    assert [[op.kind for op in g.ops] for g in result.model.graphs[1:]] == [steps("ADD"), steps("MUL")]
    assert all(t.dtype is DType.FLOAT32 for g in result.model.graphs[1:] for t in (*g.inputs, *g.outputs))
    (skipped,) = result.skipped
    assert "passes floats" in skipped.reason


@pytest.mark.parametrize("types", [{}, {"input_type": "int8", "output_type": "int8"}], ids=["float", "int8"])
def test_integer_ops_around_control_flow(types):
    net = Net()
    choice, x = net.input(dtype=DType.BOOL, name="choice"), net.input(1, 8)
    hidden = net.dense(x, normal(2, 8), name="before")
    bodies = []
    for name, kind in (("then", "ADD"), ("else", "MUL")):
        body = Net()
        bodies.append(body.model(body(kind, [body.input(1, 2, name=name), np.float32([2, 3])])).main)
        bodies[-1].name = name
    chosen = net("IF", [choice, hidden], (1, 2), thenSubgraphIndex=bodies[0], elseSubgraphIndex=bodies[1])
    model = net.model(net.dense(chosen, normal(3, 2), name="after"))
    model.graphs += bodies
    build.sign(model, "then", bodies[0])
    samples = [(np.bool_(k % 2), normal(1, 8, seed=k)) for k in range(24)]
    stats = calibrate(model, {"serving_default": samples})
    made = quantized(model, samples, data=None, stats=stats, **types).model
    inside = [*steps("FULLY_CONNECTED"), "IF", *steps("FULLY_CONNECTED")]
    assert kinds(made) == (inside[1:-1] if types else inside)
    assert [op.kind for g in made.graphs[1:] for op in g.ops] == [*steps("ADD"), *steps("MUL")]
    assert all(t.dtype is DType.FLOAT32 for g in made.graphs[1:] for t in (*g.inputs, *g.outputs))


def test_floats_that_would_wrap_are_passed_to_branches_as_they_are():
    """The branches have steps for the few hundreds that are left of 1e9: too small for an integer difference, and more
    than 2**31 of them in what rounding leaves of a float one."""
    net = Net()
    choice, x = net.input(dtype=DType.BOOL, name="choice"), net.input(1, 8)
    rest = net("SUB", [net("MUL", [x, np.float32(0.5)]), np.float32(1e9)])
    bodies = []
    for name, kind in (("then", "ADD"), ("else", "MUL")):
        body = Net()
        bodies.append(body.model(body(kind, [body.input(1, 8, name=name), np.arange(1, 9, dtype=np.float32)])).main)
        bodies[-1].name = name
    model = net.model(net("IF", [choice, rest], thenSubgraphIndex=bodies[0], elseSubgraphIndex=bodies[1], shape=(1, 8)))
    model.graphs += bodies
    samples = [(np.bool_(k % 2), np.float32(2e9 + 256 * np.arange(8))[None]) for k in range(8)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer").model
    (call,) = (op for op in made.main.ops if op.kind == "IF")
    assert call.inputs[1].dtype is DType.FLOAT32
    assert np.array_equal(outputs_of(made, samples, "optimized")[0], outputs_of(made, samples, "reference")[0])


def test_integers_that_would_wrap_are_passed_to_branches_as_floats():
    """One scale holds a tenth and the million that is chosen instead, if ever. The branches have steps for the tenth:
    too small for QUANTIZE to rescale a million to them."""
    net = Net()
    choice, x = net.input(dtype=DType.BOOL, name="choice"), net.input(1, 8)
    either = net("SELECT_V2", [net.input(1, 8, dtype=DType.BOOL), x, np.float32([-1e6])], (1, 8))
    bodies = []
    for name, kind in (("then", "ADD"), ("else", "MUL")):
        body = Net()
        bodies.append(body.model(body(kind, [body.input(1, 8, name=name), np.arange(1, 9, dtype=np.float32)])).main)
        bodies[-1].name = name
    called = net("IF", [choice, either], thenSubgraphIndex=bodies[0], elseSubgraphIndex=bodies[1], shape=(1, 8))
    model = net.model(called)
    model.graphs += bodies
    near = [(np.bool_(k % 2), np.float32(0.1 * normal(1, 8, seed=k)), np.ones((1, 8), bool)) for k in range(8)]
    made = zeropoint.quantize(model, "int16x8", data=near, effort="quick", target="integer").model
    far = [(np.bool_(0), x, ~use) for _, x, use in near]  # multiplied
    for kernels in ("delegate", "optimized", "reference"):
        assert (outputs_of(made, far, kernels)[0] < 0).all()


# Ops that stay float.


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_integers_that_are_computed_stay_what_they_are(mode):
    net = Net()
    x, place = net.input(1, 8), net.input(1, dtype=DType.INT32)
    next_place = net("ADD", [place, np.int32([1])], (1,))
    next_place.dtype = DType.INT32
    model = net.model(net("GATHER", [net("ABS", [x]), next_place], (1, 1), axis=1))
    data = [(normal(1, 8, seed=k), np.int32([k])) for k in range(7)]
    made = zeropoint.quantize(model, mode, data=data, effort="quick", target="integer").model
    assert worst(outputs_of(model, data), outputs_of(made, data)) < 0.02


def test_a_custom_op_stays_float_between_conversions():
    """LiteRT cannot run it, so the ranges are given."""
    net = Net()
    hidden = net.dense(net.input(1, 8), normal(4, 8), name="before")
    fancy = net("CUSTOM", [hidden], name="fancy")
    model = net.model(net.dense(fancy, normal(4, 4), name="after"))
    model.main.ops[1].custom_code = "Fancy"
    entries = {name: zeropoint.calibration.Range(-4.0, 4.0, "test") for name in ("x0", "before", "fancy", "after")}
    result = zeropoint.quantize(model, ranges=zeropoint.calibration.Ranges(entries))
    assert kinds(result.model) == [*steps("FULLY_CONNECTED"), "CUSTOM", *steps("FULLY_CONNECTED")]
    (skipped,) = result.skipped
    assert skipped.op.label == "Fancy"
    assert "custom op" in skipped.reason


def test_float_ops_between_integers_need_no_ranges():
    """How large the inputs of a float EXP are is known only where it was measured or given."""
    net = Net()
    hidden = net.dense(net.input(1, 8), normal(4, 8), name="before")
    grown = net("EXP", [net("ABS", [hidden], name="size")], name="grown")
    model = net.model(net.dense(grown, normal(4, 4), name="after"))
    entries = {name: zeropoint.calibration.Range(-4.0, 4.0, "test") for name in ("x0", "before", "grown", "after")}
    keep = {"keep_float": ["ABS", "EXP"], "target": "integer"}
    result = zeropoint.quantize(model, ranges=zeropoint.calibration.Ranges(entries), **keep)
    assert kinds(result.model) == [*steps("FULLY_CONNECTED"), "ABS", "EXP", *steps("FULLY_CONNECTED")]


def test_a_float_island_has_conversions_at_its_borders_only():
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8))
    for _ in range(3):
        x = net("SIN", [x])
    result = quantized(net.model(net.dense(x, normal(8, 8))), keep_float="SIN")
    assert kinds(result.model) == [*steps("FULLY_CONNECTED"), "SIN", "SIN", "SIN", *steps("FULLY_CONNECTED")]
    assert [s.code for s in result.skipped] == ["recipe"] * 3


@pytest.mark.parametrize("effort", ["quick", "standard", "high"])
def test_what_is_kept_in_a_resource_stays_float(effort):
    """The op that stores it has no output, and whatever reads it later may want all of it."""
    samples = [(normal(1, 3, 2, seed=k),) for k in range(8)]
    result = quantized(counter(), samples[:1], data=samples, effort=effort)
    assert [s.op.kind for s in result.skipped] == ["READ_VARIABLE", "ASSIGN_VARIABLE"]


# Models that come half made.


def halved(model: Model) -> Model:
    """The model with its constants as float16, each behind a DEQUANTIZE."""
    for op in list(model.main.ops):
        for slot, tensor in enumerate(op.inputs):
            if tensor is not None and tensor.dtype is DType.FLOAT32 and tensor.data is not None:
                half = build.const(f"{tensor.name}/half", tensor.data.astype(np.float16))
                full = build.act(f"{tensor.name}/full", *tensor.shape)
                op.inputs[slot] = full
                model.main.ops.insert(0, build.op("DEQUANTIZE", [half], full, options="DequantizeOptions"))
    main = model.main
    main.tensors = build.graph("", main.inputs, main.outputs, *main.ops).tensors
    return model


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_float16_weights_are_taken_as_float(mode):
    net = Net()
    hidden = net.conv(net.input(*IMAGE), normal(4, 3, 3, 4), normal(4))
    model = halved(net.model(net("MUL", [hidden, np.float32([0.5, 1, 2, 4])])))
    assert kinds(model).count("DEQUANTIZE") == 3
    made = quantized(model, mode=mode).model
    assert kinds(made) == steps("CONV_2D", "MUL")
    assert not any(t.dtype is DType.FLOAT16 for t in made.main.tensors)


@pytest.mark.parametrize("with_data", [False, True], ids=["no data", "data"])
def test_fake_quant_ranges_are_used_and_the_ops_removed(with_data):
    net = Net()
    ends = {"x": (-3.0, 3.0), "y": (-5.0, 4.0)}

    def fake(tensor: Tensor, key: str) -> Tensor:
        low, high = ends[key]
        return net("FAKE_QUANT", [tensor], name=f"{key}/fake", min=low, max=high, numBits=8)

    y = fake(net.dense(fake(net.input(1, 8), "x"), normal(4, 8, spread=0.4), name="y"), "y")
    model = net.model(y)
    made = quantized(model, **{} if with_data else {"data": None}).model
    assert kinds(made) == steps("FULLY_CONNECTED")
    dense = made.main.ops[1]
    for tensor, key in ((dense.inputs[0], "x"), (dense.outputs[0], "y")):
        nudged = QuantParams.from_range(*ends[key], DType.UINT8)  # as the op does it
        assert tensor.params == QuantParams(nudged.scales, (nudged.zero_point - 128,), DType.INT8)
    assert [t.name for t in made.main.outputs] == [t.name for t in model.main.outputs]


def partly_quantized() -> tuple[Model, list[Op]]:
    """A float layer, then one that is int8 already; and the ops of the latter."""
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8), name="float")
    tail = Net()
    rest = tail.model(tail.dense(tail.input(1, 8, name="float"), normal(4, 8, seed=1), name="last"))
    done = zeropoint.quantize(rest, data=[normal(1, 8, seed=k, spread=3) for k in range(20)]).model.main
    done.ops[0].inputs[0] = x
    main = build.graph("main", net.inputs, done.outputs, *net.ops, *done.ops)
    return Model([main]), done.ops


def test_of_a_partly_quantized_model_only_the_float_part_is_quantized():
    model, before = partly_quantized()
    made = quantized(model).model
    assert kinds(made)[:2] == ["QUANTIZE", "FULLY_CONNECTED"]
    old, new = (next(op for op in ops if op.name == "last/int8") for ops in (before, made.main.ops))
    assert old.kind == new.kind == "FULLY_CONNECTED"
    for a, b in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True):
        assert (a is None and b is None) or a.quantization == b.quantization
    assert np.array_equal(old.inputs[1].data, new.inputs[1].data)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_a_quantized_model_is_refused(mode):
    model = build.float_cnn()
    made = quantized(model, mode=mode, bound=0.1).model
    for again in (made, build.quantized_cnn()):
        with pytest.raises(InvalidModel, match="quantized already"):
            zeropoint.quantize(again, mode, data=samples_for(model))


@pytest.mark.parametrize("name", ["", "all alike"])
def test_tensors_without_names_keep_their_ranges(name):
    """Removing one moves the numbers of all behind it, by which statistics know the nameless."""
    net = Net()
    x = net.input(1, 8)
    for k, width in enumerate((6, 10, 4, 12)):
        kernel = normal(width, x.shape[1], seed=k, spread=10.0**k) * np.float32(4.0 ** -(np.arange(width) % 4))[:, None]
        x = net("RELU", [net.dense(x, kernel)])
    model = net.model(net("ADD", [x, np.float32(1)]))
    for tensor in model.main.tensors:
        tensor.name = name
    made = quantized(model).model
    assert kinds(made) == steps(*["FULLY_CONNECTED"] * 4, "ADD")


@pytest.mark.parametrize("kind", ["LOG", "RSQRT"])
@pytest.mark.parametrize(("low", "stays"), [(1e-3, True), (5e-3, True), (0.02, False)])
def test_near_a_pole_int16_kernels_are_not_used(kind: str, low: float, stays: bool) -> None:
    """They interpolate between results at 256 points above zero: where the function is steep that is far off."""
    net = Net()
    model = net.model(net(kind, [net("ADD", [net("ABS", [net.input(1, 64)]), np.float32(low)])]))
    rng = np.random.default_rng(0)
    samples = [(rng.uniform(0, 1, (1, 64)) ** 6).astype(np.float32) for _ in range(16)]
    result = zeropoint.quantize(model, "int16x8", data=samples, target="integer")
    found = {(s.op.kind, s.code) for s in result.skipped}
    assert ((kind, "need") in found) is stays
    assert found <= {(kind, "need"), ("ADD", "scale")}  # whatever would round its sum to zero stays float as well
    wanted, got = (np.concatenate([Session(m).run([x])[0] for x in samples]) for m in (model, result.model))
    assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()
    assert kind not in {s.op.kind for s in zeropoint.quantize(model, "int8", data=samples, target="integer").skipped}
