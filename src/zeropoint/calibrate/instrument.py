"""A copy of a graph that measures itself while it runs.

Right behind each tensor's producer, while the values are still in the cache, reductions over all but the last axis
give the greatest, the least and the summed value of each channel; one concatenation gathers them all. So LiteRT's
delegate does the reading, with vector instructions and outside Python's lock: measured on MobileNetV2 at 224x224 on
two cores it adds 15 % to plain inference, where reductions at the end of the graph add 40 % and NumPy 150 %.
Histograms are made from a sample of each tensor's elements. Large tensors are read through exposed outputs; small
ones are gathered into one vector first, because asking for each of them would take longer than computing them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import DType
from ..graph.edit import copy_model
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


@dataclass(frozen=True)
class Probe:
    """One measured tensor: its channels are [start, start + channels) of the reduction vectors."""

    key: str
    tensor: Tensor  # in the original model
    start: int
    channels: int
    keep_channels: bool
    stride: int  # the histogram takes one block of elements in so many
    gathered: bool


@dataclass(frozen=True)
class Instrumented:
    """The self-measuring copy. Its outputs are the reductions (greatest, least and, with histograms, summed values),
    then the vector of gathered tensors, then each tensor that is not gathered, then those to be read from outside."""

    model: Model
    probes: tuple[Probe, ...]
    reductions: int
    read: tuple[Probe, ...]  # tensors that are too odd to reduce in the graph; measured from outside

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
        if all(t is None or t.is_constant or t in seen for t in op.inputs):
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


def instrument(model: Model, graph: Graph, *, histograms: bool) -> Instrumented:
    """A copy of `model` in which `graph` comes first and measures its float tensors."""
    keys = tensor_keys(model)
    copy = copy_model(model)
    target = copy.graphs[model.graphs.index(graph)]
    # The first graph is the one that runs; signatures would pin the outputs.
    copy.graphs.remove(target)
    copy.graphs.insert(0, target)
    copy.signatures = []
    twins = dict(zip(graph.tensors, target.tensors, strict=True))
    channelwise = feeds_weights(graph)
    probes, read, start = [], [], 0
    for tensor in wanted(graph):
        reducible = len(tensor.shape) >= 2 and tensor.size > 0 and (tensor.shape_signature or (1,))[-1] > 0
        channels = tensor.shape[-1] if reducible else 1
        gathered = reducible and tensor.size <= GATHERED and -1 not in (tensor.shape_signature or ())[1:]
        probe = Probe(keys[tensor], tensor, start, channels, tensor in channelwise, _stride(tensor.size), gathered)
        if reducible:
            probes.append(probe)
            start += channels
        else:
            read.append(probe)
    kinds = ("high", "low", "total") if histograms else ("high", "low")
    vectors = _insert_reductions(target, [(twins[p.tensor], p) for p in probes], kinds)
    target.outputs = list(vectors)
    if histograms:
        small = [twins[p.tensor] for p in probes if p.gathered]
        target.outputs += [_gather(target, small)] if small else []
        target.outputs += [twins[p.tensor] for p in probes if not p.gathered]
    target.outputs += [twins[p.tensor] for p in read]
    return Instrumented(copy, tuple(probes), len(vectors), tuple(read))


def _stride(size: int) -> int:
    """A step in blocks that visits all channels and positions alike: it shares no factor with their number."""
    blocks = max(1, size // BLOCK)
    wanted_elements = min(SAMPLED_MOST, max(SAMPLED_LEAST, size // SAMPLED_SHARE))
    stride = max(1, size // wanted_elements)
    while math.gcd(stride, blocks) != 1:
        stride += 1
    return stride


_REDUCTIONS = {"high": "REDUCE_MAX", "low": "REDUCE_MIN", "total": "SUM"}


def _insert_reductions(graph: Graph, probes: Sequence[tuple[Tensor, Probe]], kinds: Sequence[str]) -> list[Tensor]:
    """Add the reductions in place; return one vector for each of `kinds`."""
    if not probes:
        return []
    producer = {t: op for op in graph.ops for t in op.outputs}
    follow: dict[Op | None, list[Op]] = {}
    axes: dict[int, Tensor] = {}
    parts: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
    for tensor, probe in probes:
        rank = len(tensor.shape)
        if rank not in axes:
            axes[rank] = Tensor.constant(f"zeropoint/axes{rank}", np.arange(rank - 1, dtype=np.int32), DType.INT32)
            graph.tensors.append(axes[rank])
        for kind in kinds:
            if kind == "low" and "total" not in kinds and _is_rectified(producer.get(tensor)):
                # Ranges hold zero anyway, so where only ranges are wanted a ReLU's least value need not be read.
                parts[kind].append(_zeros(graph, probe.channels))
                continue
            result = Tensor(f"zeropoint/{kind}/{probe.start}", (probe.channels,), DType.FLOAT32)
            graph.tensors.append(result)
            options = default_options("ReducerOptions", keepDims=False)
            reduce = Op(_REDUCTIONS[kind], [tensor, axes[rank]], [result], options)
            follow.setdefault(producer.get(tensor), []).append(reduce)
            parts[kind].append(result)
    graph.ops = [*follow.pop(None, []), *(o for op in graph.ops for o in (op, *follow.get(op, [])))]
    return [_concatenate(graph, parts[kind], f"zeropoint/{kind}") for kind in kinds]


def _is_rectified(op: Op | None) -> bool:
    bounds = None if op is None else fused_activation(op).bounds
    return bounds is not None and bounds[0] == 0.0


def _zeros(graph: Graph, count: int) -> Tensor:
    name = f"zeropoint/zeros{count}"
    for tensor in graph.tensors:
        if tensor.name == name:
            return tensor
    zeros = Tensor.constant(name, np.zeros(count, np.float32), DType.FLOAT32)
    graph.tensors.append(zeros)
    return zeros


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
