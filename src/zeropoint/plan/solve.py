"""Determines which places share parameters, and what these are.

Every place where values are stored is a node: a tensor in an activation type (as its producer stores it, or after
conversion to that type), and each use of it. An op that needs one scale for all its operands ties their nodes together
for good. A use is tied to its tensor unless that would force unsuitable parameters on it, or parameters that leave
hardly a step for values that are also read elsewhere; then a conversion appears between the two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..affine import QuantParams
from ..calibration import Grid
from ..calibration.range_methods import Bounds
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Activation, CellState, Need, OpSpec, OutputState
from ..recipe import Scheme
from .plan import Group, Held, Node
from .tensor_ranges import TensorRanges, constant_bounds
from .weights import spare_bits, state_params

FEWEST_STEPS_IN_GROUP = 16
"""A tensor that others also read does not get a scale that leaves its values fewer steps than this."""


@dataclass
class _Class:
    """An equivalence class of nodes, while they are being merged. `pin` are parameters that it must have."""

    nodes: list[Node]
    dtype: DType
    symmetric: bool = False
    fixed: bool = False
    pin: QuantParams | None = None


Edge = tuple[Use, Held]
"""Between a use and the tensor that it reads."""


@dataclass
class Solver:
    """Union-find over nodes, in graph order, so that equal inputs give equal results.

    `symmetric` are uses for which the target demands zero point 0. `exposed` are tensors that are outputs or are read
    by ops that are not in `schemes`. `states` are inputs that callers fill with an output of the previous run, each
    with that output: integers are then passed from one to the other unchanged. `crossing` are places where integers
    pass to or from other graphs, with the parameters agreed on there.
    """

    schemes: Mapping[Op, Scheme]
    ops: Mapping[str, OpSpec]
    ranges: TensorRanges
    symmetric: Collection[Use] = ()
    exposed: Collection[Tensor] = ()
    states: Sequence[tuple[Tensor, Tensor]] = ()
    crossing: Mapping[Node, QuantParams] = field(default_factory=dict)
    _parent: dict[Node, Node] = field(default_factory=dict)
    _classes: dict[Node, _Class] = field(default_factory=dict)
    _method: dict[Node, str | None] = field(default_factory=dict)

    def solve(self) -> tuple[Group, ...]:
        """Return the groups of everything that the ops in `schemes` read and produce, in graph order."""
        # 1. Ties that kernels demand, and the edges from tensors to uses, which may become ties.
        edges = [edge for op, scheme in self.schemes.items() for edge in self._add(op, scheme)]
        edges += self._add_crossing()
        # 2. If nothing is prescribed on either side, a use has the parameters of its tensor.
        free = [(use, held) for use, held in edges if not (self._class(use).pin or self._class(held).pin)]
        split = self._merge(free)
        unpinned = (c for c in self._classes.values() if c.pin is None)
        self.ranges.anticipate(choice for c in unpinned for choice in self._choices(c))
        # 3. Otherwise only if the prescribed parameters fit the other side.
        for use, held in (edge for edge in edges if edge not in split):
            if self._agree(self._class(use), self._class(held)):
                self._union(use, held)
        self._tie_states()
        self._settle()
        states = self._states()
        return (*(self._group(c, states) for c in self._classes.values()), *self._cells())

    def _tie_states(self) -> None:
        """Tie each state output to the input that it fills in the next run."""
        for source, result in self.states:
            for dtype in {c.dtype for c in self._classes.values()}:
                ends = Held(source, dtype), Held(result, dtype)
                if self._parent.keys() >= set(ends) and self._agree(self._class(ends[0]), self._class(ends[1])):
                    self._union(*ends)

    def _merge(self, edges: Sequence[Edge]) -> set[Edge]:
        """Tie uses to their tensors; return the edges where that would take precision from other readers."""
        later = []
        for use, held in edges:
            if self._is_drowned(held, by=use):
                later.append((use, held))
            else:
                self._union(use, held)
        split = set()
        for use, held in later:
            if self._is_drowned(held, by=use) and self._is_read_elsewhere(self._class(held)):
                split.add((use, held))
            else:
                self._union(use, held)
        return split

    def _is_drowned(self, held: Held, by: Use) -> bool:
        """Whether the tied operands of an op reach so far that almost nothing of this tensor would remain."""
        if not self.ops[by.op.kind].tied or self._root(held) == self._root(by):
            return False
        own, other = self._span(self._class(held)), self._span(self._class(by))
        return own > 0 and other * FEWEST_STEPS_IN_GROUP > own * 2.0**held.dtype.bits

    def _is_read_elsewhere(self, c: _Class) -> bool:
        """Whether other ops compute with these values, or callers see them."""
        uses = self._computing(c)
        return any(n.tensor in self.exposed for n in c.nodes) or any(not self.ops[n.op.kind].tied for n in uses)

    def _computing(self, c: _Class) -> Iterator[Use]:
        """Yield uses where integer ops read these values."""
        return (n for n in c.nodes if isinstance(n, Use) and n.op in self.schemes)

    def _span(self, c: _Class) -> float:
        ends = [self.ranges.bounds(n.tensor) for n in c.nodes]
        return max(0.0, *(high for _, high in ends)) - min(0.0, *(low for low, _ in ends))

    def _settle(self) -> None:
        """Set parameters from ranges for classes that have none yet."""
        unpinned = [c for c in self._classes.values() if c.pin is None]
        spans = [_Span(c.dtype, c.symmetric, self._bounds(c), c.nodes[0].tensor.name) for c in unpinned]
        for c, params in zip(unpinned, _params_of(spans), strict=True):
            c.pin = params
        self._settle_zeros([c for c, span in zip(unpinned, spans, strict=True) if span.bounds == (0.0, 0.0)])

    def _settle_zeros(self, empty: Sequence[_Class]) -> None:
        """Give classes of nothing but zeros the parameters of what is computed from them, last ones first.

        No scale follows from zeros. An arbitrary one may be so much coarser than others that kernels which limit the
        ratio of scales need a coarser result as well, as in a sum with a branch that training has switched off.
        """
        unknown = [*empty]
        for c in reversed(empty):
            made = (Held(t, c.dtype) for use in self._computing(c) for t in use.op.outputs)
            results = [self._class(held) for held in made if held in self._parent]
            known = [r.pin for r in results if r.pin is not None and not any(r is other for other in unknown)]
            if known:
                finest = min(known, key=lambda pin: pin.scale)
                fits = finest.is_symmetric or not c.symmetric
                c.pin = finest if fits else replace(finest, zero_points=(0,))
                unknown = [other for other in unknown if other is not c]

    def _group(self, c: _Class, states: Mapping[Node, Sequence[Node]]) -> Group:
        assert c.pin is not None
        tensors = {n.tensor for n in c.nodes}
        ends = [self.ranges.bounded[t] for t in tensors if t in self.ranges.bounded]
        limited = len(ends) == len(tensors)
        return Group(
            (*c.nodes, *(state for n in c.nodes for state in states.get(n, ()))),
            c.pin,
            c.fixed or any(map(self.ranges.is_prescribed, tensors)),
            c.symmetric,
            any(Need.NONNEGATIVE in self.ops[n.op.kind].kernels.needs for n in self._computing(c)),
            (min(low for low, _ in ends), max(high for _, high in ends)) if limited else (-math.inf, math.inf),
        )

    def _states(self) -> dict[Node, list[Node]]:
        """Return where recurrent ops keep their outputs for the next step, by the node of the output."""
        found: dict[Node, list[Node]] = {}
        for op, slot, tensor, dtype in self._slots(OutputState):
            found.setdefault(Held(op.outputs[0], dtype), []).extend((Held(tensor, dtype), Use(op, slot)))
        return found

    def _cells(self) -> Iterator[Group]:
        """Yield the cell states of recurrent ops, whose scales are powers of two."""
        for op, slot, tensor, _ in self._slots(CellState):
            role = self.ops[op.kind].input_role(slot)
            assert isinstance(role, CellState)
            low, high = self.ranges.choose(tensor, "minmax", Grid(16, True))
            weights = None if role.summed is None else Use(op, role.summed).tensor.data
            room = 1 if weights is None else 2.0 ** spare_bits(weights, max(1, int(op.option("rank", 1))))
            params = state_params(room * low, room * high, role.least, role.greatest)
            yield Group((Held(tensor, params.dtype), Use(op, slot)), params, fixed=True, symmetric=True)

    def _slots(self, role: type) -> Iterator[tuple[Op, int, Tensor, DType]]:
        for op, scheme in self.schemes.items():
            for slot, tensor in enumerate(op.inputs):
                if tensor is not None and isinstance(self.ops[op.kind].input_role(slot), role):
                    assert scheme.activations is not None
                    yield op, slot, tensor, scheme.activations

    def _add(self, op: Op, scheme: Scheme) -> Iterator[Edge]:
        """Create the op's nodes and its own ties; yield the edges between its uses and the tensors they read."""
        spec, dtype = self.ops[op.kind], scheme.activations
        assert dtype is not None
        own: list[Node] = []
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is None or not isinstance(role, Activation):
                continue
            use, is_constant = Use(op, slot), tensor.data is not None
            c = self._node(use, dtype, scheme)
            c.symmetric |= role.symmetric or (is_constant and role.symmetric_constant) or use in self.symmetric
            own.append(use)
            if not spec.tied:  # the parameters of a tied op are its output's
                c.pin = self._trained(use, c)
            if not is_constant:
                self._held(tensor, dtype, scheme)
                yield use, Held(tensor, dtype)
        for tensor in spec.made_activations(op):
            c = self._held(tensor, dtype, scheme)
            if dtype in spec.fixed:
                c.pin, c.fixed = spec.fixed[dtype].params(dtype), True
            own.append(Held(tensor, dtype))
        if spec.tied:
            for node in own[1:]:
                self._union(own[0], node)

    def _add_crossing(self) -> Iterator[Edge]:
        """Give values that pass between graphs the parameters that both sides agree on, unless a kernel fixes others:
        then a conversion appears."""
        for node, params in self.crossing.items():
            c = self._node(node, params.dtype)
            if c.pin is None:
                c.pin, c.fixed = params, True
            if isinstance(node, Use) and node.tensor.data is None and self.ranges.knows(node.tensor):
                self._node(held := Held(node.tensor, params.dtype), params.dtype)
                yield node, held

    def _node(self, node: Node, dtype: DType, scheme: Scheme | None = None) -> _Class:
        """Return the class of a node, a new one if the node is not known; `scheme` is that of an op that reads or
        produces it."""
        if node not in self._parent:
            self._parent[node] = node
            self._classes[node] = _Class([node], dtype, symmetric=dtype is DType.INT16)
            self._method[node] = None if scheme is None else scheme.range
        c = self._class(node)
        c.symmetric |= scheme is not None and scheme.symmetric
        return c

    def _held(self, tensor: Tensor, dtype: DType, scheme: Scheme) -> _Class:
        """Return the class of a tensor in a type, with the parameters that are prescribed for it."""
        c = self._node(Held(tensor, dtype), dtype, scheme)
        c.pin = self._given(tensor, dtype) or c.pin
        return c

    def _given(self, tensor: Tensor, dtype: DType) -> QuantParams | None:
        """Return the parameters that a user prescribed, or training left, if they have this type."""
        return in_type(self.ranges.params(tensor), dtype)

    def _trained(self, use: Use, c: _Class) -> QuantParams | None:
        """Return the parameters that only this use was trained with: a constant's grid, or a mark other than the
        tensor's own."""
        if use.tensor.data is None:
            return in_type(self.ranges.trained.uses.get(use), c.dtype)
        grid = self._given(use.tensor, c.dtype)
        return None if grid is None or (c.symmetric and not grid.is_symmetric) else grid

    def _root(self, node: Node) -> Node:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _class(self, node: Node) -> _Class:
        return self._classes[self._root(node)]

    def _union(self, a: Node, b: Node) -> None:
        first, second = self._root(a), self._root(b)
        if first == second:
            return
        self._parent[second] = first
        merged = self._classes.pop(second)
        kept = self._classes[first]
        kept.nodes += merged.nodes
        kept.pin = kept.pin or merged.pin
        kept.symmetric |= merged.symmetric
        kept.fixed |= merged.fixed

    def _agree(self, a: _Class, b: _Class) -> bool:
        """Whether two classes can share parameters without clipping values of either."""
        if a is b or (a.pin is None and b.pin is None):
            return True
        if a.pin is not None and b.pin is not None:
            return a.pin == b.pin
        pin, other = (a.pin, b) if a.pin is not None else (b.pin, a)
        assert pin is not None
        if other.symmetric and not pin.is_symmetric:
            return False
        low, high = self._bounds(other)
        least, greatest = pin.range()
        constants = [constant_bounds(n.tensor)[1] for n in other.nodes if n.tensor.data is not None]
        if max(constants, default=0.0) > greatest + pin.scale / 2:
            return False
        # A probability of 1 is a whole step beyond the integer range of probabilities, which is intended.
        slack = pin.scale if greatest > 0 and self._is_of_kernel(pin) else pin.scale / 2
        return least - pin.scale / 2 <= min(low, 0.0) and max(high, 0.0) <= greatest + slack

    def _is_of_kernel(self, params: QuantParams) -> bool:
        """Whether these are the parameters that some kernel fixes for its output."""
        fixed = (spec.fixed.get(params.dtype) for spec in self.ops.values())
        return any(f is not None and f.params(params.dtype) == params for f in fixed)

    def _choices(self, c: _Class) -> Iterator[tuple[Tensor, str | None, Grid]]:
        """Yield the ranges that determine that of the class: the given ones, if there are any, or else all."""
        grid = Grid(c.dtype.bits, c.symmetric)
        given = [n for n in c.nodes if self.ranges.is_given(n.tensor)]
        return ((n.tensor, self._method[n], grid) for n in given or c.nodes)

    def _bounds(self, c: _Class) -> Bounds:
        return _hull(self.ranges.choose(*choice) for choice in self._choices(c))


class _Span(NamedTuple):
    """The range that integers of a type have to hold, and the name of a tensor it is for."""

    dtype: DType
    symmetric: bool
    bounds: Bounds
    name: str


def _params_of(spans: Sequence[_Span]) -> list[QuantParams]:
    """Return the parameters for each span; those of one type are computed together, which is faster."""
    alike: dict[tuple[DType, bool], list[int]] = {}
    for k, span in enumerate(spans):
        alike.setdefault((span.dtype, span.symmetric), []).append(k)
    found: dict[int, QuantParams] = {}
    for (dtype, symmetric), places in alike.items():
        bounds, names = [spans[k].bounds for k in places], [spans[k].name for k in places]
        found |= zip(places, QuantParams.each_from_range(bounds, dtype, symmetric, names), strict=True)
    return [found[k] for k in range(len(spans))]


def _hull(bounds: Iterable[Bounds]) -> Bounds:
    lows, highs = zip(*bounds, strict=True)
    return min(lows), max(highs)


def params_by_range(groups: Sequence[Group], ranges: TensorRanges) -> list[QuantParams]:
    """Return the parameters of groups that follow from the ranges of their tensors alone."""
    grids = [Grid(group.params.dtype.bits, group.symmetric) for group in groups]
    choices = [[(node.tensor, None, grid) for node in group.nodes] for group, grid in zip(groups, grids, strict=True)]
    ranges.anticipate(choice for own in choices for choice in own)
    bounds = [_hull(ranges.choose(*choice) for choice in own) for own in choices]
    spans = (
        _Span(group.params.dtype, group.symmetric, span, group.nodes[0].tensor.name)
        for group, span in zip(groups, bounds, strict=True)
    )
    return _params_of(list(spans))


def in_type(params: QuantParams | None, dtype: DType) -> QuantParams | None:
    """Return parameters of `dtype`; uint8 parameters can be converted to int8, and vice versa."""
    if params is None:
        return None
    if params.dtype.bits == dtype.bits == 8:
        return QuantParams(params.scales, (params.zero_point - params.dtype.min + dtype.min,), dtype)
    return params if params.dtype is dtype else None
