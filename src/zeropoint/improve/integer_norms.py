"""Rewrites normalizations so that integers can compute them: the same function, from ops for which 16 bits suffice.

A variance spans the square of its inputs' range. If a token has one value a hundred times as large as all others, the
squares of the others vanish even in 16-bit steps; but their sum does not, if it is formed before anything is rounded.
So the mean of squares is computed as a matrix product, d·dᵀ / n.

The kernel of the reciprocal root uses a table with even steps, which are too coarse near zero. Over a wide range it is
composed of narrow parts between edges e₁ < e₂ < …: f(v) = Σ f(clip(v, eₖ, eₖ₊₁)) − Σ f(eₖ) over the inner edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..calibration import Range
from ..calibration.range_methods import Bounds
from ..graph.edit import drop_unused
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..ops import fused_activation
from ..plan.new_ops import NewOps
from ..plan.prepared import Prepared, ranges_of
from ..plan.request import Request
from ..sources.ports import entry_graphs
from ..tflite.schema import default_options

PART = 16.0
"""Ratio of the ends of a part of the reciprocal root: its table then has 16 steps below the lower end."""

MOST_PARTS = 4


def with_integer_norms(prepared: Prepared, request: Request) -> Prepared:
    """Return the same function with its normalizations rewritten; unchanged if there are none, or ranges were
    trained."""
    if prepared.trained.has_marks:
        return prepared
    (copy, _), made = prepared.copied(), dict[Tensor, Range | Tensor]()
    ranges = replace(ranges_of(prepared, request), keys=copy.keys, bounded={})
    for graph in entry_graphs(copy.model):
        made |= rewrite_norms(graph, lambda t: ranges.bounds(t) if ranges.knows(t) else None)
    return copy.with_new(made) if made else prepared


def rewrite_norms(graph: Graph, bounds: Callable[[Tensor], Bounds | None]) -> dict[Tensor, Range | Tensor]:
    """Edit `graph` in place, where `bounds` gives the range of a tensor; return the ranges of new tensors."""
    edit = _Edit(graph, bounds, NewOps(graph))
    for op in list(graph.ops):
        if op.kind == "MEAN":
            edit.rewrite_mean_square(op)
        elif op.kind == "RSQRT":
            edit.split_reciprocal_root(op)
    drop_unused(graph)
    return edit.new.made


@dataclass
class _Edit:
    graph: Graph
    bounds: Callable[[Tensor], Bounds | None]
    new: NewOps

    def rewrite_mean_square(self, mean: Op) -> None:
        """Replace the mean of squares along the last axis by a matrix product."""
        squares, result = mean.inputs[0], mean.outputs[0]
        maker = None if squares is None else Uses(self.graph).producer(squares)
        seen = self.bounds(result)
        if squares is None or maker is None or seen is None or not self._is_inner(squares) or not _is_along_last(mean):
            return
        difference = self._squared(maker)
        spanned = None if difference is None else self.bounds(difference) or self._span(difference)
        if difference is None or spanned is None:
            return
        self.graph.ops.remove(maker)
        size, count = squares.shape[-1], squares.size // squares.shape[-1]
        rows = self.new.tensor(difference, "rows", (count, 1, size), spanned)
        total = self.new.tensor(result, "products", (count, 1, 1), (0.0, size * max(seen[1], 0.0)))
        sums = self.new.tensor(result, "sums", result.shape, (0.0, size * max(seen[1], 0.0)))
        self.new.insert(mean, "RESHAPE", [difference, self.new.integers(f"{rows.name}/shape", rows.shape)], rows)
        self.new.insert(mean, "BATCH_MATMUL", [rows, rows], total, default_options("BatchMatMulOptions", adjY=True))
        self.new.insert(mean, "RESHAPE", [total, self.new.integers(f"{sums.name}/shape", sums.shape)], sums)
        self.new.insert(
            mean,
            "MUL",
            [sums, self.new.constant(f"{mean.name}/constant", 1 / size)],
            result,
            default_options("MulOptions"),
        )
        self.graph.ops.remove(mean)

    def _squared(self, maker: Op) -> Tensor | None:
        """Return what an op squares; for a squared difference, the difference, which is then computed explicitly."""
        first, second = (*maker.inputs, None)[:2]
        if first is None or fused_activation(maker).name != "NONE":
            return None
        if maker.kind == "SQUARE" or (maker.kind == "MUL" and first is second):
            return first
        a, b = self.bounds(first), None if second is None else self.bounds(second)
        if maker.kind != "SQUARED_DIFFERENCE" or second is None or a is None or b is None:
            return None
        known = self._difference(first, second)
        if known is not None:  # it may be computed later
            self.graph.ops.remove(known)
            self.graph.ops.insert(self.graph.ops.index(maker), known)
            return known.outputs[0]
        difference = self.new.tensor(maker.outputs[0], "difference", maker.outputs[0].shape, (a[0] - b[1], a[1] - b[0]))
        self.new.insert(maker, "SUB", [first, second], difference, default_options("SubOptions"))
        return difference

    def _difference(self, first: Tensor, second: Tensor) -> Op | None:
        subtractions = (op for op in self.graph.ops if op.kind == "SUB" and op.inputs == [first, second])
        return next((op for op in subtractions if fused_activation(op).name == "NONE"), None)

    def split_reciprocal_root(self, op: Op) -> None:
        """Replace the reciprocal root over a wide range by a sum of narrow parts."""
        source, result = op.inputs[0], op.outputs[0]
        seen = None if source is None else self.bounds(source)
        if source is None or seen is None or not 0 < seen[0] < seen[1] < math.inf:
            return
        count = math.ceil(math.log(seen[1] / seen[0]) / math.log(PART))
        if not 1 < count <= MOST_PARTS:
            return
        edges = [float(edge) for edge in np.geomspace(*seen, count + 1)]
        roots = [1 / math.sqrt(edge) for edge in edges]
        parts = []
        for k in range(count):
            parts.append(self.new.tensor(result, f"part{k}", result.shape, (roots[k + 1], roots[k])))
            self.new.insert(op, "RSQRT", [self._clipped(op, source, edges, k)], parts[-1])
        total = parts[0]
        for k, part in enumerate(parts[1:], 1):
            added = self.new.tensor(result, f"parts{k}", result.shape, (roots[-1], sum(roots[: k + 1])))
            self.new.insert(op, "ADD", [total, part], added, default_options("AddOptions"))
            total = added
        inner = self.new.constant(f"{op.name}/constant", -sum(roots[1:-1]))
        self.new.insert(op, "ADD", [total, inner], result, default_options("AddOptions"))
        self.graph.ops.remove(op)

    def _clipped(self, op: Op, source: Tensor, edges: list[float], part: int) -> Tensor:
        """Return `source` clipped between two of the edges; the outermost need no clip."""
        low, high = edges[part : part + 2]
        limits = [("MAXIMUM", low, edges[-1])] if part else []
        limits += [("MINIMUM", high, high)] if part < len(edges) - 2 else []
        for kind, limit, most in limits:
            clipped = self.new.tensor(source, f"{kind.lower()}{part}", source.shape, (low, most))
            options = default_options("MaximumMinimumOptions")
            self.new.insert(op, kind, [source, self.new.constant(f"{op.name}/constant", limit)], clipped, options)
            source = clipped
        return source

    def _is_inner(self, tensor: Tensor) -> bool:
        uses = Uses(self.graph)
        is_alone = len(uses.readers(tensor)) == 1 and not uses.is_output(tensor)
        return is_alone and not tensor.is_dynamic and len(tensor.shape) > 1

    def _span(self, tensor: Tensor) -> Bounds | None:
        span = self.new.made.get(tensor)
        return (span.low, span.high) if isinstance(span, Range) else None


def _is_along_last(mean: Op) -> bool:
    source, axes = mean.inputs[0], mean.inputs[1]
    if source is None or axes is None or axes.data is None:
        return False
    return [int(a) % len(source.shape) for a in axes.data.reshape(-1)] == [len(source.shape) - 1]
