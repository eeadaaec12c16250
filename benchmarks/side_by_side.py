"""One run: every task in every mode by every tool, each step in a process of its own; what is done already is kept."""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zeropoint.parallel import cores

from .apart import Failed, apart
from .inference import Judgement, Latency, Measure, judge, latencies, merged
from .modes import MODES
from .orders import Made, Order
from .rows import FLOAT, Row, Store
from .tools import OURS, TOOLS, in_its_environment, make, obstacle
from .zoo import Place, eval_count, metric_of

REPEATS = 3
REPEAT_SECONDS = 6.0
"""A model is made REPEATS times, in turns with the other tools, unless that takes longer: then once or twice."""


@dataclass(frozen=True)
class Settings:
    """How to measure. Results of different settings do not mix."""

    samples: int = 200
    measure: Measure = Measure(200, 90.0)  # noqa: RUF009 (frozen)
    rounds: int = 21
    """Of latency, in all runs together."""
    runs: int = 3
    timeout: float = 900.0
    threads: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Group:
    """All models of one task in one mode: their times are taken in turns."""

    place: Place
    mode: str
    orders: tuple[Order, ...]

    @property
    def rows(self) -> int:
        return len(self.orders) or 1


def row_of(order: Order) -> Row:
    return Row(order.place.name, order.mode, order.tool, order.variant)


def plan(
    places: Sequence[Place],
    modes: Sequence[str],
    rivals: Mapping[str, str | None],
    variants: Sequence[str],
    samples: int,
) -> list[Group]:
    """What there is to do: the float models first. `rivals` are tools with the Python of their environments."""
    groups = [Group(place, FLOAT, ()) for place in places]
    for place in places:
        for mode in modes:
            ways: list[tuple[str, str | None]] = [(OURS, None)]
            ways += [(OURS, variant) for variant in MODES[mode].variants if variant in variants]
            orders = [Order(place, mode, *way, samples) for way in ways]
            orders += [Order(place, mode, rival, None, samples, python) for rival, python in rivals.items()]
            groups.append(Group(place, mode, tuple(orders)))
    return groups


@dataclass(frozen=True)
class Progress:
    """What is told after each group. `left` are seconds, None as long as nobody knows."""

    rows: Sequence[Row]
    done: int
    total: int
    left: float | None


def run(
    groups: Sequence[Group], store: Store, settings: Settings, tell: Callable[[Progress], None] = lambda _: None
) -> None:
    """Do what is missing in `store`, group by group."""
    known = store.current()
    floats = {row.task: row for row in known.values() if row.tool == FLOAT}
    todo = list(_missing(groups, known))
    total, done, start = sum(g.rows for g in todo), 0, time.monotonic()
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), settings, floats)
        for place, group in enumerate(todo):
            rows = bench.float_rows(group.place) if group.mode == FLOAT else bench.group_rows(group)
            for row in rows:
                store.add(row)
                if row.tool == FLOAT:
                    floats[row.task] = row
            done += group.rows
            spent += _weight(group, floats)
            ahead = sum(_weight(other, floats) for other in todo[place + 1 :])
            told = group.mode != FLOAT or not ahead  # float models say nothing about the time of the others
            left = (time.monotonic() - start) / spent * ahead if told else None
            tell(Progress(rows, done, total, left))


def _missing(groups: Sequence[Group], known: Mapping[str, Row]) -> Iterator[Group]:
    for group in groups:
        digest = group.place.digest

        def is_there(row: Row, digest: str = digest) -> bool:
            return row.name in known and known[row.name].digest == digest

        if group.mode == FLOAT:
            if not is_there(Row(group.place.name, FLOAT, FLOAT)):
                yield group
        elif orders := tuple(order for order in group.orders if not is_there(row_of(order))):
            yield replace(group, orders=orders)


def _weight(group: Group, floats: Mapping[str, Row]) -> float:
    """Roughly how long a group takes against others: processes have to start, and scores take what they take."""
    scoring = floats[group.place.name].seconds if group.place.name in floats else None
    return group.rows * (5.0 + 1.5 * (scoring or 0.0))


class Bench:
    """Makes and measures; remembers scores of files that it has seen."""

    def __init__(self, folder: Path, settings: Settings, floats: Mapping[str, Row]) -> None:
        self.folder, self.settings, self.floats = folder, settings, floats
        self.counts: dict[str, int | None] = {}
        self.seen: dict[tuple[str, str, int | None], Judgement] = {}

    def float_rows(self, place: Place) -> list[Row]:
        task, model = place.task, str(place.task.model)
        row = Row(place.name, FLOAT, FLOAT, metric=metric_of(task), digest=place.digest)
        try:
            times = self._timed(place, {FLOAT: model})
            row = self._judged(row, _float_order(place), model, times[FLOAT])
        except Failed as failure:
            row = replace(row, error=str(failure))
        return [row]

    def group_rows(self, group: Group) -> list[Row]:
        made, failures = self._make(group.orders)
        files = {row_of(order).name: str(self._file(order)) for order in group.orders}
        runs_in_litert = [row_of(order).name for order in group.orders if TOOLS[order.tool].judge is None]
        times = self._latencies(group.place, {name: files[name] for name in runs_in_litert if name in made}, failures)
        rows = []
        for order in group.orders:
            plain = row_of(order)
            row = replace(plain, metric=metric_of(group.place.task), digest=group.place.digest)
            if plain.name in made:
                row = _with_costs(row, made[plain.name])
            try:
                if plain.name in failures:
                    raise Failed(failures[plain.name])
                row = self._judged(row, order, files[plain.name], times.get(plain.name, ()))
            except Failed as failure:
                row = replace(row, error=str(failure))
            rows.append(row)
            self._file(order).unlink(missing_ok=True)
        return rows

    def _file(self, order: Order) -> Path:
        return self.folder / f"{row_of(order).name}.tflite"

    def _apart(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return apart(function, *arguments, timeout=self.settings.timeout)

    def _make(self, orders: Sequence[Order]) -> tuple[dict[str, list[Made]], dict[str, str]]:
        """What making each model took, and why others were not made."""
        made: dict[str, list[Made]] = {}
        failures: dict[str, str] = {}
        spent: dict[str, float] = {}
        for order in orders:
            if (reason := obstacle(order)) is not None:
                failures[row_of(order).name] = reason
        for _ in range(REPEATS):
            for order in orders:
                name = row_of(order).name
                if name in failures or spent.get(name, 0.0) > REPEAT_SECONDS / 2:
                    continue
                start = time.monotonic()
                try:
                    made.setdefault(name, []).append(
                        in_its_environment(order, make, order, str(self._file(order)), timeout=self.settings.timeout)
                    )
                except Failed as failure:
                    failures[name] = str(failure)
                    made.pop(name)
                spent[name] = spent.get(name, 0.0) + time.monotonic() - start
        return made, failures

    def _latencies(
        self, place: Place, files: Mapping[str, str], failures: dict[str, str]
    ) -> Mapping[str, list[Latency]]:
        """All in turns; one by one where a model does not run and takes the others' process with it."""
        if not files:
            return {}
        try:
            return self._timed(place, {FLOAT: str(place.task.model), **files})
        except Failed as failure:
            if len(files) == 1:
                failures[next(iter(files))] = f"its model does not run: {failure}"
                return {}
        found: dict[str, list[Latency]] = {}
        for name, file in files.items():
            found |= self._latencies(place, {name: file}, failures)
        return found

    def _timed(self, place: Place, files: Mapping[str, str]) -> dict[str, list[Latency]]:
        """Several runs, each in a process of its own: how fast a model is differs more between them than within."""
        settings = self.settings
        asked = (place, FLOAT, files, settings.threads, math.ceil(settings.rounds / settings.runs))
        runs = [self._apart(latencies, *asked) for _ in range(settings.runs)]
        return {name: merged([run[name] for run in runs]) for name in files}

    def _judged(self, row: Row, order: Order, file: str, times: Sequence[Latency]) -> Row:
        """The row with everything that a finished model tells."""
        place = order.place
        limit = self._limit(place, times)
        found = self._judgement(order, file, limit)
        reference = self._float_score(place, limit) if row.tool != FLOAT else found.score
        return replace(
            row,
            score=found.score,
            float_score=reference,
            limit=limit,
            seconds=found.seconds,
            size=found.facts.size,
            float_size=Path(place.task.model).stat().st_size,
            conversions=found.facts.conversions,
            all_conversions=found.facts.all_conversions,
            float_ops=found.facts.float_ops,
            latency={key: value for time in times for key, value in time.as_row().items()},
        )

    def _limit(self, place: Place, times: Sequence[Latency]) -> int | None:
        """On how many samples to score a model; one that is not timed on as many as the float model."""
        if not times:
            return self.floats[place.name].limit if place.name in self.floats else self.settings.measure.limit
        if place.name not in self.counts:
            self.counts[place.name] = eval_count(place.task)
        return self.settings.measure.fitting(self.counts[place.name], times[0].seconds / cores())

    def _float_score(self, place: Place, limit: int | None) -> float:
        stored = self.floats.get(place.name)
        if stored is not None and stored.limit == limit and stored.score is not None:
            return stored.score
        return self._judgement(_float_order(place), str(place.task.model), limit).score

    def _judgement(self, order: Order, file: str, limit: int | None) -> Judgement:
        """Models with the same bytes have the same score."""
        key = (order.place.name, hashlib.sha256(Path(file).read_bytes()).hexdigest(), limit)
        if key not in self.seen:
            own = TOOLS[order.tool].judge if order.tool in TOOLS else None
            if own is None:
                self.seen[key] = self._apart(judge, order.place, file, limit)
            else:
                timeout = self.settings.timeout
                self.seen[key] = in_its_environment(order, own, order.place, file, limit, timeout=timeout)
        return self.seen[key]


def _float_order(place: Place) -> Order:
    return Order(place, FLOAT, FLOAT, None, 0)


def _with_costs(row: Row, taken: Sequence[Made]) -> Row:
    calibrations = [made.calibration for made in taken if made.calibration is not None]
    return replace(
        row,
        whole=statistics.median(made.whole for made in taken),
        calibration=statistics.median(calibrations) if calibrations else None,
        peak=int(statistics.median(made.peak for made in taken)),
        note=taken[0].note,
    )
