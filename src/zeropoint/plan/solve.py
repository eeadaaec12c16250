"""From ranges to parameters: ties, fixed parameters, and what follows from them.

Every place where numbers are held is a node: a tensor in an activation type (as its producer leaves it, or as it is
once converted to that type), and each use of it. An op that needs one scale for all its operands ties their nodes
together for good. A use is tied to its tensor unless that would force parameters on it that do not fit; then a
conversion appears between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..affine import QuantParams
from ..calibration import Grid
from ..calibration.range_methods import Bounds
from ..dtypes import DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use
from ..ops import Activation, OpSpec
from ..recipe import Scheme
from .tensor_ranges import TensorRanges

Held = tuple[Tensor, DType]
Node = Held | Use


@dataclass
class _Group:
    """Nodes that share parameters."""

    nodes: list[Node]
    pin: QuantParams | None = None


@dataclass
class Solution:
    """Parameters of each node."""

    params: dict[Node, QuantParams]

    def held(self, tensor: Tensor, dtype: DType) -> QuantParams | None:
        return self.params.get((tensor, dtype))

    def used(self, op: Op, slot: int) -> QuantParams | None:
        return self.params.get(Use(op, slot))


@dataclass
class Solver:
    """Union-find over nodes, in the order of the graph, so that equal inputs give equal results."""

    graph: Graph
    schemes: Mapping[Op, Scheme]
    ops: Mapping[str, OpSpec]
    ranges: TensorRanges
    _parent: dict[Node, Node] = field(default_factory=dict)
    _groups: dict[Node, _Group] = field(default_factory=dict)
    _symmetric: set[Node] = field(default_factory=set)
    _method: dict[Node, str | None] = field(default_factory=dict)

    def solve(self) -> Solution:
        soft = [edge for op, scheme in self.schemes.items() for edge in self._add(op, scheme)]
        free = [(use, held) for use, held in soft if not (self._group(use).pin or self._group(held).pin)]
        for use, held in free:
            self._union(use, held)
        unpinned = (group for group in self._groups.values() if group.pin is None)
        self.ranges.anticipate(choice for group in unpinned for choice in self._choices(group))
        for use, held in soft:
            if self._agree(self._group(use), self._group(held)):
                self._union(use, held)
        self._settle()
        found = {node: group.pin for group in self._groups.values() for node in group.nodes}
        return Solution({node: params for node, params in found.items() if params is not None})

    def _settle(self) -> None:
        """Parameters from ranges for groups that have none yet."""
        alike: dict[tuple[DType, bool], list[_Group]] = {}
        for group in self._groups.values():
            if group.pin is None:
                alike.setdefault((self._dtype(group), self._is_symmetric(group)), []).append(group)
        for (dtype, symmetric), groups in alike.items():
            bounds, names = [self._bounds(g) for g in groups], [self._tensor(g.nodes[0]).name for g in groups]
            for group, params in zip(groups, QuantParams.each_from_range(bounds, dtype, symmetric, names), strict=True):
                group.pin = params

    def _add(self, op: Op, scheme: Scheme) -> Iterator[tuple[Node, Node]]:
        """Make the op's nodes and its own ties; give the edges between its uses and the tensors they read."""
        spec, dtype = self.ops[op.kind], scheme.activations
        assert dtype is not None
        own: list[Node] = []
        for slot, tensor in enumerate(op.inputs):
            role = spec.input_role(slot)
            if tensor is None or not isinstance(role, Activation):
                continue
            use = Use(op, slot)
            constant = tensor.data is not None
            self._node(use, scheme, symmetric=constant and role.symmetric_constant)
            own.append(use)
            if not spec.tied:  # the parameters of a tied op are its output's
                self._pin(use, self._trained(use, tensor, dtype))
            if not constant:
                self._node((tensor, dtype), scheme)
                self._pin((tensor, dtype), self._given(tensor, dtype))
                yield use, (tensor, dtype)
        for slot, tensor in enumerate(op.outputs):
            if isinstance(spec.output_role(slot), Activation):
                held = (tensor, dtype)
                self._node(held, scheme)
                self._pin(held, self._given(tensor, dtype))
                if dtype in spec.fixed:
                    self._pin(held, spec.fixed[dtype].params(dtype))
                own.append(held)
        if spec.tied:
            for node in own[1:]:
                self._union(own[0], node)

    def _node(self, node: Node, scheme: Scheme, *, symmetric: bool = False) -> None:
        if node not in self._parent:
            self._parent[node] = node
            self._groups[node] = _Group([node])
            self._method[node] = scheme.range
        if symmetric or scheme.symmetric or scheme.activations is DType.INT16:
            self._symmetric.add(node)

    def _given(self, tensor: Tensor, dtype: DType) -> QuantParams | None:
        """What a user prescribed, as far as it is of this type."""
        params = self.ranges.params(tensor)
        return None if params is None else _as_signed(params, dtype)

    def _trained(self, use: Use, tensor: Tensor, dtype: DType) -> QuantParams | None:
        """What this place alone was trained with: a constant's grid, or a mark beside the tensor's own."""
        if tensor.data is None:
            params = self.ranges.trained.uses.get(use)
            return None if params is None else _as_signed(params, dtype)
        grid = self._given(tensor, dtype)
        return None if grid is None or (use in self._symmetric and not grid.is_symmetric) else grid

    def _pin(self, node: Node, params: QuantParams | None) -> None:
        if params is not None:
            self._group(node).pin = params

    def _root(self, node: Node) -> Node:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _group(self, node: Node) -> _Group:
        return self._groups[self._root(node)]

    def _union(self, a: Node, b: Node) -> None:
        first, second = self._root(a), self._root(b)
        if first == second:
            return
        self._parent[second] = first
        merged = self._groups.pop(second)
        group = self._groups[first]
        group.nodes += merged.nodes
        group.pin = group.pin or merged.pin

    def _agree(self, a: _Group, b: _Group) -> bool:
        """Whether two groups can share parameters without values of either being cut off."""
        if a is b or (a.pin is None and b.pin is None):
            return True
        if a.pin is not None and b.pin is not None:
            return a.pin == b.pin
        pin, other = (a.pin, b) if a.pin is not None else (b.pin, a)
        assert pin is not None
        low, high = self._bounds(other)
        least, greatest = pin.range()
        return least - pin.scale <= min(low, 0.0) and max(high, 0.0) <= greatest + pin.scale

    def _choices(self, group: _Group) -> Iterator[tuple[Tensor, str | None, Grid]]:
        """The ranges that make up the group's: those that were given, if some were, or else all."""
        grid = Grid(self._dtype(group).bits, self._is_symmetric(group))
        given = [n for n in group.nodes if self.ranges.is_given(self._tensor(n))]
        return ((self._tensor(n), self._method[n], grid) for n in given or group.nodes)

    def _bounds(self, group: _Group) -> Bounds:
        found = [self.ranges.choose(*choice) for choice in self._choices(group)]
        return min(low for low, _ in found), max(high for _, high in found)

    def _is_symmetric(self, group: _Group) -> bool:
        return any(n in self._symmetric for n in group.nodes)

    def _tensor(self, node: Node) -> Tensor:
        if isinstance(node, Use):
            tensor = node.op.inputs[node.slot]
            assert tensor is not None
            return tensor
        return node[0]

    def _dtype(self, group: _Group) -> DType:
        node = group.nodes[0]
        dtype = self.schemes[node.op].activations if isinstance(node, Use) else node[1]
        assert dtype is not None
        return dtype


def _as_signed(params: QuantParams, dtype: DType) -> QuantParams | None:
    """Parameters of `dtype`; those of uint8 can be had in int8."""
    if params.dtype is DType.UINT8 and dtype is DType.INT8:
        return QuantParams(params.scales, (params.zero_point - 128,), DType.INT8)
    return params if params.dtype is dtype else None
