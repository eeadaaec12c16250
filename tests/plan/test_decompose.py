"""Ops without integer kernels, as ops that have them: the same in float, and how near in integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import zeropoint
from tests.build import act, const, one_op
from tests.conformance.samples import Sample, both_ways
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model
from zeropoint.graph.edit import copy_model
from zeropoint.ops import REWRITTEN
from zeropoint.ops.calls import COMPOSITE
from zeropoint.plan.decompose import DECOMPOSED, TRANSPOSED_WITH_BIAS
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Request
from zeropoint.recipe import preset
from zeropoint.runtime import Session
from zeropoint.targets import INTEGER

Draw = Callable[[np.random.Generator], Array]


def normal(*shape: int) -> Draw:
    return lambda rng: rng.normal(size=shape).astype(np.float32)


def uniform(low: float, high: float, *shape: int) -> Draw:
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A model of one op; `snr` are the least decibels in int8 and in int16x8, where that is done in integers."""

    name: str
    model: Model
    drawn: tuple[Draw, ...]
    becomes: tuple[str, ...]
    snr: tuple[float | None, float | None]

    def samples(self) -> list[tuple[Array, ...]]:
        rng = np.random.default_rng(0)
        return [tuple(draw(rng) for draw in self.drawn) for _ in range(48)]


def vector() -> tuple:
    return act("x", 1, 64), act("y", 1, 64)


def power(exponent: float) -> Model:
    x, y = vector()
    return one_op("POW", [x, const("p", np.float32(exponent))], y, options="PowOptions")


def quotient() -> Model:
    x, y = vector()
    return one_op("DIV", [x, act("d", 1, 64)], y, options="DivOptions")


def running_sum(axis: int, **options: bool) -> Model:
    x, y = act("x", 2, 8, 16), act("y", 2, 8, 16)
    return one_op("CUMSUM", [x, const("axis", np.int32(axis))], y, options="CumsumOptions", **options)


def response_norm(alpha: float, beta: float) -> Model:
    x, y = act("x", 1, 6, 6, 16), act("y", 1, 6, 6, 16)
    options = {"radius": 2, "bias": 1.0, "alpha": alpha, "beta": beta}
    return one_op("LOCAL_RESPONSE_NORMALIZATION", [x], y, options="LocalResponseNormalizationOptions", **options)


def pooled() -> Model:
    window = {"strideW": 2, "strideH": 2, "filterWidth": 3, "filterHeight": 3}
    return one_op("L2_POOL_2D", [act("x", 1, 8, 8, 4)], act("y", 1, 4, 4, 4), options="Pool2DOptions", **window)


def transposed() -> Model:
    rng = np.random.default_rng(1)
    kernel, bias = rng.normal(size=(5, 3, 3, 2)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    x, y = act("x", 1, 4, 3, 2), act("y", 1, 8, 6, 5)
    model = one_op("CUSTOM", [x, const("w", kernel), const("b", bias)], y)
    model.main.ops[0].custom_code = "Convolution2DTransposeBias"
    model.main.ops[0].custom_options = np.frombuffer(np.array([1, 2, 2], "<i4").tobytes(), np.uint8)
    return model


def truths() -> Model:
    return one_op("CAST", [act("x", 1, 64, dtype=DType.BOOL)], act("y", 1, 64), options="CastOptions")


PRODUCTS = ("MUL",)
BAND = ("MUL", "CONV_2D", "POW", "MUL")
X, Y = vector()
CASES = [
    Case("neg", one_op("NEG", [X], Y, options="NegOptions"), (normal(1, 64),), PRODUCTS, (40, 85)),
    Case("square", one_op("SQUARE", [X], Y, options="SquareOptions"), (normal(1, 64),), PRODUCTS, (37, 80)),
    Case("power2", power(2), (normal(1, 64),), PRODUCTS, (37, 80)),
    Case("root", power(0.5), (uniform(0.2, 3, 1, 64),), ("SQRT",), (45, 85)),
    Case("reciprocal_root", power(-0.5), (uniform(0.2, 3, 1, 64),), ("RSQRT",), (44, 70)),
    Case("quotient", quotient(), (normal(1, 64), uniform(0.5, 3, 1, 64)), ("POW", "MUL"), (34, 60)),
    Case("sum", one_op("SUM", [act("x", 1, 8, 64), const("a", np.int32([1]))], act("y", 1, 64),
                       options="ReducerOptions"), (normal(1, 8, 64),), ("MEAN", "MUL"), (36, 80)),
    Case("running_sum_last", running_sum(2), (normal(2, 8, 16),), ("FULLY_CONNECTED",), (34, 80)),
    Case("running_sum_back", running_sum(-1, exclusive=True, reverse=True), (normal(2, 8, 16),),
         ("FULLY_CONNECTED",), (34, 80)),
    Case("running_sum_middle", running_sum(1), (normal(2, 8, 16),), ("TRANSPOSE", "FULLY_CONNECTED", "TRANSPOSE"),
         (34, 80)),
    Case("l2_pool", pooled(), (normal(1, 8, 8, 4),), ("MUL", "AVERAGE_POOL_2D", "SQRT"), (30, 70)),
    Case("response_norm", response_norm(1e-4, 0.75), (normal(1, 6, 6, 16),), BAND, (40, None)),
    Case("response_norm_strong", response_norm(0.1, 0.75), (normal(1, 6, 6, 16),), BAND, (36, None)),
    Case("transposed", transposed(), (normal(1, 4, 3, 2),), ("TRANSPOSE_CONV",), (34, 45)),
    Case("truths", truths(), (lambda rng: rng.random((1, 64)) < 0.5,), ("SELECT_V2",), (100, 80)),
]  # fmt: skip


def decibels(wanted: Sequence[Array], found: Sequence[Array]) -> float:
    power, error = (sum(float((np.float64(a) ** 2).sum()) for a in arrays)
                    for arrays in (wanted, [a - b for a, b in zip(wanted, found, strict=True)]))  # fmt: skip
    return 10 * np.log10(power / max(error, 1e-30))


def test_every_rewriting_is_announced_to_calibration() -> None:
    assert {*DECOMPOSED, TRANSPOSED_WITH_BIAS, COMPOSITE} == REWRITTEN


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float_results_stay_the_same(case: Case) -> None:
    samples = case.samples()
    request = Request(preset("int8"), zeropoint.calibrate(case.model, samples), target=INTEGER, effort="quick")
    made = prepare_model(copy_model(case.model), request).model
    assert tuple(op.kind for op in made.main.ops) == case.becomes
    first, second = Session(case.model), Session(made)
    for sample in samples[:4]:
        np.testing.assert_allclose(second.run(sample)[0], first.run(sample)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_integers_come_near(case: Case, mode: str) -> None:
    samples, least = case.samples(), case.snr[mode == "int16x8"]
    result = zeropoint.quantize(case.model, mode, data=samples, target="integer", effort="quick")
    if least is None:
        assert {s.code for s in result.skipped} <= {"kernel", "scale", "need"}
        assert result.skipped
        return
    assert result.skipped == ()
    first, second = Session(case.model), Session(result.model)
    wanted, found = ([session.run(sample)[0] for sample in samples] for session in (first, second))
    assert decibels(wanted, found) >= least


@pytest.mark.parametrize("sample", [both_ways("merged", mergeOutputs=True), both_ways("apart")], ids=str)
def test_layers_that_run_both_ways_are_two_that_run_one_way(sample: Sample) -> None:
    model, samples = sample.model(), sample.draw(32)
    result = zeropoint.quantize(model, data=samples, target="integer", effort="quick")
    assert result.skipped == ()
    assert sum(op.kind == "UNIDIRECTIONAL_SEQUENCE_LSTM" for op in result.model.main.ops) == 2
    sides = [], []
    for side, made in zip(sides, (model, result.model), strict=True):
        session = Session(made)
        for inputs in samples:
            session.reset()
            side += session.run(inputs)
    assert decibels(*sides) > 36


def test_divisors_near_zero_or_of_either_sign_stay_float() -> None:
    rng = np.random.default_rng(0)
    for low, high in ((0.01, 3.0), (-1.0, 2.0)):
        samples = [(normal(1, 64)(rng), uniform(low, high, 1, 64)(rng)) for _ in range(32)]
        result = zeropoint.quantize(quotient(), data=samples, target="integer", effort="quick")
        assert [op.kind for op in result.model.main.ops] == ["DIV"]
        assert "divisor far from zero" in result.skipped[0].reason


def test_where_float_is_quicker_divisions_stay_divisions() -> None:
    case = next(case for case in CASES if case.name == "quotient")
    result = zeropoint.quantize(case.model, data=case.samples(), target="cpu", effort="quick")
    assert [op.kind for op in result.model.main.ops] == ["DIV"]


@pytest.mark.parametrize("name", ["neg", "sum", "running_sum_middle"])
def test_a_rule_keeps_the_op(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    kind = case.model.main.ops[0].kind
    result = zeropoint.quantize(case.model, data=case.samples(), keep_float=[kind], effort="quick")
    assert [op.kind for op in result.model.main.ops] == [kind]


def test_long_running_sums_stay_float() -> None:
    x, y = act("x", 1, 600), act("y", 1, 600)
    model = one_op("CUMSUM", [x, const("axis", np.int32(1))], y, options="CumsumOptions")
    samples = [normal(1, 600)(np.random.default_rng(k)) for k in range(4)]
    result = zeropoint.quantize(model, data=samples, effort="quick")
    assert [op.kind for op in result.model.main.ops] == ["CUMSUM"]


def test_indices_that_may_repeat_keep_scatter_float() -> None:
    x, y = act("x", 3, 4), act("y", 7, 4)
    inputs = [const("places", np.int32([[3], [0], [3]])), x, const("shape", np.int32([7, 4]))]
    model = one_op("SCATTER_ND", inputs, y, options="ScatterNdOptions")
    samples = [normal(3, 4)(np.random.default_rng(k)) for k in range(4)]
    result = zeropoint.quantize(model, data=samples, effort="quick", target="integer")
    assert "constant indices" in result.skipped[0].reason


def test_angles_over_many_turns_stay_float() -> None:
    model = one_op("SIN", [X], Y)
    samples = [uniform(-40, 40, 1, 64)(np.random.default_rng(k)) for k in range(16)]
    result = zeropoint.quantize(model, data=samples, effort="quick", target="integer")
    assert [op.kind for op in result.model.main.ops] == ["SIN"]
    assert "input scales" in result.skipped[0].reason
