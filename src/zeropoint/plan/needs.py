"""What some integer kernels need besides their types, each with a test for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..calibration.range_methods import Bounds
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..ops import Need, OpSpec, fused_activation
from ..ops.interpolation import constant_exponent
from ..ops.recurrent import Gate, LstmSlot
from .plan import Plan
from .tensor_ranges import TensorRanges

FURTHEST_FROM_POLE = 64
"""Maximum ratio of the largest input to the smallest for which 16 bits resolve values near a pole."""

LONGEST_ROW = 163
"""Numbers in a row of an int16 softmax, each counted as 2/32768, that make up 1 %."""

FAR_BELOW = 10.0
"""Below the greatest of a row by more than this, int16 kernels take every number as this far below."""


@dataclass(frozen=True)
class KernelUse:
    """An op that is to be computed by the kernel for an activation type."""

    op: Op
    spec: OpSpec
    activations: DType
    ranges: TensorRanges

    @property
    def source(self) -> Tensor | None:
        return self.op.inputs[0]

    @property
    def bounds(self) -> Bounds | None:
        """The known range of the first input."""
        source = self.source
        return self.ranges.bounds(source) if source is not None and self.ranges.knows(source) else None


def _is_nonnegative(use: KernelUse) -> bool:
    return use.bounds is not None and use.bounds[0] >= 0


def _has_constant_weights(use: KernelUse) -> bool:
    return all(t.data is not None for t in use.spec.weight_tensors(use.op))


def _has_states(use: KernelUse) -> bool:
    return len(use.op.inputs) > LstmSlot.CELL_STATE


def _has_peepholes_or_projection(use: KernelUse) -> bool:
    """Whether the LSTM has peepholes or a projection, but not both."""
    inputs, peepholes = use.op.inputs, [gate.peephole for gate in Gate if gate.peephole is not None]
    return inputs[LstmSlot.PROJECTION] is None or all(inputs[slot] is None for slot in peepholes)


def _is_far_from_pole(use: KernelUse) -> bool:
    low, high = use.bounds or (0.0, 0.0)
    return use.activations is not DType.INT16 or low >= max(abs(low), abs(high)) / FURTHEST_FROM_POLE


def _sum_fits(use: KernelUse) -> bool:
    terms = 0 if use.source is None else use.source.size // max(1, use.op.outputs[0].size)
    return math.log2(max(1, terms)) + use.activations.bits - 1 < 31


def _has_short_rows(use: KernelUse) -> bool:
    """Whether the rows are short, or nothing in them is far below the rest."""
    source, (low, high) = use.source, use.bounds or (-math.inf, math.inf)
    is_short = source is not None and bool(source.shape) and 0 <= source.shape[-1] <= LONGEST_ROW
    is_near = (high - low) * float(use.op.option("beta", 1.0)) <= FAR_BELOW
    return use.activations is not DType.INT16 or is_short or is_near


def _has_distinct_indices(use: KernelUse) -> bool:
    indices = None if use.source is None else use.source.data
    if indices is None:
        return False
    places = indices.reshape(-1, indices.shape[-1])
    return len(np.unique(places, axis=0)) == len(places)


NEEDS: Mapping[Need, Callable[[KernelUse], bool]] = {
    Need.NONNEGATIVE: _is_nonnegative,
    Need.CONSTANT_WEIGHTS: _has_constant_weights,
    Need.HAS_STATES: _has_states,
    Need.NO_PROJECTED_PEEPHOLES: _has_peepholes_or_projection,
    Need.NO_PROJECTION_BIAS: lambda use: use.op.inputs[LstmSlot.PROJECTION_BIAS] is None,
    Need.FAR_FROM_POLE: _is_far_from_pole,
    Need.SUM_FITS: _sum_fits,
    Need.SHORT_ROWS: _has_short_rows,
    Need.RELU: lambda use: fused_activation(use.op).name == "RELU",
    Need.CONSTANT_EXPONENT: lambda use: constant_exponent(use.op) is not None,
    Need.DISTINCT_INDICES: _has_distinct_indices,
    Need.CONSTANT_DIVISOR: lambda _: False,  # divisions that can be products have already been replaced
}


def imprecise_notes(plans: Iterable[Plan], ops: Mapping[str, OpSpec], ranges: TensorRanges) -> Iterator[str]:
    """Yield a note for each kernel that is used without what it prefers."""
    for plan in plans:
        for op, scheme in plan.schemes.items():
            spec, kind = ops[op.kind], scheme.activations
            for need in spec.kernels.prefers:
                if kind is not None and not NEEDS[need](KernelUse(op, spec, kind, ranges)):
                    yield f"{op.label} '{op.name}' is imprecise: {need.value}"
