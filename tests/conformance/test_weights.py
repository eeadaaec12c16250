"""Where only weights are quantized: every row that takes some, against the float op on the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import PerBlock, dequantize
from zeropoint.dtypes import Array, DType
from zeropoint.graph import BlockScales, Model, Op, Tensor
from zeropoint.graph.edit import set_constant
from zeropoint.improve.pipeline import Result, run
from zeropoint.ops import CONVERSIONS, OPS, OpSpec
from zeropoint.ops.recurrent import LSTM
from zeropoint.plan.request import Request
from zeropoint.recipe import DYNAMIC, FLOAT16, WEIGHTS, Recipe, Rule, Scheme
from zeropoint.runtime import Kernels, Session
from zeropoint.simulation.rules import KernelSet

from .cases import SIMULATED, SIMULATIONS
from .samples import HYBRID_SAMPLES, SAMPLES, Sample

RUNS = 10
HYBRID_ERROR = 0.03
"""Of the greatest output. Rounding to 8 bits takes 0.01 of it, and several steps of a recurrent op take more."""


@dataclass(frozen=True)
class Case:
    sample: Sample
    scheme: Scheme

    def __str__(self) -> str:
        block = f"-block{self.scheme.block}" if self.scheme.block else ""
        weights = "" if self.scheme.weights is None else self.scheme.weights.label
        return f"{self.sample}-{self.scheme.label}-{weights}{block}{'-asymmetric' if self.scheme.asymmetric else ''}"

    @property
    def spec(self) -> OpSpec:
        return OPS[self.sample.kind]

    @property
    def kernels(self) -> tuple[Kernels, ...]:
        """The sets of kernels that have the op; the reference one of dense layers does not know blocks (2.3)."""
        no_blocks = self.sample.kind == "FULLY_CONNECTED" and self.scheme.block
        return ("delegate", "optimized") if no_blocks else ("delegate", "optimized", "reference")

    def result(self) -> Result:
        scheme = replace(self.scheme, min_elements=0)
        return run(self.sample.model(), Request(Recipe((Rule(scheme),))))


def held_slots(sample: Sample) -> list[int]:
    inputs = computing(sample.model()).inputs
    return [k for k, t in enumerate(inputs) if t is not None and t.data is not None and OPS[sample.kind].held(k)]


def computing(model: Model) -> Op:
    """The only op that does more than convert."""
    (op,) = [op for op in model.main.ops if op.kind not in CONVERSIONS]
    return op


def cases() -> Iterator[Case]:
    for sample in (*SAMPLES, *HYBRID_SAMPLES):
        spec = OPS[sample.kind]
        if held_slots(sample):
            yield from (Case(sample, replace(DYNAMIC, weights=t)) for t in spec.hybrid)
            yield from (Case(sample, replace(WEIGHTS, weights=t)) for t in (DType.INT8, DType.INT4, DType.INT2))
            yield Case(sample, replace(WEIGHTS, asymmetric=True))
            if "long" in sample.name:
                for kind in spec.kernels.blockwise:
                    yield Case(sample, replace(DYNAMIC, weights=kind, granularity=PerBlock(1, 32)))
        if any(isinstance(t, Tensor) and t.dtype.is_float and t.data is not None for t in model_inputs(sample)):
            yield Case(sample, FLOAT16)


def model_inputs(sample: Sample) -> list[Tensor | None]:
    return computing(sample.model()).inputs


CASES = list(cases())


def numbers(tensor: Tensor, model: Model) -> Array:
    """What a constant of the quantized model stands for, a DEQUANTIZE behind it included."""
    for op in model.main.ops:
        if op.kind == "DEQUANTIZE" and tensor in op.outputs:
            assert op.inputs[0] is not None
            tensor = op.inputs[0]
    data = tensor.data
    assert data is not None
    if tensor.params is not None:
        return dequantize(data, tensor.params)
    if tensor.quantization is not None and isinstance(tensor.quantization.details, BlockScales):
        scales = tensor.quantization.details.scales.data
        assert scales is not None
        blocks = data.reshape(*scales.shape, -1).astype(np.float32)
        return (blocks * scales[..., None].astype(np.float32)).reshape(data.shape)
    return data.astype(np.float32)


def is_constant(tensor: Tensor, model: Model) -> bool:
    made = [op for op in model.main.ops if tensor in op.outputs]
    return tensor.is_constant or any(op.inputs[0] is not None and op.inputs[0].is_constant for op in made)


def rounded_model(case: Case, result: Model) -> Model:
    """The float model with the numbers that the quantized one holds."""
    model, made = case.sample.model(), computing(result)
    order = range(len(made.inputs)) if made.kind == case.sample.kind else (1, 0)
    for slot, tensor in enumerate(computing(model).inputs):
        twin = made.inputs[order[slot]] if tensor is not None else None
        if tensor is not None and twin is not None and tensor.dtype.is_float and is_constant(twin, result):
            set_constant(tensor, numbers(twin, result), DType.FLOAT32)
    return model


@pytest.mark.parametrize(("case", "kernels"), [(case, kernels) for case in CASES for kernels in case.kernels], ids=str)
def test_ops_compute_what_the_float_op_does_with_rounded_weights(case: Case, kernels: Kernels) -> None:
    """Up to float rounding; with integer weights, as far as activations in 8 bits, rounded anew on each run, allow."""
    result = case.result()
    quantized, exact = (
        Session(result.model, kernels=kernels),
        Session(rounded_model(case, result.model), kernels=kernels),
    )
    error = 1e-5 if case.scheme.unpacked else HYBRID_ERROR
    for number, inputs in enumerate(case.sample.draw(RUNS)):
        quantized.reset()
        exact.reset()
        made = quantized.run(inputs)
        if number < SIMULATED and kernels in SIMULATIONS and case.scheme.label == DYNAMIC.label:
            assert_simulated(result.model, inputs, SIMULATIONS[kernels], made)
        for got, wanted in zip(made, exact.run(inputs), strict=True):
            if wanted.dtype.kind == "f":
                assert np.abs(got - wanted).max() <= error * np.abs(wanted).max() + 1e-30
            else:
                np.testing.assert_array_equal(got, wanted)


def assert_simulated(model: Model, inputs: Sequence[Array], kernels: KernelSet, wanted: Sequence[Array]) -> None:
    """Bit for bit; where there is a scale for each block of weights, to a millionth.

    LSTMs with layer normalization are left to LiteRT: it adds up floats there in an order of its own.
    """
    is_normalized = any(op.kind == LSTM and len(op.inputs) > 20 for op in model.main.ops)
    has_blocks = any(t.params is None for t in model.main.tensors if t.is_quantized)
    for simulated, run_by_litert in zip(
        zeropoint.simulate(model, inputs, kernels, float_rest=is_normalized).outputs, wanted, strict=True
    ):
        limit = 1e-6 * np.abs(run_by_litert).max() if has_blocks else 0.0
        np.testing.assert_allclose(simulated, run_by_litert, rtol=0, atol=limit)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_constants_are_held_as_asked(case: Case) -> None:
    result = case.result()
    assert result.skipped == ()
    held = [t.dtype for t in result.model.main.tensors if t.is_constant]
    assert case.scheme.weights in held
    if case.scheme.weights is DType.FLOAT16:
        assert DType.FLOAT32 not in held
    op = computing(result.model)
    blocks = [
        t for t in op.inputs if t is not None and t.quantization is not None and t.quantization.details is not None
    ]
    plain = case.sample.options.get("fusedActivationFunction", 0) == 0
    assert bool(blocks) == (case.scheme.block is not None and plain)
    if not case.scheme.unpacked:
        labels = {"hybrid", case.scheme.weights.label if case.scheme.weights else ""}
        assert op.version >= max(case.spec.kernels.versions.get(label, 1) for label in labels)


def test_every_row_that_takes_integer_weights_has_a_sample() -> None:
    claimed = {(spec.kind, dtype) for spec in OPS.values() for dtype in spec.hybrid}
    tested = {(c.sample.kind, c.scheme.weights) for c in CASES if c.scheme.label == "dynamic"}
    assert tested == claimed


@pytest.mark.parametrize("kind", sorted(s.kind for s in OPS.values() if s.hybrid and DType.INT4 not in s.hybrid))
def test_too_few_bits_give_the_next_wider_kernel(kind: str) -> None:
    sample = next(s for s in (*SAMPLES, *HYBRID_SAMPLES) if s.kind == kind and held_slots(s))
    result = Case(sample, replace(DYNAMIC, weights=DType.INT4)).result()
    assert result.notes == (f"1 {kind} with int8 weights: LiteRT has no int4 kernel for it",)
