"""Running sums over samples from which errors are computed, so that memory does not grow with the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams, broadcast_shape
from ..bench.errors import Compared, ErrorSum, decibels, real
from ..bench.judged_outputs import PLAIN, JudgedOutputs, OutputKind
from ..bench.kind_recognition import OutputSeen, kind_of
from ..bench.measure import ErrorTable, dot
from ..bench.output_kinds import ROWS, Figures, KindRow
from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..ops import CONVERSIONS, Activation, OpSpec
from .values import Deviation, Occupancy, OutputRow

KIND_SAMPLES, MOST_LOOKS = 8, 1024
"""By how many samples a kind is recognized where they come one by one, and of how many figures are kept then."""


@dataclass
class DeviationSums(ErrorSum):
    """Running error sums of one tensor. `scale` is the size of an integer step, None for floats."""

    scale: float | None = None
    other_power: float = 0.0
    product: float = 0.0
    count: int = 0
    absolute: float = 0.0
    largest: float = 0.0

    def add(self, wanted: Array, found: Array) -> Array:
        """Add one run's real values."""
        flat, other = (np.asarray(a, np.float32).reshape(-1) for a in (wanted, found))
        gap = super().add(flat, other)
        self.other_power += dot(other, other)
        self.product += dot(flat, other)
        self.count += gap.size
        if gap.size:
            np.abs(gap, out=gap)
            self.absolute += float(gap.sum(dtype=np.float64))
            self.largest = max(self.largest, float(gap.max()))
        return gap

    @property
    def relative(self) -> float:
        """The relative squared error; if all wanted values are zero, 1 for any error at all."""
        return super().relative if self.power > 0 else float(self.error != 0)

    @property
    def mean(self) -> float:
        """The mean absolute error."""
        return self.absolute / max(1, self.count)

    def deviation(self) -> Deviation:
        norm = math.sqrt(self.power) * math.sqrt(self.other_power)
        cosine = self.product / norm if norm > 0 and math.isfinite(norm) else None
        ulps = (None, None) if self.scale is None else (self.mean / self.scale, self.largest / self.scale)
        return Deviation(decibels(self.relative), cosine, *ulps)


@dataclass
class RunningFigures:
    """What is said of one output while samples come in. Its kind is what a user says, or what the first samples look
    like."""

    seen: OutputSeen
    said: OutputKind | None = None
    _first: list[tuple[Array, tuple[Array, Array]]] = field(default_factory=list)
    _looks: list[Array] = field(default_factory=list)
    _row: KindRow | None = None

    def add(self, wanted: Array, found: Array, counted: tuple[Array, Array] | None = None) -> None:
        """Add one run's output of both models, of which only the values in `counted` may count."""
        both = counted or (wanted, found)
        if not both[0].size:
            return
        if self._row is None:
            self._first.append((wanted, both))
            if len(self._first) == KIND_SAMPLES:
                self._decide()
        elif len(self._looks) < MOST_LOOKS:
            self._looks.append(self._row.look(*both))

    def _decide(self) -> KindRow:
        if self._row is None:
            seen = replace(self.seen, values=[wanted for wanted, _ in self._first])
            self._row = ROWS[self.said or kind_of(seen)]
            self._looks += [self._row.look(*both) for _, both in self._first]
            self._first = []
        return self._row

    def figures(self) -> tuple[OutputKind, Figures] | None:
        """Return the kind, and what is said; None without samples."""
        if self._row is None and not self._first:
            return None
        row = self._decide()
        return row.kind, row.say(self._looks)


@dataclass
class OutputSums:
    """Running error sums of the output at `place` of the float model's `graph`.

    The error is that of `compared`, as everywhere.
    """

    graph: Graph
    place: int
    ops: Mapping[str, OpSpec]
    sums: DeviationSums = field(default_factory=DeviationSums)
    compared: Compared | None = None
    outputs: JudgedOutputs = PLAIN
    judged: ErrorTable = field(default_factory=ErrorTable)
    agreeing: int = 0
    rows: int = 0
    runs: int = 0
    is_distribution: bool = True

    def __post_init__(self) -> None:
        compared = self.compared or Compared(self.place)
        self.judged.least = compared.least
        self.seen = OutputSeen(compared, self.graph, self.ops, ())
        self.words = RunningFigures(self.seen, self.outputs.kind(self.graph.outputs[self.place].name))

    def add(self, wanted: Array, found: Array, judged: tuple[Array, Array] | None = None) -> None:
        """Add one run's output of both models, and the tensors that are `judged` if those are different ones."""
        if wanted.shape != found.shape:
            return
        self.runs += 1
        self.sums.add(wanted, found)
        if wanted.dtype.kind == "f" and wanted.size:
            exact, own = judged or (wanted, found)
            if exact.size:
                self.judged.add(exact, own)
            is_scored = self.compared is not None and self.compared.scored_by is not None
            self.words.add(np.array(wanted), np.array(found), judged if is_scored else None)
        if wanted.ndim in (1, 2) and wanted.shape[-1] > 1 and wanted.size:
            table, other = (a.reshape(-1, wanted.shape[-1]) for a in (wanted, found))
            self.agreeing += int((table.argmax(-1) == other.argmax(-1)).sum())
            self.rows += len(table)
            self.is_distribution &= bool(table.min() >= -1e-3 and np.all(np.abs(table.sum(-1) - 1) < 0.02))

    @property
    def agreement(self) -> float | None:
        """The share of samples with the same largest element, if the output looks like class scores."""
        means_classes = self.rows and (self.is_distribution or self._looks_like_logits())
        return self.agreeing / self.rows if means_classes else None

    @property
    def relative(self) -> float:
        """The error of the tensor that is judged, relative to what it varies by; of integers, to their squares."""
        return self.judged.error.value if self.judged.moments else self.sums.relative

    def row(self, name: str) -> OutputRow:
        sums, compared = self.sums, self.compared or Compared(self.place)
        deviation = replace(sums.deviation(), snr=decibels(self.relative))
        where, tensor = compared.label(self.graph), self.graph.outputs[self.place].name
        row = OutputRow(name, deviation, sums.largest, sums.mean, self.agreement, where, tensor)
        words, weight = self.words.figures(), self.outputs.weight(tensor)
        kind, text = (None, "") if words is None else (words[0], words[1].text)
        return replace(row, kind=kind, text=text, weight=weight)

    def _looks_like_logits(self) -> bool:
        """Whether the output looks like class scores: logits, that is a dense layer with fewer outputs than inputs and
        no activation; or log-probabilities.

        Embeddings and reconstructions have a largest element as well, but it means nothing.
        """
        _, spec = self.seen.maker
        return self.seen.narrows_to_logits or (spec is not None and spec.probabilities == "row")


@dataclass
class IntegerUse:
    """How much of its integer range a tensor uses."""

    params: QuantParams
    count: int = 0
    low: int = 0
    high: int = 0
    least: float = math.inf
    greatest: float = -math.inf

    def add(self, wanted: Array, integers: Array) -> None:
        if not integers.size:
            return
        bottom, top = self.params.range()
        half = self.params.scale / 2
        self.least, self.greatest = min(self.least, int(integers.min())), max(self.greatest, int(integers.max()))
        self.count += wanted.size
        self.low += int(np.count_nonzero(wanted < bottom - half))
        self.high += int(np.count_nonzero(wanted > top + half))

    def occupancy(self) -> Occupancy | None:
        if not self.count:
            return None
        used = (self.greatest - self.least) / (self.params.dtype.max - self.params.dtype.min)
        return Occupancy(self.low / self.count, self.high / self.count, used)


@dataclass(frozen=True)
class RelevantRange:
    """Which differences of a tensor's values matter: quantizers rightly clip values that no reader can tell apart.

    Values beyond `low` and `high` are equivalent to these bounds; so are values more than `reach` below the maximum of
    their row, as before a softmax.
    """

    low: float = -math.inf
    high: float = math.inf
    reach: float = math.inf

    def of(self, values: Array) -> Array:
        """Return `values` without the differences that do not matter."""
        kept = np.clip(values, self.low, self.high) if self.low > -math.inf or self.high < math.inf else values
        if self.reach < math.inf and kept.ndim and kept.size:
            kept = np.maximum(kept, kept.max(axis=-1, keepdims=True) - np.float32(self.reach))
        return np.asarray(kept, np.float32)


def relevant_ranges(graph: Graph, ops: Mapping[str, OpSpec]) -> dict[Tensor, RelevantRange]:
    """Return the relevant range of each tensor that is read only by ops that saturate, perhaps after a conversion."""
    uses, known = Uses(graph), dict[Tensor, RelevantRange]()
    for op in reversed(graph.ops):
        source = op.inputs[0] if op.kind in CONVERSIONS else None
        for tensor in op.outputs:
            readers = [use.op for use in uses.readers(tensor)]
            if not readers or uses.is_output(tensor):
                continue
            dtype = tensor.dtype if source is None else source.dtype  # a float island reads what integers could hold
            read = [_relevant_to(reader, dtype, known, ops) for reader in readers]
            widest = RelevantRange(min(r.low for r in read), max(r.high for r in read), max(r.reach for r in read))
            if widest != RelevantRange():
                known[tensor] = widest
    return known


def _relevant_to(
    reader: Op, dtype: DType, known: Mapping[Tensor, RelevantRange], ops: Mapping[str, OpSpec]
) -> RelevantRange:
    """Return the range in which `reader` can tell values apart; `known` are the ranges of tensors behind it."""
    if reader.kind in CONVERSIONS:
        return known.get(reader.outputs[0], RelevantRange())
    spec = ops.get(reader.kind)
    if spec is None or not reader.outputs:
        return RelevantRange()
    if (reach := spec.negligible_in(reader)) is not None:
        return RelevantRange(reach=reach)
    if spec.tied and sum(isinstance(spec.input_role(k), Activation) for k in range(len(reader.inputs))) == 1:
        # It moves values, so rows may have changed.
        behind = [known.get(t, RelevantRange()) for t in reader.outputs]
        return RelevantRange(min(r.low for r in behind), max(r.high for r in behind))
    return RelevantRange(*spec.saturates.get(dtype, (-math.inf, math.inf)))


class TensorSums:
    """Running error sums of one tensor of the quantized model: in the whole model, and of its op by itself."""

    def __init__(self, tensor: Tensor, relevant: RelevantRange) -> None:
        self.tensor, self.relevant = tensor, relevant
        self.accumulated, self.own = (DeviationSums(scale=unit_of(tensor)) for _ in range(2))
        params = tensor.params
        self.use = None if params is None or params.axis is not None else IntegerUse(params)

    def add(self, sums: DeviationSums | ChannelGains, exact: Array, found: Array) -> None:
        """Add one run's values; `found` are as stored."""
        if exact.shape == found.shape:
            sums.add(self.relevant.of(exact), self.relevant.of(real(found, self.tensor)))


def unit_of(tensor: Tensor) -> float | None:
    """Return the real size of one integer step; None for floats and per-channel scales."""
    params = tensor.params
    return None if params is None or params.axis is not None else params.scale


MOST_GAIN = 1000.0
"""Equalization changes no channel by more than this factor. Anything beyond is a lost channel."""

ROUNDING = 1e-2
"""The maximum relative error of channels that count as scaled."""

LEAST_APART = 1.2
"""The minimum ratio of the largest factor to the smallest; smaller differences are chance."""

FITTED = 32
"""Values needed to estimate each factor."""

UNSCALED = 1e-3
"""Below this relative error, channels count as unchanged."""


@dataclass
class ChannelGains:
    """Detects whether the channels of a tensor were scaled on purpose: q = g f, with a factor g for each slice along an
    axis.

    Cross-layer equalization does that; readers of the tensor compensate for it.
    """

    plain: ErrorSum = field(default_factory=ErrorSum)
    count: int = 0
    by_axis: dict[int, list[Array]] = field(default_factory=dict)

    def add(self, wanted: Array, found: Array) -> None:
        once = ErrorSum()
        once.add(wanted, found)
        self.plain += once
        self.count += wanted.size
        if once.relative < UNSCALED:
            return
        exact, other = wanted.astype(np.float64), found.astype(np.float64)
        products = exact * other, exact * exact, other * other
        for axis, size in enumerate(wanted.shape):
            if size > 1:
                rest = tuple(k for k in range(wanted.ndim) if k != axis)
                parts = [p.sum(axis=rest) for p in products]
                known = self.by_axis.get(axis)
                if known is not None and known[0].shape != parts[0].shape:  # a dimension that varies is no channel
                    continue
                self.by_axis[axis] = parts if known is None else [a + b for a, b in zip(known, parts, strict=True)]

    def factors(self) -> tuple[int, Array] | None:
        """Return the axis and its factors; None if the channels were not scaled.

        The squared error that remains with the best factors is the sum of q² - (fq)² / f². It has to be at most a tenth
        of the error without them, and no more than rounding explains; no channel may be lost, and each needs enough
        values that factors do not fit by chance.
        """
        best: tuple[float, int, Array] | None = None
        for axis, (product, power, other) in self.by_axis.items():
            if self.count < FITTED * product.size:
                continue
            live = power > 0
            with np.errstate(divide="ignore", invalid="ignore"):
                gains = np.where(live, product / power, 1.0)
                left = np.where(live, other - product * gains, 0.0)
                relative = float(left.sum()) / max(float((gains**2 * power).sum()), 1e-300)
            apart = float(gains.max()) / float(gains.min()) if gains.min() > 0 else 0.0
            plausible = apart > LEAST_APART and bool(np.all((gains > 1 / MOST_GAIN) & (gains < MOST_GAIN)))
            if plausible and (best is None or relative < best[0]):
                best = relative, axis, gains
        if best is None or best[0] > min(ROUNDING, 0.1 * self.plain.relative):
            return None
        return best[1], best[2].astype(np.float32)


def along(axis: int, factors: Array, tensor: Tensor) -> Array:
    """Return the factors in a shape that broadcasts to that of `tensor`."""
    return factors.reshape(broadcast_shape(axis, len(tensor.shape)))


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) == len(to) and all(a in (1, b) for a, b in zip(shape, to, strict=True))
