"""Measures the latency of models side by side, interleaved, so that load on the machine affects all of them alike."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..display import Brief, Displayed
from ..dtypes import Array
from ..errors import RuntimeFailure, ZeropointError
from ..graph.model import Model, Op, Tensor
from ..json_values import json_values
from ..ops import CONVERSIONS
from ..parallel import cores
from ..runtime import Runner, Runtime, Session, run_on_zeros, time_limit
from ..runtime.interpreter import Clock
from ..runtime.tflm import measure_arena
from ..sources.models import ModelSource, load
from ..sources.ports import entry
from ..tflite import to_bytes
from .errors import encoded
from .isolate import IsolatedOps, constant_parts, flowing_inputs, isolate

SHORTEST = 0.004
"""Minimum seconds between two readings of the clock; a small model is run several times."""

WARM_UPS = 3
KIND_ROUNDS = 7
"""Number of timing rounds for the ops of one kind."""


@dataclass(frozen=True)
class Latency:
    """The seconds of one run: the median, with quartiles as spread."""

    threads: int
    median: float
    low: float
    high: float
    fastest: float
    rounds: int


@dataclass(frozen=True)
class KindTime:
    """The time of all ops of one kind, run by themselves: an estimate, because ops that a delegate fuses are
    separated."""

    kind: str
    ops: int
    seconds: float
    share: float


@dataclass(frozen=True, repr=False)
class Timing(Brief):
    """The measurements of one model. `peak_memory` is the memory for loading and running in addition to the file, in
    bytes (in TensorFlow Lite Micro, the arena), None if the system does not report it; `undelegated` counts ops by kind
    that LiteRT's delegate left to plain kernels."""

    name: str
    bytes: int
    latencies: tuple[Latency, ...]
    peak_memory: int | None
    kinds: tuple[KindTime, ...]
    undelegated: Mapping[str, int]

    @property
    def conversions(self) -> float | None:
        """The estimated share of time spent in conversions; None if not measured."""
        return sum(k.share for k in self.kinds if k.kind in CONVERSIONS) if self.kinds else None


@dataclass(frozen=True, repr=False)
class Benchmark(Displayed):
    """Several models, measured on the same machine at the same time."""

    models: tuple[Timing, ...]
    cores: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        shares = {timing.name: timing.conversions for timing in self.models}
        return {"schema": 1, **json_values(self), "conversions": json_values(shares)}


NO_OP_TIMES = "runtimes do not report times of single ops; times by kind are estimates from running such ops alone"
NOT_THE_DEVICE = "these are portable kernels on this machine: use them to compare models, not to predict a device"


@dataclass(frozen=True)
class TimingOptions:
    """How to measure.

    Attributes:
        threads: The numbers of threads to measure with.
        rounds: How often each model is timed.
        inside: Whether to measure memory and times by op kind, too.
        runtime: What runs the models: "delegate", "optimized" or "reference" kernels of LiteRT, or "tflm".
        clock: "wall", or "cpu" for the CPU time of one thread.
        sample: The real numbers to run the models on, in the order of the inputs; by default random ones. Integer
            kernels may refuse random numbers, such as roots of what is never negative in practice.
    """

    threads: tuple[int, ...] = (1,)
    rounds: int = 30
    inside: bool = True
    runtime: Runtime = "delegate"
    clock: Clock = "wall"
    sample: Sequence[Array] | None = None


def benchmark(
    models: Mapping[str, ModelSource],
    options: TimingOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> Benchmark:
    """Measure the latency of several models side by side on this machine.

    Runs are interleaved, so that load on the machine affects all models alike. Inputs are random, unless `options`
    has a sample.

    Args:
        models: The models by display name.
        options: Threads, rounds, runtime and clock.
        progress: Called with the number of rounds done.

    Returns:
        For each model the median latency with quartiles, peak memory, and estimated times by op kind.
    """
    options, loaded = options or TimingOptions(), {name: load(model) for name, model in models.items()}
    runners = {
        (name, n): Runner(model, kernels=options.runtime, threads=n)
        for name, model in loaded.items()
        for n in options.threads
    }
    timers = {key: _timer(runner, _inputs(runner.model, options), options.clock) for key, runner in runners.items()}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runners}
    for done in range(1, options.rounds + 1):
        for key, timer in timers.items():
            seconds[key].append(timer())
        if progress is not None:
            progress(done)
    timings = []
    for name in loaded:
        latencies = tuple(_latency(n, seconds[name, n]) for n in options.threads)
        timings.append(_timing(name, runners[name, options.threads[0]], latencies, options))
    notes = [*_assumed(loaded)] + [NO_OP_TIMES] * options.inside + [NOT_THE_DEVICE] * (options.runtime == "tflm")
    return Benchmark(tuple(timings), cores(), tuple(notes))


def _timing(name: str, runner: Runner, latencies: tuple[Latency, ...], options: TimingOptions) -> Timing:
    """Return the latencies of a model with what else is measured of it."""
    content, is_micro = to_bytes(runner.model), options.runtime == "tflm"
    kinds = times_by_kind(runner.model, options.runtime) if options.inside else ()
    memory = (measure_arena if is_micro else peak_memory)(content) if options.inside else None
    return Timing(name, len(content), latencies, memory, kinds, {} if is_micro else undelegated(runner))


def _timer(runner: Runner, sample: Sequence[Array], clock: Clock = "wall") -> Callable[[], float]:
    """Warm the model up; each call of the result measures one run in seconds, repeated often enough to be
    measurable."""

    def seconds(runs: int) -> float:
        return runner.session.seconds(runs, clock) / runs

    runner.invoke(sample)
    runs = max(1, min(1000, round(SHORTEST / max(seconds(WARM_UPS), 1e-9))))
    return lambda: seconds(runs)


def _latency(threads: int, seconds: list[float]) -> Latency:
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return Latency(threads, median, low, high, min(seconds), len(seconds))


def _inputs(model: Model, options: TimingOptions) -> list[Array]:
    """Return what a model is run on: the given sample, in the types of its inputs, or random numbers."""
    if options.sample is None:
        return sample_for(model)
    return [encoded(values, t) for values, t in zip(options.sample, entry(model).graph.inputs, strict=True)]


def sample_for(model: Model) -> list[Array]:
    """Return a sample: random values for numeric inputs, zeros for indices, which are always valid."""
    rng = np.random.default_rng(0)
    return [_filled(tensor, shape, rng) for tensor, shape in input_shapes(model).items()]


def input_shapes(model: Model) -> dict[Tensor, tuple[int, ...]]:
    """Return the input shapes; for dynamic dimensions, sizes with which the model runs."""
    inputs = entry(model).graph.inputs
    is_dynamic = any(t.is_dynamic for t in inputs)
    shapes = run_on_zeros(Session(model)) if is_dynamic else [t.shape for t in inputs]
    return dict(zip(inputs, shapes, strict=True))


def _assumed(models: Mapping[str, Model]) -> Iterator[str]:
    for name, model in models.items():
        for tensor, shape in input_shapes(model).items():
            if tensor.is_dynamic:
                yield f"{name} was run with input '{tensor.name}' of shape {list(shape)}: the file leaves it open"


def _filled(tensor: Tensor, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    storage = tensor.dtype.storage
    if storage is None:
        raise RuntimeFailure(f"cannot generate values for the input '{tensor.name}' of type {tensor.dtype.label}")
    if tensor.dtype.is_float:
        return rng.uniform(-1, 1, shape).astype(storage)
    if tensor.is_quantized:
        return rng.integers(tensor.dtype.min, tensor.dtype.max, shape, endpoint=True).astype(storage)
    return np.zeros(shape, storage)


def times_by_kind(model: Model, runtime: Runtime = "delegate") -> tuple[KindTime, ...]:
    """Return the time of the ops of each kind by themselves, longest first; empty if intermediate values are not
    available."""
    graph = entry(model).graph
    constant = constant_parts(graph)
    wanted = list(dict.fromkeys(t for op in graph.ops for t in flowing_inputs(op, constant)))
    try:
        sample = sample_for(model)
        values = dict(zip(graph.inputs, sample, strict=True))
        inner = [t for t in wanted if t not in values and t.size and t.dtype.storage is not None]  # no resource handles
        values |= Runner.exposing(model, graph, inner).values(sample)
    except ZeropointError:
        return ()
    groups: dict[str, list[Op]] = {}
    for op in graph.ops:
        if not constant.issuperset(op.outputs):  # values that depend only on constants are computed once
            groups.setdefault(op.label, []).append(op)
    seconds = {}
    for kind, ops in groups.items():
        alone = isolate(graph, ops, lambda t: t in values)
        seconds[kind] = _time_alone(alone, [values[t] for t in alone.fed], runtime)
    total = sum(s for s in seconds.values() if s is not None) or 1.0
    measured = [KindTime(k, len(groups[k]), s, s / total) for k, s in seconds.items() if s is not None]
    return tuple(sorted(measured, key=lambda k: -k.seconds))


def _time_alone(alone: IsolatedOps, sample: list[Array], runtime: Runtime) -> float | None:
    if not alone.ops:
        return None
    try:
        timer = _timer(Runner(alone.model, kernels=runtime, strict=False), sample)
        return statistics.median(timer() for _ in range(KIND_ROUNDS))
    except ZeropointError:  # an op that only runs within the graph, such as one with states
        return None


def undelegated(runner: Runner) -> dict[str, int]:
    """Return the ops that run on plain kernels by kind, most frequent first."""
    taken = runner.session.delegated()
    kinds = Counter(op.label for place, op in enumerate(entry(runner.model).graph.ops) if place not in taken)
    return dict(kinds.most_common())


def peak_memory(content: bytes) -> int | None:
    """Return the bytes that a fresh process needs to load and run a model, in addition to Python, LiteRT and the
    file."""
    command = [sys.executable, "-m", f"{__package__}.memory"]
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=False, timeout=time_limit())
    except subprocess.TimeoutExpired:
        return None
    text = done.stdout.decode(errors="replace").strip()
    return int(text) if done.returncode == 0 and text.isdigit() else None
