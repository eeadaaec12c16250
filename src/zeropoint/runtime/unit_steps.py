"""Replaces strided slices by slices without strides: x[b::s] is one column of x reshaped to rows of s elements.

Delegates only take slices with unit strides, and LiteRT's own kernel for others copies element by element. Such slices
subsample images at the start of detectors ("focus"), where transformers merge patches, and on shortcuts of networks. In
the first layers of a detector they take a quarter of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ..dtypes import DType
from ..graph.edit import unused_name
from ..graph.model import Graph, Op, Record, Tensor
from ..tflite.schema import default_options

STRIDED = "STRIDED_SLICE"

OTHER_AXES = ("ellipsisMask", "newAxisMask", "shrinkAxisMask", "offset")
"""Options of STRIDED_SLICE that change the axes of the result, or the meaning of ends."""


@dataclass(frozen=True)
class _Cut:
    """What a slice takes of an axis of `size` elements: `count` of them starting at `begin`, `step` apart."""

    size: int
    begin: int
    count: int
    step: int

    @property
    def is_whole(self) -> bool:
        return self.count == self.size


@dataclass
class _Chain:
    """Ops that replace `op` in `graph`, in sequence; `held` is the output of the last one, `made` are those of all."""

    graph: Graph
    op: Op
    held: Tensor
    made: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_open = _has_open_batch(self.held)

    def sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (-1, *shape[1:]) if self.is_open else tuple(shape)

    def reshape(self, shape: Sequence[int]) -> None:
        self._add("RESHAPE", shape, default_options("ReshapeOptions"), self.sizes(shape))

    def cut(self, begins: Sequence[int], shape: Sequence[int]) -> None:
        ends = [begin + size for begin, size in zip(begins, shape, strict=True)]
        masks = {"beginMask": 1, "endMask": 1} if self.is_open else {}  # the whole batch, whatever its size
        options = default_options("StridedSliceOptions", **masks)
        self._add(STRIDED, shape, options, begins, ends, [1] * len(shape))

    def _add(self, kind: str, shape: Sequence[int], options: Record, *constants: Sequence[int]) -> None:
        source, name = self.held, unused_name(self.graph, f"{self.op.outputs[0].name}/sliced")
        self.held = Tensor(name, tuple(shape), DType.FLOAT32)
        self.held.shape_signature = self.sizes(shape) if self.is_open else None
        self.graph.tensors.append(self.held)
        self.made.append(self.held)
        numbers = [self.integers(f"{name}/sizes", values) for values in constants]
        self.graph.ops.insert(self.graph.ops.index(self.op), Op(kind, [source, *numbers], [self.held], options))

    def integers(self, name: str, values: Sequence[int]) -> Tensor:
        """Return a constant that holds a shape or indices."""
        made = Tensor.constant(unused_name(self.graph, name), np.asarray(values, np.int32), DType.INT32)
        self.graph.tensors.append(made)
        return made


def with_unit_steps(graph: Graph) -> Graph:
    """Return a copy without strides in slices of floats whose shapes follow from the file; others stay as they are."""
    if not any(op.kind == STRIDED and _has_steps(op) for op in graph.ops):
        return graph
    made, known = replace(graph, tensors=list(graph.tensors), ops=list(graph.ops)), _of_known_shape(graph)
    for place, op in reversed(list(enumerate(graph.ops))):
        if op.kind == STRIDED and op.inputs[0] in known:
            made.ops[place] = twin = replace(op)
            slice_without_steps(made, twin)
    return made


def _has_steps(op: Op) -> bool:
    """Whether a slice may take other than consecutive elements."""
    strides = op.input(3)
    steps = None if strides is None else strides.data
    return steps is None or bool((steps != 1).any())


def _of_known_shape(graph: Graph) -> set[Tensor | None]:
    """Return the tensors that have the shapes in the file whatever the sample: no values can influence them."""
    if any(t.is_dynamic for t in graph.inputs):
        return set()
    known: set[Tensor | None] = {t for t in graph.inputs if t.dtype is DType.FLOAT32}
    for op in graph.ops:
        flowing = [t for t in op.inputs if t is not None and not t.is_constant]
        is_plain = op.kind != "CUSTOM" and not any(op.graphs())
        if is_plain and known.issuperset(flowing) and all(t.dtype is DType.FLOAT32 for t in op.outputs):
            known.update(op.outputs)
    return known


def slice_without_steps(graph: Graph, op: Op) -> dict[Tensor, Tensor]:
    """Edit `graph` in place: replace a STRIDED_SLICE with strides, if that computes the same; return new tensors, each
    with one of the same range."""
    source, result = op.inputs[0], op.outputs[0]
    cuts = [] if source is None or not _keeps_axes(op, source) else list(_cuts(op, source))
    if source is None or not _can_be_written(cuts, source):
        return {}
    chain, shape = _Chain(graph, op, source), list(source.shape)
    if not all(cut.is_whole for cut in cuts if cut.step == 1):
        shape = [cut.count if cut.step == 1 else cut.size for cut in cuts]
        chain.cut([cut.begin if cut.step == 1 else 0 for cut in cuts], shape)
    for axis, cut in enumerate(cuts):
        if cut.step > 1:
            outer, inner, (row, column) = prod(shape[:axis]), prod(shape[axis + 1 :]), divmod(cut.begin, cut.step)
            chain.reshape((outer, cut.size // cut.step, cut.step * inner))
            chain.cut((0, row, column * inner), (outer, cut.count, inner))
            shape[axis] = cut.count
    shaped = chain.integers(f"{result.name}/shape", chain.sizes(result.shape))
    op.kind, op.version, op.options, op.inputs = "RESHAPE", 1, default_options("ReshapeOptions"), [chain.held, shaped]
    return dict.fromkeys(chain.made, source)


def _keeps_axes(op: Op, source: Tensor) -> bool:
    """Whether what a slice of floats takes is known, and the result has the input's axes, only the batch being
    dynamic."""
    others_open = any(size < 0 for t in (source, op.outputs[0]) for size in t.dynamic_shape[1:])
    is_known = all(t is not None and t.data is not None and t.shape == (len(source.shape),) for t in op.inputs[1:4])
    is_plain = not any(op.option(name, 0) for name in OTHER_AXES)
    return is_known and is_plain and not others_open and source.dtype is DType.FLOAT32


def _can_be_written(cuts: Sequence[_Cut], source: Tensor) -> bool:
    """Whether strides divide their axes; a dynamic batch has to be taken whole."""
    if all(cut.step == 1 for cut in cuts) or (_has_open_batch(source) and not cuts[0].is_whole):
        return False
    return all(cut.step > 0 and cut.count > 0 and cut.size % cut.step == 0 for cut in cuts)


def _cuts(op: Op, source: Tensor) -> Iterator[_Cut]:
    """Yield what is taken of each axis."""
    begins, ends, steps = (t.data for t in op.inputs[1:4] if t is not None and t.data is not None)
    if not steps.all():
        return  # LiteRT refuses steps of 0
    for axis, size in enumerate(source.shape):
        begin = None if op.option("beginMask", 0) >> axis & 1 else int(begins[axis])
        end = None if op.option("endMask", 0) >> axis & 1 else int(ends[axis])
        taken = range(*slice(begin, end, int(steps[axis])).indices(size))
        yield _Cut(size, taken.start, len(taken), taken.step)


def _has_open_batch(tensor: Tensor) -> bool:
    return any(size < 0 for size in tensor.dynamic_shape[:1])
