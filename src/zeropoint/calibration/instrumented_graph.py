"""A copy of a graph that measures itself while it runs.

Right after each tensor's producer, while the values are still in the cache, reductions over all but the last axis
compute the maximum, minimum and sum of each channel; one concatenation collects them all. So LiteRT's delegate does the
reading, with vector instructions and outside Python's lock: measured on MobileNetV2 at 224x224 on two cores, this adds
10 % to plain inference, where reductions at the end of the graph add 40 % and NumPy 150 %. Histograms are built from a
sample of each tensor's elements (`sampling`).

Running a small model takes less time than Python needs to start the run and to fetch its outputs. So, if the graph
allows it, many samples are batched into one run, with separate reductions for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model, Op, Record, Tensor
from ..graph.query import reachable_graphs
from ..ops import Trait, fused_activation, spec_of
from ..ops.batching import free_tensors
from ..ops.layout import VALID
from ..runtime.unit_steps import with_unit_steps
from ..tflite.schema import default_options
from .sampling import Pick, Positions
from .task import CalibrationTask, OpTable, Settings, measured_tensors, weighted_activations

BATCH, BATCH_ELEMENTS = 16, 1 << 20
"""Limits of one run, in samples and in elements of all their tensors, so that the values stay in the cache."""

FEWEST, MOST, CHUNK_ELEMENTS = 16, 48, 1 << 25
"""Samples, or elements of all their tensors, that one thread measures at a time: handing samples over and merging their
statistics takes time, too."""


DILATED = 2
"""The first version of the depthwise kernel that supports dilation."""


class MeasureMode(Enum):
    """How a graph is measured."""

    BATCHED = "reduced in the graph, many samples per run"
    SINGLE = "reduced in the graph, one sample per run"
    EXPOSED = "all tensors are outputs, reduced by NumPy, with any shapes"


@dataclass(frozen=True)
class Probe:
    """One measured tensor: its channels are [start, start + channels) of the reductions."""

    key: str
    tensor: Tensor
    start: int
    channels: int
    keep_channels: bool

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.channels)


@dataclass(frozen=True)
class InstrumentedGraph:
    """The self-measuring copy, and the meaning of its outputs.

    `reductions`: for each sample of a run, the maxima of all channels of all probes, then the minima, then the sums;
    without histograms, minima only of the channels `lows`, and sums that only serve to detect NaN. With histograms, the
    output `picked` holds the `picks` of some probes, and the tensors of the others, `sampled`, are outputs themselves.
    `exposed`: tensors that are needed whole: those of `read`, which cannot be reduced in the graph, and those that the
    caller asked for. `batch`: the samples per run. `chunk`: how many samples to hand to a thread at once, many of a
    small model and one of a large.
    """

    model: Model
    probes: tuple[Probe, ...]
    reductions: Tensor | None
    lows: Array
    picked: Tensor | None
    picks: Mapping[Probe, Pick]
    sampled: tuple[Probe, ...]
    read: tuple[Probe, ...]
    exposed: tuple[Tensor, ...]
    batch: int
    chunk: int


def instrument(task: CalibrationTask, mode: MeasureMode, exposed: Sequence[Tensor] = ()) -> InstrumentedGraph:
    """Return a model that runs a copy of the task's graph that measures its float tensors, or only exposes them."""
    # A batch would change shapes, and what is only exposed may have any.
    source = with_unit_steps(task.graph) if mode is MeasureMode.SINGLE else task.graph
    graph = dataclasses.replace(source, tensors=list(source.tensors), ops=list(source.ops))
    probes, read = _probes(task, mode)
    histograms = task.settings.histograms
    reductions, lows = _insert_reductions(graph, probes, mode, task) if probes else (None, np.zeros(0, np.intp))
    # Picking multiplies neighbouring elements by zero, so infinities would turn into NaN.
    pickable = [p for p in probes if histograms and p.key not in task.infinities]
    picks = {p: pick for p in pickable if (pick := Pick.of(p.tensor)) is not None}
    picked = _insert_picks(graph, picks, task.ops) if picks else None
    sampled = [p for p in probes if histograms and p not in picks]
    shown = tuple(dict.fromkeys((*(p.tensor for p in read), *exposed)))
    measured = [t for t in (reductions, picked) if t is not None]
    graph.outputs = list(dict.fromkeys((*measured, *(p.tensor for p in sampled), *shown, *task.recorded)))
    elements = max(1, sum(t.size for t in measured_tensors(task.graph, task.ops)))
    together = batch_size(elements)
    return InstrumentedGraph(
        # Signatures would fix the outputs, so they are dropped.
        dataclasses.replace(task.model, graphs=[graph, *reachable_graphs(graph)], signatures=[]),
        tuple(probes),
        reductions,
        lows,
        picked,
        picks,
        tuple(sampled),
        tuple(read),
        shown,
        together if mode is MeasureMode.BATCHED else 1,
        together * max(1, max(FEWEST, min(MOST, CHUNK_ELEMENTS // elements)) // together),
    )


def batch_size(elements: int) -> int:
    """Return how many samples may be run together, given the `elements` of all tensors of one sample."""
    return max(1, min(BATCH, BATCH_ELEMENTS // max(1, elements)))


def takes_batches(graph: Graph, ops: OpTable) -> bool:
    """Whether several samples may be batched, because no op mixes them: every tensor then has a row for each.

    Whether LiteRT can run this file that way is another question: constants may hold shapes for one sample.
    """
    free = free_tensors(graph.inputs, graph.ops, ops)
    measured = measured_tensors(graph, ops)
    return (
        batch_size(sum(t.size for t in measured)) > 1
        and all(t in free and _has_one_row(t) for t in (*graph.inputs, *measured))
        and not any(t.is_variable or t.dtype.storage is None for t in graph.tensors)
        and not reachable_graphs(graph)
    )


def _has_one_row(tensor: Tensor) -> bool:
    return len(tensor.shape) >= 2 and tensor.shape[0] == 1 and tensor.size > 0 and not _varies(tensor)


def _varies(tensor: Tensor) -> bool:
    """Whether the size of one sample is not known from the file."""
    first, *others = tensor.dynamic_shape or (1,)
    return -1 in others or (first == -1 and tensor.shape[0] != 1)


def _probes(task: CalibrationTask, mode: MeasureMode) -> tuple[list[Probe], list[Probe]]:
    """Return the tensors to reduce in the graph, and those whose values have to be read."""
    channelwise = weighted_activations(task.graph, task.ops)
    probes, read, start = [], [], 0
    for tensor in task.tensors:
        reducible = mode is not MeasureMode.EXPOSED and _is_reducible(tensor, task.settings)
        channels = tensor.shape[-1] if reducible else 1
        probe = Probe(task.keys[tensor], tensor, start, channels, tensor in channelwise)
        if reducible:
            probes.append(probe)
            start += channels
        else:
            read.append(probe)
    return probes, read


def _is_reducible(tensor: Tensor, settings: Settings) -> bool:
    """Whether the graph itself can reduce a tensor: its channels are known."""
    if len(tensor.shape) < 2 or not tensor.size:
        return False
    # The share that is sampled depends on the size, so tensors without a fixed size are sampled outside the graph.
    return not _varies(tensor) if settings.histograms else tensor.dynamic_shape[-1] > 0


_REDUCTIONS = {"high": "REDUCE_MAX", "low": "REDUCE_MIN", "total": "SUM"}


def _insert_reductions(
    graph: Graph, probes: Sequence[Probe], mode: MeasureMode, task: CalibrationTask
) -> tuple[Tensor, Array]:
    """Add the reductions in place; return the tensor that holds them all, and the channels whose minima it has."""
    insertions = _Insertions(graph)
    reductions = _Reductions(insertions, task.ops, leading=1 if mode is MeasureMode.BATCHED else 0)
    parts: list[Tensor] = []
    lows = [np.zeros(0, np.intp)]
    for kind in _REDUCTIONS:
        for probe in probes:
            if not task.settings.histograms and not _matters(kind, insertions.producer.get(probe.tensor), task.ops):
                continue
            if kind == "low":
                lows.append(probe.start + np.arange(probe.channels))
            parts += reductions.of(kind, probe.tensor)
    return insertions.join("reductions", parts), np.concatenate(lows)


class _Reductions:
    """Adds reductions of tensors over all axes but the last and the `leading` ones, in order of execution.

    Reading all elements takes far longer than what follows from the reductions of an op's inputs: those of joined or
    padded tensors, and the extremes of a function that rises.
    """

    def __init__(self, insertions: _Insertions, ops: OpTable, leading: int) -> None:
        self._insertions, self._ops, self._leading = insertions, ops, leading
        self._known: dict[tuple[str, Tensor | None], list[Tensor]] = {}

    def of(self, kind: str, tensor: Tensor) -> list[Tensor]:
        """Return the tensors that hold the reduction, each for some consecutive channels."""
        is_reduced = len(tensor.shape) == self._leading + 1  # each channel has only one value
        found = [tensor] if is_reduced else self._derived(kind, tensor) or [self._reduced(kind, tensor)]
        self._known[kind, tensor] = found
        return found

    def _reduced(self, kind: str, tensor: Tensor) -> Tensor:
        rank, options = len(tensor.shape), default_options("ReducerOptions", keepDims=False)
        axes = self._insertions.constant(f"axes{rank}", np.arange(self._leading, rank - 1, dtype=np.int32))
        shape = (1,) * self._leading + tensor.shape[-1:]
        return self._made(tensor, shape, _REDUCTIONS[kind], [tensor, axes], options)

    def _derived(self, kind: str, tensor: Tensor) -> list[Tensor]:
        """Return the reduction if it follows from those of the inputs; nothing if it does not."""
        op = self._insertions.producer.get(tensor)
        spec = None if op is None else self._ops.get(op.kind)
        if op is None or spec is None:
            return []
        if op.kind == "CONCATENATION" and _joins_channels(op):
            return self._joined(kind, op)
        parts = self._known.get((kind, op.inputs[0]), [])
        if op.kind == "PAD" and _adds_zeros(op, self._leading):
            return parts if kind == "total" else [self._beside_zero(kind, tensor, part) for part in parts]
        if Trait.RISES in spec.traits and kind != "total":
            return [self._made(tensor, part.shape, op.kind, [part], op.options) for part in parts]
        return []

    def _joined(self, kind: str, op: Op) -> list[Tensor]:
        """Return the reductions of all inputs, one after the other; nothing if some are not known."""
        found = [self._known[kind, t] for t in op.inputs if (kind, t) in self._known]
        return [part for parts in found for part in parts] if len(found) == len(op.inputs) else []

    def _beside_zero(self, kind: str, tensor: Tensor, part: Tensor) -> Tensor:
        zero = self._insertions.constant("zero", np.zeros(1, np.float32))
        further = "MAXIMUM" if kind == "high" else "MINIMUM"
        return self._made(tensor, part.shape, further, [part, zero], default_options("MaximumMinimumOptions"))

    def _made(
        self, tensor: Tensor, shape: tuple[int, ...], kind: str, inputs: list[Tensor], options: Record | None
    ) -> Tensor:
        """Return the output of an op that follows the producer of `tensor`."""
        result = self._insertions.tensor(kind.lower(), shape)
        return self._insertions.add(tensor, Op(kind, [*inputs], [result], options))


def _joins_channels(op: Op) -> bool:
    """Whether a concatenation puts channels side by side, and changes nothing else."""
    last = len(op.outputs[0].shape) - 1
    return op.option("axis") in (-1, last) and fused_activation(op).bounds is None


def _adds_zeros(op: Op, leading: int) -> bool:
    """Whether a PAD adds zeros to every channel, and neither channels nor samples."""
    sizes = None if op.inputs[1] is None else op.inputs[1].data
    return sizes is not None and bool(sizes.any()) and not sizes[:leading].any() and not sizes[-1].any()


def _matters(kind: str, source: Op | None, ops: OpTable) -> bool:
    """Whether a reduction is needed when only minima and maxima are wanted."""
    if kind == "low":
        # Ranges include zero anyway, so the minimum after a ReLU is not needed.
        bounds = None if source is None else fused_activation(source).bounds
        return bounds is None or bounds[0] != 0.0
    if kind == "total":
        # LiteRT's maxima and minima ignore NaN (ai-edge-litert 2.3), sums do not: compute sums where NaN can appear.
        spec = None if source is None else ops.get(source.kind)
        return spec is None or Trait.HAS_POLES in spec.traits or not spec.types
    return True


def _insert_picks(graph: Graph, picks: Mapping[Probe, Pick], ops: OpTable) -> Tensor:
    """Add the ops that pick elements in place; return the tensor that holds them."""
    insertions = _Insertions(graph)
    rows = _PickedRows(insertions, ops)
    return insertions.join("picked", [rows.of(probe.tensor, pick) for probe, pick in picks.items()])


class _PickedRows:
    """Adds ops that pick elements of tensors, in order of execution.

    What an op that works element by element makes of elements picked from its inputs is what would be picked from its
    output: that takes one op on few elements.
    """

    def __init__(self, insertions: _Insertions, ops: OpTable) -> None:
        self._insertions, self._ops = insertions, ops
        self._known: dict[Tensor | None, tuple[Pick, Tensor]] = {}

    def of(self, tensor: Tensor, pick: Pick) -> Tensor:
        """Return the tensor of elements picked from `tensor`, with a row for each sample."""
        found = self._derived(tensor, pick) or self._copied(tensor, pick)
        self._known[tensor] = pick, found
        return found

    def _derived(self, tensor: Tensor, pick: Pick) -> Tensor | None:
        """Return what follows from the elements picked from the inputs of the op that makes `tensor`, if it does."""
        op = self._insertions.producer.get(tensor)
        if op is None or not spec_of(op, self._ops).is_pointwise or not pick.copies or len(op.outputs) > 1:
            return None
        known = [self._known.get(t) for t in op.inputs if t is not None and t.shape == tensor.shape]
        rows = [own[1] for own in known if own is not None and own[0] == pick]
        if len(rows) < len(op.inputs):
            return None
        made = dataclasses.replace(op, inputs=[*rows], outputs=[self._insertions.tensor("row", (1, pick.size))])
        return self._insertions.add(tensor, made)

    def _copied(self, tensor: Tensor, pick: Pick) -> Tensor:
        picked = tensor
        if pick.copies:
            picked = self._insertions.add(tensor, _copy(self._insertions, tensor, *pick.sides))
        if len(picked.shape) == 2 and picked.shape[0] == 1:
            return picked
        shape = self._insertions.constant(f"shape/{pick.size}", np.array([-1, pick.size], np.int32))
        row = self._insertions.tensor("row", (1, pick.size))
        options = default_options("ReshapeOptions", newShape=(-1, pick.size))
        return self._insertions.add(tensor, Op("RESHAPE", [picked, shape], [row], options))


def _copy(insertions: _Insertions, tensor: Tensor, rows: Positions, columns: Positions) -> Op:
    """Return a depthwise convolution that copies some rows and columns."""
    channels = tensor.shape[3]
    one = np.zeros((1, min(2, rows.first + 1), min(2, columns.first + 1), channels), np.float32)
    one[:, -1, -1] = 1.0
    kernel = insertions.constant(f"kernel/{one.shape}", one)
    bias = insertions.constant(f"bias/{channels}", np.zeros(channels, np.float32))
    options = default_options(
        "DepthwiseConv2DOptions",
        padding=VALID,
        strideH=rows.stride,
        strideW=columns.stride,
        dilationHFactor=max(1, rows.first),
        dilationWFactor=max(1, columns.first),
        depthMultiplier=1,
    )
    picked = insertions.tensor("copied", (1, rows.count, columns.count, channels))
    return Op("DEPTHWISE_CONV_2D", [tensor, kernel, bias], [picked], options, DILATED)


class _Insertions:
    """Ops to insert into a graph, each right after the producer of the tensor that it measures."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants: dict[str, Tensor] = {}
        self._followers: dict[Op | None, list[Op]] = {}
        self.producer = {t: op for op in graph.ops for t in op.outputs}

    def tensor(self, what: str, shape: tuple[int, ...]) -> Tensor:
        tensor = Tensor(f"zeropoint/{what}/{len(self._graph.tensors)}", shape, DType.FLOAT32)
        self._graph.tensors.append(tensor)
        return tensor

    def constant(self, name: str, values: Array) -> Tensor:
        if name not in self._constants:
            dtype = DType.INT32 if values.dtype == np.int32 else DType.FLOAT32
            self._constants[name] = Tensor.constant(f"zeropoint/{name}", values, dtype)
            self._graph.tensors.append(self._constants[name])
        return self._constants[name]

    def add(self, looked_at: Tensor, op: Op) -> Tensor:
        """Return the result of `op`, which will follow the producer of `looked_at`, or come first if that has none."""
        self._followers.setdefault(self.producer.get(looked_at), []).append(op)
        return op.outputs[0]

    def join(self, what: str, parts: Sequence[Tensor]) -> Tensor:
        """Insert the ops, and at the end one that concatenates `parts`."""
        after = self._followers
        self._graph.ops = [*after.get(None, ()), *(o for op in self._graph.ops for o in (op, *after.get(op, ())))]
        *leading, _ = parts[0].shape
        result = self.tensor(what, (*leading, sum(part.shape[-1] for part in parts)))
        options = default_options("ConcatenationOptions", axis=len(leading))
        self._graph.ops.append(Op("CONCATENATION", [*parts], [result], options))
        return result
