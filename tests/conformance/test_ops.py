"""Every claim of the op table, run in LiteRT: one-op models, quantized, against the float op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from zeropoint.affine import QuantParams, dequantize, quantize
from zeropoint.calibration import Range, Ranges, Stats, TensorStats, calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.errors import RuntimeFailure
from zeropoint.graph import Model, Op
from zeropoint.graph.edit import set_constant
from zeropoint.improve.pipeline import Result, run
from zeropoint.ops import CONVERSIONS, OPS, Activation, Bias, Coefficients, OpSpec, Role, ShapeOnly, Weight
from zeropoint.plan.request import Request
from zeropoint.recipe import INT8 as INT8_SCHEME
from zeropoint.recipe import INT16X8 as INT16_SCHEME
from zeropoint.recipe import Recipe, Rule
from zeropoint.runtime import Kernels, Session

from .. import build
from .samples import LOOSE, SAMPLES, Sample, tolerance

SCHEMES = {DType.INT8: INT8_SCHEME, DType.INT16: INT16_SCHEME}
RUNS = 20
SLACK = 0.02
"""In units of the last place: what float32 loses on the way to int16 and back."""

NEAR = {
    (DType.INT8, DType.INT8): 0.005,
    (DType.INT16, DType.INT8): 0.001,
    (DType.INT8, DType.INT4): 0.03,
    (DType.INT16, DType.INT4): 0.03,
}
"""By types of activations and weights: what rounding the operands may take on average, of the output's range."""

kernels = pytest.mark.parametrize("kernels", ["delegate", "optimized"])


@dataclass(frozen=True)
class Case:
    """A sample with one of the types that its row claims; if `stretched`, its outputs are to hold more than they do.

    That is what a neighbour can ask for. It tells kernels that rescale from those that need one scale throughout.
    """

    sample: Sample
    activations: DType
    weights: DType = DType.INT8
    stretched: bool = False

    def __str__(self) -> str:
        narrow = f"-{self.weights.label}" if self.weights is not DType.INT8 else ""
        return f"{self.sample}-{self.activations.label}{narrow}{'-stretched' if self.stretched else ''}"

    @property
    def spec(self) -> OpSpec:
        return OPS[self.sample.becomes or self.sample.kind]

    def recipe(self) -> Recipe:
        return Recipe((Rule(replace(SCHEMES[self.activations], weights=self.weights)),))

    def ranges(self) -> Ranges:
        measured = statistics(self.sample).tensors
        outputs = [name for name in measured if name.startswith("out")] if self.stretched else []
        return Ranges({name: stretch(measured[name]) for name in outputs})


def stretch(measured: TensorStats) -> Range:
    span = measured.high.value - measured.low.value
    return Range(measured.low.value - 0.2 * span, measured.high.value + 0.7 * span, "stretched")


def cases() -> Iterator[Case]:
    """What the rows claim."""
    seen = set()
    for sample in SAMPLES:
        spec = OPS[sample.becomes or sample.kind]
        for activations in spec.types:
            for weights in spec.weights.get(activations, (DType.INT8,)):
                yield Case(sample, activations, weights)
            if (sample.kind, activations) not in seen:
                seen.add((sample.kind, activations))
                yield Case(sample, activations, stretched=True)


CASES = list(cases())


@cache
def statistics(sample: Sample) -> Stats:
    return calibrate(sample.model(), sample.draw(RUNS))


@cache
def quantized(case: Case) -> Result:
    # quick: no bias is added to ops that have none, so that both models hold the same constants.
    request = Request(case.recipe(), statistics(case.sample), case.ranges(), method="minmax", effort="quick")
    return run(case.sample.model(), request)


def computing(model: Model) -> Op:
    """The only op that does more than convert."""
    (op,) = [op for op in model.main.ops if op.kind not in CONVERSIONS]
    return op


def rounded_model(case: Case) -> Model:
    """The float model with the constants that the quantized one has."""
    model = case.sample.model()
    if case.sample.becomes is not None:
        return model  # another op has other constants
    for tensor, integers in zip(computing(model).inputs, computing(quantized(case).model).inputs, strict=True):
        if tensor is not None and integers is not None and integers.params is not None and integers.data is not None:
            set_constant(tensor, dequantize(integers.data, integers.params), DType.FLOAT32)
    return model


def rounded_inputs(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Inputs as they are once through the QUANTIZE ops of `model`."""
    forms = {op.inputs[0]: op.outputs[0].params for op in model.main.ops if op.kind == "QUANTIZE"}
    pairs = [(value, forms.get(tensor)) for tensor, value in zip(model.main.inputs, inputs, strict=True)]
    return [value if params is None else dequantize(quantize(value, params), params) for value, params in pairs]


def run_afresh(session: Session, inputs: Sequence[Array]) -> list[Array]:
    session.reset()
    return session.run(inputs)


def units_off(result: Array, wanted: Array, params: QuantParams) -> float:
    """The distance in units of the last place from what is wanted, or from the nearest that the integers can hold."""
    return float(np.abs(result - np.clip(wanted, *params.range())).max() / params.scale)


@kernels
@pytest.mark.parametrize("case", CASES, ids=str)
def test_integer_op_computes_what_the_float_op_does(case: Case, kernels: Kernels) -> None:
    """On rounded operands to a unit or so in the last place, on others nearly; truth values and indices exactly."""
    result = quantized(case).model
    integer, exact = Session(result, kernels=kernels), Session(case.sample.model(), kernels="optimized")
    rounded = Session(rounded_model(case), kernels="optimized")
    for inputs in case.sample.draw(RUNS):
        fed = rounded_inputs(result, inputs)
        runs = zip(
            computing(result).outputs,
            run_afresh(integer, fed),
            run_afresh(rounded, fed),
            run_afresh(exact, inputs),
            strict=True,
        )
        for output, got, wanted, unrounded in runs:
            assert got.shape == wanted.shape
            if output.params is None:
                np.testing.assert_array_equal(got, unrounded)
            else:
                assert units_off(got, wanted, output.params) <= tolerance(case.spec, case.activations) + SLACK
                assert units_off(unrounded, unrounded, output.params) <= 1 + SLACK
                low, high = output.params.range()
                assert np.abs(got - unrounded).mean() <= NEAR[case.activations, case.weights] * (high - low)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_everything_but_the_edges_is_integer(case: Case) -> None:
    """Nothing stays float; one QUANTIZE for each float input and one DEQUANTIZE for each float output."""
    result = quantized(case)
    assert result.skipped == ()
    op, main = computing(result.model), result.model.main
    assert op.kind == case.spec.kind
    assert op.version >= case.spec.kernels.versions.get(case.activations.label, 1)
    for slot, tensor in enumerate(op.inputs):
        assert tensor is None or tensor.dtype in allowed(case.spec.input_role(slot), case)
    for slot, tensor in enumerate(op.outputs):
        assert tensor.dtype in allowed(case.spec.output_role(slot), case)
    conversions = {kind: [op for op in main.ops if op.kind == kind] for kind in CONVERSIONS}
    assert {op.inputs[0] for op in conversions["QUANTIZE"]} <= set(main.inputs)
    assert {op.outputs[0] for op in conversions["DEQUANTIZE"]} <= set(main.outputs)
    for kind, ends in (("QUANTIZE", main.inputs), ("DEQUANTIZE", main.outputs)):
        assert len(conversions[kind]) == sum(t.dtype is DType.FLOAT32 for t in ends)


def allowed(role: Role, case: Case) -> tuple[DType, ...]:
    """The types in which an integer kernel may hold an operand."""
    if isinstance(role, Activation):
        return (case.activations,)
    if isinstance(role, Weight):
        return (case.weights,)
    if isinstance(role, Bias):
        return (DType.INT32, DType.INT64) if case.activations is DType.INT16 else (DType.INT32,)
    if isinstance(role, Coefficients):
        return (DType.INT16,)
    return tuple(dtype for dtype in DType if dtype is not DType.FLOAT32)


# What the table does not claim.

UNCLAIMED = [
    Case(sample, activations)
    for sample in {sample.kind: sample for sample in SAMPLES}.values()
    for activations in SCHEMES
    if activations not in OPS[sample.kind].types
]


@pytest.mark.parametrize("case", UNCLAIMED, ids=str)
def test_what_is_not_claimed_is_not_there(case: Case) -> None:
    """All of these end in an error rather than the process, as of LiteRT 2.3."""
    spec = case.spec
    kernels = replace(spec.kernels, types=tuple(SCHEMES), weights=dict.fromkeys(SCHEMES, (DType.INT8,)))
    claimed = replace(spec, kernels=kernels)
    request = Request(case.recipe(), statistics(case.sample), method="minmax", ops={**OPS, spec.kind: claimed})
    with pytest.raises(RuntimeFailure):
        run(case.sample.model(), request)


# Rows and samples belong together.


def test_every_row_has_samples_and_every_sample_has_a_row() -> None:
    assert {s.kind for s in SAMPLES} == {spec.kind for spec in OPS.values() if spec.types}
    assert {s.becomes for s in SAMPLES} - {None} <= OPS.keys()
    names = [str(s) for s in SAMPLES]
    assert len(set(names)) == len(names)
    assert all(activations in OPS[kind].types for kind, activations in LOOSE)


# Ops that only read a shape.


@pytest.mark.parametrize("activations", SCHEMES, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("kind", [k for k, s in OPS.items() if any(isinstance(r, ShapeOnly) for r in s.inputs)])
def test_shape_is_read_without_conversion(kind: str, activations: DType) -> None:
    x, y = build.act("x", 2, 3), build.act("y", 2, 3)
    size = build.act("size", *((2,) if kind == "SHAPE" else ()), dtype=DType.INT32)
    options = {"options": "ShapeOptions", "outType": 2} if kind == "SHAPE" else {"options": "RankOptions"}
    relu, reader = build.op("RELU", [x], y), build.op(kind, [y], size, **options)
    model = Model([build.graph("main", [x], [y, size], relu, reader)])
    data = [np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)]
    result = run(model, Request(Recipe((Rule(SCHEMES[activations]),)), calibrate(model, data), method="minmax"))
    ops = {op.kind: op for op in result.model.main.ops}
    assert ops.keys() == {"QUANTIZE", "RELU", "DEQUANTIZE", kind}
    assert ops[kind].inputs == ops["RELU"].outputs
    np.testing.assert_array_equal(Session(result.model).run(data)[1], [2, 3] if kind == "SHAPE" else 2)
