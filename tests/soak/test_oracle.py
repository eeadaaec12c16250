"""The oracle finds an op that is wrong, and only that."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from tools.soak.oracle import KERNELS, Opened, wrong_ops
from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.graph.edit import set_constant

from .. import build
from ..nets import Net, normal, samples_for

kernels = pytest.mark.parametrize("kernels", KERNELS)


@kernels
@pytest.mark.parametrize("mode", ["int8", "int16x8", "dynamic", "weights", "float16"])
def test_a_right_model_has_no_wrong_op(mode, kernels):
    model = build.float_cnn()
    samples = samples_for(model, 4)
    options = {"min_elements": 1} if mode in ("dynamic", "weights") else {}
    result = zeropoint.quantize(model, mode, samples, effort="quick", **options)
    assert wrong_ops(result.model, samples, kernels) == []


def misread() -> Model:
    """RESHAPE copies integers, and here they stand for numbers twice as large afterwards."""
    once, twice = (QuantParams((scale,), (0,), DType.INT8) for scale in (0.01, 0.02))
    x, y = (build.act(name, 6, dtype=DType.INT8, params=p) for name, p in (("x", once), ("y", twice)))
    z = build.act("z", 6, dtype=DType.INT8, params=twice)
    ops = [
        build.op("RESHAPE", [x, build.const("shape", [6])], y, options="ReshapeOptions"),
        build.op("ABS", [y], z, options="AbsOptions"),
    ]
    return Model([build.graph("main", [x], [z], *ops)])


@kernels
def test_an_op_that_is_wrong_is_named(kernels):
    (wrong,) = wrong_ops(misread(), [(normal(6),)], kernels)
    assert wrong.op.kind == "RESHAPE"
    assert wrong.units > 10
    assert f"'y' is {wrong.units:.4g} units off with the {kernels} kernels" in str(wrong)


def test_an_index_is_judged_by_the_integers():
    """All but the first of these numbers are beyond what the integers hold: to the op they are equally great."""
    params = QuantParams((0.01,), (0,), DType.INT8)
    inputs = [build.act("x", 1, 4, dtype=DType.INT8, params=params), build.const("axis", np.int32(-1))]
    index = build.act("y", 1, dtype=DType.INT32)
    model = build.one_op("ARG_MAX", inputs, index, options="ArgMaxOptions", outputType=2)
    assert wrong_ops(model, [(np.float32([[0.5, 7, 9, 8]]),)], "optimized") == []


@kernels
def test_numbers_that_cancel_are_judged_as_finely_as_float32_holds_them(kernels):
    """33,000 in float32 has steps of 1/256, and the integers tell their differences apart to 1/15,000."""
    scales = (1.03422, 1.03421, 6.4e-5)
    x, y, z = (
        build.act(name, 64, dtype=DType.INT16, params=QuantParams((scale,), (0,), DType.INT16))
        for name, scale in zip("xyz", scales, strict=True)
    )
    model = build.one_op("SUB", [x, y], z, options="SubOptions", potScaleInt16=False)
    numbers = 32000 * np.random.default_rng(0).uniform(-1, 1, 64).astype(np.float32)
    assert wrong_ops(model, [(numbers, numbers)], kernels) == []


def test_products_of_matrices_that_cancel_are_judged_as_finely_as_float32_holds_them():
    """1475 - 1475 in float32 has steps of 1/8192, and the integers have more than 700,000 steps between 0 and 1."""
    shapes, scales = ((1, 2, 2), (1, 2, 10), (1, 2, 10)), (0.045024373, 3.0518509e-05, 1.3878598e-06)
    x, y, z = (
        build.act(name, *shape, dtype=DType.INT16, params=QuantParams((scale,), (0,), DType.INT16))
        for name, shape, scale in zip("xyz", shapes, scales, strict=True)
    )
    model = build.one_op("BATCH_MATMUL", [x, y], z, options="BatchMatMulOptions")
    model.main.ops[0].version = 3
    factors = np.float32([[[32767, -32766], [-32766, 32767]]]) * np.float32(scales[0])
    numbers = np.random.default_rng(0).uniform(-1, 1, (1, 1, 10)).astype(np.float32).repeat(2, axis=1)
    assert wrong_ops(model, [(factors, numbers)], "optimized") == []


def test_a_table_is_judged_by_the_function_that_it_stands_for():
    net = Net()
    model = net.model(net("SIN", [net.input(1, 64)]))
    samples = [(np.linspace(-3, 3, 64, dtype=np.float32)[None],)]
    result = zeropoint.quantize(model, "int8", samples, effort="quick", target="integer")
    assert "GATHER" in {op.kind for op in result.model.main.ops}
    assert Opened(result.model, result.prepared).wrong_ops(samples, "optimized") == []
    table = next(op for op in result.model.main.ops if op.kind == "GATHER").inputs[0]
    set_constant(table, np.roll(table.data, 8), table.dtype, table.params)
    (wrong,) = Opened(result.model, result.prepared).wrong_ops(samples, "optimized")
    assert wrong.op.kind == "GATHER"


def test_a_table_is_judged_for_inputs_that_were_measured():
    """Near zero the points of the logarithm's table are too far apart, and such inputs were never seen."""
    net = Net()
    model = net.model(net("LOG", [net.input(1, 8)]))
    seen, unseen = ([(np.linspace(low, 50, 8, dtype=np.float32)[None],)] for low in (40, 0.1))
    stats = zeropoint.calibrate(model, seen)
    result = zeropoint.quantize(model, "int16x8", stats=stats, effort="quick", target="integer")
    opened = Opened(result.model, result.prepared, stats)
    assert opened.wrong_ops(seen, "optimized") == []
    assert opened.wrong_ops(unseen, "optimized") == []
    (wrong,) = wrong_ops(result.model, unseen, "optimized")
    assert wrong.op.kind == "LOG"
