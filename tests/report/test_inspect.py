"""`inspect`: the numbers are those of the file and of the kernels, and they can be read."""

from __future__ import annotations

import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

import zeropoint
from zeropoint.affine import PerAxis, QuantParams, quantize
from zeropoint.demo import digits as digits_data
from zeropoint.demo import digits_model
from zeropoint.display import counted, share_text
from zeropoint.dtypes import DType
from zeropoint.errors import printable
from zeropoint.fixedpoint import to_fixed_point
from zeropoint.graph import Model, Quantization
from zeropoint.report.inspection import InspectedOp, Inspection, TensorRow, formula, inspect
from zeropoint.report.terminal import Detail, print_inspection, range_line
from zeropoint.runtime import Session
from zeropoint.tflite import load, to_bytes

from .. import build
from ..build import IMAGE, INT8, act, const, one_op, op

TENSORS = Detail()

every_model = pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())


def tensor(shown: Inspection, name: str) -> TensorRow:
    return next(t for t in shown.tensors if t.name == name)


def by_kind(shown: Inspection, kind: str) -> InspectedOp:
    return next(o for o in shown.ops if o.kind == kind)


def printed(shown: Inspection, detail: Detail = TENSORS, **console: object) -> str:
    file = io.StringIO()
    print_inspection(shown, "model.tflite", detail, Console(file=file, soft_wrap=True, **console))
    return file.getvalue()


# Summaries.


def test_how_a_file_was_made_is_shown(digits):
    assert zeropoint.inspect(load(digits)).made_by is None
    shown = zeropoint.inspect(zeropoint.quantize(digits, "dynamic").model)
    assert f"Made by  zeropoint {zeropoint.__version__} with dynamic" in printed(shown)
    assert shown.to_json()["made_by"].startswith("zeropoint ")


def test_a_float_model(digits):
    shown = zeropoint.inspect(load(digits), len(digits))
    assert {op.execution for op in shown.ops} == {"float"}
    assert shown.macs == {"float": 9 * 8 * 8 * (16 + 16) + 8 * 8 * 16 * 16 + 4 * 4 * 32 * 9 * 16 + 10 * 32}
    assert shown.integer_share == 0
    kernels, biases = 16 * 9 + 16 * 9 + 16 * 16 + 32 * 9 * 16 + 10 * 32, 16 + 16 + 16 + 32 + 10
    assert shown.data_bytes == {"float32": 4 * (kernels + biases), "int32": 2 * 4}
    assert shown.other_bytes + sum(shown.data_bytes.values()) == len(digits) == shown.file_bytes
    (signature,) = shown.signatures
    assert (signature.key, [p.name for p in signature.inputs]) == ("serving_default", ["image"])
    assert all(op.multipliers == () and op.version == 1 for op in shown.ops)
    assert by_kind(shown, "DEPTHWISE_CONV_2D").activation == "RELU6"


def test_a_quantized_model():
    shown = inspect(build.quantized_cnn())
    assert [(op.kind, op.execution, op.version) for op in shown.ops] == [
        ("CONV_2D", "integer", 3),
        ("ADD", "integer", 2),
        ("SOFTMAX", "integer", 2),
    ]
    assert shown.macs == {"integer": 4 * 4 * 2 * 9}
    assert shown.integer_share == 1
    assert by_kind(shown, "CONV_2D").activation == "RELU"
    (ends,) = shown.signatures
    assert ends.key is None
    assert [p.formula for p in ends.inputs + ends.outputs] == [
        "0.012566 * (q - 3)",
        "0.0078431 * (q + 1)",
        "0.0039062 * (q + 128)",
    ]


EXECUTIONS = {
    "integer": lambda: build.quantized_cnn(),
    "float": lambda: build.float_cnn(),
    "hybrid": lambda: build.int4(),
    "conversion": lambda: one_op("QUANTIZE", [act("x", 2)], act("q", 2, dtype=INT8, params=IMAGE)),
    "other": lambda: one_op("SHAPE", [act("x", 2, dtype=DType.INT32)], act("s", 1, dtype=DType.INT32)),
}


@pytest.mark.parametrize(("execution", "make"), EXECUTIONS.items(), ids=EXECUTIONS.keys())
def test_how_an_op_runs(execution, make):
    shown = inspect(make())
    assert {op.execution for op in shown.ops} == {execution}
    assert all(set(counts) == {execution} for counts in shown.ops_by_kind.values())
    if shown.macs:
        assert shown.integer_share == (execution == "integer")


def test_shared_data_counts_once():
    assert inspect(build.shared()).data_bytes == {"float32": 16}


# Tensors.


def test_the_range_is_the_stored_one_where_there_is_one():
    shown = inspect(build.quantized_cnn())
    image, total = (tensor(shown, name).quantization for name in ("image", "sum"))
    assert (image.low, image.high, image.source) == (-1.6488090753555298, 1.5555250644683838, "stored")
    assert range_line(image) == "-1.6488 ≤ 0.012566 * (q - 3) ≤ 1.5555  (stored)"
    assert total.source == "representable"
    (scale,), (zero,) = total.scales, total.zero_points
    assert (total.low, total.high) == (scale * (-128 - zero), scale * (127 - zero))


def test_channels_are_summed_up():
    row = tensor(inspect(build.quantized_cnn()), "conv/w").quantization
    assert (row.axis, len(row.scales), row.zero_points) == (0, 2, (0, 0))
    assert row.formula == f"scale {min(row.scales):.4g} .. {max(row.scales):.4g} * q in 2 channels on axis 0"


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16], ids=lambda d: d.label)
@pytest.mark.parametrize("zero", [-7, 0, 7])
def test_a_formula_computes_what_it_says(dtype, zero):
    params = QuantParams((0.25,), (zero,), dtype)
    for q in (-3, 0, 5):
        assert eval(formula(params), {"q": q}) == 0.25 * (q - zero)


def test_names_are_told_apart():
    shown = inspect(build.names())
    assert len({t.name for t in shown.tensors}) == len(shown.tensors)
    assert [t.name for t in shown.tensors][:4] == ["x", "%1", "x#2", "%3"]


@every_model
def test_every_tensor_and_op_has_a_row(make):
    model = make()
    shown = inspect(model)
    assert len(shown.tensors) == sum(len(g.tensors) for g in model.graphs)
    assert [op.kind for op in shown.ops] == [op.label for g in model.graphs for op in g.ops]


# Ops: the multipliers are those that the kernels compute with.


@pytest.mark.parametrize("make", [build.quantized_cnn], ids=["quantized_cnn"])
def test_multipliers_are_fixed_point(make):
    shown = inspect(make())
    conv, total, soft = shown.ops
    scales = tensor(shown, "conv/w").quantization.scales
    (image,), (made,) = (tensor(shown, n).quantization.scales for n in ("image", "conv"))
    assert [m.real for m in conv.multipliers] == [image * s / made for s in scales]
    assert [m.what for m in total.multipliers] == ["input 0", "input 1", "output"]
    assert soft.multipliers == ()
    for m in conv.multipliers + total.multipliers:
        assert (m.multiplier, m.shift) == to_fixed_point(m.real)


def clamp(q: np.ndarray) -> np.ndarray:
    return np.clip(q, -128, 127).astype(np.int8)


def multiply(x: np.ndarray, multiplier: int, shift: int) -> np.ndarray:
    """As the reference kernels do it: the rounded high half of the product, then a shift that rounds halves away from
    zero."""
    high = ((np.asarray(x, np.int64) << max(shift, 0)) * multiplier + (1 << 30)) >> 31
    right = max(-shift, 0)
    return np.sign(high) * ((np.abs(high) + (1 << right >> 1)) >> right)


@pytest.mark.parametrize("seed", range(5))
def test_litert_convolves_with_these_multipliers(seed):
    rng = np.random.default_rng(seed)
    x_params, y_params = (QuantParams.from_range(*np.sort(rng.normal(size=2) * 4), INT8) for _ in range(2))
    w_params = QuantParams.from_range([-1.0] * 4, rng.uniform(0.01, 2, 4), INT8, symmetric=True, axis=0)
    b_params = QuantParams(tuple(np.float32(w_params.scales).tolist()), (0,) * 4, DType.INT32, PerAxis(0))
    x = rng.integers(-128, 128, (1, 5, 5, 6)).astype(np.int8)
    w = rng.integers(-127, 128, (4, 1, 1, 6)).astype(np.int8)
    b = rng.integers(-5000, 5000, 4).astype(np.int32)
    inputs = [act("x", *x.shape, dtype=INT8, params=x_params), const("w", w, INT8, w_params)]
    inputs.append(const("b", b, DType.INT32, b_params))
    y = act("y", 1, 5, 5, 4, dtype=INT8, params=y_params)
    model = one_op("CONV_2D", inputs, y, options="Conv2DOptions", padding=1, strideW=1, strideH=1)

    (row,) = inspect(model).ops
    sums = (x.astype(np.int64) - x_params.zero_point).reshape(25, 6) @ w.reshape(4, 6).T.astype(np.int64) + b
    columns = [multiply(sums[:, k], m.multiplier, m.shift) for k, m in enumerate(row.multipliers)]
    expected = clamp(np.stack(columns, -1) + y_params.zero_point).reshape(1, 5, 5, 4)
    assert np.array_equal(Session(model, kernels="reference").run([x])[0], expected)


@pytest.mark.parametrize("seed", range(5))
def test_litert_adds_with_these_multipliers(seed):
    rng = np.random.default_rng(seed)
    params = [QuantParams.from_range(*np.sort(rng.normal(size=2) * 4), INT8) for _ in range(3)]
    a, b, c = (act(n, 256, dtype=INT8, params=p) for n, p in zip("abc", params, strict=True))
    model = one_op("ADD", [a, b], c, options="AddOptions")
    x = [rng.integers(-128, 128, 256).astype(np.int8) for _ in range(2)]

    first, second, output = ((m.multiplier, m.shift) for m in inspect(model).ops[0].multipliers)
    left, right = ((v.astype(np.int64) - p.zero_point) << 20 for v, p in zip(x, params, strict=False))
    total = multiply(left, *first) + multiply(right, *second)
    expected = clamp(multiply(total, *output) + params[2].zero_point)
    assert np.array_equal(Session(model, kernels="reference").run(x)[0], expected)


# Choosing.

GLOBS = ["conv*", "*CONV_2D", "add", "*", "nothing", "int32", "constant", "SUM"]


@pytest.mark.parametrize("glob", GLOBS)
def test_a_filter_chooses_names_and_kinds(glob):
    shown = inspect(build.quantized_cnn())
    chosen = shown.filtered(glob)
    assert set(chosen.tensors) <= set(shown.tensors)
    assert set(chosen.ops) <= set(shown.ops)
    assert chosen == chosen.filtered(glob) == shown.filtered(glob.upper()) == shown.filtered(glob.lower())
    assert (chosen.tensors or chosen.ops) or glob == "nothing"
    assert chosen.tensors + chosen.ops == shown.tensors + shown.ops or glob != "*"


# Forms.


@every_model
def test_json_is_what_to_json_gives(make):
    model = make()
    values = inspect(model, len(to_bytes(model))).to_json()
    text = json.dumps(values, allow_nan=False)
    assert json.loads(text) == values
    assert values["schema"] == 1
    assert values["summary"].keys() == {"macs", "integer_share", "ops_by_kind"}


def test_json_has_no_infinity():
    broken = const("c", np.float32([math.nan, math.inf]))
    model = one_op("ADD", [act("x", 2), broken], act("y", 2), options="AddOptions")
    model.main.tensor("y").quantization = Quantization((math.inf,), (0,), 0, (math.nan,), (math.inf,))
    json.dumps(inspect(model).to_json(), allow_nan=False)


DETAILS = {"summary": Detail(False), "tensors": TENSORS, "all": Detail(True, True, True)}
each_detail = pytest.mark.parametrize("detail", DETAILS.values(), ids=DETAILS.keys())


def with_long_names(model: Model) -> Model:
    for graph in model.graphs:
        for k, t in enumerate(graph.tensors):
            t.name = f"{t.name}/{k}" + "/a/rather/long/name" * 10
    return model


@each_detail
@every_model
def test_a_pipe_gets_plain_text_and_whole_names_too(make, detail):
    shown = inspect(with_long_names(make()))
    text = printed(shown, detail)
    assert "\x1b" not in text
    assert text.encode()
    if detail.tensors:
        assert all(name in text for t in shown.tensors for name in map(printable, (t.name, t.short_name)))


@each_detail
@every_model
@pytest.mark.parametrize("rename", [lambda m: m, with_long_names], ids=["short", "long"])
def test_a_terminal_gets_80_columns(make, detail, rename):
    shown = inspect(rename(make()), 12345)
    text = printed(shown, detail, force_terminal=True, width=80, color_system=None)
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_gets_colours():
    assert "\x1b[" in printed(inspect(build.quantized_cnn()), force_terminal=True, width=80)


def test_all_channels_on_request():
    shown = inspect(build.quantized_cnn())
    scales = tensor(shown, "conv/w").quantization.scales
    full, short = (printed(shown, Detail(True, True, channels)) for channels in (True, False))
    assert all(f"{s:.9g}" in full for s in scales)
    assert not any(f"{s:.9g}" in short for s in scales)
    assert all(str(m.multiplier) in full for o in shown.ops for m in o.multipliers)


def test_many_channels_are_announced():
    scales = tuple(np.linspace(0.5, 1, 6).tolist())
    params = QuantParams(scales, (0,) * 6, INT8, PerAxis(0))
    weights = const("w", quantize(build.weights(6, 1, 1, 1), params), INT8, params)
    inputs, y = [act("x", 1, 1, 1, 1, dtype=INT8, params=IMAGE), weights], act("y", 1, 1, 1, 6, dtype=INT8)
    y.quantization = Quantization.of(IMAGE)
    model = Model([build.graph("main", inputs[:1], [y], op("CONV_2D", inputs, y, options="Conv2DOptions"))])
    assert "and 5 channels more (--channels shows them)" in printed(inspect(model), Detail(True, True))


def test_all_of_it_is_only_said_of_all_of_it():
    assert [share_text(share) for share in (0.5, 0.9994, 0.99999, 1.0)] == ["50.0%", "99.9%", "99.9%", "100.0%"]
    assert share_text(1.0, is_all=False) == "99.9%"
    assert [counted(count, "op") for count in (0, 1, 2, 1234)] == ["0 ops", "1 op", "2 ops", "1,234 ops"]


def test_an_op_that_multiplies_nothing_counts_as_well():
    """All layers are in integers, and the softmax behind them is not."""
    how = {"data": digits_data()["calibration"][:8], "effort": "quick", "target": "integer"}
    made = [zeropoint.quantize(digits_model(), keep_float=kinds, **how).model for kinds in ((), "SOFTMAX")]
    shown = list(map(inspect, made))
    assert [one.integer_share for one in shown] == [1.0, 1.0]
    assert [one.integer_share_text for one in shown] == ["100.0%", "99.9%"]
    assert "99.9% integer" in printed(shown[1])


def test_exact_numbers_can_be_read_back(run, tmp_path):
    model = build.quantized_cnn()
    (tmp_path / "m.tflite").write_bytes(to_bytes(model))
    code, out, err = run("inspect", tmp_path / "m.tflite", "--exact")
    assert (code, err) == (0, "")
    found = re.findall(r"≤ ([-\d.e]+) \* \(?q[^≤]*≤ ([-\d.e]+)", out)
    rows = [
        t.quantization for t in inspect(model).tensors if t.quantization is not None and t.quantization.axis is None
    ]
    assert {np.float32(scale) for scale, _ in found} == {np.float32(row.scales[0]) for row in rows}
    assert {float(high) for _, high in found} == {row.high for row in rows}
