"""Quantizing the zoo, against TensorFlow's converter and ai-edge-quantizer: accuracy, speed, time and memory.

`python -m benchmarks.quantization --zoo ../shared/zoo [--only kws_dscnn] [--modes int8] [-o results.json]`

Everything that runs other people's native code does so in a process of its own: a crash is a row that says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import multiprocessing
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from .measure import Times, peak_memory, print_table, take_turns

FLOAT, OURS = "float", "zeropoint"
TIME_NOISE = 1.10
MEMORY_GOAL = 3.0
LARGE = "minilm_l6_sts"
"""The task on which time and memory of quantization itself have goals."""

PACKAGES = ("zeropoint", "ai-edge-litert", "tensorflow", "ai-edge-quantizer", "numpy")


# What each tool does. A function imports what its job needs and returns the job, so that imports are not measured.

Whole = Callable[[Any, str, list[Any]], bytes]
"""(task, mode, samples) -> the quantized model, calibration included."""

Calibrate = Callable[[Any, str, list[Any], str], None]
"""(task, mode, samples, file): writes statistics."""

FromStats = Callable[[str, str, str], bytes]
"""(model, mode, file of statistics) -> the quantized model."""


QUICK = {"effort": "quick", "range": "minmax"}


def zeropoint_whole(**options: Any) -> Whole:
    import zeropoint

    _warm_up_imports()
    return lambda task, mode, samples: zeropoint.to_bytes(
        zeropoint.quantize(str(task.model), mode, data=samples, **options).model
    )


def zeropoint_quick_whole() -> Whole:
    return zeropoint_whole(**QUICK)


def zeropoint_calibrate() -> Calibrate:
    import zeropoint

    _warm_up_imports()

    def calibrate(task: Any, mode: str, samples: list[Any], target: str) -> None:  # noqa: ARG001 (any mode)
        zeropoint.calibrate(str(task.model), samples).save(target, overwrite=True)

    return calibrate


def zeropoint_from_stats(**options: Any) -> FromStats:
    import zeropoint

    _warm_up_imports()
    return lambda model, mode, stats: zeropoint.to_bytes(
        zeropoint.quantize(model, mode, stats=zeropoint.Stats.load(stats), **options).model
    )


def zeropoint_quick_from_stats() -> FromStats:
    return zeropoint_from_stats(**QUICK)


def _warm_up_imports() -> None:
    import ai_edge_litert.interpreter  # noqa: F401 (imported on first use otherwise)

    import zeropoint.quantize
    import zeropoint.tflite.write  # noqa: F401


def tensorflow_whole() -> Whole:
    import tensorflow as tf

    def convert(task: Any, mode: str, samples: list[Any]) -> bytes:
        if task.source.is_dir():
            # The newer entry point restores Keras objects, and TensorFlow 2.21 no longer reads those of Keras 2.
            converter = tf.compat.v1.lite.TFLiteConverter.from_saved_model(str(task.source))
        else:
            converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.models.load_model(task.source, compile=False))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: map(list, samples)
        if mode == "int16x8":
            sets = tf.lite.OpsSet
            integer = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
            converter.target_spec.supported_ops = [integer, sets.TFLITE_BUILTINS]
        content: bytes = converter.convert()
        return content

    return convert


def ai_edge_whole() -> Whole:
    quantizer = _ai_edge_quantizer()

    def quantize(task: Any, mode: str, samples: list[Any]) -> bytes:
        made = quantizer(str(task.model), mode)
        found = made.calibrate(_by_name(task, samples))
        return bytes(made.quantize(found, **QUIET).quantized_model)

    return quantize


def ai_edge_calibrate() -> Calibrate:
    quantizer = _ai_edge_quantizer()

    def calibrate(task: Any, mode: str, samples: list[Any], target: str) -> None:
        found = quantizer(str(task.model), mode).calibrate(_by_name(task, samples))
        Path(target).write_bytes(pickle.dumps(found))

    return calibrate


def ai_edge_from_stats() -> FromStats:
    quantizer = _ai_edge_quantizer()

    def quantize(model: str, mode: str, stats: str) -> bytes:
        found = pickle.loads(Path(stats).read_bytes())
        return bytes(quantizer(model, mode).quantize(found, **QUIET).quantized_model)

    return quantize


QUIET = {"enable_progress_bar": False, "enable_progress_report": False}


def _ai_edge_quantizer() -> Callable[[str, str], Any]:
    from ai_edge_quantizer import quantizer, recipe

    recipes = {"int8": recipe.static_wi8_ai8, "int16x8": recipe.static_wi8_ai16}
    return lambda model, mode: quantizer.Quantizer(model, recipes[mode]())


def _by_name(task: Any, samples: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """Samples as ai-edge-quantizer wants them: by signature, then by input name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(task.model))
    order = [d["index"] for d in interpreter.get_input_details()]
    key = next(iter(interpreter.get_signature_list()), None)
    if key is None:
        names = [d["name"] for d in interpreter.get_input_details()]
    else:
        details = interpreter.get_signature_runner(key).get_input_details()
        names = sorted(details, key=lambda name: order.index(details[name]["index"]))
    return {key or "serving_default": [dict(zip(names, sample, strict=True)) for sample in samples]}


@dataclass(frozen=True)
class Tool:
    package: str
    whole: Callable[[], Whole]
    calibrate: Callable[[], Calibrate] | None = None
    from_stats: Callable[[], FromStats] | None = None
    needs_source: bool = False

    def obstacle(self, task: Any) -> str | None:
        """Why this tool cannot even try."""
        if importlib.util.find_spec(self.package) is None:
            return "not installed"
        if self.needs_source and task.source is None:
            return "needs the Keras model or SavedModel, there is none"
        return None


TOOLS = {
    OURS: Tool("zeropoint", zeropoint_whole, zeropoint_calibrate, zeropoint_from_stats),
    "zeropoint quick": Tool("zeropoint", zeropoint_quick_whole, zeropoint_calibrate, zeropoint_quick_from_stats),
    "TensorFlow": Tool("tensorflow", tensorflow_whole, needs_source=True),
    "ai-edge-quantizer": Tool("ai_edge_quantizer", ai_edge_whole, ai_edge_calibrate, ai_edge_from_stats),
}
RIVALS = [name for name in TOOLS if TOOLS[name].package != "zeropoint"]


# Processes of their own.


class Failed(Exception):
    """What a child process did not manage, in one line."""


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, run in a fresh process that prints nothing."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_silence) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise Failed("its process crashed") from None
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise Failed(f"{type(error).__name__}: {' '.join(lines[:1])}") from None


def _silence() -> None:
    """Converters and native code write about their progress, to both streams."""
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(sink, stream)


@dataclass(frozen=True)
class Request:
    """What is asked of every tool alike."""

    zoo: str
    name: str
    mode: str
    samples: int

    @property
    def task(self) -> Any:
        if self.zoo not in sys.path:
            sys.path.insert(0, self.zoo)
        return importlib.import_module("zoo").TASKS[self.name]

    def calibration(self) -> list[Any]:
        samples: list[Any] = self.task.calibration(self.samples)
        return samples


def make(tool: str, request: Request, target: str) -> float:
    """Calibrate and quantize, write the model; the seconds it took without imports, loading data and writing."""
    job, samples = TOOLS[tool].whole(), request.calibration()
    start = time.perf_counter()
    content = job(request.task, request.mode, samples)
    seconds = time.perf_counter() - start
    Path(target).write_bytes(content)
    return seconds


def collect(tool: str, request: Request, target: str) -> None:
    calibrate = TOOLS[tool].calibrate
    assert calibrate is not None
    calibrate()(request.task, request.mode, request.calibration(), target)


def quantize_once(tool: str, model: str, mode: str, stats: str) -> float:
    """Seconds from a float model and statistics, both on disk, to the bytes of the quantized model."""
    from_stats = TOOLS[tool].from_stats
    assert from_stats is not None
    job = from_stats()
    start = time.perf_counter()
    job(model, mode, stats)
    return time.perf_counter() - start


def score(request: Request, model: str, limit: int | None) -> float:
    found: float = request.task.evaluate(model, limit)
    return found


def latencies(request: Request, models: Mapping[str, str], threads: int, rounds: int) -> dict[str, tuple[float, ...]]:
    """Seconds of one inference in each round, by model; the models take turns."""
    sample = request.task.calibration(1)[0]
    loaded = {name: _loaded(path, sample, threads) for name, path in models.items()}
    repeats = {name: math.ceil(TURN / _quickest(invoke)) for name, invoke in loaded.items()}
    times = take_turns({name: partial(_repeat, invoke, repeats[name]) for name, invoke in loaded.items()}, rounds)
    return {name: tuple(s / repeats[name] for s in seconds) for name, seconds in times.rounds.items()}


TURN = 0.005
"""Seconds that a model runs before it is the next one's turn: far above the clock's resolution, and short enough that
on a busy machine most turns are not interrupted. It has to be the same for all: longer turns are interrupted more."""


def _quickest(job: Callable[[], object]) -> float:
    return min(take_turns({"": job}, 5).rounds[""])


def _loaded(path: str, sample: Sequence[Any], threads: int) -> Callable[[], None]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), sample, strict=True):
        interpreter.set_tensor(detail["index"], _encoded(value, detail))
    invoke: Callable[[], None] = interpreter.invoke
    return invoke


def _encoded(value: Any, detail: Mapping[str, Any]) -> Any:
    """The sample as the model takes it: some kernels skip zeros, so that the values matter to the time as well."""
    scale, zero_point = detail["quantization"]
    if value.dtype.kind == "f" and scale:
        limits = np.iinfo(detail["dtype"])
        value = np.clip(np.round(value / scale + zero_point), limits.min, limits.max)
    return value.astype(detail["dtype"])


def _repeat(job: Callable[[], object], times: int) -> None:
    for _ in range(times):
        job()


# Results.


@dataclass
class Row:
    task: str
    mode: str
    tool: str
    error: str | None = None
    score: float | None = None
    stated: float | None = None
    """The float model's score on all samples, according to the zoo."""
    size: int | None = None
    conversions: int | None = None
    """QUANTIZE and DEQUANTIZE ops."""
    all_conversions: int | None = None
    """With those left to the caller, who has floats: one for each integer input and output that was float before."""
    float_ops: dict[str, int] = field(default_factory=dict)
    latency: dict[str, float] = field(default_factory=dict)
    """By number of threads: seconds, the median, and as a ratio to the float model's and to each other tool's."""
    whole: float | None = None
    from_stats: float | None = None
    peak: float | None = None
    """Peak memory of quantization from statistics, in sizes of the float model."""


def describe(row: Row, model: str) -> None:
    """What the file tells by itself."""
    import zeropoint
    from zeropoint.dtypes import DType

    loaded = zeropoint.load(model)
    ops = [op for graph in loaded.graphs for op in graph.ops]
    edges = [tensor for tensor in (*loaded.main.inputs, *loaded.main.outputs) if tensor.is_quantized]
    conversions = [op for op in ops if op.kind in ("QUANTIZE", "DEQUANTIZE")]
    floats = (DType.FLOAT32, DType.FLOAT16)
    row.size = Path(model).stat().st_size
    row.conversions = len(conversions)
    row.all_conversions = len(conversions) + len(edges)
    row.float_ops = dict(
        Counter(op.label for op in ops if op not in conversions and any(t.dtype in floats for t in op.outputs))
    )


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    zoo: str
    samples: int
    limit: int | None
    rounds: int
    folder: Path

    def request(self, task: str, mode: str) -> Request:
        return Request(self.zoo, task, mode, self.samples)


def measure(plan: Plan, request: Request) -> list[Row]:
    """All tools on one task in one mode: the float model's row first."""
    task = request.task
    rows = {tool: Row(request.name, request.mode, tool, stated=task.float_score) for tool in (FLOAT, *TOOLS)}
    files = {t: str(plan.folder / f"{request.name}.{request.mode}.{t}.tflite") for t in TOOLS}
    files[FLOAT] = str(task.model)
    for name, row in rows.items():
        try:
            if name in TOOLS:
                _make(name, request, row, files[name])
            describe(row, files[name])
            row.score = apart(score, request, files[name], plan.limit)
        except Failed as failure:
            row.error = str(failure)
        _progress(row)
    working = {name: files[name] for name, row in rows.items() if row.error is None}
    for threads in (1, 2):
        with _noted("inference"):
            _compare_latency(rows, apart(latencies, request, working, threads, plan.rounds), threads)
    made = {name: rows[name] for name in working if name in TOOLS}
    with _noted("time from statistics"):
        _time_from_stats(made, plan, request)
    for name, row in made.items():
        with _noted(f"memory of {name}"):
            row.peak = _peak_from_stats(name, plan, request)
    return list(rows.values())


@contextlib.contextmanager
def _noted(what: str) -> Iterator[None]:
    """A measurement that fails leaves a gap in the table, and the others go on."""
    try:
        yield
    except (Failed, subprocess.CalledProcessError) as failure:
        print(f"  {what}: {failure}", file=sys.stderr, flush=True)


def _make(tool: str, request: Request, row: Row, target: str) -> None:
    obstacle = TOOLS[tool].obstacle(request.task)
    if obstacle is not None:
        raise Failed(obstacle)
    row.whole = apart(make, tool, request, target)


def _progress(row: Row) -> None:
    found = row.error or f"{row.score:.4f}"
    print(f"  {row.task} {row.mode} {row.tool}: {found}", file=sys.stderr, flush=True)


def _compare_latency(rows: Mapping[str, Row], seconds: dict[str, tuple[float, ...]], threads: int) -> None:
    times = Times(seconds)
    for name in seconds:
        found = rows[name].latency
        found[f"{threads}"] = times.median(name)
        for other in seconds:
            if other != name:
                found[f"{threads} / {other}"] = times.ratio(name, other)


def _stats(name: str, plan: Plan, request: Request) -> str:
    """A file with the tool's statistics of the model, collected on first use."""
    target = plan.folder / f"{request.name}.{request.mode}.{TOOLS[name].package}.stats"
    if not target.exists():
        apart(collect, name, request, str(target))
    return str(target)


def _peak_from_stats(name: str, plan: Plan, request: Request) -> float | None:
    prepare = TOOLS[name].from_stats
    if request.name != LARGE or prepare is None:
        return None
    model, stats = str(request.task.model), _stats(name, plan, request)
    peak = peak_memory(f"benchmarks.quantization:{prepare.__name__}", model, request.mode, stats)
    return peak / Path(model).stat().st_size


def _time_from_stats(rows: Mapping[str, Row], plan: Plan, request: Request) -> None:
    """Quantization alone: each time in a fresh process, the tools in turns."""
    model = str(request.task.model)
    stats = {name: _stats(name, plan, request) for name in rows if TOOLS[name].from_stats is not None}
    seconds: dict[str, list[float]] = {name: [] for name in stats}
    for _ in range(9 if request.name == LARGE else 3):
        for name, found in seconds.items():
            found.append(apart(quantize_once, name, model, request.mode, stats[name]))
    for name, found in seconds.items():
        rows[name].from_stats = statistics.median(found)


# Goals.


@dataclass(frozen=True)
class Accuracy:
    """A task's goal, the best that another tool reaches with 8 bits according to the zoo's README, and how much of a
    difference means nothing: two models that disagree on 2 % of n samples differ by sqrt(0.02 / n) by chance."""

    at_least: float
    best_other: float | None
    noise: float


ACCURACY = {
    ("resnet8_cifar10", "int8"): Accuracy(0.866, 0.8684, 0.0020),
    ("resnet8_cifar10", "int16x8"): Accuracy(0.866, None, 0.0020),
    ("kws_dscnn", "int8"): Accuracy(0.917, 0.9189, 0.0021),
    ("kws_dscnn", "int16x8"): Accuracy(0.917, 0.9214, 0.0021),
    ("vww_mobilenetv1", "int8"): Accuracy(0.86, 0.872, 0.0126),
    ("vww_mobilenetv1", "int16x8"): Accuracy(0.86, None, 0.0126),
    ("mobilenetv1_025_224", "int8"): Accuracy(0.54, 0.58, 0.0050),
    ("mobilenetv1_025_224", "int16x8"): Accuracy(0.54, 0.4075, 0.0050),
    ("mnist_lstm", "int8"): Accuracy(0.985, 0.9854, 0.0015),
    ("mnist_lstm", "int16x8"): Accuracy(0.985, None, 0.0015),
    ("ad_toycar", "int8"): Accuracy(-10.3, -10.31, 0.02),
    ("ad_toycar", "int16x8"): Accuracy(-10.3, None, 0.02),
    ("selfie_segmentation", "int8"): Accuracy(0.60, None, 0.002),
    ("selfie_segmentation", "int16x8"): Accuracy(0.60, None, 0.002),
    ("ppocr_textdir_cls", "int8"): Accuracy(0.98, None, 0.0082),
    ("ppocr_textdir_cls", "int16x8"): Accuracy(0.98, None, 0.0082),
    (LARGE, "int8"): Accuracy(0.60, 0.5558, 0.002),
    (LARGE, "int16x8"): Accuracy(0.815, 0.8235, 0.002),
}


@dataclass(frozen=True)
class Verdict:
    goal: str
    found: str
    met: bool


def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Every goal for which `rows`, of one task and mode, have the numbers."""
    by_tool = {row.tool: row for row in rows}
    ours = by_tool[OURS]
    if ours.error is not None:
        yield Verdict(f"{ours.task} {ours.mode}: works", ours.error, False)
        return
    rivals = [by_tool[name] for name in RIVALS if by_tool[name].error is None]
    yield from _accuracy_verdicts(ours, rivals, by_tool[FLOAT])
    for other in rivals:
        yield from _efficiency_verdicts(ours, other)
        if ours.task == LARGE:  # the same work: nearest rounding, minima and maxima
            yield from _time_verdicts(by_tool["zeropoint quick"], other)
    if ours.peak is not None:
        goal = f"{_label(ours)}: peak memory ≤ {MEMORY_GOAL:.0f} models"
        yield Verdict(goal, f"{ours.peak:.2f}", ours.peak <= MEMORY_GOAL)


def _label(row: Row) -> str:
    return f"{row.task} {row.mode}"


def _accuracy_verdicts(ours: Row, rivals: Sequence[Row], reference: Row) -> Iterator[Verdict]:
    """Goals for the score; `reference` is the float model's row.

    On part of the samples, goals move by as much as the float model's score does. Where another tool's model scores
    higher than the float model, that is luck, and the float model is the goal.
    """
    goal = ACCURACY.get((ours.task, ours.mode))
    if goal is None or ours.score is None or reference.score is None or reference.stated is None:
        return
    shift = round(reference.score - reference.stated, 3)
    found, label = f"{ours.score:.4f}", f"{_label(ours)}: score"
    yield Verdict(f"{label} ≥ {goal.at_least + shift:.4f}", found, ours.score >= goal.at_least + shift)
    others = {other.tool: other.score for other in rivals}
    if goal.best_other is not None:
        others["the best in the zoo's table"] = goal.best_other + shift
    for name, other in others.items():
        if other is not None:
            met = ours.score >= min(other, reference.score) - goal.noise
            yield Verdict(f"{label} ≥ {other:.4f} (± {goal.noise}) of {name}, or the float model's", found, met)


def _efficiency_verdicts(ours: Row, other: Row) -> Iterator[Verdict]:
    if ours.all_conversions is not None and other.all_conversions is not None:
        goal = f"{_label(ours)}: conversions in all ≤ {other.all_conversions} of {other.tool}"
        yield Verdict(goal, f"{ours.all_conversions}", ours.all_conversions <= other.all_conversions)
    for threads in (1, 2):
        found = ours.latency.get(f"{threads} / {other.tool}")
        if found is not None:
            goal = f"{_label(ours)}: inference, {threads} thread{'s'[: threads - 1]} ≤ {TIME_NOISE:.2f} x {other.tool}"
            yield Verdict(goal, f"{found:.2f} x", found <= TIME_NOISE)
    if ours.task == LARGE:
        yield from _time_verdicts(ours, other)


def _time_verdicts(ours: Row, other: Row) -> Iterator[Verdict]:
    if ours.from_stats is not None and other.from_stats is not None:
        ratio = ours.from_stats / other.from_stats
        goal = f"{ours.task} {ours.mode}: time of {ours.tool} from statistics ≤ {TIME_NOISE:.2f} x {other.tool}"
        yield Verdict(goal, f"{ratio:.2f} x", ratio <= TIME_NOISE)


# Output.

COLUMNS = "score,kB,conversions,in all,float ops,1 thread,2 threads,whole,from stats,memory"
HEADER = ("", *COLUMNS.split(","), "")


def table_row(row: Row) -> tuple[str, ...]:
    def number(value: float | None, pattern: str) -> str:
        return "" if value is None else pattern.format(value)

    def latency(threads: int) -> str:
        seconds = row.latency.get(f"{threads}")
        if row.tool == FLOAT:
            return number(None if seconds is None else seconds * 1e3, "{:.3g} ms")
        return number(row.latency.get(f"{threads} / {FLOAT}"), "{:.2f} x")

    return (
        f"  {row.tool}",
        number(row.score, "{:.4f}"),
        number(None if row.size is None else row.size / 1e3, "{:.0f}"),
        number(row.conversions, "{}"),
        number(row.all_conversions, "{}"),
        "" if row.size is None else str(sum(row.float_ops.values())),
        latency(1),
        latency(2),
        number(row.whole, "{:.2f} s"),
        number(row.from_stats, "{:.2f} s"),
        number(row.peak, "{:.2f}"),
        row.error or ", ".join(f"{n} {kind}" for kind, n in row.float_ops.items() if row.tool != FLOAT),
    )


def report(groups: Sequence[Sequence[Row]]) -> None:
    lines = []
    for rows in groups:
        lines.append((_label(rows[0]), *[""] * (len(HEADER) - 1)))
        lines += [table_row(row) for row in rows]
    print(
        "conversions: QUANTIZE and DEQUANTIZE ops, in all: with those left to the caller where inputs and outputs are\n"
        "integers; 1 thread, 2 threads: inference, as a ratio to the float model's;\n"
        "whole: calibration and quantization; memory: peak of quantization from statistics, in sizes of the model\n"
    )
    print_table(HEADER, lines)
    found = [v for rows in groups for v in verdicts(rows)]
    missed = [(v.goal, v.found, "missed") for v in found if not v.met]
    print(f"goals: {len(found) - len(missed)} met, {len(missed)} missed\n")
    print_table(("goal", "found", ""), [(v.goal, v.found, "met" if v.met else "missed") for v in found])
    if missed:
        print_table(("missed", "found", ""), missed)


def versions() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return {package: of(package) for package in PACKAGES}


def write(path: str, groups: Sequence[Sequence[Row]]) -> None:
    content = {
        "versions": versions(),
        "cores": os.cpu_count(),
        "rows": [asdict(row) for rows in groups for row in rows],
        "goals": [asdict(v) for rows in groups for v in verdicts(rows)],
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantizing the zoo, against other tools.")
    parser.add_argument("--zoo", required=True, help="folder with zoo.py")
    parser.add_argument("--only", help="tasks, separated by commas (default: all)")
    parser.add_argument("--modes", default="int8,int16x8", help="separated by commas (default: int8,int16x8)")
    parser.add_argument("--samples", type=int, default=200, help="for calibration (default: 200)")
    parser.add_argument("--limit", type=int, help="evaluate on this many samples only")
    parser.add_argument("--rounds", type=int, default=41, help="of inference time (default: 41)")
    parser.add_argument("-o", "--output", help="a JSON file for the results")
    arguments = parser.parse_args()
    zoo = str(Path(arguments.zoo).resolve())
    sys.path.insert(0, zoo)
    tasks = list(importlib.import_module("zoo").TASKS)
    chosen = arguments.only.split(",") if arguments.only else tasks
    unknown = set(chosen) - set(tasks)
    if unknown:
        parser.error(f"no such task: {', '.join(sorted(unknown))}; there are {', '.join(tasks)}")
    groups: list[list[Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(zoo, arguments.samples, arguments.limit, arguments.rounds, Path(folder))
        for name in chosen:
            for mode in arguments.modes.split(","):
                groups.append(measure(plan, plan.request(name, mode)))
                if arguments.output:
                    write(arguments.output, groups)
    print(", ".join(f"{package} {number}" for package, number in versions().items()), f"on {os.cpu_count()} cores\n")
    report(groups)


if __name__ == "__main__":
    main()
