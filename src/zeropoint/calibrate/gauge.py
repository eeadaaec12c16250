"""What runs of a graph show of its tensors."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..dtypes import Array
from ..errors import InvalidSample, RuntimeFailure
from ..graph.model import Graph, Model
from ..sources.ports import Row
from .inner import InnerGraphs, passed
from .instrument import Instrumented, Misfit, Probe, instrument
from .recurrent import replays
from .runner import Runner, loadable
from .sampler import Sampler
from .settings import Settings
from .stats import TensorStats, stats_of
from .totals import Measured, Reduced

Chunk = list[tuple[int, Row]]
"""Runs that one thread does without a pause: many where a run takes less time than handing it over."""


@dataclass(frozen=True)
class Subject:
    """A graph to measure: what all its gauges share. `reduced`: as far as possible it measures itself."""

    model: Model
    graph: Graph
    settings: Settings
    reduced: bool = True

    @cached_property
    def instrumented(self) -> Instrumented:
        exposed = [*passed(self.graph), *(replay.source for replay in replays(self.model, self.graph))]
        histograms = self.settings.histograms
        return instrument(self.model, self.graph, histograms=histograms, exposed=exposed, reduced=self.reduced)

    @cached_property
    def content(self) -> bytes:
        return loadable(self.instrumented.model)


class Gauge:
    """The self-measuring copy, loaded, with histograms of its own. Used by one thread at a time."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.settings = subject, subject.settings
        self.instrumented = subject.instrumented
        self.probes = self.instrumented.probes
        self.runner = Runner(self.instrumented.model, subject.content)
        self.inner = InnerGraphs(subject.model, subject.graph)
        self.replays = replays(subject.model, subject.graph)
        self.sampler = Sampler(self.instrumented, self.settings.allow_nonfinite)
        self.stacked = [stack.output for stack in self.instrumented.stacks]
        self.sizes = np.array([p.tensor.size for p in self.probes], np.int64)
        self.starts = np.array([p.start for p in self.probes], np.intp)
        self.width = sum(p.channels for p in self.probes)
        self.is_misfit = False

    @cached_property
    def plain(self) -> Gauge:
        """One that reads every tensor from outside: slower, but it takes them as they come."""
        return Gauge(dataclasses.replace(self.subject, reduced=False))

    def measure(self, chunk: Chunk) -> Measured:
        """Run one sample after the other; then look at what they left, in one go."""
        reductions = np.empty((len(chunk), 3, self.width), np.float32)
        reduced, sizes, others = [], [], []
        for k, (number, row) in enumerate(chunk):
            try:
                if not self.is_misfit:
                    try:
                        sizes.append(self._run(row, reductions[k]))
                        others.append(self._others(number))
                        reduced.append(k)
                        continue
                    except (Misfit, RuntimeFailure):
                        self.is_misfit = True
                others.append(self.plain._observed(number, row))
            except RuntimeFailure as error:
                raise RuntimeFailure(f"sample {number}: {error}") from None
        found = None
        if self.probes and reduced:
            found = self._reduced([chunk[k] for k in reduced], reductions[reduced], np.sum(sizes, axis=0))
        return Measured(len(chunk), chunk[-1][0], found, others)

    def _run(self, row: Row, reductions: Array) -> Array:
        """Run a sample and take down its `reductions`; return the tensors' sizes."""
        self._start(row)
        if self.instrumented.reductions is None:
            return self.sizes
        (values,) = self.runner.read([self.instrumented.reductions])
        if values.size != reductions.size:
            raise Misfit
        reductions[...] = values.reshape(reductions.shape)
        if not self.settings.histograms:
            return self.sizes
        # Which elements are sampled depends on the data, not on the sample's number: so any split adds up.
        phase = zlib.crc32(np.ascontiguousarray(row[0].reshape(-1)[::61]).tobytes()) if row else 0
        return self.sampler.take(list(self.runner.views(self.stacked)), phase, reductions)

    def _start(self, row: Row) -> None:
        if not self.settings.keep_state:
            self.runner.restart()
            self.inner.restart()
            for replay in self.replays:
                replay.restart()
        self.runner.invoke(row)

    def _observed(self, number: int, row: Row) -> dict[str, TensorStats]:
        """Statistics of one run, if all tensors are read from outside."""
        self._start(row)
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
        number, row = chunk[k]
        if not self.settings.allow_nonfinite:
            self.plain._observed(number, row)  # raises at the first tensor, in order of execution, that has some
        nonfinite = np.zeros_like(self.sizes)
        order = {probe: k for k, probe in enumerate(self.probes)}
        for probe, values in self._each(row, again=len(chunk) > 1):
            finite = np.isfinite(values)
            nonfinite[order[probe]] = bad = finite.size - int(finite.sum())
            if bad:
                self._refuse(probe.key, bad, finite.size, number)
            by_channel, where = values.reshape(-1, probe.channels), finite.reshape(-1, probe.channels)
            reductions[0, probe.spot] = np.max(by_channel, axis=0, where=where, initial=-np.inf)
            reductions[1, probe.spot] = np.min(by_channel, axis=0, where=where, initial=np.inf)
            total[probe.spot] = np.sum(by_channel, axis=0, where=where, dtype=np.float64)
        return nonfinite

    def _each(self, row: Row, *, again: bool) -> Iterator[tuple[Probe, Array]]:
        """Every probe with its tensor's values, as copies; of a new run if another sample has run since."""
        if not self.settings.histograms:
            self.plain._start(row)
            yield from ((probe, self.plain.runner.read([probe.tensor])[0]) for probe in self.probes)
            return
        if again:
            self._start(row)
        for stack, view in zip(self.instrumented.stacks, self.runner.views(self.stacked), strict=True):
            yield from zip(stack.probes, np.array(view).reshape(len(stack.probes), -1), strict=True)

    def _refuse(self, key: str, bad: int, size: int, number: int) -> None:
        if not self.settings.allow_nonfinite:
            raise InvalidSample(
                f"sample {number} makes {bad} of {size} values of '{key}' NaN or infinite; "
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
            bad = values.size if seen is None else seen.nonfinite
            if bad:
                self._refuse(key, bad, values.size, number)
            if seen is not None:
                found[key] = found[key].alongside(seen) if key in found else seen

        values = dict(zip(exposed, self.runner.read(exposed), strict=True))
        for probe in self.instrumented.read:
            observe(probe.key, values[probe.tensor], probe.keep_channels)
        for replay in self.replays:
            observe(replay.key, replay.states(values[replay.source]), False)
        self.inner.measure(values, observe)
        return found
