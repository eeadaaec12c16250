"""A random graph in one mode: right, refused in words, or what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import zeropoint
from tests.plan.laws import broken_laws
from zeropoint.affine import dequantize
from zeropoint.bench.errors import ErrorSum, decibels, encoded, real
from zeropoint.calibration import Settings, Stats
from zeropoint.dtypes import Array, DType
from zeropoint.errors import RuntimeFailure, UnsupportedOp, ZeropointError
from zeropoint.graph import Model, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.graph.model import buffer_of
from zeropoint.improve.pipeline import Result
from zeropoint.runtime import Kernels, Runner

from .clamped import clamped, shifted
from .graphs import RandomGraph, random_graph
from .oracle import FLOAT_ERROR, KERNELS, Opened

MODES: Mapping[str, Mapping[str, Any]] = {
    "int8": {"mode": "int8"},
    "int16x8": {"mode": "int16x8"},
    "int8, 4-bit weights": {"mode": "int8", "weight_bits": 4, "target": "integer"},
    "int8, uint8 to int8": {"mode": "int8", "input_type": "uint8", "output_type": "int8"},
    "int8, strict": {"mode": "int8", "strict": True},
    "dynamic": {"mode": "dynamic", "min_elements": 1},
    "weights": {"mode": "weights", "min_elements": 1},
    "float16": {"mode": "float16"},
}
"""Weights of any size are quantized: these graphs have small ones only. The target of the first is the default, for
which many ops stay float; that of the others has them in integers."""

RUN = 3
"""Samples that are run op by op."""

CLAIMED, REACHED = 20.0, 10.0
"""Signal-to-noise in dB: whoever is told the first must find the second."""

CUT_OFF = 20.0
"""What ranges cut off costs less than eight bits do."""

FLOATS_AGREE = 60.0
"""LiteRT's delegate, with which ranges were measured, and its optimized kernels on the float model."""

SMALLEST = 2.0**-12
"""Kernels that make probabilities have steps of 2**-15: of outputs below this little is left, whatever the range."""

COMPUTED = ("reciprocal", "/merged")
"""In names of constants that are computed from the file's: divisors, and weights of two layers that become one."""

HALF_LOSS = 2.0**-8
"""The relative error that constants may have in float16; those that would have more stay float32."""

Verdict = tuple[str, str]


@dataclass(frozen=True)
class Subject:
    """A graph with what all modes need: its statistics, its outputs, the sets of kernels that run it in float."""

    graph: RandomGraph
    stats: Stats
    wanted: list[list[Array]]
    kernels: tuple[Kernels, ...]


@lru_cache(maxsize=2)
def subject(seed: int, ops: tuple[int, int]) -> Subject:
    graph = random_graph(seed, ops)
    # LiteRT lacks a few ops in its reference kernels.
    able = tuple(kernels for kernels in KERNELS if runs(graph.model, kernels))
    stats = zeropoint.calibrate(graph.model, graph.samples)
    return Subject(graph, stats, outputs(graph.model, graph.samples, "optimized"), able)


def runs(model: Model, kernels: Kernels) -> bool:
    try:
        Runner(model, kernels=kernels)
    except ZeropointError:
        return False
    return True


def judge(seed: int, ops: tuple[int, int], mode: str, effort: str) -> Verdict:
    """Quantize the graph, and look at what comes of it."""
    try:
        given = subject(seed, ops)
        source = {"stats": given.stats} if effort == "quick" else {"data": given.graph.samples}
        result = zeropoint.quantize(given.graph.model, effort=effort, **MODES[mode], **source)
    except RuntimeFailure as error:
        return "raw refusal", f"{mode}: {error}"  # LiteRT refused what we made: we should have refused before
    except UnsupportedOp as error:
        return ("refused" if "strict" in mode else "raw refusal"), f"{mode}: {error}"
    except ZeropointError as error:
        return "refused", f"{mode}: {error}"
    except Exception as error:
        return "foreign exception", f"{mode}: {type(error).__name__}: {error}"
    losses = list(silent_losses(given, result, effort))
    return ("silent loss", f"{mode}: {'; '.join(losses[:4])}") if losses else ("right", "")


def silent_losses(given: Subject, result: Result, effort: str) -> Iterator[str]:
    """What is wrong with a quantized model although nobody said so."""
    if result.plan.schemes:
        yield from broken_laws(result)
    if effort == "quick":  # rounding is to the nearest, and weights are those of the file
        yield from distant_constants(given.graph, result.model)
    opened = Opened(result.model, result.prepared, given.stats)
    runs = {kernels: list(opened.values(given.graph.samples[:RUN], kernels)) for kernels in given.kernels}
    yield from map(str, opened.judged(runs))
    if {scheme.activations for scheme in result.plan.schemes.values()} == {DType.INT16}:
        yield from cut_off(given, result)
    # As an application runs it: with all activations in sight, the delegate may compute in another way.
    found = outputs(result.model, given.graph.samples, "delegate")
    yield from different_ends(given.wanted, found)
    yield from different_unseen(result.model, runs.get("delegate", []), found)
    yield from false_claims(result, given.wanted, found)


def outputs(model: Model, samples: Sequence[Sequence[Array]], kernels: Kernels) -> list[list[Array]]:
    """By sample, as real numbers; with states that are kept as in calibration."""
    runner = Runner(model, kernels=kernels).keeping_state(Settings().in_sequence(model.main))
    ends = model.main.inputs
    rows = (runner.run([encoded(v, t) for v, t in zip(row, ends, strict=True)]) for row in samples)
    return [[real(v, t) for v, t in zip(row, model.main.outputs, strict=True)] for row in rows]


def different_ends(wanted: list[list[Array]], found: list[list[Array]]) -> Iterator[str]:
    for k, (exact, made) in enumerate(zip(zip(*wanted, strict=True), zip(*found, strict=True), strict=True)):
        if any(a.shape != b.shape for a, b in zip(exact, made, strict=True)):
            yield f"output {k} has another shape"
        elif not all(np.isfinite(v).all() for v in made):
            yield f"output {k} is not finite"


def different_unseen(
    model: Model, runs: Sequence[Mapping[Tensor, Array]], found: Sequence[Sequence[Array]]
) -> Iterator[str]:
    """Outputs that the delegate computes otherwise where nobody looks at what is in between, as was done in `runs`."""
    for k, tensor in enumerate(model.main.outputs):
        pairs = [(real(run[tensor], tensor), row[k]) for run, row in zip(runs, found, strict=False) if tensor in run]
        allowed = (FLOAT_ERROR * float(np.abs(a).max(initial=0.0)) for a, _ in pairs)
        if not all(np.allclose(a, b, 0.0, most, True) for (a, b), most in zip(pairs, allowed, strict=True)):
            yield f"output {k} differs from what the delegate computes op by op"


def cut_off(given: Subject, result: Result) -> Iterator[str]:
    """Outputs that miss what the ends of ranges cut off. With 16 bits there is one other reason to be far off.

    A comparison or a floor turns a part of a unit into a whole step, however far the ranges reach.
    """
    found = outputs(clamped(result), given.graph.samples, "optimized")
    other = relative_errors(given.wanted, outputs(given.graph.model, given.graph.samples, "delegate"))
    for k, error in relative_errors(given.wanted, found).items():
        is_settled = decibels(other[k]) > FLOATS_AGREE  # a step function may turn the last bit into a whole step
        is_large = max(float(np.abs(row[k]).max(initial=0.0)) for row in given.wanted) > SMALLEST
        if is_settled and is_large and (snr := decibels(error)) < CUT_OFF and not turned(given, result, k):
            yield f"output {k} has {snr:.1f} dB when all tensors are cut off where their ranges end"


def turned(given: Subject, result: Result, output: int) -> bool:
    """Whether less than a unit of 16 bits, with ranges of any width, leaves as little of an output."""
    found = outputs(shifted(result), given.graph.samples, "optimized")
    return decibels(relative_errors(given.wanted, found)[output]) < CUT_OFF


def relative_errors(wanted: list[list[Array]], found: list[list[Array]]) -> dict[int, float]:
    """Squared, of each output in float."""
    sums = {k: ErrorSum() for k, v in enumerate(wanted[0]) if v.dtype == np.float32}
    for exact, made in zip(wanted, found, strict=True):
        for k, total in sums.items():
            total.add(exact[k].astype(np.float64), made[k].astype(np.float64))
    return {k: total.relative for k, total in sums.items()}


def false_claims(result: Result, wanted: list[list[Array]], found: list[list[Array]]) -> Iterator[str]:
    """What the result says about its outputs, against what they are."""
    said = [float(m[1]) for note in result.notes if (m := re.search(r"SNR of the outputs (-?[\d.]+) dB", note))]
    errors = list(relative_errors(wanted, found).values())
    reached = decibels(float(np.mean(errors))) if errors else np.inf
    if said and said[0] > CLAIMED and reached < REACHED:
        yield f"the outputs have an SNR of {reached:.1f} dB, and {said[0]:.1f} dB is claimed"


def distant_constants(graph: RandomGraph, made: Model) -> Iterator[str]:
    """Constants that are further from those of the file than rounding to their own unit explains."""
    exact = {t.name: t for t in graph.model.main.tensors if t.data is not None and t.dtype is DType.FLOAT32}
    for tensor in made.main.tensors:
        source = exact.get(tensor.name.partition("/")[0])
        if tensor.data is None or source is None or source.data is None or source.shape != tensor.shape:
            continue
        if any(word in tensor.name for word in COMPUTED):
            continue
        if _lost(source.data.astype(np.float64), tensor) and not _is_cut_off_only(graph, source, tensor):
            yield f"'{tensor.name}' ({tensor.dtype.label}) differs from the file's by more than rounding"


def _is_cut_off_only(graph: RandomGraph, source: Tensor, tensor: Tensor) -> bool:
    """Whether a constant is the file's up to where its integers end, and what lies more than a step beyond makes no
    difference to the float model: a number far below the others that a softmax reads, for example."""
    if source.data is None or tensor.params is None or len(tensor.params.scales) > 1:
        return False
    (low, high), step = tensor.params.range(), tensor.params.scale
    if _lost(np.clip(source.data, low, high).astype(np.float64), tensor):
        return False
    cut = np.clip(source.data, low - step, high + step)
    model = copy_model(graph.model)
    twin = model.main.tensors[graph.model.main.tensors.index(source)]
    twin.buffer = buffer_of(cut, DType.FLOAT32)
    wanted, found = (outputs(one, graph.samples, "optimized") for one in (graph.model, model))
    pairs = [pair for rows in zip(wanted, found, strict=True) for pair in zip(*rows, strict=True)]
    same = all(np.array_equal(a, b) for a, b in pairs if a.dtype != np.float32)
    return same and all(decibels(error) > FLOATS_AGREE for error in relative_errors(wanted, found).values())


def _lost(source: Array, tensor: Tensor) -> bool:
    assert tensor.data is not None
    if tensor.params is None:
        return bool(np.linalg.norm(tensor.data - source) > HALF_LOSS * np.linalg.norm(source))
    scales = tensor.params.along(source.ndim)[0].astype(np.float64)
    if tensor.params.dtype.is_packed:  # clipped on purpose where that loses less
        source = np.clip(source, -scales * tensor.params.dtype.max, scales * tensor.params.dtype.max)
    off = np.abs(dequantize(tensor.data, tensor.params) - source)
    return bool((off > scales * 0.501 + np.abs(source) * 1e-6).any())
