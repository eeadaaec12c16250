"""What int16 kernels lose between the points of their tables, as predicted and as LiteRT computes it."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams, dequantize, quantize
from zeropoint.dtypes import DType
from zeropoint.graph.model import Quantization
from zeropoint.ops import OPS
from zeropoint.ops.interpolation import COARSE, interpolation_error
from zeropoint.runtime import Session

from .. import build

OPTIONS = {"GELU": "GeluOptions", "EXP": "ExpOptions", "LOG": "", "RSQRT": ""}
CASES = [
    ("EXP", (-3.0, 2.0), {}),
    ("EXP", (-60.0, 4.0), {}),
    ("GELU", (-4.0, 7.0), {}),
    ("GELU", (-900.0, 3.0), {}),
    ("GELU", (-8.95, -2.78), {}),
    ("GELU", (-8.95, -2.78), {"approximate": True}),
    ("GELU", (-4.0, -1.0), {}),
    ("LOG", (0.1, 5.0), {}),
    ("RSQRT", (0.1, 5.0), {}),
    ("RSQRT", (0.02, 9.0), {}),
]


@pytest.mark.parametrize(("kind", "seen", "options"), CASES, ids=[f"{k}-{s}{'-tanh' * bool(o)}" for k, s, o in CASES])
def test_the_prediction_is_what_the_kernel_does(kind, seen, options):
    x, y = (build.act(name, 20001, dtype=DType.INT16) for name in "xy")
    model = build.one_op(kind, [x], y, options=OPTIONS[kind], **options)
    function = OPS[kind].interpolated(model.main.ops[0])
    inputs = np.linspace(*seen, x.size).astype(np.float32)
    ends = function(inputs.astype(np.float64))
    read = QuantParams.from_range(*seen, DType.INT16, symmetric=True)
    made = QuantParams.from_range(ends.min(), ends.max(), DType.INT16, symmetric=True)
    x.quantization, y.quantization = Quantization.of(read), Quantization.of(made)
    integers = quantize(inputs, read)
    (found,) = Session(model, kernels="optimized").run([integers])
    exact = np.clip(function(dequantize(integers, read).astype(np.float64)) / made.scale, -32768, 32767)
    measured, predicted = np.abs(found - exact).max(), interpolation_error(function, seen, read, made)
    if np.isfinite(predicted):  # next to a pole all may happen
        assert measured == pytest.approx(predicted, abs=4, rel=0.1)
    assert (measured > COARSE) == (predicted > COARSE)


@pytest.mark.parametrize(("low", "integer"), [(1.0, True), (0.1, False)])
def test_an_op_stays_float_where_int16_would_be_no_better_than_int8(low, integer):
    model = build.one_op("LOG", [build.act("x", 64)], build.act("y", 64))
    data = [np.linspace(low, 4.7, 64, dtype=np.float32)]
    result = zeropoint.quantize(model, "int16x8", data, effort="quick", range="minmax")
    assert (result.skipped == ()) == integer
    if not integer:
        assert "too far apart" in result.skipped[0].reason


def test_the_prediction_holds_for_rounded_inputs_in_places_of_the_table():
    """-1 beside 250: the table is read half an integer from where it was sampled, and -1 is rounded."""
    x, y = (build.act(name, 3, dtype=DType.INT16) for name in "xy")
    model = build.one_op("GELU", [x], y, options=OPTIONS["GELU"])
    function = OPS["GELU"].interpolated(model.main.ops[0])
    read = QuantParams.from_range(0, 250.81146, DType.INT16, symmetric=True)
    made = QuantParams.from_range(float(function(np.array(-1.0))), 0, DType.INT16, symmetric=True)
    x.quantization, y.quantization = Quantization.of(read), Quantization.of(made)
    integers = np.int16(np.rint(-1 / read.scale) + np.arange(-1, 2))
    (found,) = Session(model, kernels="optimized").run([integers])
    off = np.abs(found - np.clip(function(dequantize(integers, read).astype(np.float64)) / made.scale, -32768, 32767))
    assert off[1] > COARSE
    assert interpolation_error(function, (-1.0, -1.0), read, made) >= off[1]


def test_the_prediction_holds_where_points_of_the_table_are_clamped():
    """The largest result of RSQRT is the largest integer, and the point before it is cut off: an error of 401 units at
    one integer of 32,000."""
    x, y = (build.act(name, 32238, dtype=DType.INT16) for name in "xy")
    model = build.one_op("RSQRT", [x], y)
    function = OPS["RSQRT"].interpolated(model.main.ops[0])
    read, made = QuantParams((0.000193804,), (0,), DType.INT16), QuantParams((9.52846e-05,), (0,), DType.INT16)
    x.quantization, y.quantization = Quantization.of(read), Quantization.of(made)
    integers = np.arange(530, 32768, dtype=np.int16)
    (found,) = Session(model, kernels="optimized").run([integers])
    off = np.abs(found - np.clip(function(dequantize(integers, read).astype(np.float64)) / made.scale, -32768, 32767))
    seen = float(529.32 * read.scale), float(32767 * read.scale)
    assert interpolation_error(function, seen, read, made) >= off.max() > COARSE
