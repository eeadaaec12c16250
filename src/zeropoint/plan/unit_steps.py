"""Replaces strided slices by slices without strides: x[b::s] is one column of x reshaped to rows of s elements.

Delegates only take slices with unit strides, and LiteRT's own kernel for others copies element by element. Such slices
subsample images at the start of detectors ("focus"), where transformers merge patches, and on shortcuts of networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ..dtypes import DType
from ..graph.model import Graph, Op, Record, Tensor
from ..tflite.schema import default_options
from .new_ops import NewOps

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
    """Ops that replace `op`, in sequence; `held` is the output of the last one."""

    op: Op
    held: Tensor
    new: NewOps

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
        self._add("STRIDED_SLICE", shape, options, begins, ends, [1] * len(shape))

    def _add(self, kind: str, shape: Sequence[int], options: Record, *constants: Sequence[int]) -> None:
        source, result = self.held, self.op.outputs[0]
        self.held = self.new.tensor(result, "sliced", tuple(shape), source)
        self.held.shape_signature = self.sizes(shape) if self.is_open else None
        numbers = [self.new.integers(f"{self.held.name}/sizes", values) for values in constants]
        self.new.insert(self.op, kind, [source, *numbers], self.held, options)


def slice_without_steps(graph: Graph, op: Op) -> dict[Tensor, Tensor]:
    """Replace a STRIDED_SLICE with strides, if that computes the same; return new tensors, each with one of the same
    range."""
    source, result = op.inputs[0], op.outputs[0]
    cuts = [] if source is None or not _keeps_axes(op, source) else list(_cuts(op, source))
    if source is None or not _can_be_written(cuts, source):
        return {}
    chain, shape = _Chain(op, source, NewOps(graph)), list(source.shape)
    if not all(cut.is_whole for cut in cuts if cut.step == 1):
        shape = [cut.count if cut.step == 1 else cut.size for cut in cuts]
        chain.cut([cut.begin if cut.step == 1 else 0 for cut in cuts], shape)
    for axis, cut in enumerate(cuts):
        if cut.step > 1:
            outer, inner, (row, column) = prod(shape[:axis]), prod(shape[axis + 1 :]), divmod(cut.begin, cut.step)
            chain.reshape((outer, cut.size // cut.step, cut.step * inner))
            chain.cut((0, row, column * inner), (outer, cut.count, inner))
            shape[axis] = cut.count
    shaped = chain.new.integers(f"{result.name}/shape", chain.sizes(result.shape))
    op.kind, op.version, op.options, op.inputs = "RESHAPE", 1, default_options("ReshapeOptions"), [chain.held, shaped]
    return dict.fromkeys(chain.new.made, source)


def _keeps_axes(op: Op, source: Tensor) -> bool:
    """Whether what a slice of floats takes is known, and the result has the input's axes, only the batch being
    dynamic."""
    others_open = any(size < 0 for t in (source, op.outputs[0]) for size in (t.shape_signature or ())[1:])
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
    return any(size < 0 for size in (tensor.shape_signature or ())[:1])
