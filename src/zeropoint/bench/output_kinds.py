"""Kinds of outputs: how each is recognized, what is said of it in its own words, and which errors it can bear.

A kind is a row of `ROWS`. Its `look` compares two versions' values of one sample, and returns a few numbers; `say`
makes a sentence of them for all samples. The limits are errors of `measure` up to which an output is good, and usable:
`python -m benchmarks.error_measure` shows how they agree with the metrics of real tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..display import counted
from ..dtypes import Array
from ..graph.model import Graph
from ..graph.query import Uses
from ..ops import OpSpec, fused_activation
from ..ops.layout import DENSE
from .errors import Compared, decibels
from .judged_outputs import OutputKind
from .measure import IN_KIND, MOST_CHANNELS, MOST_ELEMENTS, Yardstick, channel_axis, channels_last, quantile

HALF = 0.5
"""The probability from which an answer is yes."""

SURE = 0.5
"""Probability from which the float model counts as confident of a class. Close calls may change in any version."""

FEWEST_SURE = 4
"""If the float model is sure of fewer answers, all of them count."""

SUM_OFF, NORM_OFF = 0.02, 0.01
"""How far probabilities of a row may be from 1 in sum, and unit vectors from length 1."""

SMALLEST_EMBEDDING, WIDE_EMBEDDING, SMALLEST_PICTURE, FEWEST_TOKENS = 16, 64, 8, 32
"""Least elements of an embedding of length 1, and of another one; height and width of a picture; number of different
tokens."""

WORST = 0.95
"""Quantile that stands for the worst: one in twenty is worse."""

KEPT = 2048
"""Most differences of one sample that are kept to find typical ones."""

KIND_SAMPLES, MOST_LOOKS = 8, 1024
"""By how many samples a kind is recognized where they come one by one, and of how many figures are kept then."""

CERTAIN = 1.96
"""Standard errors of a 95 % confidence interval."""

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """What was seen of an output on all samples: a sentence, the share of equal answers, and the least share that is
    likely for other samples; None for outputs that do not answer anything."""

    text: str
    share: float | None = None
    least: float | None = None


@dataclass(frozen=True)
class KindRow:
    """A kind of output: the errors up to which it is good and usable; what is looked at, and said."""

    kind: OutputKind
    limits: tuple[float, float]
    look: Callable[[Array, Array], Array]
    say: Callable[[Sequence[Array]], Figures]


def least_likely(hits: int, count: int) -> float:
    """Return the lower end of the 95 % confidence interval of a share (Wilson)."""
    if not count:
        return 0.0
    share, z = hits / count, CERTAIN**2 / count
    return (share + z / 2 - CERTAIN * math.sqrt(share * (1 - share) / count + z / count / 4)) / (1 + z)


# What is looked at in a sample.


def probabilities(values: Array) -> Array:
    """Return probabilities, also from log-probabilities and logits."""
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    if _are_rows_of_probabilities(rows):
        return np.exp(rows) if rows.max() <= 0 else rows
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _same_classes(wanted: Array, found: Array) -> Array:
    """[confident, the same, and both] for each answer of the float model."""
    exact, own = (values.reshape(-1, values.shape[-1]) for values in (wanted, found))
    sure, same = probabilities(wanted).max(axis=-1) >= SURE, exact.argmax(axis=-1) == own.argmax(axis=-1)
    return np.array([sure.sum(), same.sum(), (sure & same).sum(), len(exact)], np.float64)


def _positives(wanted: Array, found: Array) -> Array:
    """[positive in the float model, in the other, in both, answers]."""
    limit = HALF if wanted.min(initial=0.0) >= 0 and wanted.max(initial=0.0) <= 1 else 0.0
    exact, own = wanted > limit, found > limit
    return np.array([exact.sum(), own.sum(), (exact & own).sum(), exact.size], np.float64)


def _overlap(wanted: Array, found: Array) -> Array:
    """[intersection over union of what is foreground] of a mask."""
    if wanted.shape[-1] > 1 and wanted.ndim > 3:
        exact, own = wanted.argmax(axis=-1), found.argmax(axis=-1)
        return np.array([float((exact == own).mean())])
    limit = HALF if wanted.min(initial=0.0) >= 0 and wanted.max(initial=0.0) <= 1 else 0.0
    exact, own = wanted > limit, found > limit
    return np.array([float((exact & own).sum() / (exact | own).sum()) if (exact | own).any() else 1.0])


def _differences(wanted: Array, found: Array) -> Array:
    """Two tables of some values, and how far the other version is from them: [positions, channels]."""
    axis = channel_axis(wanted.shape)
    axis = axis if axis is not None and wanted.shape[axis] <= MOST_CHANNELS else None
    rows, own = (channels_last(values, axis) for values in (wanted, found))
    step = -(-rows.size // KEPT) or 1
    return np.array([rows[::step], np.abs(own - rows)[::step]])


def _angle(wanted: Array, found: Array) -> Array:
    """[angle in degrees]."""
    exact, own = (np.asarray(values, np.float64).reshape(-1) for values in (wanted, found))
    norm = float(np.linalg.norm(exact) * np.linalg.norm(own))
    if not math.isfinite(norm):
        return np.array([180.0])
    cosine = float(exact @ own) / norm if norm > 0 else float(not exact.any() and not own.any())
    return np.array([math.degrees(math.acos(min(1.0, max(-1.0, cosine))))])


def _energies(wanted: Array, found: Array) -> Array:
    """[energy of the difference, energy around the mean]."""
    flat, own = (np.asarray(values, np.float64).reshape(-1) for values in (wanted, found))
    return np.array([float(((own - flat) ** 2).sum()), float(((flat - flat.mean()) ** 2).sum())])


# What is said of all samples.


def _say_classes(seen: Sequence[Array]) -> Figures:
    sure, same, both, count = (int(number) for number in np.sum(seen, axis=0))
    if sure < FEWEST_SURE:
        why = f"; the float model is sure of {sure or 'none'}"
        return Figures(f"the same in {same} of {count}{why}", same / count, least_likely(same, count))
    beside = "" if sure == count else f" of which the float model is sure ({same} of all {count})"
    return Figures(f"the same in {both} of {sure}{beside}", both / sure, least_likely(both, sure))


def _say_tokens(seen: Sequence[Array]) -> Figures:
    _, same, _, count = (int(number) for number in np.sum(seen, axis=0))
    return Figures(f"the same in {same} of {count} places", same / count, least_likely(same, count))


def _say_scores(seen: Sequence[Array]) -> Figures:
    exact, own, both, count = (int(number) for number in np.sum(seen, axis=0))
    if not exact:
        return Figures(f"{own} of {count:,} above the threshold, none in the float model", float(not own))
    more = f", and {counted(own - both, 'other')}" if own > both else ""
    text = f"{both} of the {exact} above the threshold in the float model{more} (of {count:,})"
    return Figures(text, 2 * both / (exact + own), least_likely(both, exact))


def _say_mask(seen: Sequence[Array]) -> Figures:
    overlaps = np.concatenate(list(seen))
    typical, worst = quantile(overlaps, 0.5), quantile(overlaps, 1 - WORST)
    return Figures(f"{typical:.1%} overlap with the float model's, {worst:.1%} in the worst twentieth", float(typical))


def _say_differences(seen: Sequence[Array]) -> Figures:
    if len({one.shape[2] for one in seen}) > 1:  # an axis that varies holds no channels
        seen = [one.reshape(2, -1, 1) for one in seen]
    values, gaps = (np.concatenate([one[k] for one in seen]) for k in (0, 1))
    if not np.isfinite(gaps).all():
        return Figures("some are not numbers")
    spread = quantile(values, WORST) - quantile(values, 1 - WORST)
    ranges = np.where(spread > 0, spread, np.abs(values).max(axis=0))
    if ranges.max() > IN_KIND**0.5 * max(ranges.min(), 0.0):  # different quantities
        shares = (gaps / np.where(ranges > 0, ranges, 1.0)).reshape(-1)
        typical, worst = quantile(shares, 0.5), quantile(shares, WORST)
        return Figures(f"{typical:.2%} off, {worst:.2%} in the worst twentieth, of the usual range of each channel")
    typical, worst = quantile(gaps.reshape(-1), 0.5), quantile(gaps.reshape(-1), WORST)
    flat = values.reshape(-1)
    whole = quantile(flat, WORST) - quantile(flat, 1 - WORST) if flat.size > 1 else np.abs(flat).max()
    return Figures(f"{typical:.3g} off, {worst:.3g} in the worst twentieth, of a usual range of {whole:.3g}")


def _say_angle(seen: Sequence[Array]) -> Figures:
    angles = np.concatenate(list(seen))
    return Figures(f"{quantile(angles, 0.5):.3g}° off, {quantile(angles, WORST):.3g}° in the worst twentieth")


def _say_signal(seen: Sequence[Array]) -> Figures:
    ratios = np.array([decibels(error / power if power > 0 else error) for error, power in seen])
    typical, worst = quantile(ratios, 0.5), quantile(ratios, 1 - WORST)
    return Figures(f"noise {typical:.1f} dB below it, {worst:.1f} dB in the worst twentieth")


ROWS: Mapping[OutputKind, KindRow] = {
    row.kind: row
    for row in (
        KindRow("classes", (0.045, 0.085), _same_classes, _say_classes),
        KindRow("scores", (0.017, 0.045), _positives, _say_scores),
        KindRow("points", (0.011, 0.06), _differences, _say_differences),
        KindRow("mask", (0.02, 0.075), _overlap, _say_mask),
        KindRow("embedding", (0.1, 0.25), _angle, _say_angle),
        KindRow("signal", (0.02, 0.075), _energies, _say_signal),
        KindRow("tokens", (0.02, 0.06), _same_classes, _say_tokens),
        KindRow("detections", (0.05, 0.2), _differences, _say_differences),
        KindRow("values", (0.01, 0.05), _differences, _say_differences),
    )
}


# How a kind is recognized.


@dataclass(frozen=True)
class OutputSeen:
    """What a kind is recognized by: the graph, and the float model's values of an output on some samples."""

    compared: Compared
    graph: Graph
    ops: Mapping[str, OpSpec]
    values: Sequence[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values[0].shape

    @property
    def positions(self) -> int:
        return max(1, self.values[0].size // max(1, self.shape[-1])) if self.shape else 1

    @property
    def is_picture(self) -> bool:
        """Whether it has a height and a width."""
        return len(self.shape) == 4 and min(self.shape[1:3]) >= SMALLEST_PICTURE

    @property
    def is_like_an_input(self) -> bool:
        return any(t.shape[1:] == self.shape[1:] and t.size > 1 for t in self.graph.inputs if t.dtype.is_float)

    @property
    def reads_tokens(self) -> bool:
        return any(t.dtype.is_integer and not t.is_quantized for t in self.graph.inputs)

    @property
    def narrows_to_logits(self) -> bool:
        """Whether a dense layer without an activation makes it, with fewer outputs than inputs."""
        op = Uses(self.graph).producer(self.graph.outputs[self.compared.place])
        spec = None if op is None else self.ops.get(op.kind)
        if op is None or spec is None or not op.inputs or op.inputs[0] is None:
            return False
        is_dense = spec.layout == DENSE and fused_activation(op).name == "NONE"
        return is_dense and op.outputs[0].shape[-1:] < op.inputs[0].shape[-1:]


@dataclass
class RunningFigures:
    """What is said of one output while samples come in. Its kind is what a user says, or what the first samples look
    like."""

    seen: OutputSeen
    said: OutputKind | None = None
    _first: list[tuple[Array, Array]] = field(default_factory=list)
    _looks: list[Array] = field(default_factory=list)
    _row: KindRow | None = None

    def add(self, wanted: Array, found: Array) -> None:
        """Add one run's output of both models."""
        if self._row is None:
            self._first.append((wanted, found))
            if len(self._first) == KIND_SAMPLES:
                self._decide()
        elif len(self._looks) < MOST_LOOKS:
            self._looks.append(self._row.look(wanted, found))

    def _decide(self) -> KindRow:
        if self._row is None:
            seen = replace(self.seen, values=[wanted for wanted, _ in self._first])
            self._row = ROWS[self.said or kind_of(seen)]
            self._looks += [self._row.look(*pair) for pair in self._first]
            self._first = []
        return self._row

    def figures(self) -> tuple[OutputKind, Figures] | None:
        """Return the kind, and what is said; None without samples."""
        if self._row is None and not self._first:
            return None
        row = self._decide()
        return row.kind, row.say(self._looks)


def kind_of(seen: OutputSeen) -> OutputKind:
    """Return what an output looks like."""
    positions, decides = seen.positions, seen.compared.decides
    if not seen.values[0].size:
        return "values"
    if decides == "row" or (seen.shape[-1:] > (1,) and all(map(_are_rows_of_probabilities, seen.values))):
        return "classes" if positions == 1 else "mask" if seen.is_picture else "tokens"
    if decides in ("each", "logits"):
        return "mask" if seen.is_picture else "scores"
    if positions == 1 or len(seen.shape) < 3:
        return _kind_of_vector(seen)
    if seen.is_picture:
        return "signal"
    if seen.shape[-1] >= FEWEST_TOKENS and seen.reads_tokens:
        return "tokens"
    others = (t.shape for k, t in enumerate(seen.graph.outputs) if k != seen.compared.place)
    if any(other[:-1] == seen.shape[:-1] and other[-1] == 1 for other in others):
        return "points"
    if seen.is_like_an_input:
        return "signal"
    return "detections" if Yardstick.of_values(seen.values).quantity.max() > 0 else "values"


def _kind_of_vector(seen: OutputSeen) -> OutputKind:
    size = seen.values[0].size
    if seen.is_like_an_input or size > MOST_ELEMENTS:
        return "signal"
    norms = [float(np.linalg.norm(values)) for values in seen.values]
    if size >= SMALLEST_EMBEDDING and max(abs(norm - 1) for norm in norms) < NORM_OFF:
        return "embedding"
    if size >= WIDE_EMBEDDING and not seen.narrows_to_logits and not _lie_apart_from_zero(seen.values):
        return "embedding"
    if size >= 4 and (size % 2 == 0 or size % 3 == 0) and _lie_apart_from_zero(seen.values):
        return "points"
    return "classes" if size > 1 and seen.narrows_to_logits and _decide(seen.values) else "values"


def _decide(values: Sequence[Array]) -> bool:
    """Whether class scores tell one class from the others, at least for half of the samples."""
    return float(quantile(np.array([probabilities(one).max() for one in values]), 0.5)) >= SURE


def _lie_apart_from_zero(values: Sequence[Array]) -> bool:
    """Whether a vector is mostly the same for all samples, as coordinates are beside class scores."""
    table = np.array([np.asarray(one, np.float64).reshape(-1) for one in values if one.size == values[0].size])
    mean = table.mean(axis=0)
    return len(table) > 1 and float((mean**2).mean()) > float(table.var(axis=0).mean())


def _are_rows_of_probabilities(values: Array) -> bool:
    """Whether all rows are probabilities, or logarithms of them."""
    rows = np.asarray(values, np.float64)
    if rows.max(initial=0.0) <= 0 and rows.min(initial=0.0) < 0:
        rows = np.exp(rows)
    return bool(rows.size and rows.min() >= -1e-3 and np.all(np.abs(rows.sum(axis=-1) - 1) < SUM_OFF))
