"""Every claim of the op table, run in LiteRT: one-op models, quantized, against the float op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration import calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.errors import RuntimeFailure
from zeropoint.graph import Model
from zeropoint.improve.pipeline import run
from zeropoint.ops import CONVERSIONS, OPS, Activation, Bias, Coefficients, Role, ShapeOnly, Weight
from zeropoint.plan.request import Request
from zeropoint.recipe import Recipe, Rule
from zeropoint.runtime import Kernels, Session
from zeropoint.simulation.rules import KernelSet

from .. import build
from .cases import (
    CASES,
    RUNS,
    SCHEMES,
    SIMULATED,
    SIMULATIONS,
    Case,
    computing,
    quantized,
    rounded_inputs,
    rounded_model,
    run_afresh,
    statistics,
    units_off,
)
from .samples import LOOSE, SAMPLES, tolerance

SLACK = 0.02
"""In units of the last place: what float32 loses on the way to int16 and back."""

NEAR = {
    (DType.INT8, DType.INT8): 0.005,
    (DType.UINT8, DType.UINT8): 0.005,
    (DType.INT16, DType.INT8): 0.001,
    (DType.INT8, DType.INT4): 0.03,
    (DType.INT16, DType.INT4): 0.03,
}
"""By types of activations and weights: what rounding the operands may take on average, of the output's range."""


@pytest.mark.parametrize(("case", "kernels"), [(case, kernels) for case in CASES for kernels in case.kernels], ids=str)
def test_integer_op_computes_what_the_float_op_does(case: Case, kernels: Kernels) -> None:
    """On rounded operands to a unit or so in the last place, on others nearly; truth values and indices exactly."""
    result = quantized(case).model
    integer, exact = Session(result, kernels=kernels), Session(case.sample.model(), kernels="optimized")
    rounded = Session(rounded_model(case), kernels="optimized")
    for number, inputs in enumerate(case.sample.draw(RUNS)):
        fed = rounded_inputs(result, inputs)
        if number < SIMULATED and kernels in SIMULATIONS:
            assert_simulated(result, inputs, SIMULATIONS[kernels], run_afresh(integer, inputs))
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
                usual = tolerance(case.spec, case.activations)
                allowed = usual if case.sample.loose is None else case.sample.loose.units
                assert units_off(got, wanted, output.params) <= allowed + SLACK
                assert units_off(unrounded, unrounded, output.params) <= 1 + SLACK
                low, high = output.params.range()
                assert np.abs(got - unrounded).mean() <= NEAR[case.activations, case.weights] * (high - low)


def assert_simulated(model: Model, inputs: Sequence[Array], kernels: KernelSet, wanted: Sequence[Array]) -> None:
    for simulated, run_by_litert in zip(zeropoint.simulate(model, inputs, kernels).outputs, wanted, strict=True):
        np.testing.assert_array_equal(simulated, run_by_litert)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_everything_but_the_edges_is_integer(case: Case) -> None:
    """Nothing stays float; one QUANTIZE for each float input and one DEQUANTIZE for each float output."""
    result = quantized(case)
    assert result.skipped == ()
    op, main, spec = computing(result.model), result.model.main, case.spec
    if spec.table is not None:
        spec = OPS["GATHER"]
    assert op.kind == spec.kind
    assert op.version >= spec.kernels.versions.get(case.activations.label, 1)
    for slot, tensor in enumerate(op.inputs):
        assert tensor is None or tensor.dtype in allowed(spec.input_role(slot), case)
    for slot, tensor in enumerate(op.outputs):
        assert tensor.dtype in allowed(spec.output_role(slot), case)
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

NOT_BY_ITS_SCALE = {("SCATTER_ND", DType.UINT8)}
"""Kernels that are there, but fill with integers 0, which is no zero point that uint8 has."""

UNCLAIMED = [
    Case(sample, activations, SCHEMES[activations].weights or DType.INT8)
    for sample in {sample.kind: sample for sample in SAMPLES}.values()
    for activations in SCHEMES
    if activations not in OPS[sample.kind].types and OPS[sample.kind].table is None
    if (sample.kind, activations) not in NOT_BY_ITS_SCALE
]


@pytest.mark.parametrize("case", UNCLAIMED, ids=str)
def test_what_is_not_claimed_is_not_there(case: Case) -> None:
    """All of these end in an error rather than the process, as of LiteRT 2.3."""
    spec = case.spec
    kernels = replace(spec.kernels, types=tuple(SCHEMES), weights={a: (s.weights,) for a, s in SCHEMES.items()})
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
