"""What one run of a graph shows of its tensors."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..dtypes import Array
from ..errors import InvalidSample, RuntimeFailure
from ..graph.model import Graph, Model, Tensor
from ..sources.ports import Row
from .inner import InnerGraphs, passed
from .instrument import Instrumented, Misfit, Probe, instrument
from .recurrent import replays
from .runner import Runner, loadable
from .sampler import Sampler
from .settings import Settings
from .stats import TensorStats, stats_of
from .totals import Measured, Vectors


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
        self.none = np.zeros_like(self.sizes)
        self.width = sum(p.channels for p in self.probes)
        self.is_misfit = False

    @cached_property
    def plain(self) -> Gauge:
        """One that reads every tensor from outside: slower, but it takes them as they come."""
        return Gauge(dataclasses.replace(self.subject, reduced=False))

    def measure(self, number: int, row: Row) -> Measured:
        try:
            if not self.is_misfit:
                try:
                    return self._measure(number, row)
                except (Misfit, RuntimeFailure):
                    self.is_misfit = True
            return self.plain._measure(number, row)
        except RuntimeFailure as error:
            raise RuntimeFailure(f"sample {number}: {error}") from None

    def _measure(self, number: int, row: Row) -> Measured:
        if not self.settings.keep_state:
            self._restart()
        self.runner.invoke(row)
        reductions = self.instrumented.reductions
        vectors = None if reductions is None else self._vectors(number, row, reductions)
        return Measured(number, vectors, self._others(number) if self.instrumented.exposed else {})

    def _restart(self) -> None:
        self.runner.restart()
        self.inner.restart()
        for replay in self.replays:
            replay.restart()

    def _vectors(self, number: int, row: Row, reductions: Tensor) -> Vectors:
        (values,) = self.runner.read([reductions])
        if values.size != 3 * self.width:
            raise Misfit
        high, low, total = values.reshape(3, self.width)
        vectors = Vectors(high, low, total, self.sizes, self.none)
        if not np.isfinite(values).all():
            if not self.settings.allow_nonfinite:
                self.plain._measure(number, row)  # raises at the first tensor, in order of execution, that has some
            vectors = self._finite(number, row, vectors)
        if not self.settings.histograms:
            return Vectors(vectors.high, vectors.low, np.zeros(self.width), self.sizes, vectors.nonfinite)
        # Which elements are sampled depends on the data, not on the sample's number: so any split adds up.
        phase = zlib.crc32(np.ascontiguousarray(row[0].reshape(-1)[::61]).tobytes()) if row else 0
        sizes = self.sampler.take(self.runner.views(self.stacked), phase, (vectors.low, vectors.high))
        return Vectors(vectors.high, vectors.low, vectors.total, sizes, vectors.nonfinite)

    def _finite(self, number: int, row: Row, vectors: Vectors) -> Vectors:
        """Something is NaN or infinite, or a sum overflowed: look closer, and raise or go on without those values."""
        high, low, total = vectors.high.copy(), vectors.low.copy(), vectors.total.astype(np.float64)
        nonfinite = vectors.nonfinite.copy()
        order = {probe: k for k, probe in enumerate(self.probes)}
        for probe, values in self._each(row):
            finite = np.isfinite(values)
            bad = finite.size - int(finite.sum())
            nonfinite[order[probe]] = bad
            if bad:
                self._refuse(probe.key, bad, finite.size, number)
            spot = probe.spot
            by_channel, where = values.reshape(-1, probe.channels), finite.reshape(-1, probe.channels)
            high[spot] = np.max(by_channel, axis=0, where=where, initial=-np.inf)
            low[spot] = np.min(by_channel, axis=0, where=where, initial=np.inf)
            total[spot] = np.sum(by_channel, axis=0, where=where, dtype=np.float64)
        return Vectors(high, low, total, vectors.sizes, nonfinite)

    def _each(self, row: Row) -> Iterator[tuple[Probe, Array]]:
        """Every probe with its tensor's values, as copies."""
        if not self.settings.histograms:
            runner = self.plain.runner
            runner.invoke(row)
            yield from ((probe, runner.read([probe.tensor])[0]) for probe in self.probes)
            return
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

        def observe(key: str, values: Array, by_channel: bool) -> None:
            seen = stats_of(values, number, by_channel=by_channel)
            bad = values.size if seen is None else seen.nonfinite
            if bad:
                self._refuse(key, bad, values.size, number)
            if seen is not None:
                found[key] = found[key].alongside(seen) if key in found else seen

        exposed = self.instrumented.exposed
        values = dict(zip(exposed, self.runner.read(exposed), strict=True))
        for probe in self.instrumented.read:
            observe(probe.key, values[probe.tensor], probe.keep_channels)
        for replay in self.replays:
            observe(replay.key, replay.states(values[replay.source]), False)
        self.inner.measure(values, observe)
        return found
