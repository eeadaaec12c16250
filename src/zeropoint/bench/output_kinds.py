"""Kinds of outputs: how each is recognized, what is said of it in its own words, and which errors it can bear.

A kind is a row of `ROWS`. Its `look` compares two versions' values of one sample, and returns a few numbers; `say`
makes a sentence of them for all samples. The limits are errors of `measure` up to which an output is good, and usable:
`python -m benchmarks.error_measure` shows how they agree with the metrics of real tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..display import counted
from ..dtypes import Array
from .errors import decibels
from .judged_outputs import OutputKind
from .measure import HALF, IN_KIND, MOST_CHANNELS, channel_axis, channels_last, quantile

SURE = 0.5
"""Probability from which the float model counts as confident of a class. Close calls may change in any version."""

FEWEST_SURE = 4
"""If the float model is sure of fewer answers, all of them count."""

SUM_OFF = 0.02
"""How far probabilities of a row may be from 1 in sum."""

WORST = 0.95
"""Quantile that stands for the worst: one in twenty is worse."""

KEPT = 2048
"""Most differences of one sample that are kept to find typical ones."""

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
    """A kind of output: the errors up to which it is good and usable, what is looked at, and said; and the shares of
    equal answers below which it is neither, whatever its error. `alone` are the limits if there is one for each sample,
    where these differ."""

    kind: OutputKind
    limits: tuple[float, float]
    look: Callable[[Array, Array], Array]
    say: Callable[[Sequence[Array]], Figures]
    shares: tuple[float, float] = (0.0, 0.0)
    alone: tuple[float, float] | None = None

    def limits_of(self, size: int) -> tuple[float, float]:
        """Return the limits of an output with so many elements."""
        return self.limits if self.alone is None or size > 1 else self.alone


def least_text(least: float) -> str:
    """Format a share that is likely at least, rounded down: 99.8 % is not all."""
    return f"{math.floor(1000 * least) / 10:.3g}%"


def least_likely(hits: int, count: int) -> float:
    """Return the lower end of the 95 % confidence interval of a share (Wilson)."""
    if not count:
        return 0.0
    share, z = hits / count, CERTAIN**2 / count
    return (share + z / 2 - CERTAIN * math.sqrt(share * (1 - share) / count + z / count / 4)) / (1 + z)


# What is looked at in a sample.


def are_probabilities(values: Array) -> bool:
    """Whether all rows are probabilities, or logarithms of them."""
    rows = np.asarray(values, np.float64)
    if rows.max(initial=0.0) <= 0 and rows.min(initial=0.0) < 0:
        rows = np.exp(rows)
    return bool(rows.size and rows.min() >= -1e-3 and np.all(np.abs(rows.sum(axis=-1) - 1) < SUM_OFF))


def probabilities(values: Array) -> Array:
    """Return probabilities, also from log-probabilities and logits."""
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    if are_probabilities(rows):
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


def text_of(values: Array, blank: int) -> list[int]:
    """Return the classes of a sequence as CTC reads them: of a run of equal ones the first, without the blank."""
    classes = values.reshape(-1, values.shape[-1]).argmax(axis=-1)
    starts = np.append(True, classes[1:] != classes[:-1])
    return [int(one) for one in classes[starts] if one != blank]


def blank_of(values: Array) -> int:
    """Return which class of a sequence is the blank of CTC: the first or the last, whichever occurs more often."""
    classes, last = values.reshape(-1, values.shape[-1]).argmax(axis=-1), values.shape[-1] - 1
    return 0 if np.count_nonzero(classes == 0) >= np.count_nonzero(classes == last) else last


def _same_text(wanted: Array, found: Array) -> Array:
    """[whether a text is the same]."""
    blank = blank_of(wanted)
    return np.array([float(text_of(wanted, blank) == text_of(found, blank))])


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


def _say_text(seen: Sequence[Array]) -> Figures:
    same = int(np.sum(seen))
    return Figures(
        f"the same in {same} of {counted(len(seen), 'sample')}", same / len(seen), least_likely(same, len(seen))
    )


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
        KindRow("classes", (0.045, 0.085), _same_classes, _say_classes, (0.9, 0.7)),
        KindRow("scores", (0.12, 0.18), _positives, _say_scores, (0.9, 0.7), (0.0145, 0.045)),
        KindRow("points", (0.011, 0.06), _differences, _say_differences),
        KindRow("mask", (0.02, 0.075), _overlap, _say_mask, (0.9, 0.7)),
        KindRow("embedding", (0.06, 0.25), _angle, _say_angle),
        KindRow("signal", (0.02, 0.075), _energies, _say_signal),
        KindRow("tokens", (0.02, 0.06), _same_classes, _say_tokens, (0.9, 0.7)),
        KindRow("text", (1.0, 1.0), _same_text, _say_text, (0.95, 0.85)),
        KindRow("detections", (0.05, 0.2), _differences, _say_differences),
        KindRow("values", (0.01, 0.05), _differences, _say_differences),
    )
}
"""Text is judged by its answers alone: most of the error is in places that its reading leaves out."""
