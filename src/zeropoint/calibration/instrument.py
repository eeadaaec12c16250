"""A copy of a graph that measures itself while it runs.

Right behind each tensor's producer, while the values are still in the cache, reductions over all but the last axis
give the greatest, the least and the summed value of each channel; one concatenation gathers them all. So LiteRT's
delegate does the reading, with vector instructions and outside Python's lock: measured on MobileNetV2 at 224x224 on
two cores it adds 10 % to plain inference, where reductions at the end of the graph add 40 % and NumPy 150 %.
Histograms are made from a sample of each tensor's elements, which is picked in the graph too (`raster`), or from
outside where a tensor is no image (`sampler`).

A run of a small model takes less time than Python needs to start it and to ask for its outputs. So, where the graph
allows it, many samples are one run, with reductions for each of them; where it does not, small tensors of the same
shape are stacked, so that there are fewer outputs to ask for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import tensor_keys
from ..ops import OPS, fused_activation
from ..tflite.schema import default_options
from .raster import Picker, Raster, raster_of
from .scope import batch_size, feeds_weights, reachable, wanted

SAMPLED_SHARE, SAMPLED_LEAST, SAMPLED_MOST = 64, 256, 1024
"""Histograms are made from one element in `SAMPLED_SHARE` of each run, within these limits."""

STACKED = 1 << 13
"""Tensors up to this size are stacked; copying larger ones takes longer than asking for them."""

CHUNK, CHUNK_ELEMENTS = 32, 1 << 24
"""So many samples, or so many elements of all their tensors, are measured without a pause: handing samples over and
adding up what they show takes time, too."""

BLOCK = 16
"""Neighbours that are sampled together: one cache line."""


class Misfit(Exception):
    """At run time a tensor has another shape than the file says."""


class Manner(Enum):
    """How a graph is measured."""

    BATCHED = "reduced in the graph, many samples in a run"
    SINGLE = "reduced in the graph, one sample in a run"
    OUTSIDE = "read from outside, as the tensors come"


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
        return stride_for(self.size)


def _elements(size: int) -> int:
    """How many of a tensor's elements are sampled in a run."""
    return min(SAMPLED_MOST, max(SAMPLED_LEAST, size // SAMPLED_SHARE))


@dataclass(frozen=True)
class Picked:
    """What the graph picks of some probes, and the output that holds it: for each sample, their rasters in turn."""

    rasters: Mapping[Probe, Raster]
    output: Tensor


@dataclass(frozen=True)
class Instrumented:
    """The self-measuring copy, and which of its outputs are what.

    `reductions`: for each sample of a run, the greatest values of all channels of all probes, then the least, then the
    sums; of these only `columns`, because the others do not matter. If there are to be histograms, `picked` is a sample
    of some probes' values, and `stacks` are the values of the others. `exposed`: tensors that somebody wants to see
    whole: those of `read`, which are too odd to be reduced in the graph, and whatever the caller asked for. `keys`: all
    measured tensors. `batch`: how many samples are one run. `chunk`: how many samples to hand to a thread at once, many
    of a small model and one of a large.
    """

    model: Model
    keys: tuple[str, ...]
    probes: tuple[Probe, ...]
    reductions: Tensor | None
    columns: Array
    picked: Picked | None
    stacks: tuple[Stack, ...]
    read: tuple[Probe, ...]
    exposed: tuple[Tensor, ...]
    batch: int
    chunk: int


def runnable(model: Model, graph: Graph) -> Model:
    """A model that runs `graph`, with all it needs. Signatures would pin its outputs, so there are none."""
    return dataclasses.replace(model, graphs=[graph, *reachable(graph)], signatures=[])


def instrument(
    model: Model,
    graph: Graph,
    *,
    histograms: bool,
    exposed: Sequence[Tensor] = (),
    manner: Manner,
    infinite: Container[str] = (),
) -> Instrumented:
    """A model that runs a copy of `graph` that measures its float tensors, or just exposes them.

    `infinite`: keys of tensors some of whose values are infinite on purpose.
    """
    target = dataclasses.replace(graph, tensors=list(graph.tensors), ops=list(graph.ops))
    keys, measured = tensor_keys(model), list(wanted(graph))
    probes, read = _probes(graph, keys, reduced=manner is not Manner.OUTSIDE)
    reductions, columns = None, np.zeros(0, np.intp)
    if probes:
        reductions, columns = _insert_reductions(target, probes, manner, histograms=histograms)
    picked, others = _insert_picking(target, probes, infinite) if histograms else (None, [])
    stacks = _insert_stacks(target, others, manner)
    shown = tuple(dict.fromkeys((*(p.tensor for p in read), *exposed)))
    together = batch_size(measured)
    chunk = min(CHUNK, CHUNK_ELEMENTS // max(1, sum(t.size for t in measured)))
    made = (reductions, None if picked is None else picked.output)
    outputs = (*(t for t in made if t is not None), *(s.output for s in stacks), *shown)
    target.outputs = list(dict.fromkeys(outputs))
    return Instrumented(
        runnable(model, target),
        tuple(keys[t] for t in measured),
        tuple(probes),
        reductions,
        columns,
        picked,
        tuple(stacks),
        tuple(read),
        shown,
        together if manner is Manner.BATCHED else 1,
        together * max(1, chunk // together),
    )


def _probes(graph: Graph, keys: Mapping[Tensor, str], *, reduced: bool) -> tuple[list[Probe], list[Probe]]:
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


def stride_for(size: int) -> int:
    """A step in blocks that visits all channels and positions alike: it shares no factor with their number."""
    blocks = max(1, size // BLOCK)
    stride = max(1, size // _elements(size))
    while math.gcd(stride, blocks) != 1:
        stride += 1
    return stride


_REDUCTIONS = {"high": "REDUCE_MAX", "low": "REDUCE_MIN", "total": "SUM"}


def _insert_reductions(
    graph: Graph, probes: Sequence[Probe], manner: Manner, *, histograms: bool
) -> tuple[Tensor, Array]:
    """Add the reductions in place; return the tensor that holds them all, and which they are."""
    producer = {t: op for op in graph.ops for t in op.outputs}
    follow: dict[Op | None, list[Op]] = {}
    parts: list[Tensor] = []
    columns: list[Array] = []
    width = sum(p.channels for p in probes)
    kept = 1 if manner is Manner.BATCHED else 0  # leading axes
    every_axis = {rank: _axes(kept, rank) for rank in {len(p.tensor.shape) for p in probes}}
    for place, (kind, reduction) in enumerate(_REDUCTIONS.items()):
        for probe in probes:
            source = producer.get(probe.tensor)
            if not histograms and not _matters(kind, source):
                continue
            columns.append(place * width + probe.start + np.arange(probe.channels))
            axes = every_axis[len(probe.tensor.shape)]
            if not axes.size:
                parts.append(probe.tensor)  # there is one value in each channel
                continue
            result = Tensor(f"zeropoint/{kind}/{probe.start}", (1,) * kept + (probe.channels,), DType.FLOAT32)
            graph.tensors.append(result)
            options = default_options("ReducerOptions", keepDims=False)
            follow.setdefault(source, []).append(Op(reduction, [probe.tensor, axes], [result], options))
            parts.append(result)
    graph.tensors += (axes for axes in every_axis.values() if axes.size)
    graph.ops = _followed(graph.ops, follow)
    found = np.concatenate(columns)
    result = Tensor("zeropoint/reductions", (1,) * kept + (found.size,), DType.FLOAT32)
    graph.tensors.append(result)
    graph.ops.append(Op("CONCATENATION", [*parts], [result], default_options("ConcatenationOptions", axis=kept)))
    return result, found


def _axes(first: int, rank: int) -> Tensor:
    """The axes from `first` up to the last but one."""
    return Tensor.constant(f"zeropoint/axes{rank}", np.arange(first, rank - 1, dtype=np.int32), DType.INT32)


def _matters(kind: str, source: Op | None) -> bool:
    """Whether a reduction is needed where only minima and maxima are wanted."""
    if kind == "low":
        # Ranges hold zero anyway, so a ReLU's least value need not be read.
        bounds = None if source is None else fused_activation(source).bounds
        return bounds is None or bounds[0] != 0.0
    if kind == "total":
        # LiteRT's maxima and minima overlook NaN (ai-edge-litert 2.3), sums do not: add up where one can appear.
        return source is None or source.kind not in OPS or OPS[source.kind].has_poles
    return True


def _insert_picking(
    graph: Graph, probes: Sequence[Probe], infinite: Container[str]
) -> tuple[Picked | None, list[Probe]]:
    """Pick a sample of the probes where the graph can do that; the others remain.

    It multiplies neighbours by zero, so infinite ones would spoil it.
    """
    rasters = {p: r for p in probes if p.key not in infinite and (r := raster_of(p.tensor, _elements(p.tensor.size)))}
    if not rasters:
        return None, [*probes]
    picker = Picker(graph)
    producer = {t: op for op in graph.ops for t in op.outputs}
    follow: dict[Op | None, list[Op]] = {}
    rows = []
    for probe, raster in rasters.items():
        ops, row = picker.pick(probe.tensor, raster)
        follow.setdefault(producer.get(probe.tensor), []).extend(ops)
        rows.append(row)
    graph.ops = _followed(graph.ops, follow)
    return Picked(rasters, picker.join(rows)), [p for p in probes if p not in rasters]


def _followed(ops: Iterable[Op], follow: Mapping[Op | None, Sequence[Op]]) -> list[Op]:
    """`ops`, each with those that follow it; those that follow none come first."""
    return [*follow.get(None, ()), *(o for op in ops for o in (op, *follow.get(op, ())))]


def _insert_stacks(graph: Graph, probes: Sequence[Probe], manner: Manner) -> list[Stack]:
    """Stack small tensors of the same shape, if it is fixed and asking for them is not done for many runs at once."""
    if manner is Manner.BATCHED:
        return [Stack((probe,), probe.tensor) for probe in probes]
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
