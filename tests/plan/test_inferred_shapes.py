"""RESHAPE finds a single computed size by itself, so the ops that compute it go."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from tests import build
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Op, Tensor

from ..nets import Net, kinds, normal, outputs_of, samples_for, worst


def flattened(*sizes: int | None, read_elsewhere: bool = False) -> Model:
    """A convolution of a 4x4 image in 3 channels, reshaped as Keras does it: None is the computed batch size."""
    net = Net()
    made = net.conv(net.input(1, 4, 4, 2), normal(3, 1, 1, 2))
    whole = build.act("whole", 4, dtype=DType.INT32)
    batch, shape = build.act("batch", dtype=DType.INT32), build.act("shape", len(sizes), dtype=DType.INT32)
    ends = [build.const(f"end{k}", np.int32([k])) for k in (0, 1)]
    net.ops += [
        build.op("SHAPE", [made], whole, options="ShapeOptions", outType=2),
        build.op("STRIDED_SLICE", [whole, *ends, ends[1]], batch, options="StridedSliceOptions", shrinkAxisMask=1),
        build.op("PACK", [_size(k, batch) for k in sizes], shape, options="PackOptions", valuesCount=len(sizes)),
    ]
    result = net("RESHAPE", [made, shape], [{None: 1, -1: 48}.get(k, k) for k in sizes], name="flat")
    return net.model(result, *([net("ABS", [net("CAST", [shape])])] if read_elsewhere else []))


def _size(size: int | None, batch: Tensor) -> Tensor:
    return batch if size is None else build.const(f"size{size}", np.int32(size))


def _reshape(model: Model) -> Op:
    return next(op for op in model.main.ops if op.kind == "RESHAPE")


@pytest.mark.parametrize("mode", ["int8", "int16x8", "dynamic", "float16"])
@pytest.mark.parametrize("sizes", [(None, 48), (None, 1, 48), (None, 4, 4, 3), (6, None, 8)], ids=str)
def test_one_computed_size_is_inferred(mode, sizes):
    model = flattened(*sizes)
    samples = samples_for(model, 8)
    data = samples if mode.startswith("int") else None
    made = zeropoint.quantize(model, mode, data=data, effort="quick", min_elements=1).model
    assert not {"SHAPE", "STRIDED_SLICE", "PACK"} & set(kinds(made))
    shape = _reshape(made).inputs[1]
    assert shape is not None
    assert shape.data is not None
    assert shape.data.tolist() == [-1 if size is None else size for size in sizes]
    assert worst(outputs_of(model, samples), outputs_of(made, samples)) <= 0.05


@pytest.mark.parametrize("sizes", [(None, None, 48), (None, -1)], ids=str)
def test_what_cannot_be_inferred_is_computed(sizes):
    made = zeropoint.quantize(flattened(*sizes), "float16", effort="quick", min_elements=1).model
    assert "PACK" in kinds(made)


def test_a_shape_that_others_read_is_still_computed():
    model = flattened(None, 48, read_elsewhere=True)
    samples = samples_for(model, 8)
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick").model
    assert "PACK" in kinds(made)
    assert _reshape(made).inputs[1].data is not None
    assert worst(outputs_of(model, samples), outputs_of(made, samples)) <= 0.05


def test_other_batch_sizes_run_as_before():
    model = flattened(None, 48)
    model.main.inputs[0].shape_signature = (-1, 4, 4, 2)
    made = zeropoint.quantize(model, "float16", min_elements=1).model
    samples = [(normal(5, 4, 4, 2),)]
    assert worst(outputs_of(model, samples), outputs_of(made, samples)) <= 0.01
