"""The loud samples of a bench, and what is measured on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..calibration import Stats
from ..calibration.collect import collect_stats
from ..calibration.loud_samples import LoudSamples, Reaches, loud_samples
from ..graph.model import Model
from ..graph.query import tensor_keys
from ..parallel import cached_property
from ..sources.ports import Row

if TYPE_CHECKING:
    from .bench import Bench


FEWEST_QUIET = 48
"""If not all samples are in memory, ranges are those of the others in memory if these are as many."""


@dataclass(frozen=True)
class LoudSplit:
    """Calibration's samples in two parts: those that are `loud`, with their places in the data that were given, and
    those that are `quiet`, as far as they are in memory. Calibration gave the loud ones these `numbers` among `count`
    samples."""

    loud: LoudSamples
    numbers: frozenset[int]
    count: int
    quiet: Sequence[Any]
    bench: Bench

    @classmethod
    def of(cls, bench: Bench, reaches: Reaches, held: Sequence[Any], places: Sequence[int]) -> LoudSplit | None:
        """Return the split by what calibration saw, of samples of which it `held` the first or all in memory; `places`
        are those of its samples in the data that were given. None if no sample is loud."""
        keys, graph = tensor_keys(bench.model), bench.entry.graph
        ends = [*graph.inputs, *graph.outputs, *(one.tensor(graph) for one in bench.outputs_that_count)]
        loud = loud_samples(reaches.table, {keys[tensor] for tensor in ends})
        if loud is None:
            return None
        numbers = frozenset(loud.numbers)
        quiet = [sample for k, sample in enumerate(held) if k not in numbers]
        return cls(loud.renumbered(places), numbers, len(places), quiet, bench)

    @property
    def has_all(self) -> bool:
        """Whether all samples that are quiet are in memory."""
        return len(self.quiet) == self.count - len(self.numbers)

    @cached_property
    def quiet_stats(self) -> Stats | None:
        """The statistics of quiet samples; None if most are not in memory, and the others too few."""
        if not self.has_all and len(self.quiet) < FEWEST_QUIET:
            return None
        bench = self.bench
        return collect_stats(bench.model, self.quiet, bench.settings, progress=lambda _: None, ops=bench.ops)

    def quiet_rows(self, bench: Bench) -> list[Row]:
        """Return those of the bench's samples in memory that are not loud."""
        return [row for number, row in bench.numbered_rows if number not in self.numbers]

    def error(self, bench: Bench, model: Model) -> float:
        """Return the error of a version of the model, between 0 and 1, where the loud samples count by their share of
        all samples, whether or not they are among those that judge. Those that are not in memory are left out."""
        judging = bench.numbered_rows[: len(bench.judged_rows)]
        places = [place for place, (number, _) in enumerate(judging) if number not in self.numbers]
        rows = [row for number, row in bench.numbered_rows if number in self.numbers]
        error, share = bench.errors(model, places).share, len(rows) / self.count
        return (1 - share) * error + share * bench.on(rows).errors(model, range(len(rows))).share if rows else error
