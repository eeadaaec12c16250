"""Latency of versions of a model, relative to the float model timed next to them.

All are timed in one session, in alternating rounds, in CPU time; the shortest round of each counts, because other load
on a machine can only add time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..bench.latency import TimingOptions, benchmark
from ..dtypes import Array
from ..graph.model import Model
from ..tflite import load

ROUNDS = 15
"""Number of timing rounds, unless models are so slow that fewer must suffice."""

FEWEST_ROUNDS, SECONDS = 5, 4.0
"""Minimum number of rounds; and about how many seconds more rounds may take."""

REPEATS = 3
"""How often the fastest models are timed again, each time from the start."""

TIE = 1.1
"""Models within this factor of the fastest may be as fast, and are timed again."""

REFERENCE = "the float model itself"


class Stopwatch:
    """Times versions of a float model next to it, on one of its samples. `seconds` is the float model's latency when it
    was first timed."""

    def __init__(self, model: Model, sample: Sequence[Array] | None = None) -> None:
        self._model, self._sample = model, sample
        self.seconds: float | None = None

    def timed(self, contents: Mapping[str, bytes]) -> dict[str, float]:
        """Return the seconds of one run of each, normalized to the float model's first latency."""
        versions = {label: load(content) for label, content in contents.items()}
        return self._timed(versions, self._rounds(len(versions)))

    def timed_again(self, contents: Mapping[str, bytes]) -> dict[str, float]:
        """Return the medians of several measurements. Models that turn out to be slower than the fastest are
        dropped."""
        versions = {label: load(content) for label, content in contents.items()}
        found: dict[str, list[float]] = {label: [] for label in versions}
        for _ in range(REPEATS):
            for label, seconds in self._timed(versions, self._rounds(len(versions))).items():
                found[label].append(seconds)
            middle = {label: statistics.median(found[label]) for label in versions}
            versions = {label: v for label, v in versions.items() if middle[label] <= TIE * min(middle.values())}
        return {label: statistics.median(seconds) for label, seconds in found.items()}

    def _rounds(self, versions: int) -> int:
        if self.seconds is None:
            (own,) = benchmark({REFERENCE: self._model}, self._options(1)).models
            affordable = SECONDS / max(1e-9, own.latencies[0].fastest)
        else:
            affordable = SECONDS / max(1e-9, self.seconds)
        return max(FEWEST_ROUNDS, min(ROUNDS, int(affordable / (1 + versions))))

    def _options(self, rounds: int) -> TimingOptions:
        return TimingOptions(rounds=rounds, inside=False, clock="cpu", sample=self._sample)

    def _timed(self, versions: Mapping[str, Model], rounds: int) -> dict[str, float]:
        done = benchmark({REFERENCE: self._model, **versions}, self._options(rounds))
        found = {t.name: t.latencies[0].fastest for t in done.models}
        own = found.pop(REFERENCE)
        self.seconds = self.seconds or own
        return {label: seconds * self.seconds / own for label, seconds in found.items()}
