"""What runs of a graph show of its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..dtypes import Array
from ..errors import InvalidSample, RuntimeFailure
from ..graph.model import Graph, Model
from ..runtime.runner import Runner, loadable
from ..sources.ports import Row
from .infinite import Signs, expected_infinities, unexpected
from .inner import InnerGraphs, passed
from .instrument import Instrumented, Manner, Misfit, Probe, instrument
from .recurrent import replays
from .sampler import Sampler
from .settings import Settings
from .stats import TensorStats, stats_of
from .totals import Measured, Reduced

Shapes = tuple[tuple[int, ...], ...]
"""Those of a row's arrays."""

Chunk = list[tuple[int, Row]]
"""Samples that one thread runs without a pause: many where a run takes less time than handing it over."""


@dataclass(frozen=True)
class Subject:
    """A graph to measure, and how: what all its gauges share."""

    model: Model
    graph: Graph
    settings: Settings
    manner: Manner

    @cached_property
    def instrumented(self) -> Instrumented:
        exposed = [*passed(self.graph), *(replay.source for replay in replays(self.model, self.graph))]
        return instrument(
            self.model,
            self.graph,
            histograms=self.settings.histograms,
            exposed=exposed,
            manner=self.manner,
            infinite=self.infinities,
        )

    @cached_property
    def infinities(self) -> Mapping[str, Signs]:
        return expected_infinities(self.model)

    @cached_property
    def content(self) -> bytes:
        return loadable(self.instrumented.model)

    def prepare(self) -> None:
        """Make what all gauges share, before several threads ask for it."""
        _ = self.content, self.infinities


class Gauge:
    """The self-measuring copy, loaded, with histograms of its own. Used by one thread at a time."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.settings = subject, subject.settings
        self.instrumented = subject.instrumented
        self.probes = self.instrumented.probes
        self.runner = Runner(self.instrumented.model, subject.content)
        self.inner = InnerGraphs(subject.model, subject.graph)
        self.replays = replays(subject.model, subject.graph)
        self.sampler = Sampler(self.instrumented)
        self.stacked = [stack.output for stack in self.instrumented.stacks]
        self.sizes = self.sampler.sizes
        self.starts = np.array([p.start for p in self.probes], np.intp)
        self.width = sum(p.channels for p in self.probes)
        # Taken once: asking for it in each run takes longer than filling it.
        self.room = np.empty((self.instrumented.chunk, 3, self.width), np.float32)
        self.misfits: set[Shapes] = set()

    @cached_property
    def plain(self) -> Gauge:
        """One that reads every tensor from outside: slower, but it takes them as they come."""
        return Gauge(dataclasses.replace(self.subject, manner=Manner.OUTSIDE))

    def measure(self, chunk: Chunk) -> Measured:
        """Run one batch of samples after the other; then look at what they left, in one go."""
        reductions = self.room[: len(chunk)]
        sizes = np.zeros_like(self.sizes)
        reduced: list[int] = []
        others: list[Mapping[str, TensorStats]] = []
        for first in range(0, len(chunk), self.instrumented.batch):
            batch = chunk[first : first + self.instrumented.batch]
            # By shape, not once and for all: what is done with a sample must not depend on those before it.
            shapes = tuple(array.shape for array in batch[0][1])
            if shapes not in self.misfits:
                try:
                    sizes += self._run([row for _, row in batch], reductions[first : first + len(batch)])
                    others.append(self._others(batch[-1][0]))
                    reduced += range(first, first + len(batch))
                    continue
                except Misfit:
                    self.misfits.add(shapes)
                except RuntimeFailure:
                    self.misfits.add(shapes)
                    self.runner.reload()
            others += [self._from_outside(number, row) for number, row in batch]
        found = None
        if self.probes and reduced:
            all_of_them = len(reduced) == len(chunk)
            found = self._reduced(
                chunk if all_of_them else [chunk[k] for k in reduced],
                reductions if all_of_them else reductions[reduced],
                sizes,
            )
        return Measured(len(chunk), chunk[-1][0], found, others)

    def mixes(self, rows: Sequence[Row]) -> bool:
        """Whether a sample among others gives something else than alone, to the last bit."""
        others = [*rows[1 : self.instrumented.batch], rows[1], rows[1]][: max(3, self.instrumented.batch - 1)]
        alone, among = (np.zeros((n, 3, self.width), np.float32) for n in (1, 1 + len(others)))
        try:
            self._reduce(rows[:1], alone)
            self._reduce([others[0], rows[0], *others[1:]], among)  # neither first, nor last, nor in the middle
        except (Misfit, RuntimeFailure):
            return True
        return bool(alone[0].tobytes() != among[1].tobytes())

    def _run(self, rows: Sequence[Row], reductions: Array) -> Array:
        """Run samples and take down their `reductions`; return how many elements each tensor had."""
        self._reduce(rows, reductions)
        if self.instrumented.reductions is None or not self.settings.histograms:
            return len(rows) * self.sizes
        picked = None
        if self.instrumented.picked is not None:
            (picked,) = self.runner.views([self.instrumented.picked.output])
        return self.sampler.take(picked, list(self.runner.views(self.stacked)), rows)

    def _reduce(self, rows: Sequence[Row], reductions: Array) -> None:
        self._start(rows)
        if self.instrumented.reductions is None:
            return
        (values,) = self.runner.views([self.instrumented.reductions])
        columns = self.instrumented.columns
        if values.size != len(rows) * columns.size:
            raise Misfit
        flat, found = reductions.reshape(len(rows), -1), values.reshape(len(rows), -1)
        if columns.size == flat.shape[1]:
            flat[...] = found
        else:  # the greatest values come first, and are all there
            flat[:, : self.width] = found[:, : self.width]
            flat[:, self.width :] = 0.0
            flat[:, columns[self.width :]] = found[:, self.width :]

    def _start(self, rows: Sequence[Row]) -> None:
        if not self.settings.keep_state:
            self.runner.restart()
            self.inner.restart()
            for replay in self.replays:
                replay.restart()
        if len(rows) == 1 and self.instrumented.batch == 1:
            self.runner.invoke(rows[0])
        else:
            self.runner.invoke([np.concatenate(arrays) for arrays in zip(*rows, strict=True)], strict=False)

    def _from_outside(self, number: int, row: Row) -> dict[str, TensorStats]:
        try:
            return self.plain._observed(number, row)
        except RuntimeFailure as error:
            raise RuntimeFailure(f"sample {number}: {error}") from None

    def _observed(self, number: int, row: Row) -> dict[str, TensorStats]:
        """Statistics of one run, if all tensors are read from outside."""
        self._start([row])
        return self._others(number)

    def _reduced(self, chunk: Chunk, reductions: Array, sizes: Array) -> Reduced:
        totals = reductions[:, 2].astype(np.float64)
        nonfinite = np.zeros_like(self.sizes)
        for k in np.flatnonzero(~np.isfinite(reductions).all(axis=(1, 2))):
            nonfinite += self._look_closer(chunk, int(k), reductions[k], totals[k])
        highs, lows = reductions[:, 0], reductions[:, 1]
        least, greatest = (
            np.minimum.reduceat(lows, self.starts, axis=1),
            np.maximum.reduceat(highs, self.starts, axis=1),
        )
        if self.settings.histograms:
            self.sampler.settle(least, greatest)
        else:
            totals[...] = 0.0
        return Reduced(
            np.array([number for number, _ in chunk]),
            least.astype(np.float64),
            greatest.astype(np.float64),
            lows.min(axis=0),
            highs.max(axis=0),
            totals.sum(axis=0),
            sizes,
            nonfinite,
        )

    def _look_closer(self, chunk: Chunk, k: int, reductions: Array, total: Array) -> Array:
        """In run `k` something is NaN or infinite, or a sum overflowed: raise, or correct it to what is finite.

        Returns how many values of each probe are not.
        """
        nonfinite = np.zeros_like(self.sizes)
        for place, (probe, values) in enumerate(self._each(chunk, k)):
            finite = np.isfinite(values)
            nonfinite[place] = finite.size - int(finite.sum())
            if nonfinite[place] and self._unexpected(probe.key, values):
                self.plain._observed(*chunk[k])  # raises at the first such tensor, in order of execution
                self._refuse(probe.key, values, chunk[k][0])
            by_channel, where = values.reshape(-1, probe.channels), finite.reshape(-1, probe.channels)
            reductions[0, probe.spot] = np.max(by_channel, axis=0, where=where, initial=-np.inf)
            reductions[1, probe.spot] = np.min(by_channel, axis=0, where=where, initial=np.inf)
            total[probe.spot] = np.sum(by_channel, axis=0, where=where, dtype=np.float64)
        return nonfinite

    def _each(self, chunk: Chunk, k: int) -> Iterator[tuple[Probe, Array]]:
        """Every probe with its tensor's values in run `k`, as copies."""
        self.plain._start([chunk[k][1]])
        for probe in self.probes:
            yield probe, self.plain.runner.read([probe.tensor])[0]

    def _unexpected(self, key: str, values: Array) -> int:
        """How many of `values` must not be what they are: NaN, or infinite by no constant of the model."""
        if self.settings.allow_nonfinite:
            return 0
        return unexpected(values, self.subject.infinities.get(key, frozenset()))

    def _refuse(self, key: str, values: Array, number: int) -> None:
        bad = self._unexpected(key, values)
        if bad:
            raise InvalidSample(
                f"sample {number} makes {bad} of {values.size} values of '{key}' NaN or infinite; "
                "leave that sample out, or go on without those values (--allow-nonfinite)"
            )

    def _others(self, number: int) -> dict[str, TensorStats]:
        """What the graph does not reduce: odd tensors, states of recurrent layers, control flow."""
        found: dict[str, TensorStats] = {}
        exposed = self.instrumented.exposed
        if not exposed:
            return found

        def observe(key: str, values: Array, by_channel: bool) -> None:
            seen = stats_of(values, number, by_channel=by_channel)
            if seen is None or seen.nonfinite:
                self._refuse(key, values, number)
            if seen is not None:
                found[key] = found[key].alongside(seen) if key in found else seen

        values = dict(zip(exposed, self.runner.read(exposed), strict=True))
        for probe in self.instrumented.read:
            observe(probe.key, values[probe.tensor], probe.keep_channels)
        for replay in self.replays:
            observe(replay.key, replay.states(values[replay.source]), False)
        self.inner.measure(values, observe)
        return found
