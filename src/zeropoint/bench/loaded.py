"""A version of a model, loaded for comparison with the float model on the samples of a bench."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from ..dtypes import Array
from ..errors import RuntimeFailure
from ..graph.model import Model, Tensor
from ..parallel import in_parallel
from ..runtime.runner import Runner, right_kernels
from ..sources.ports import Row, entry
from .alignment import input_order
from .errors import Compared, encoded, real
from .measure import error_of_sample

if TYPE_CHECKING:
    from .bench import Bench

SHORT = 2e9
"""Multiply-accumulates below which loading the model once more, for another thread, takes longer than it saves."""

PARTS = 2
"""Number of parts the samples are split into, independent of the number of cores, so that sums are reproducible."""

NumberedRow = tuple[int, Row]
Found = TypeVar("Found")


def measured_errors(load: Callable[[], Loaded], places: Sequence[int]) -> list[float]:
    """Return the errors of a version on these samples: as bad as can be if LiteRT does not run it, as its delegate may
    refuse a combination of kernels."""
    try:
        return load().errors(places)
    except RuntimeFailure:
        return [1.0 for _ in places]


class Loaded:
    """A version of the model, loaded for comparison with the float model.

    Its inputs may be integers, in another order, or more than those of the float model. A file from elsewhere must be
    checked first.
    """

    def __init__(self, bench: Bench, model: Model, compared: Sequence[Compared] | None = None) -> None:
        where = entry(model)
        self._bench, self._compared = bench, tuple(bench.compared if compared is None else compared)
        self._inputs = where.graph.inputs
        self._order = range(len(self._inputs)) if bench.resumes else input_order(bench.entry, where)
        self._tensors: list[Tensor] = [c.tensor(where.graph) for c in self._compared]
        kernels = right_kernels(model) if model is bench.model else "delegate"
        runner = Runner.exposing(model, where.graph, self._tensors, kernels=kernels, checked=True)
        self._runners = [runner.keeping_state(bench.in_sequence)]

    def asking(self, compared: Sequence[Compared]) -> Loaded:
        """Return the same version, computing only some of its values."""
        other = copy(self)
        other._tensors = [self._tensors[self._compared.index(one)] for one in compared]
        other._compared = tuple(compared)
        return other

    def on(self, bench: Bench) -> Loaded:
        """Return the same version for another bench that compares the same outputs."""
        other = copy(self)
        other._bench = bench
        return other

    def values(self, given: Sequence[Row]) -> list[list[Array]]:
        """Return the compared values of each sample."""
        return self.each(given, lambda _, values: values)

    def each(
        self,
        given: Sequence[Row],
        job: Callable[[int, list[Array]], Found],
        stops: Callable[[Sequence[Found]], bool] | None = None,
    ) -> list[Found]:
        """Return the results of `job` for each sample, called with its position and its compared values. With `stops`,
        samples are run one after the other until that is true of the results so far."""

        def part(runner: Runner, own: Sequence[NumberedRow]) -> list[Found]:
            found: list[Found] = []
            for place, values in self._runs(runner, own):
                found.append(job(place, values))
                if stops is not None and stops(found):
                    break
            return found

        rows = list(enumerate(given))
        parts = self._in_parts(part, rows) if stops is None else [part(self._runners[0], rows)]
        return [found for one in parts for found in one]

    def errors(
        self,
        places: Sequence[int],
        extra: Sequence[Array] = (),
        most: float = math.inf,
    ) -> list[float]:
        """Return the error by sample at these places; `extra` is fed to additional inputs.

        Runs stop as soon as the mean error is certain to exceed `most`.
        """
        bench, wanted_places = self._bench, frozenset(places)
        end = max(places, default=-1) + 1
        exact = bench.references(end)  # computed before several threads need it

        def part(runner: Runner, own: Sequence[NumberedRow]) -> list[float]:
            found, left = list[float](), most * len(places)
            for place, values in self._runs(runner, own, extra):
                if place not in wanted_places:
                    continue
                found.append(error_of_sample(exact[place], values, bench.weights))
                left -= found[-1]
                if left < 0:
                    break
            return found

        numbered = list(enumerate(bench.rows))
        run = numbered[:end] if bench.in_sequence else [numbered[k] for k in places]  # a sequence runs from its start
        return [error for found in self._in_parts(part, run) for error in found]

    def _in_parts(
        self, job: Callable[[Runner, Sequence[NumberedRow]], Found], given: Sequence[NumberedRow]
    ) -> list[Found]:
        """Return the results of `job` on parts of the samples, each with its own runner if memory allows; a sequence is
        not split."""
        parts = [given]
        if len(given) * self._bench.macs >= SHORT and not self._bench.in_sequence:
            half = -(-len(given) // PARTS)
            parts = [given[k : k + half] for k in range(0, len(given), half)]
        if not self._bench.has_room:
            return [job(self._runners[0], part) for part in parts]
        if len(parts) > len(self._runners):
            self._runners += [self._runners[0].another() for _ in parts[len(self._runners) :]]
        return in_parallel(lambda k: job(self._runners[k], parts[k]), range(len(parts)))

    def _runs(
        self, runner: Runner, own: Sequence[NumberedRow], extra: Sequence[Array] = ()
    ) -> Iterator[tuple[int, list[Array]]]:
        """Yield the position of each sample, with its compared values."""
        runner.restart()
        for place, row in own:
            ordered = (*(row[k] for k in self._order), *extra)
            runner.begin()
            runner.invoke([encoded(values, tensor) for values, tensor in zip(ordered, self._inputs, strict=True)])
            found = zip(self._compared, self._tensors, runner.read(self._tensors), strict=True)
            yield place, [compared.judged(real(values, tensor)) for compared, tensor, values in found]
