"""How long models take, side by side in one run: interleaved, so that a busy moment of the machine hits all alike."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import RuntimeFailure, ZeropointError
from ..graph.model import Graph, Model, Op, Tensor
from ..json_values import json_values
from ..ops import CONVERSIONS
from ..parallel import cores
from ..runtime import Session
from ..sources.ports import entry
from ..tflite import to_bytes
from .isolate import constant_parts, flowing_inputs, isolate
from .running import exposing

SHORTEST = 0.004
"""Seconds for which a model is run before the clock is read again; many small ones run several times."""

WARM_UPS = 3
KIND_ROUNDS = 7
"""How often the ops of one kind are timed."""


@dataclass(frozen=True)
class Latency:
    """Seconds of one run: the median, and the quartiles as spread."""

    threads: int
    median: float
    low: float
    high: float
    fastest: float
    rounds: int


@dataclass(frozen=True)
class KindTime:
    """All ops of one kind, run by themselves: an estimate, for what a delegate fuses is taken apart."""

    kind: str
    ops: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Timing:
    """One model. `peak_memory` are bytes that loading and running took beyond the file, None where the system does not
    tell; `undelegated` counts ops by kind that LiteRT's delegate left to plain kernels."""

    name: str
    bytes: int
    latencies: tuple[Latency, ...]
    peak_memory: int | None
    kinds: tuple[KindTime, ...]
    undelegated: Mapping[str, int]

    @property
    def conversions(self) -> float | None:
        """The estimated share of time that goes into conversions; None where it was not measured."""
        return sum(k.share for k in self.kinds if k.kind in CONVERSIONS) if self.kinds else None


@dataclass(frozen=True)
class Benchmark:
    """Several models on the same machine at the same time."""

    models: tuple[Timing, ...]
    cores: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        shares = {timing.name: timing.conversions for timing in self.models}
        return {"schema": 1, **json_values(self), "conversions": json_values(shares)}


NO_OP_TIMES = (
    "LiteRT's Python interpreter does not tell the time of single ops; the times by kind are estimates, from running "
    "the ops of each kind by themselves with one thread"
)


@dataclass(frozen=True)
class Trial:
    """How to measure: on how many threads, how often, and whether to look inside."""

    threads: tuple[int, ...] = (1,)
    rounds: int = 30
    inside: bool = True


def benchmark(
    models: Mapping[str, Model], trial: Trial | None = None, progress: Callable[[int], None] | None = None
) -> Benchmark:
    """Time `models` by name. `progress` is called with the number of rounds done."""
    trial = trial or Trial()
    stands = {
        (name, count): _Stand(model, count, sample_for(model))
        for name, model in models.items()
        for count in trial.threads
    }
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in stands}
    for done in range(1, trial.rounds + 1):
        for key, stand in stands.items():
            seconds[key].append(stand.time())
        if progress is not None:
            progress(done)
    timings = []
    for name, model in models.items():
        latencies = tuple(_latency(count, seconds[name, count]) for count in trial.threads)
        kinds = times_by_kind(model) if trial.inside else ()
        left = undelegated(model, stands[name, trial.threads[0]].session)
        content = to_bytes(model)
        memory = peak_memory(content) if trial.inside else None
        timings.append(Timing(name, len(content), latencies, memory, kinds, left))
    return Benchmark(tuple(timings), cores(), (NO_OP_TIMES,) if trial.inside else ())


class _Stand:
    """A loaded model, warmed up, that runs often enough at a time to be measured."""

    def __init__(self, model: Model, threads: int, sample: Sequence[Array]) -> None:
        self.session = Session(model, threads=threads)
        self.session.invoke(sample)
        start = time.perf_counter()
        for _ in range(WARM_UPS):
            self.session.repeat()
        each = (time.perf_counter() - start) / WARM_UPS
        self.runs = max(1, min(1000, round(SHORTEST / max(each, 1e-9))))

    def time(self) -> float:
        start = time.perf_counter()
        for _ in range(self.runs):
            self.session.repeat()
        return (time.perf_counter() - start) / self.runs


def _latency(threads: int, seconds: list[float]) -> Latency:
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return Latency(threads, median, low, high, min(seconds), len(seconds))


def sample_for(model: Model) -> list[Array]:
    """Numbers without a pattern for inputs that are real, zeros for indices: those are valid everywhere."""
    rng = np.random.default_rng(0)
    return [_filled(t, rng) for t in entry(model).graph.inputs]


def _filled(tensor: Tensor, rng: np.random.Generator) -> Array:
    storage = tensor.dtype.storage
    if storage is None:
        raise RuntimeFailure(f"the input '{tensor.name}' is {tensor.dtype.label}, which cannot be made up")
    if tensor.dtype.is_float:
        return rng.uniform(-1, 1, tensor.shape).astype(storage)
    if tensor.is_quantized:
        return rng.integers(tensor.dtype.min, tensor.dtype.max, tensor.shape, endpoint=True).astype(storage)
    return np.zeros(tensor.shape, storage)


def times_by_kind(model: Model) -> tuple[KindTime, ...]:
    """What the ops of each kind take by themselves, the longest first. Empty where inner values cannot be had."""
    graph = entry(model).graph
    steady = constant_parts(graph)
    wanted = list(dict.fromkeys(t for op in graph.ops for t in flowing_inputs(op, steady)))
    try:
        values = dict(zip(graph.inputs, sample_for(model), strict=True))
        values |= exposing(model, graph, [t for t in wanted if t not in values and t.size]).run(values)
    except ZeropointError:
        return ()
    groups: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.outputs and not all(t in steady for t in op.outputs):  # what follows from constants is made once
            groups.setdefault(op.label, []).append(op)
    found = {kind: _time_alone(model, graph, ops, values) for kind, ops in groups.items()}
    total = sum(seconds for seconds in found.values() if seconds is not None) or 1.0
    measured = [KindTime(k, len(groups[k]), s, s / total) for k, s in found.items() if s is not None]
    return tuple(sorted(measured, key=lambda k: -k.seconds))


def _time_alone(model: Model, graph: Graph, ops: list[Op], values: Mapping[Tensor, Array]) -> float | None:
    alone = isolate(model, graph, ops, lambda t: t in values)
    if not alone.ops:
        return None
    try:
        stand = _Stand(alone.model, 1, [values[t] for t in alone.fed])
        return statistics.median(stand.time() for _ in range(KIND_ROUNDS))
    except ZeropointError:  # an op that runs only in its place, such as one with states
        return None


def undelegated(model: Model, session: Session) -> dict[str, int]:
    """Ops by kind that plain kernels compute, the most frequent first."""
    taken, counts = session.delegated(), dict[str, int]()
    for place, op in enumerate(entry(model).graph.ops):
        if place not in taken:
            counts[op.label] = counts.get(op.label, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def peak_memory(content: bytes) -> int | None:
    """Bytes that a fresh process needs to load and run a model, beyond Python, LiteRT and the file itself."""
    command = [sys.executable, "-m", f"{__package__}.memory"]
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    text = done.stdout.decode(errors="replace").strip()
    return int(text) if done.returncode == 0 and text.isdigit() else None
