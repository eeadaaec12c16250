"""A copy of a graph that measures itself while it runs.

Right behind each tensor's producer, while the values are still in the cache, reductions over all but the last axis
give the greatest, the least and the summed value of each channel; one concatenation gathers them all. So LiteRT's
delegate does the reading, with vector instructions and outside Python's lock: measured on MobileNetV2 at 224x224 on
two cores it adds 15 % to plain inference, where reductions at the end of the graph add 40 % and NumPy 150 %.
Histograms are made from a sample of each tensor's elements, see `sampler`. Large tensors are read through exposed
outputs; small ones of the same shape are stacked first, because asking for each of them would take longer than
computing them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import tensor_keys
from ..ops import OPS, UNPACKING, fused_activation
from ..tflite.schema import default_options

SAMPLED_SHARE, SAMPLED_LEAST, SAMPLED_MOST = 64, 256, 2048
"""Histograms are made from one element in `SAMPLED_SHARE` of each run, within these limits."""

STACKED = 1 << 15
"""Tensors up to this size are stacked."""

BLOCK = 16
"""Neighbours that are sampled together: one cache line."""


NAN_SOURCES = frozenset({"DIV", "LOG", "SQRT", "RSQRT"})
"""Ops of the table that make NaN out of finite values."""


class Misfit(Exception):
    """At run time a tensor has another shape than the file says."""


@dataclass(frozen=True)
class Probe:
    """One measured tensor: its channels are [start, start + channels) of the reductions."""

    key: str
    tensor: Tensor
    start: int
    channels: int
    keep_channels: bool

    @property
    def spot(self) -> slice:
        return slice(self.start, self.start + self.channels)


@dataclass(frozen=True)
class Stack:
    """Tensors of one shape, and the output that holds them one after the other; large ones are alone."""

    probes: tuple[Probe, ...]
    output: Tensor

    @property
    def size(self) -> int:
        """Elements of each."""
        return self.probes[0].tensor.size

    @property
    def stride(self) -> int:
        """A histogram takes one block of elements in so many."""
        return _stride(self.size)


@dataclass(frozen=True)
class Instrumented:
    """The self-measuring copy, and which of its outputs are what.

    `reductions`: the greatest values of all channels of all probes, then the least, then the sums. `stacks`: the
    probes' values, if there are to be histograms. `exposed`: tensors that somebody wants to see whole: those of `read`,
    which are too odd to be reduced in the graph, and whatever the caller asked for. `keys`: all measured tensors.
    """

    model: Model
    keys: tuple[str, ...]
    probes: tuple[Probe, ...]
    reductions: Tensor | None
    stacks: tuple[Stack, ...]
    read: tuple[Probe, ...]
    exposed: tuple[Tensor, ...]

    @property
    def chunk(self) -> int:
        """How many runs to hand to a thread at once: many of a small model, one of a large."""
        elements = sum(p.tensor.size for p in self.probes)
        return max(1, min(16, (1 << 20) // max(1, elements)))


def wanted(graph: Graph) -> Iterator[Tensor]:
    """Float tensors that an integer kernel could read or write, in order of execution, and the graph's own ends."""
    # Constants in disguise, like unpacked weights, have their range in their data.
    seen = {t for op in graph.ops if op.kind in UNPACKING and _is_constant(op.inputs[0]) for t in op.outputs}
    quantizable = [op for op in graph.ops if (spec := OPS.get(op.kind)) is not None and (spec.types or spec.hybrid)]
    touched = (t for op in quantizable for t in (*op.inputs, *op.outputs))
    for tensor in (*touched, *graph.inputs, *graph.outputs):
        if tensor is None or tensor in seen or tensor.dtype is not DType.FLOAT32:
            continue
        if not tensor.is_constant and not tensor.is_variable:
            seen.add(tensor)
            yield tensor


def _is_constant(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_constant


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
    keys = tensor_keys(model)
    probes, read = _probes(graph, keys, reduced)
    reductions = _insert_reductions(target, probes, histograms) if probes else None
    stacks = _insert_stacks(target, probes) if histograms else []
    shown = tuple(dict.fromkeys((*(p.tensor for p in read), *exposed)))
    outputs = (*([reductions] if reductions else []), *(s.output for s in stacks), *shown)
    target.outputs = list(dict.fromkeys(outputs))
    return Instrumented(
        runnable(model, target),
        tuple(keys[t] for t in wanted(graph)),
        tuple(probes),
        reductions,
        tuple(stacks),
        tuple(read),
        shown,
    )


def _probes(graph: Graph, keys: Mapping[Tensor, str], reduced: bool) -> tuple[list[Probe], list[Probe]]:
    """The tensors to reduce in the graph, and those that only their values will do for."""
    channelwise = feeds_weights(graph)
    probes, read, start = [], [], 0
    for tensor in wanted(graph):
        signature = tensor.shape_signature or tensor.shape
        reducible = reduced and len(tensor.shape) >= 2 and tensor.size > 0 and signature[-1] > 0
        channels = tensor.shape[-1] if reducible else 1
        probe = Probe(keys[tensor], tensor, start, channels, tensor in channelwise)
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


def _insert_reductions(graph: Graph, probes: Sequence[Probe], histograms: bool) -> Tensor:
    """Add the reductions in place; return the vector of them all."""
    producer = {t: op for op in graph.ops for t in op.outputs}
    follow: dict[Op | None, list[Op]] = {}
    constants: dict[str, Tensor] = {}
    parts: dict[str, list[Tensor]] = {kind: [] for kind in _REDUCTIONS}

    def constant(name: str, data: Array, dtype: DType) -> Tensor:
        return constants.setdefault(name, Tensor.constant(f"zeropoint/{name}", data, dtype))

    for probe in probes:
        rank = len(probe.tensor.shape)
        axes = constant(f"axes{rank}", np.arange(rank - 1, dtype=np.int32), DType.INT32)
        source = producer.get(probe.tensor)
        for kind, reduction in _REDUCTIONS.items():
            if not histograms and not _matters(kind, source):
                zeros = np.zeros(probe.channels, np.float32)
                parts[kind].append(constant(f"zeros{probe.channels}", zeros, DType.FLOAT32))
                continue
            result = Tensor(f"zeropoint/{kind}/{probe.start}", (probe.channels,), DType.FLOAT32)
            graph.tensors.append(result)
            options = default_options("ReducerOptions", keepDims=False)
            follow.setdefault(source, []).append(Op(reduction, [probe.tensor, axes], [result], options))
            parts[kind].append(result)
    graph.tensors += constants.values()
    graph.ops = [*follow.pop(None, []), *(o for op in graph.ops for o in (op, *follow.get(op, [])))]
    everything = [t for kind in parts.values() for t in kind]
    result = Tensor("zeropoint/reductions", (sum(t.size for t in everything),), DType.FLOAT32)
    graph.tensors.append(result)
    graph.ops.append(Op("CONCATENATION", [*everything], [result], default_options("ConcatenationOptions", axis=0)))
    return result


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


def _insert_stacks(graph: Graph, probes: Sequence[Probe]) -> list[Stack]:
    """Stack small tensors of the same shape, if it is fixed."""
    groups: dict[object, list[Probe]] = {}
    for probe in probes:
        shape, signature = probe.tensor.shape, probe.tensor.shape_signature or probe.tensor.shape
        varies = -1 in signature[1:] or (signature[0] == -1 and shape[0] != 1)
        groups.setdefault(probe if varies or probe.tensor.size > STACKED else shape, []).append(probe)
    stacks = []
    for group in groups.values():
        output = group[0].tensor
        if len(group) > 1:
            output = Tensor(f"zeropoint/stack{group[0].start}", (len(group), *output.shape), DType.FLOAT32)
            options = default_options("PackOptions", valuesCount=len(group), axis=0)
            graph.tensors.append(output)
            graph.ops.append(Op("PACK", [p.tensor for p in group], [output], options))
        stacks.append(Stack(tuple(group), output))
    return stacks
