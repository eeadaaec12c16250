"""How long versions of a model take, as a share of what the float model takes beside them.

All are timed in one run, in rounds that take turns, by the time that the processor spends on them; of each the shortest
round counts, as what else runs on a machine only ever adds to a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from ..bench.latency import TimingOptions, benchmark
from ..graph.model import Model
from ..tflite import load

ROUNDS = 15
"""How often models are timed, unless they take so long that fewer have to do."""

FEWEST_ROUNDS, SECONDS = 5, 4.0
"""However long it takes; and about how many seconds it may take otherwise."""

REPEATS = 3
"""How often the fastest are timed once more, each time from the start."""

TIE = 1.1
"""Times of the fastest within which a model may be as fast: those are timed again."""

REFERENCE = "the float model itself"


class Stopwatch:
    """Times versions of a float model beside it. `seconds` is what that took when it was first timed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seconds: float | None = None

    def timed(self, contents: Mapping[str, bytes]) -> dict[str, float]:
        """Seconds of one run of each, as they would be if the float model took what it took first."""
        versions = {label: load(content) for label, content in contents.items()}
        return self._timed(versions, self._rounds(len(versions)))

    def timed_again(self, contents: Mapping[str, bytes]) -> dict[str, float]:
        """The same, measured several times; the medians. What turns out to be no match for the fastest is left out."""
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
            (own,) = benchmark({REFERENCE: self._model}, TimingOptions(rounds=1, inside=False, clock="cpu")).models
            affordable = SECONDS / max(1e-9, own.latencies[0].fastest)
        else:
            affordable = SECONDS / max(1e-9, self.seconds)
        return max(FEWEST_ROUNDS, min(ROUNDS, int(affordable / (1 + versions))))

    def _timed(self, versions: Mapping[str, Model], rounds: int) -> dict[str, float]:
        options = TimingOptions(rounds=rounds, inside=False, clock="cpu")
        done = benchmark({REFERENCE: self._model, **versions}, options)
        found = {t.name: t.latencies[0].fastest for t in done.models}
        own = found.pop(REFERENCE)
        self.seconds = self.seconds or own
        return {label: seconds * self.seconds / own for label, seconds in found.items()}
