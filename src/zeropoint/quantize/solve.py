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
from ..calibrate import Grid
from ..dtypes import DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use
from ..ops import Activation, OpSpec
from ..recipe import Scheme
from .tensor_ranges import Bounds, TensorRanges

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
        for use, held in soft:
            if self._agree(self._group(use), self._group(held)):
                self._union(use, held)
        params = {}
        for root, group in self._groups.items():
            if self._root(root) is root or self._root(root) == root:
                solved = group.pin or self._params(group)
                params.update(dict.fromkeys(group.nodes, solved))
        return Solution(params)

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
        if params is not None and params.dtype is DType.UINT8 and dtype is DType.INT8:
            params = QuantParams(params.scales, (params.zero_point - 128,), DType.INT8)
        return params if params is not None and params.dtype is dtype else None

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

    def _bounds(self, group: _Group) -> Bounds:
        dtype = self._dtype(group)
        grid = Grid(dtype.bits, any(n in self._symmetric for n in group.nodes))
        found = [self.ranges.choose(self._tensor(n), self._method[n], grid) for n in group.nodes]
        return min(low for low, _ in found), max(high for _, high in found)

    def _params(self, group: _Group) -> QuantParams:
        dtype = self._dtype(group)
        symmetric = any(n in self._symmetric for n in group.nodes)
        low, high = self._bounds(group)
        return QuantParams.from_range(low, high, dtype, symmetric=symmetric, name=self._tensor(group.nodes[0]).name)

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
