"""The table of the cpu target against the delegate itself: which ops of small models does XNNPACK take?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.errors import RuntimeFailure
from zeropoint.graph import Model
from zeropoint.improve.pipeline import run
from zeropoint.ops import CONVERSIONS, OPS
from zeropoint.plan.request import Request
from zeropoint.recipe import DYNAMIC, Recipe, Rule
from zeropoint.runtime import Session
from zeropoint.targets import CPU, TypedOp, check_model

from ..build import act, const, one_op
from ..conformance.cases import CASES, Case, quantized
from ..conformance.samples import HYBRID_SAMPLES, SAMPLES, Held, Sample, ints, sample, w, x
from ..nets import Net, normal

FLOAT32, INT8, UINT8, INT16, INT32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32
WINDOW = {"filterWidth": 2, "filterHeight": 2}

# Each on one side of a condition that no sample of the op table is about.
BORDERS = (
    sample("SLICE", "all", x(2, 5, 4), ints([0, 2, 1]), ints([2, 3, 2])),
    sample("STRIDED_SLICE", "inside", x(2, 5, 4), ints([0, 1, 0]), ints([2, 3, 4]), ints([1, 1, 1])),
    sample("STRIDED_SLICE", "ends", x(2, 5, 4), ints([0, 1, 0]), ints([0, 3, 0]), ints([1] * 3), beginMask=5,
           endMask=5),
    sample("STRIDED_SLICE", "shrinks", x(2, 5, 4), ints([0, 1, 0]), ints([2, 2, 4]), ints([1] * 3), shrinkAxisMask=2),
    sample("STRIDED_SLICE", "steps", x(2, 5, 4), ints([0, 0, 0]), ints([2, 5, 4]), ints([1, 2, 1])),
    sample("SOFTMAX", "plain_pixels", x(1, 3, 4, 9), beta=1.0),
    *(sample("CONCATENATION", f"of_{n}", *(x(1, 2, 2, 1) for _ in range(n)), axis=3) for n in (1, 5, 6)),
    *(Sample("SPLIT", f"in_{n}", (ints(-1), x(2, 3, n)), (FLOAT32,) * n, options={"numSplits": n}) for n in (1, 4, 5)),
    *(sample(kind, "values", x(2, 5)) for kind in ("NEG", "SQUARE", "SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN")),
    sample("CUMSUM", "rows", x(2, 5), ints(1)),
    sample("SUM", "rows", x(2, 5), ints(1)),
    *(sample("ADD", f"rank_{n}", x(*[1] * n), x(*[1] * n)) for n in (5, 6, 7)),
    *(sample("TRANSPOSE", f"rank_{n}", x(*range(1, n + 1)), ints([*range(n - 2), n - 1, n - 2])) for n in (5, 6)),
    *(sample(kind, "gaps", x(1, 8, 8, 2), strideW=4, strideH=4, padding=1, **WINDOW)
      for kind in ("MAX_POOL_2D", "AVERAGE_POOL_2D")),
    sample("FULLY_CONNECTED", "odd", x(4, 9), w(6, 9), w(6)),
    sample("BATCH_MATMUL", "rank_5", x(1, 1, 2, 3, 4), x(1, 1, 2, 4, 5)),
    sample("PAD", "wide_indices", x(3, 4), Held(np.array([[1, 1], [0, 0]], np.int64))),
)  # fmt: skip


def scale(scale: float, zero_point: int = 0, dtype: DType = INT8) -> QuantParams:
    return QuantParams((float(scale),), (zero_point,), dtype)


def held(name: str, params: QuantParams | None, *shape: int):
    return act(name, *shape, dtype=FLOAT32 if params is None else params.dtype, params=params)


def unary(kind: str, source: QuantParams | None, result: QuantParams | None, options: str = "", **values) -> Model:
    return one_op(kind, [held("x", source, 4, 6)], held("y", result, 4, 6), options=options, **values)


def binary(kind: str, a: float, b: float, result: float) -> Model:
    options = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}[kind]
    read = [held("a", scale(a), 4, 6), held("b", scale(b), 4, 6)]
    return one_op(kind, read, held("y", scale(result), 4, 6), options=options)


def product(zero_point: int, constant: bool) -> Model:
    params = scale(1, zero_point)
    right = const("b", np.ones((2, 4, 5), np.int8), INT8, params) if constant else held("b", params, 2, 4, 5)
    read = [held("a", scale(1, 3), 2, 3, 4), right]
    return one_op("BATCH_MATMUL", read, held("y", scale(10), 2, 3, 5), options="BatchMatMulOptions")


def computed_layer(params: QuantParams | None, bias: DType) -> Model:
    """A dense layer whose weights are an input."""
    read = [held("a", params, 4, 6), held("w", params, 8, 6)]
    offset = const("b", np.zeros(8, bias.storage), bias, None if params is None else scale(1, dtype=bias))
    return one_op("FULLY_CONNECTED", [*read, offset], held("y", params, 4, 8), options="FullyConnectedOptions")


def borders() -> Iterator[tuple[str, Model]]:
    """Models of one op whose parameters lie at the edge of what the table says."""
    for kind in ("ADD", "SUB"):
        for a, b, y in ((1, 1, 1024), (1, 1, 1025), (1, 1025, 1025), (255, 1, 1), (256, 1, 1), (1, 256, 1)):
            yield f"{kind}-{a}-{b}-{y}", binary(kind, a, b, y)
    for a, b, y in ((1, 1, 65536), (1, 1, 65540), (16, 16, 1), (16, 15.9, 1)):
        yield f"MUL-{a}-{b}-{y}", binary("MUL", a, b, y)
    for a, y, alpha in ((1, 1, 0.1), (1, 1, 0.003), (1, 1, 1 / 256), (128, 1, 0.5), (129, 1, 0.1), (1, 257, 1.0)):
        made = unary("LEAKY_RELU", scale(a), scale(y), "LeakyReluOptions", alpha=alpha)
        yield f"LEAKY_RELU-{a}-{y}-{alpha}", made
    for dtype in (INT8, UINT8):
        for a, y in ((1, 1), (1, 256), (1, 257), (128, 1), (129, 1)):
            made = unary("QUANTIZE", scale(a, dtype=dtype), scale(y, dtype=dtype))
            yield f"QUANTIZE-{dtype.label}-{a}-{y}", made
    for a, y in ((INT8, UINT8), (UINT8, INT8), (INT8, INT16), (INT16, INT8)):
        yield f"QUANTIZE-{a.label}-{y.label}", unary("QUANTIZE", scale(1, dtype=a), scale(1, dtype=y))
    for dtype in (INT8, UINT8, INT16):
        yield f"QUANTIZE-{dtype.label}", unary("QUANTIZE", None, scale(1, dtype=dtype))
        yield f"DEQUANTIZE-{dtype.label}", unary("DEQUANTIZE", scale(1, dtype=dtype), None)
    for zero_point in (0, 1):
        for constant in (False, True):
            yield f"BATCH_MATMUL-{zero_point}-{constant}", product(zero_point, constant)
    for params, bias in ((scale(1), INT32), (None, FLOAT32)):
        yield f"FULLY_CONNECTED-computed-{bias.label}", computed_layer(params, bias)
    for y in (1, 2):
        read = [held("a", scale(1), 4, 6), held("b", scale(y), 4, 6)]
        yield f"CONCATENATION-1-{y}", one_op("CONCATENATION", read, held("y", scale(y), 4, 12),
                                             options="ConcatenationOptions", axis=1)  # fmt: skip


def hybrids() -> Iterator[tuple[Sample, DType]]:
    seen = set()
    for each in (*SAMPLES, *HYBRID_SAMPLES):
        if any(isinstance(operand, Held) and operand.data.dtype == np.float32 for operand in each.operands):
            for weights in OPS[each.kind].hybrid:
                if (str(each), weights) not in seen:
                    seen.add((str(each), weights))
                    yield each, weights


def agree(model: Model) -> None:
    """What the table says of every op of a model is what the delegate does."""
    asked = [checked.verdict for checked in check_model(model, CPU).ops]
    taken = Session(model).delegated()
    found = {op.name: k in taken for k, op in enumerate(model.main.ops) if op.kind not in CONVERSIONS}
    found = found or {op.name: k in taken for k, op in enumerate(model.main.ops)}
    said = {op.name: verdict.speed == "fast" for op, verdict in zip(model.main.ops, asked, strict=True)}
    assert found == {name: said[name] for name in found}, asked
    for verdict in asked:
        assert (verdict.reason == "") == (verdict.speed == "fast")
        assert verdict.place == ("XNNPACK" if verdict.speed == "fast" else "LiteRT's plain kernels")


@pytest.mark.parametrize("each", [*dict.fromkeys((*SAMPLES, *HYBRID_SAMPLES, *BORDERS))], ids=str)
def test_floats(each: Sample) -> None:
    agree(each.model())


@pytest.mark.parametrize("case", [case for case in CASES if case.stretch is None], ids=str)
def test_integers(case: Case) -> None:
    agree(quantized(case).model)


@pytest.mark.parametrize("each", [each for each in BORDERS if INT8 in OPS[each.kind].types], ids=str)
def test_integers_at_the_borders(each: Sample) -> None:
    agree(quantized(Case(each, INT8)).model)


@pytest.mark.parametrize(("each", "weights"), list(hybrids()), ids=str)
def test_integer_weights_beside_floats(each: Sample, weights: DType) -> None:
    recipe = Recipe((Rule(replace(DYNAMIC, weights=weights, min_elements=0)),))
    agree(run(each.model(), Request(recipe, effort="quick")).model)


@pytest.mark.parametrize("model", [pytest.param(made, id=name) for name, made in borders()])
def test_parameters_at_the_borders(model: Model) -> None:
    (op,) = model.main.ops
    if CPU.verdict(TypedOp.of_file(op)).speed != "refused":
        agree(model)
        return
    with pytest.raises(RuntimeFailure, match="failed to delegate"):
        Session(model)


@pytest.mark.parametrize("mode", ["float16", "weights"])
def test_weights_that_are_unpacked_once(mode: str) -> None:
    """Layers whose weights a DEQUANTIZE makes float are the delegate's, and so is the DEQUANTIZE."""
    net = Net()
    x = net.conv(net.input(1, 8, 8, 16), normal(16, 3, 3, 16), normal(16))
    made = zeropoint.quantize(net.model(net.dense(x, normal(64, 16))), mode, min_elements=0).model
    assert "DEQUANTIZE" in {op.kind for op in made.main.ops}
    assert not check_model(made, CPU).having("slow")
    agree(made)


def test_every_row_is_asked_about() -> None:
    """Each kind of op in the table has a sample, in each type that its row claims."""
    kinds = {each.kind for each in (*SAMPLES, *HYBRID_SAMPLES, *BORDERS)} | CONVERSIONS
    known = {kind for rule in CPU.rules for kind in rule.kinds}
    assert known - kinds == {"Convolution2DTransposeBias"}  # a custom op, of which there is no sample
