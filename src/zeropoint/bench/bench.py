"""A float model with its samples. What is measured on them is measured once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ..calibration import Settings, Stats, calibrate
from ..calibration.collect import Progress
from ..dtypes import Array
from ..graph.model import Model, Tensor
from ..graph.query import fingerprint
from ..ops import OPS, OpSpec
from ..ops.execution import macs_of
from ..parallel import in_parallel
from ..runtime.runner import Runner
from ..sources.ports import Row, entries, entry
from ..sources.samples import Notes, Samples, iterate, rows
from .alignment import Alignment, align
from .errors import Compared, ErrorSum, OpError, compared_outputs, real, worst_ops

KEPT_SAMPLES, KEPT_BYTES = 256, 1 << 28
"""How much of the data is held in memory, to be run again."""

JUDGED = 24
"""Samples on which models are compared."""

TRACED = 4
"""Samples on which the tensors inside are compared."""

SHORT = 1e8
"""Multiply-accumulates that take less time than starting threads."""

PARTS = 2
"""The samples are split into so many parts, whatever the number of cores, so that sums come out the same."""


class Bench:
    """Runs a float model, and other versions of it, on samples.

    `samples` may be anything that calibration takes, read once; the first of them are held. For models with several
    signatures nothing but statistics can be had.
    """

    def __init__(
        self,
        model: Model,
        samples: Samples | Mapping[str, Samples],
        settings: Settings | None = None,
        *,
        judged: int = JUDGED,
        ops: Mapping[str, OpSpec] = OPS,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.ops, self.settings = model, ops, settings or Settings()
        self._samples, self._judged, self._progress = samples, judged, progress
        self._held: list[Any] = []

    @cached_property
    def stats(self) -> Stats:
        """Statistics of every tensor on all samples."""
        samples = self._holding(self._samples) if self.is_single else self._samples
        return calibrate(self.model, samples, self.settings, progress=self._progress, ops=self.ops)

    @property
    def is_single(self) -> bool:
        """Whether there is one graph to run."""
        return not isinstance(self._samples, Mapping) and len({e.graph for e in entries(self.model)}) == 1

    def _holding(self, samples: Any) -> Iterator[Any]:
        room = KEPT_BYTES
        for sample in iterate(samples):
            room -= _size(sample)
            if len(self._held) < KEPT_SAMPLES and room >= 0:
                self._held.append(sample)
            yield sample

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.model)

    @cached_property
    def numbered_rows(self) -> list[tuple[int, Row]]:
        """The samples that are held, as inputs of single runs, each with the number of its sample."""
        if not self.is_single:
            return []
        _ = self.stats  # reads the samples
        return list(islice(rows(self._held, entry(self.model), Notes()), KEPT_SAMPLES))

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.numbered_rows]

    @property
    def judged_rows(self) -> list[Row]:
        return self.rows[: self._judged]

    @cached_property
    def compared(self) -> tuple[Compared, ...]:
        """The outputs that tell how good another version of the model is; none if there is nothing to compare."""
        return tuple(compared_outputs(entry(self.model).graph, self.ops)) if self.judged_rows else ()

    @cached_property
    def wanted(self) -> list[list[Array]]:
        """By sample, what the float model has for `compared`."""
        return Loaded(self, self.model).values()

    def error(self, model: Model) -> float:
        """Relative squared error of another version's outputs, averaged over outputs."""
        return Loaded(self, model).error()

    def alignment(self, made: Model, signature: str | None = None) -> Alignment:
        """Which tensor of another version holds what a tensor of the float model holds."""
        return align((entry(self.model, signature), entry(made, signature if made.signatures else None)))

    def worst_ops(self, made: Model, model: Model | None = None) -> tuple[OpError, ...]:
        """The ops of `made` that add most to the error; `model` is the float version that it was made of."""
        return worst_ops(model or self.model, made, self.judged_rows[:TRACED])


class Loaded:
    """A version of the model, loaded to be compared with the float one. It may have more inputs than that."""

    def __init__(self, bench: Bench, model: Model) -> None:
        graph = entry(model).graph
        self._bench, self._compared = bench, bench.compared
        self._tensors: list[Tensor] = [c.tensor(graph) for c in self._compared]
        self._runners = [Runner.exposing(model, graph, self._tensors)]
        self._macs = sum(macs_of(op, bench.ops) for op in graph.ops)

    def values(self) -> list[list[Array]]:
        """By sample, the values that are compared."""
        return [list(self._values(self._runners[0], row)) for row in self._bench.judged_rows]

    def error(self, count: int | None = None, extra: Sequence[Array] = ()) -> float:
        """The relative squared error on the first `count` samples; `extra` is fed to further inputs."""
        given = self._bench.judged_rows[:count]
        numbered = list(enumerate(given))
        parts = [numbered]
        if len(given) * self._macs >= SHORT:
            half = -(-len(given) // PARTS)
            parts = [numbered[k : k + half] for k in range(0, len(given), half)]
            self._runners += [self._runners[0].another() for _ in parts[len(self._runners) :]]

        def sums(k: int) -> list[ErrorSum]:
            found = [ErrorSum() for _ in self._compared]
            for number, row in parts[k]:
                values = self._values(self._runners[k], (*row, *extra))
                for total, wanted, value in zip(found, self._bench.wanted[number], values, strict=True):
                    total.add(wanted, value)
            return found

        _ = self._bench.wanted  # before several threads ask for it
        first, *others = in_parallel(sums, range(len(parts)))
        for other in others:
            for total, more in zip(first, other, strict=True):
                total += more
        return float(np.mean([total.relative for total in first]))

    def _values(self, runner: Runner, row: Sequence[Array]) -> Iterable[Array]:
        runner.restart()
        runner.invoke(row)
        for compared, tensor, found in zip(self._compared, self._tensors, runner.read(self._tensors), strict=True):
            yield compared.judged(real(found, tensor))


def _size(sample: Any) -> int:
    parts = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple | list) else [sample]
    return sum(int(getattr(part, "nbytes", 8)) for part in parts)
