"""Slices that skip elements, written as slices that do not: x[b::s] is one column of x in rows of s elements.

Delegates take slices with steps of 1 only, and LiteRT's own kernel for others copies element by element. Such slices
subsample images where detectors begin ("focus"), where transformers merge patches, and on shortcuts of networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..dtypes import DType
from ..graph.model import Graph, Op, Tensor
from ..tflite.schema import default_options
from .new_ops import NewOps

OTHER_AXES = ("ellipsisMask", "newAxisMask", "shrinkAxisMask", "offset")
"""Options of STRIDED_SLICE with which axes of the result are others than those of the input, or ends mean lengths."""


@dataclass(frozen=True)
class _Cut:
    """What a slice takes of an axis: `count` elements from `begin` on, `step` apart."""

    begin: int
    count: int
    step: int


def slice_without_steps(graph: Graph, op: Op) -> dict[Tensor, Tensor]:
    """Replace a STRIDED_SLICE that has steps, where that computes the same; new tensors, each with one of its range."""
    source, result = op.inputs[0], op.outputs[0]
    cuts = None if source is None else _cuts(op, source)
    if source is None or cuts is None or all(cut.step == 1 for cut in cuts):
        return {}
    new, held, shape = NewOps(graph), source, list(source.shape)

    def add(kind: str, made: tuple[int, ...], *constants: tuple[int, ...]) -> Tensor:
        tensor = new.tensor(result, "sliced", made, source)
        numbers = [new.integers(f"{tensor.name}/sizes", values) for values in constants]
        options = default_options("ReshapeOptions" if kind == "RESHAPE" else "StridedSliceOptions")
        new.insert(op, kind, [held, *numbers], tensor, options)
        return tensor

    if any(cut.step == 1 and cut.count < size for cut, size in zip(cuts, shape, strict=True)):
        begins = tuple(cut.begin if cut.step == 1 else 0 for cut in cuts)
        shape = [cut.count if cut.step == 1 else size for cut, size in zip(cuts, shape, strict=True)]
        ends = tuple(begin + size for begin, size in zip(begins, shape, strict=True))
        held = add("STRIDED_SLICE", tuple(shape), begins, ends, (1,) * len(shape))
    for axis, cut in enumerate(cuts):
        if cut.step == 1:
            continue
        outer, inner, (row, column) = prod(shape[:axis]), prod(shape[axis + 1 :]), divmod(cut.begin, cut.step)
        view = (outer, shape[axis] // cut.step, cut.step * inner)
        held = add("RESHAPE", view, view)
        begins, ends = (0, row, column * inner), (outer, row + cut.count, (column + 1) * inner)
        held = add("STRIDED_SLICE", (outer, cut.count, inner), begins, ends, (1, 1, 1))
        shape[axis] = cut.count
    op.kind, op.version, op.options = "RESHAPE", 1, default_options("ReshapeOptions")
    op.inputs = [held, new.integers(f"{result.name}/shape", result.shape)]
    return dict.fromkeys(new.made, source)


def _cuts(op: Op, source: Tensor) -> list[_Cut] | None:
    """What is taken of each axis, if that is known, keeps all axes, and steps fit into axes a whole number of times."""
    begins, ends, steps = (t.data if t is not None else None for t in op.inputs[1:4])
    is_open = any(size < 0 for t in (source, op.outputs[0]) for size in t.shape_signature or ())
    if begins is None or ends is None or steps is None or is_open or source.dtype is not DType.FLOAT32:
        return None
    if any(op.option(name, 0) for name in OTHER_AXES) or len(steps) != len(source.shape) or steps.min() < 1:
        return None
    found = []
    for axis, size in enumerate(source.shape):
        begin = None if op.option("beginMask", 0) >> axis & 1 else int(begins[axis])
        end = None if op.option("endMask", 0) >> axis & 1 else int(ends[axis])
        taken = range(*slice(begin, end, int(steps[axis])).indices(size))
        if not taken or size % taken.step:
            return None
        found.append(_Cut(taken.start, len(taken), taken.step))
    return found
