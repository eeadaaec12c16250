"""Runs an instrumented graph, and turns its outputs into statistics."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ..dtypes import Array
from ..errors import InvalidSample, RuntimeFailure, argument
from ..graph.model import Tensor
from ..parallel import cached_property
from ..runtime.runner import Runner, right_kernels
from ..sources.ports import Row
from .histogram import Histogram
from .inner_tensors import CalledGraphs, passed_tensors
from .instrumented_graph import InstrumentedGraph, MeasureMode, instrument
from .recurrent_states import replays
from .sampling import sampling_stride
from .stats import Channels, Extreme, MovingAverage, TensorStats, finite_channels, stats_of
from .task import CalibrationTask, count_unexpected

Chunk = list[tuple[int, Row]]
"""Numbered samples that one thread runs at a time: many, if a run is faster than handing over its samples."""


class Observer:
    """A loaded self-measuring graph. Not thread-safe."""

    def __init__(self, task: CalibrationTask, mode: MeasureMode, like: Observer | None = None) -> None:
        """Load the graph. `like` is an observer of the same task and mode, whose copy of the model can be shared."""
        self.task, self.mode = task, mode
        self._replays = replays(task)
        self._replayed_runs: list[tuple[int, list[Array]]] = []  # the inputs of each replay, with the sample's number
        self._called = CalledGraphs(task)
        exposed = [*passed_tensors(task.graph, task.ops), *(replay.source for replay in self._replays)]
        self.graph: InstrumentedGraph = instrument(task, mode, exposed) if like is None else like.graph
        alone = self.graph.batch == 1  # otherwise a run has another shape than the file says
        self.interpreters: int = task.interpreters(self.graph.model.main) if like is None else like.interpreters
        threads = task.settings.threads // self.interpreters
        self._runner: Runner = (
            Runner(self.graph.model, kernels=right_kernels(task.model), strict=alone, threads=threads, checked=True)
            if like is None
            else like._runner.another()
        )
        self._starts = np.array([p.start for p in self.graph.probes], np.intp)
        self._keys = [p.key for p in self.graph.probes]
        self._width = sum(p.channels for p in self.graph.probes)
        self._strides = [sampling_stride(p.tensor.size) for p in self.graph.sampled]
        # The position of each probe's elements among the sampled ones of a run: those picked in the graph come first.
        sizes = {p: pick.size for p, pick in self.graph.picks.items()}
        sizes |= {p: -(-p.tensor.size // k) for p, k in zip(self.graph.sampled, self._strides, strict=True)}
        ends = itertools.accumulate(sizes.values())
        self._samples = {p: slice(end - size, end) for (p, size), end in zip(sizes.items(), ends, strict=True)}
        self._sampled_elements = sum(sizes.values())
        self._failed: set[tuple[tuple[int, ...], ...]] = set()  # shapes of rows
        self._held = self._allocated(0)

    def another(self) -> Observer:
        """Return another observer, for another thread."""
        return Observer(self.task, self.mode, like=self)

    @cached_property
    def fallback(self) -> Observer:
        """An observer that reads every tensor outside the graph: slower, but it handles any shapes."""
        return Observer(self.task, MeasureMode.EXPOSED)

    def measure(self, chunk: Chunk) -> list[Mapping[str, TensorStats]]:
        """Run the samples batch by batch; return statistics to be merged in order."""
        found: list[Mapping[str, TensorStats]] = []
        reduced: Chunk = []
        reductions, samples = self._room(len(chunk))
        for first in range(0, len(chunk), self.graph.batch):
            batch = chunk[first : first + self.graph.batch]
            # Decided by shape each time: how a sample is treated must not depend on earlier ones.
            shapes = tuple(array.shape for array in batch[0][1])
            if shapes not in self._failed:
                try:
                    own = slice(len(reduced), len(reduced) + len(batch))
                    self._run([row for _, row in batch], reductions[own], samples[own])
                    found.append(self._read(batch[-1][0]))
                    self._note_reaches(batch[-1][0], found[-1])
                    self._record([number for number, _ in batch])
                    reduced += batch
                    continue
                except RuntimeFailure:
                    self._failed.add(shapes)
                    self._runner.reload()
            found += [own for number, row in batch for own in self._from_outside(number, row)]
        found += self._replayed()
        if self.graph.probes and reduced:
            found.append(self._summary(reduced, reductions[: len(reduced)], samples[: len(reduced)]))
        return found

    def _room(self, count: int) -> tuple[Array, Array]:
        """Return arrays for the reductions and sampled elements of `count` samples. They are the same for each chunk:
        writing to memory for the first time takes far longer than writing to it again."""
        if len(self._held[0]) < count:
            self._held = self._allocated(count)
        reductions, samples = self._held
        return reductions[:count], samples[:count]

    def _allocated(self, count: int) -> tuple[Array, Array]:
        tensor = self.graph.reductions
        reduced, sampled = (0, 0) if tensor is None else (tensor.size, self._sampled_elements)
        return np.empty((count, reduced), np.float32), np.empty((count, sampled), np.float32)

    def takes(self, rows: Sequence[Row]) -> bool:
        """Whether these samples can be batched into one run."""
        try:
            self._run(rows, *self._room(len(rows)))
        except RuntimeFailure:
            return False
        return True

    def _run(self, rows: Sequence[Row], reductions: Array, samples: Array) -> None:
        """Fill in the reductions and sampled elements of each row."""
        self._start(rows)
        count = len(rows)
        if self.graph.reductions is None:
            return
        reductions[:] = self._view(self.graph.reductions, count)
        if self.graph.picked is not None:
            picked = self._view(self.graph.picked, count)
            samples[:, : picked.shape[1]] = picked
        for probe, stride in zip(self.graph.sampled, self._strides, strict=True):
            samples[:, self._samples[probe]] = self._view(probe.tensor, count)[:, ::stride]

    def _record(self, numbers: Sequence[int]) -> None:
        """Keep the values that others will need of the last run, which had these samples."""
        recorder, tensors = self.task.recorder, self.task.recorded
        if recorder is None or not tensors or numbers[0] >= recorder.most:
            return
        views = list(self._runner.views(tensors))
        if all(view.size == len(numbers) * t.size for view, t in zip(views, tensors, strict=True)):
            recorder.keep(numbers, views)

    def _view(self, tensor: Tensor, rows: int) -> Array:
        (values,) = self._runner.views([tensor])
        if values.size != rows * tensor.size:
            raise RuntimeFailure(f"'{tensor.name}' has another shape than the file says")
        return values.reshape(rows, -1)

    def _start(self, rows: Sequence[Row]) -> None:
        if not self.task.in_sequence:
            self._runner.restart()
            self._called.restart()
        together = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
        self._runner.invoke(rows[0] if self.graph.batch == 1 else [*together])

    def _from_outside(self, number: int, row: Row) -> list[Mapping[str, TensorStats]]:
        """Return the statistics of one run, with all tensors read outside the graph."""
        try:
            self.fallback._start([row])
            found = [self.fallback._read(number), *self.fallback._replayed()]
            self._note_reaches(number, found[0])
            return found
        except RuntimeFailure as error:
            raise RuntimeFailure(f"sample {number}: {error}") from None

    def _note_reaches(self, number: int, found: Mapping[str, TensorStats]) -> None:
        """Keep how far the sample drove the tensors that one run has statistics of."""
        if self.task.reaches is not None and found:
            reach = [[max(-one.low.value, one.high.value) for one in found.values()]]
            self.task.reaches.keep([number], [*found], np.array(reach))

    def _summary(self, chunk: Chunk, reductions: Array, samples: Array) -> dict[str, TensorStats]:
        """Return the statistics of the probes over consecutive runs."""
        width, lows = self._width, self.graph.lows
        high, low = reductions[:, :width], reductions[:, width : width + lows.size]
        if lows.size < width:  # missing minima are zero
            low = np.zeros_like(high)
            low[:, lows] = reductions[:, width : width + lows.size]
        histograms = self.task.settings.histograms
        total = (reductions[:, 2 * width :] if histograms else np.zeros_like(high)).astype(np.float64)
        nonfinite = np.zeros(len(self.graph.probes), np.int64)
        for run in np.flatnonzero(~np.isfinite(reductions).all(axis=1)):
            nonfinite += self._without_nonfinite(chunk[run], high[run], low[run], total[run] if histograms else None)
        least = np.minimum.reduceat(low, self._starts, axis=1)
        greatest = np.maximum.reduceat(high, self._starts, axis=1)
        if self.task.reaches is not None:  # one without finite values reaches nowhere
            reach = np.maximum(np.maximum(-least, greatest), 0.0)
            self.task.reaches.keep([number for number, _ in chunk], self._keys, reach)
        seen = least <= greatest  # unless every value of that run was NaN or infinite
        decay = self.task.settings.decay
        weights = np.where(seen, decay ** (seen[::-1].cumsum(axis=0)[::-1] - 1.0), 0.0)
        averages = [(np.where(seen, values, 0.0) * weights).sum(axis=0).tolist() for values in (least, greatest)]
        runs, weight = seen.sum(axis=0).tolist(), weights.sum(axis=0).tolist()
        first, last = least.argmin(axis=0).tolist(), greatest.argmax(axis=0).tolist()
        channels = low.min(axis=0), high.max(axis=0), total.sum(axis=0)
        sums = np.add.reduceat(channels[2], self._starts).tolist()
        found = {}
        for k, probe in enumerate(self.graph.probes):
            if not runs[k]:
                continue
            size, bad = len(chunk) * probe.tensor.size, int(nonfinite[k])
            histogram = Histogram.empty()
            if histograms:
                values, extremes = samples[:, self._samples[probe]], np.concatenate([least[:, k], greatest[:, k]])
                weight_of_each = round(probe.tensor.size / values.shape[1])
                if bad:
                    values, extremes = values[np.isfinite(values)], extremes[np.isfinite(extremes)]
                histogram = Histogram.sampled(values, extremes, weight_of_each)
            low_, high_, total_ = (values[probe.span] for values in channels)
            found[probe.key] = TensorStats(
                runs[k],
                size - bad,
                Extreme(float(least[first[k], k]), chunk[first[k]][0]),
                Extreme(float(greatest[last[k], k]), chunk[last[k]][0]),
                sums[k],
                MovingAverage(averages[0][k], averages[1][k], weight[k], decay),
                histogram,
                Channels(low_, high_, total_, (size - bad) // probe.channels) if probe.keep_channels else None,
                bad,
            )
        return found

    def _without_nonfinite(self, sample: tuple[int, Row], high: Array, low: Array, total: Array | None) -> Array:
        """Handle a run with NaN, infinity, or an overflowed sum: raise, or reduce only finite values, in place.

        Returns how many values of each probe are not finite.
        """
        number, row = sample
        nonfinite = np.zeros(len(self.graph.probes), np.int64)
        self.fallback._start([row])
        for place, probe in enumerate(self.graph.probes):
            (values,) = self.fallback._runner.read([probe.tensor])
            finite = np.isfinite(values)
            nonfinite[place] = finite.size - int(finite.sum())
            if nonfinite[place]:
                self._refuse_unexpected(probe.key, values, number)
            low[probe.span], high[probe.span], sums = finite_channels(values, finite)
            if total is not None:
                total[probe.span] = sums
        return nonfinite

    def _refuse_unexpected(self, key: str, values: Array, number: int) -> None:
        """Raise if `values` contain NaN, or infinities that no constant of the model explains, unless that is
        allowed."""
        bad = count_unexpected(values, self.task.infinities.get(key, frozenset()))
        if bad and not self.task.settings.allow_nonfinite:
            raise InvalidSample(
                f"sample {number} makes {bad} of {values.size} values of '{key}' NaN or infinite; "
                f"leave that sample out, or ignore those values ({argument('allow_nonfinite', True)})"
            )

    def _read(self, number: int) -> Mapping[str, TensorStats]:
        """Return statistics of what the graph does not reduce: dynamic shapes, control flow. What the states of
        recurrent layers follow from is remembered for `_replayed`."""
        found: dict[str, TensorStats] = {}
        exposed = self.graph.exposed
        values = dict(zip(exposed, self._runner.read(exposed), strict=True))
        for probe in self.graph.read:
            self._observe(found, number, probe.key, values[probe.tensor], probe.keep_channels)
        self._called.measure(self.task.graph, values, partial(self._observe, found, number))
        if self._replays:
            self._replayed_runs.append((number, [values[replay.source] for replay in self._replays]))
        return found

    def _replayed(self) -> list[Mapping[str, TensorStats]]:
        """Return statistics of the states of recurrent layers, by run since the last call."""
        runs, self._replayed_runs = self._replayed_runs, []
        found: list[dict[str, TensorStats]] = [{} for _ in runs]
        for k, replay in enumerate(self._replays):
            states = replay.states_of_runs([sources[k] for _, sources in runs], self.task.in_sequence)
            for own, (number, _), values in zip(found, runs, states, strict=True):
                self._observe(own, number, replay.key, values, False)
        return [*found]

    def _observe(self, found: dict[str, TensorStats], number: int, key: str, values: Array, by_channel: bool) -> None:
        """Add the statistics of a tensor's values to what was `found` in the same run."""
        seen = stats_of(values, number, by_channel=by_channel, decay=self.task.settings.decay)
        if seen is None or seen.nonfinite:
            self._refuse_unexpected(key, values, number)
        if seen is not None:
            found[key] = found[key].alongside(seen) if key in found else seen
