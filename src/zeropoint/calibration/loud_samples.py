"""Finds samples that drive a model's values far beyond where the other samples do.

One such sample decides the range of a tensor, and leaves the others a few of its steps. How far a sample drives a
tensor is its reach there, the largest absolute value, relative to the median over the samples. That is far beyond the
others if

    reach / median >= max(FAR, (what nine in ten of the others stay below / median) ** BEYOND)

that is, on a scale of logarithms, three times as far out as nine in ten of the others are. For reaches that are
normally distributed on that scale this is 3.8 standard deviations, however much they vary. Units and the order of
samples do not matter. Tensors that are zero for most samples have no usual reach, and say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..dtypes import Array
from ..parallel import cached_property

MOST_SAMPLES = 4096
"""Number of samples, the first ones, whose reaches are kept: 4 MB for a model with 256 tensors."""

FAR = 4.0
"""A sample is far beyond the others only if it reaches this many times the median: two of the bits of a range."""

BEYOND = 3.0
"""The distance from the median, on a scale of logarithms, relative to that of nine in ten of the other samples."""

MOST_LOUD = 0.1
"""If more than this share of the samples is loud, that is how the data are distributed."""

NOTICEABLE = 0.25
"""The share of the tensors in which a sample has to be far beyond the others, unless it is at an input or output."""

MOST_NAMED = 10
"""Number of samples that are named in a message."""


@dataclass(frozen=True)
class ReachTable:
    """The reach of each sample in each tensor, as [samples, tensors]; 0 where it was not computed."""

    numbers: tuple[int, ...]
    keys: tuple[str, ...]
    values: Array


@dataclass
class Reaches:
    """Collects the reach of each sample in each tensor during calibration. Those of runs on other machines are not."""

    most: int = MOST_SAMPLES
    _parts: list[tuple[Sequence[int], Sequence[str], Array]] = field(default_factory=list)

    def keep(self, numbers: Sequence[int], keys: Sequence[str], values: Array) -> None:
        """Keep the reaches of samples with these numbers in these tensors, as [samples, tensors]. Threads may call this
        at the same time."""
        if numbers[0] < self.most:
            self._parts.append((numbers, keys, values.astype(np.float32)))

    @property
    def table(self) -> ReachTable:
        """What was collected; of a sample of several runs, its largest reaches."""
        rows = {n: k for k, n in enumerate(sorted({n for numbers, _, _ in self._parts for n in numbers}))}
        columns = {key: k for k, key in enumerate(dict.fromkeys(key for _, keys, _ in self._parts for key in keys))}
        table = np.zeros((len(rows), len(columns)), np.float32)
        for numbers, keys, values in self._parts:
            np.maximum.at(table, np.ix_([rows[n] for n in numbers], [columns[key] for key in keys]), values)
        return ReachTable(tuple(rows), tuple(columns), table)


@dataclass(frozen=True)
class LoudSamples:
    """Samples that are far beyond the others, by number. `factors` are the largest multiple of the median reach for
    each of them; the largest of all is in `tensor`."""

    numbers: tuple[int, ...]
    factors: tuple[float, ...]
    tensor: str

    def renumbered(self, numbers: Sequence[int]) -> LoudSamples:
        """Return the samples with other numbers, which are listed by their present ones."""
        return replace(self, numbers=tuple(numbers[n] for n in self.numbers))

    @cached_property
    def names(self) -> str:
        """The samples, as text."""
        named, others = self.numbers[:MOST_NAMED], len(self.numbers) - MOST_NAMED
        texts = [*map(str, named), *([f"{others} others"] if others > 0 else [])]
        return f"sample{'s' * (len(texts) > 1)} {' and '.join(filter(None, (', '.join(texts[:-1]), texts[-1])))}"

    def __str__(self) -> str:
        least, most = (f"{limit(self.factors):.3g}" for limit in (min, max))
        factors = most if least == most else f"{least} to {most}"
        drive, which = ("drives", "") if len(self.numbers) == 1 else ("drive", "most of all ")
        return f"{self.names} {drive} values to {factors} times the median of all samples ({which}'{self.tensor}')"


def loud_samples(reaches: ReachTable, ends: Collection[str]) -> LoudSamples | None:
    """Return the samples that are far beyond all others at one of the `ends` of the model, through which everything
    passes, or in a noticeable share of the tensors; None if there are none, or too many to be exceptions."""
    if not reaches.numbers:
        return None
    values, at_end = reaches.values.astype(np.float64), np.array([key in ends for key in reaches.keys], bool)
    quiet = np.ones(len(values), bool)
    while True:  # each one that is found no longer hides others, by adding to how much these seem to vary
        factors, limits = _measured_by(values, values[quiet])
        far, counted = factors >= limits, np.count_nonzero(np.isfinite(limits))
        loud = quiet & (far[:, at_end].any(axis=1) | (far.sum(axis=1) >= max(1, NOTICEABLE * counted)))
        if not loud.any():
            break
        quiet &= ~loud
        if np.count_nonzero(~quiet) > MOST_LOUD * len(values):
            return None
    found = np.flatnonzero(~quiet)
    if not found.size:
        return None
    tensor = reaches.keys[int(factors[found].max(axis=0).argmax())]
    numbers = tuple(reaches.numbers[k] for k in found)
    return LoudSamples(numbers, tuple(factors[found].max(axis=1).tolist()), tensor)


def _measured_by(values: Array, others: Array) -> tuple[Array, Array]:
    """Return the reaches as multiples of the median of `others`, and the multiple in each tensor that is far beyond
    these; 0 and infinity if the median is 0."""
    ordered = np.sort(others, axis=0)
    median, nine_in_ten = ordered[len(ordered) // 2], ordered[int((1 - MOST_LOUD) * (len(ordered) - 1))]
    has_median = median > 0
    usual = np.where(has_median, median, 1.0)
    limits = np.maximum(FAR, (nine_in_ten / usual) ** BEYOND)
    return np.where(has_median, values / usual, 0.0), np.where(has_median, limits, np.inf)
