"""Running finished models: what they score, how long they take, and what a file tells by itself."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .measure import Times, processor_time, take_turns, timed
from .zoo import Place

TURN = 0.005
"""Seconds that a model runs before it is the next one's turn: far above the clock's resolution, and short enough that
on a busy machine most turns are not interrupted. It has to be the same for all: longer turns are interrupted more."""

PATIENCE = 10 * TURN
"""A model whose single run takes longer takes part in fewer rounds."""


@dataclass(frozen=True)
class Latency:
    """Seconds of one inference, the median over rounds, and as a ratio to the float model's in the same rounds.

    `low` and `high` are the ratios of the fastest and of the slowest run.
    """

    threads: int
    seconds: float
    of_float: float
    low: float
    high: float

    def as_row(self) -> dict[str, float]:
        """As rows keep it."""
        count = str(self.threads)
        ratios = {"of float": self.of_float, "lowest": self.low, "highest": self.high}
        return {count: self.seconds} | {f"{count} {name}": ratio for name, ratio in ratios.items()}


def merged(runs: Sequence[Sequence[Latency]]) -> list[Latency]:
    """Medians over runs, for each number of threads, and how far the runs are apart."""
    found = []
    for same in zip(*runs, strict=True):
        ratios = [run.of_float for run in same]
        seconds = statistics.median(run.seconds for run in same)
        found.append(Latency(same[0].threads, seconds, statistics.median(ratios), min(ratios), max(ratios)))
    return found


def latencies(
    place: Place, reference: str, models: Mapping[str, str], threads: Sequence[int], rounds: int
) -> dict[str, list[Latency]]:
    """By name of the model. All take turns with each other and with the `reference` model, which is among them."""
    sample = place.task.calibration(1)[0]
    found: dict[str, list[Latency]] = {name: [] for name in models}
    for count in threads:
        loaded = {name: _loaded(path, sample, count) for name, path in models.items()}
        repeats = {name: math.ceil(TURN / _quickest(invoke)) for name, invoke in loaded.items()}
        jobs = {name: partial(_repeat, invoke, repeats[name]) for name, invoke in loaded.items()}
        # Several threads work at the same time, and wait for each other: only the clock tells how long that takes.
        clock = processor_time if count == 1 else time.perf_counter
        taken = take_turns(jobs, rounds, PATIENCE, clock).rounds
        each = Times({name: tuple(s / repeats[name] for s in seconds) for name, seconds in taken.items()})
        for name in models:
            ratio = each.ratio(name, reference)
            found[name].append(Latency(count, each.median(name), ratio, ratio, ratio))
    return found


def _quickest(job: Callable[[], object]) -> float:
    job()
    return min(timed(job) for _ in range(2))


def _repeat(job: Callable[[], object], times: int) -> None:
    for _ in range(times):
        job()


def _loaded(path: str, sample: Sequence[Any], threads: int) -> Callable[[], None]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), sample, strict=True):
        interpreter.set_tensor(detail["index"], _encoded(np.asarray(value), detail))
    invoke: Callable[[], None] = interpreter.invoke
    return invoke


def _encoded(value: Any, detail: Mapping[str, Any]) -> Any:
    """The sample as the model takes it: some kernels skip zeros, so that the values matter to the time as well."""
    scale, zero_point = detail["quantization"]
    if value.dtype.kind == "f" and scale:
        limits = np.iinfo(detail["dtype"])
        value = np.clip(np.round(value / scale + zero_point), limits.min, limits.max)
    return value.astype(detail["dtype"])


@dataclass(frozen=True)
class Facts:
    """What a file tells by itself."""

    size: int
    conversions: int | None
    """QUANTIZE and DEQUANTIZE ops. None for files that are no `.tflite`."""
    all_conversions: int | None
    """With those left to the caller, who has floats: one for each integer input and output that was float before."""
    float_ops: Mapping[str, int]


def facts(model: str) -> Facts:
    import zeropoint
    from zeropoint.ops import CONVERSIONS

    loaded = zeropoint.load(model)
    ops = [op for graph in loaded.graphs for op in graph.ops]
    edges = [tensor for tensor in (*loaded.main.inputs, *loaded.main.outputs) if tensor.is_quantized]
    conversions = [op for op in ops if op.kind in CONVERSIONS]
    floats = Counter(op.label for op in ops if op not in conversions and any(t.dtype.is_float for t in op.outputs))
    size = Path(model).stat().st_size
    return Facts(size, len(conversions), len(conversions) + len(edges), dict(floats))


@dataclass(frozen=True)
class Measure:
    """How much of a task to score on: all of it, unless that takes longer than `seconds`; then its first `part`."""

    part: int
    seconds: float
    limit: int | None = None

    def fitting(self, count: int | None, seconds: float) -> int | None:
        """The limit where `count` inferences are to be made, if that is known, that take `seconds` each."""
        if self.limit is not None or count is None or count * seconds <= self.seconds:
            return self.limit
        return self.part


@dataclass(frozen=True)
class Judgement:
    """A finished model's score, the seconds that took, and what its file tells."""

    score: float
    seconds: float
    facts: Facts


def judge(place: Place, model: str, limit: int | None) -> Judgement:
    task, start = place.task, time.perf_counter()
    value = float(task.evaluate(model, limit))
    return Judgement(value, time.perf_counter() - start, facts(model))
