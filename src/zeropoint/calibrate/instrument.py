"""A copy of a graph that measures itself while it runs.

Right behind each tensor's producer, while the values are still in the cache, reductions over all but the last axis
give the greatest, the least and the summed value of each channel; one concatenation gathers them all. So LiteRT's
delegate does the reading, with vector instructions and outside Python's lock: measured on MobileNetV2 at 224x224 on
two cores it adds 15 % to plain inference, where reductions at the end of the graph add 40 % and NumPy 150 %.
Histograms are made from a sample of each tensor's elements. Large tensors are read through exposed outputs; small
ones are gathered into one vector first, because asking for each of them would take longer than computing them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import tensor_keys
from ..ops import OPS, fused_activation
from ..tflite.schema import default_options

SAMPLED_SHARE, SAMPLED_LEAST, SAMPLED_MOST = 32, 256, 4096
"""Histograms count one element in `SAMPLED_SHARE` of each run, within these limits."""

GATHERED = 1 << 15
"""Tensors up to this size are gathered into one output."""

BLOCK = 16
"""Neighbours that are sampled together: one cache line."""


NAN_SOURCES = frozenset({"DIV", "LOG", "SQRT", "RSQRT"})
"""Ops of the table that make NaN out of finite values."""


class Misfit(Exception):
    """At run time a tensor has another shape than the file says."""


@dataclass(frozen=True)
class Probe:
    """One measured tensor: its channels are [start, start + channels) of the reduction vectors."""

    key: str
    tensor: Tensor
    start: int
    channels: int
    keep_channels: bool
    stride: int  # the histogram takes one block of elements in so many
    gathered: bool


@dataclass(frozen=True)
class Instrumented:
    """The self-measuring copy, and which of its outputs are what.

    `vectors`: greatest, least and summed values of all channels. `gathered`: the small tensors end to end; the large
    ones are outputs themselves. So are `exposed` tensors, which somebody wants to see whole: those of `read`, which
    are too odd to be reduced in the graph, and whatever the caller asked for.
    """

    model: Model
    probes: tuple[Probe, ...]
    vectors: tuple[Tensor, ...]
    gathered: Tensor | None
    read: tuple[Probe, ...]
    exposed: tuple[Tensor, ...]
    histograms: bool

    @property
    def chunk(self) -> int:
        """How many runs to hand to a thread at once: many of a small model, one of a large."""
        elements = sum(p.tensor.size for p in self.probes)
        return max(1, min(16, (1 << 19) // max(1, elements)))

    @property
    def small(self) -> list[Probe]:
        return [p for p in self.probes if p.gathered]

    @property
    def large(self) -> list[Probe]:
        return [p for p in self.probes if not p.gathered]


def wanted(graph: Graph) -> Iterator[Tensor]:
    """Float tensors that an integer kernel could read or write, in order of execution."""
    seen: set[Tensor] = set()
    for op in graph.ops:
        if op.inputs and all(t is None or t.is_constant or t in seen for t in op.inputs):
            seen.update(op.outputs)  # computed from constants alone: a constant in disguise, like unpacked weights
    for op in graph.ops:
        spec = OPS.get(op.kind)
        if spec is None or not (spec.types or spec.hybrid):
            continue
        for tensor in (*op.inputs, *op.outputs):
            if tensor is None or tensor in seen or tensor.dtype is not DType.FLOAT32:
                continue
            if not tensor.is_constant and not tensor.is_variable:
                seen.add(tensor)
                yield tensor


def feeds_weights(graph: Graph) -> set[Tensor]:
    """Activations that enter or leave ops with weights: later steps need their channels one by one."""
    found: set[Tensor] = set()
    for op in graph.ops:
        spec = OPS.get(op.kind)
        if spec is not None and spec.macs is not None:
            found.update(t for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant)
    return found


def reachable(graph: Graph) -> list[Graph]:
    """The graphs that `graph` calls, and those that they call, nearest first."""
    found: dict[Graph, None] = {}
    waiting = [graph]
    while waiting:
        for op in waiting.pop(0).ops:
            for callee in op.graphs():
                if callee not in found:
                    found[callee] = None
                    waiting.append(callee)
    return list(found)


def runnable(model: Model, graph: Graph) -> Model:
    """A model that runs `graph`, with all it needs. Signatures would pin its outputs, so there are none."""
    return dataclasses.replace(model, graphs=[graph, *reachable(graph)], signatures=[])


def instrument(
    model: Model, graph: Graph, *, histograms: bool, exposed: Sequence[Tensor] = (), reduced: bool = True
) -> Instrumented:
    """A model that runs a copy of `graph` that measures its float tensors, or with `reduced` off just exposes them."""
    target = dataclasses.replace(graph, tensors=list(graph.tensors), ops=list(graph.ops))
    probes, read = _probes(graph, tensor_keys(model), reduced)
    vectors = _insert_reductions(target, probes, histograms)
    small = [p.tensor for p in probes if p.gathered]
    gathered = _gather(target, small) if small and histograms else None
    large = [p.tensor for p in probes if not p.gathered] if histograms else []
    shown = tuple(dict.fromkeys((*(p.tensor for p in read), *exposed)))
    outputs = (*vectors, *((gathered,) if gathered else ()), *large, *shown)
    target.outputs = list(dict.fromkeys(outputs))
    return Instrumented(
        runnable(model, target), tuple(probes), tuple(vectors), gathered, tuple(read), shown, histograms
    )


def _probes(graph: Graph, keys: Mapping[Tensor, str], reduced: bool) -> tuple[list[Probe], list[Probe]]:
    """The tensors to reduce in the graph, and those that only their values will do for."""
    channelwise = feeds_weights(graph)
    probes, read, start = [], [], 0
    for tensor in wanted(graph):
        signature = tensor.shape_signature or tensor.shape
        reducible = reduced and len(tensor.shape) >= 2 and tensor.size > 0 and signature[-1] > 0
        channels = tensor.shape[-1] if reducible else 1
        varies = -1 in signature[1:] or (-1 in signature[:1] and tensor.shape[0] != 1)
        gathered = reducible and tensor.size <= GATHERED and not varies
        probe = Probe(keys[tensor], tensor, start, channels, tensor in channelwise, _stride(tensor.size), gathered)
        if reducible:
            probes.append(probe)
            start += channels
        else:
            read.append(probe)
    return probes, read


def _stride(size: int) -> int:
    """A step in blocks that visits all channels and positions alike: it shares no factor with their number."""
    blocks = max(1, size // BLOCK)
    wanted_elements = min(SAMPLED_MOST, max(SAMPLED_LEAST, size // SAMPLED_SHARE))
    stride = max(1, size // wanted_elements)
    while math.gcd(stride, blocks) != 1:
        stride += 1
    return stride


_REDUCTIONS = {"high": "REDUCE_MAX", "low": "REDUCE_MIN", "total": "SUM"}


def _insert_reductions(graph: Graph, probes: Sequence[Probe], histograms: bool) -> list[Tensor]:
    """Add the reductions in place; return one vector for each kind."""
    if not probes:
        return []
    producer = {t: op for op in graph.ops for t in op.outputs}
    follow: dict[Op | None, list[Op]] = {}
    axes: dict[int, Tensor] = {}
    zeros: dict[int, Tensor] = {}
    parts: dict[str, list[Tensor]] = {kind: [] for kind in _REDUCTIONS}
    for probe in probes:
        rank = len(probe.tensor.shape)
        if rank not in axes:
            axes[rank] = Tensor.constant(f"zeropoint/axes{rank}", np.arange(rank - 1, dtype=np.int32), DType.INT32)
        source = producer.get(probe.tensor)
        for kind, reduction in _REDUCTIONS.items():
            if not histograms and not _matters(kind, source):
                count = probe.channels
                if count not in zeros:
                    zeros[count] = Tensor.constant(
                        f"zeropoint/zeros{count}", np.zeros(count, np.float32), DType.FLOAT32
                    )
                parts[kind].append(zeros[count])
                continue
            result = Tensor(f"zeropoint/{kind}/{probe.start}", (probe.channels,), DType.FLOAT32)
            graph.tensors.append(result)
            options = default_options("ReducerOptions", keepDims=False)
            follow.setdefault(source, []).append(Op(reduction, [probe.tensor, axes[rank]], [result], options))
            parts[kind].append(result)
    graph.tensors += [*axes.values(), *zeros.values()]
    graph.ops = [*follow.pop(None, []), *(o for op in graph.ops for o in (op, *follow.get(op, [])))]
    return [_concatenate(graph, tensors, f"zeropoint/{kind}") for kind, tensors in parts.items()]


def _matters(kind: str, source: Op | None) -> bool:
    """Whether a reduction is needed where only minima and maxima are wanted."""
    if kind == "low":
        # Ranges hold zero anyway, so a ReLU's least value need not be read.
        bounds = None if source is None else fused_activation(source).bounds
        return bounds is None or bounds[0] != 0.0
    if kind == "total":
        # LiteRT's maxima and minima overlook NaN (ai-edge-litert 2.3), sums do not: add up where one can appear.
        return source is None or source.kind in NAN_SOURCES or source.kind not in OPS
    return True


def _gather(graph: Graph, tensors: list[Tensor]) -> Tensor:
    """All elements of `tensors`, end to end."""
    flat = []
    for k, tensor in enumerate(tensors):
        shape = Tensor.constant(f"zeropoint/shape{k}", np.array([-1], np.int32), DType.INT32)
        result = Tensor(f"zeropoint/flat{k}", (tensor.size,), DType.FLOAT32)
        graph.tensors += [shape, result]
        graph.ops.append(Op("RESHAPE", [tensor, shape], [result], default_options("ReshapeOptions", newShape=(-1,))))
        flat.append(result)
    return _concatenate(graph, flat, "zeropoint/gathered")


def _concatenate(graph: Graph, parts: list[Tensor], name: str) -> Tensor:
    result = Tensor(name, (sum(t.shape[0] for t in parts),), DType.FLOAT32)
    graph.tensors.append(result)
    options = default_options("ConcatenationOptions", axis=0)
    graph.ops.append(Op("CONCATENATION", list(parts), [result], options))
    return result
