"""Which tensors and uses of a Plan share one range: read off the Plan and the op table.

The solver merged them for a reason: a kernel wants one scale for all its operands, or a conversion was not needed.
Training has to keep it so, or what is trained could not be deployed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from ..affine import QuantParams
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Use
from ..ops import Activation, CellState, Need, OpSpec, OutputState
from ..plan.plan import Plan

Converted = tuple[Tensor, QuantParams]
"""A tensor in another form than the one it is stored in."""

Node = Tensor | Use | Converted


@dataclass(frozen=True)
class Group:
    """Places that share parameters. `fixed` ones are prescribed; `limits` are where values stop to matter."""

    name: str
    params: QuantParams
    fixed: bool
    symmetric: bool
    nonnegative: bool
    limits: tuple[float, float]


@dataclass(frozen=True)
class Ties:
    """The groups of a plan, and the group that each place belongs to."""

    groups: tuple[Group, ...]
    index: Mapping[Node, int]

    def stored(self, tensor: Tensor) -> int | None:
        return self.index.get(tensor)

    def used(self, use: Use) -> int | None:
        return self.index.get(use)


def ties_of(plan: Plan, ops: Mapping[str, OpSpec], prescribed: Collection[str] = ()) -> Ties:
    """`prescribed` are names of tensors whose parameters a user gave outright."""
    finder = _Finder(plan, ops, prescribed)
    return finder.find()


@dataclass
class _Finder:
    plan: Plan
    ops: Mapping[str, OpSpec]
    prescribed: Collection[str]
    _parent: dict[Hashable, Node] = field(default_factory=dict)
    _fixed: set[Node] = field(default_factory=set)
    _symmetric: set[Node] = field(default_factory=set)
    _nonnegative: set[Node] = field(default_factory=set)

    def find(self) -> Ties:
        plan = self.plan
        for tensor in plan.stored:
            self._add(tensor)
        for op in plan.schemes:
            self._add_op(op)
        members: dict[Node, list[Node]] = {}
        for node in list(self._parent):
            members.setdefault(self._root(node), []).append(node)  # type: ignore[arg-type]  # all of them are nodes
        groups = tuple(self._group(nodes) for nodes in members.values())
        return Ties(groups, {node: k for k, nodes in enumerate(members.values()) for node in nodes})

    def _add_op(self, op: Op) -> None:
        spec, scheme = self.ops[op.kind], self.plan.schemes[op]
        own = [*self._uses(op, spec), *self._outputs(op, spec)]
        for node in own:
            if scheme.symmetric or scheme.activations is DType.INT16:
                self._symmetric.add(node)
        if spec.tied:
            for node in own[1:]:
                self._join(own[0], node)

    def _uses(self, op: Op, spec: OpSpec) -> Iterator[Node]:
        for slot, tensor in enumerate(op.inputs):
            use, role = Use(op, slot), spec.input_role(slot)
            wanted = self.plan.wanted.get(use)
            if tensor is None or wanted is None:
                continue
            if isinstance(role, OutputState):
                self._join(tensor, op.outputs[0])
            elif isinstance(role, CellState):  # a power of two, which no gradient leads to
                self._fixed.add(self._add(tensor))
            elif isinstance(role, Activation):
                self._add(use)
                if tensor.data is None:
                    same = self.plan.stored.get(tensor) == wanted
                    self._join(use, tensor if same else (tensor, wanted))
                elif role.symmetric_constant:
                    self._symmetric.add(use)
                if Need.NONNEGATIVE in spec.needs:
                    self._nonnegative.add(use)
                yield use

    def _outputs(self, op: Op, spec: OpSpec) -> Iterator[Node]:
        dtype = self.plan.schemes[op].activations
        for slot, tensor in enumerate(op.outputs):
            if isinstance(spec.output_role(slot), Activation) and tensor in self.plan.stored:
                if dtype in spec.fixed:
                    self._fixed.add(tensor)
                yield tensor

    def _group(self, nodes: list[Node]) -> Group:
        tensors = [_tensor(node) for node in nodes]
        ends = [self.plan.limits[t] for t in tensors if t in self.plan.limits]
        free = len({t for t in tensors if t not in self.plan.limits}) > 0
        given = any(t.name in self.prescribed for t in tensors)
        return Group(
            tensors[0].name,
            self._params(nodes[0]),
            given or any(n in self._fixed for n in nodes),
            any(n in self._symmetric for n in nodes),
            any(n in self._nonnegative for n in nodes),
            (-math.inf, math.inf) if free else (min(low for low, _ in ends), max(high for _, high in ends)),
        )

    def _params(self, node: Node) -> QuantParams:
        if isinstance(node, Tensor):
            return self.plan.stored[node]
        return self.plan.wanted[node] if isinstance(node, Use) else node[1]

    def _add(self, node: Node) -> Node:
        self._parent.setdefault(node, node)
        return node

    def _root(self, node: Hashable) -> Node:
        while self._parent[node] != node:
            node = self._parent[node]
        return self._parent[node]

    def _join(self, a: Node, b: Node) -> None:
        first, second = self._root(self._add(a)), self._root(self._add(b))
        if first != second:
            self._parent[second] = first


def _tensor(node: Node) -> Tensor:
    if isinstance(node, Use):
        tensor = node.op.inputs[node.slot]
        assert tensor is not None
        return tensor
    return node if isinstance(node, Tensor) else node[0]
