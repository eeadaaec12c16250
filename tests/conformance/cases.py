"""Claims of the op table as models: a sample, the types that it is quantized to, and what LiteRT makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from zeropoint.affine import QuantParams, dequantize, quantize
from zeropoint.calibration import Range, Ranges, Stats, TensorStats, calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Op
from zeropoint.graph.edit import set_constant
from zeropoint.improve.pipeline import Result, run
from zeropoint.ops import CONVERSIONS, OPS, OpSpec
from zeropoint.plan.request import Request
from zeropoint.recipe import INT8 as INT8_SCHEME
from zeropoint.recipe import INT16X8 as INT16_SCHEME
from zeropoint.recipe import UINT8 as UINT8_SCHEME
from zeropoint.recipe import Recipe, Rule
from zeropoint.runtime import Kernels, Session
from zeropoint.simulation.rules import KernelSet

from .samples import SAMPLES, Sample

SCHEMES = {DType.INT8: INT8_SCHEME, DType.INT16: INT16_SCHEME, DType.UINT8: UINT8_SCHEME}
RUNS = 20
SIMULATED = 3
"""Runs that are also simulated, bit for bit."""
SIMULATIONS: Mapping[Kernels, KernelSet] = {"reference": "reference", "delegate": "xnnpack"}
NO_REFERENCE = frozenset({"ELU"})
"""Ops that LiteRT's set of reference kernels lacks, in float as well (2.3)."""


@dataclass(frozen=True)
class Case:
    """A sample with one of the types that its row claims.

    `stretch` makes its outputs hold another range than they have: about twice as wide, and so many times that. This is
    what a neighbour can ask for. It tells kernels that rescale from those that need one scale throughout.
    """

    sample: Sample
    activations: DType
    weights: DType = DType.INT8
    stretch: float | None = None
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS, compare=False)

    def __str__(self) -> str:
        narrow = f"-{self.weights.label}" if self.weights is not DType.INT8 else ""
        return f"{self.sample}-{self.activations.label}{narrow}{'' if self.stretch is None else '-stretched'}"

    @property
    def kernels(self) -> tuple[Kernels, ...]:
        """The sets of kernels that have the op."""
        return ("delegate", "optimized") if self.sample.kind in NO_REFERENCE else ("delegate", "optimized", "reference")

    @property
    def spec(self) -> OpSpec:
        return self.ops[self.sample.becomes or self.sample.kind]

    def recipe(self) -> Recipe:
        return Recipe((Rule(replace(SCHEMES[self.activations], weights=self.weights)),))

    def ranges(self) -> Ranges:
        measured = statistics(self.sample).tensors
        if self.stretch is None:
            return Ranges({})
        return Ranges({n: stretched(t, self.stretch) for n, t in measured.items() if n.startswith("out")})


def stretched(measured: TensorStats, factor: float) -> Range:
    low, high = measured.low.value, measured.high.value
    return Range(factor * (low - 0.2 * (high - low)), factor * (high + 0.7 * (high - low)), "stretched")


def cases() -> Iterator[Case]:
    """What the rows claim."""
    seen = set()
    for sample in SAMPLES:
        spec = OPS[sample.becomes or sample.kind]
        for activations in spec.types:
            usual = SCHEMES[activations].weights or DType.INT8
            for weights in spec.weights.get(activations, (usual,)):
                yield Case(sample, activations, weights)
            if (sample.kind, activations) not in seen and activations not in spec.fixed:
                seen.add((sample.kind, activations))
                yield Case(sample, activations, usual, stretch=1.0)


CASES = list(cases())


@cache
def statistics(sample: Sample) -> Stats:
    return calibrate(sample.model(), sample.draw(RUNS))


@cache
def quantized(case: Case) -> Result:
    # quick: no bias is added to ops that have none, so that both models hold the same constants.
    wanted = case.recipe(), statistics(case.sample), case.ranges()
    request = Request(*wanted, method="minmax", effort="quick", ops=case.ops)
    return run(case.sample.model(), request)


def computing(model: Model) -> Op:
    """The only op that does more than convert; where a table is looked up, that which does it."""
    *places, op = [op for op in model.main.ops if op.kind not in CONVERSIONS]
    assert [each.kind for each in places] in ([], ["CAST"], ["CAST", "ADD"])
    return op


def rounded_model(case: Case) -> Model:
    """The float model with the constants that the quantized one has."""
    model = case.sample.model()
    if case.sample.becomes is not None or case.spec.table is not None:
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
