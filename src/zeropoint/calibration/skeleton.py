"""Locates the tensors of another file of the same network in ours, whatever they are called there.

Converters rename tensors, move channels to the end, and add or drop ops that only move values. What remains is what ops
compute, from which inputs, and with which weights. So both files are reduced to that, and matched: layers by the values
of their weights, then ops by their kind and by what they read or produce.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from ..affine import dequantize
from ..dtypes import Array, DType
from ..graph.model import Model, Op, Tensor
from ..graph.query import Uses, tensor_keys
from ..ops import fused_activation, spec_of
from .task import OpTable

MOVES = frozenset(
    ["TRANSPOSE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "PAD", "PADV2", "MIRROR_PAD", "QUANTIZE", "DEQUANTIZE"]
)  # fmt: skip
"""Kinds of ops that only move values, so that a converter may add or drop them."""

CLAMPS = frozenset({"RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1"})
"""Kinds of ops that are fused into the op before them."""

SIMILAR = 0.1
"""Weights count as equal if they differ by less than this share of their norm: 4-bit rounding is below it."""


@dataclass(frozen=True)
class Node:
    """An op: its possible `kinds`, the activations it reads and produces, by name, and its weights if they are
    constant. `clamps`: a fused activation clamps its output."""

    kinds: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    weights: str | None = None
    clamps: bool = False


@dataclass
class Skeleton:
    """What a network computes, without ops that only move values. `values` holds the weights; `aliases` are other names
    by which tensors are known."""

    inputs: Sequence[str]
    nodes: Sequence[Node]
    values: Mapping[str, Array]
    aliases: Mapping[str, str] = field(default_factory=dict)
    _makers: dict[str, Node] = field(init=False)
    _readers: dict[str, list[Node]] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = list(_in_order(self.nodes))
        self._makers = {name: node for node in self.nodes for name in node.makes}
        self._readers = {}
        for node in self.nodes:
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)

    def root(self, name: str) -> str:
        """Return the tensor where the values of a tensor are computed."""
        while (node := self._makers.get(name)) is not None and self._passes_on(node):
            name = node.reads[0]
        return name

    def forms(self, root: str) -> Iterator[tuple[str, bool]]:
        """Yield the names under which the values of `root` are passed on, and whether they are clamped by then."""
        maker = self._makers.get(root)
        ahead = [(root, maker is not None and maker.clamps)]
        for name, is_clamped in ahead:  # the list grows during the loop
            yield name, is_clamped
            for node in self._readers.get(name, ()):
                if self._passes_on(node):
                    ahead += [(made, is_clamped or not MOVES.issuperset(node.kinds)) for made in node.makes]

    @property
    def computing(self) -> list[Node]:
        return [node for node in self.nodes if not self._passes_on(node)]

    def reads(self, node: Node) -> tuple[str, ...]:
        return tuple(self.root(name) for name in node.reads)

    def _passes_on(self, node: Node) -> bool:
        """Whether the op only moves values, or clamps values that no other op reads unclamped."""
        if len(node.reads) != 1:
            return False
        if MOVES.issuperset(node.kinds):
            return True
        return CLAMPS.issuperset(node.kinds) and self._count(node.reads[0]) == 1 and node.reads[0] not in self.inputs

    def _count(self, name: str) -> int:
        """Return how many ops read these values, looking through conversions."""
        while (node := self._makers.get(name)) is not None and MOVES.issuperset(node.kinds) and len(node.reads) == 1:
            name = node.reads[0]
        total, ahead = 0, [name]
        for one in ahead:
            for node in self._readers.get(one, ()):
                is_move = MOVES.issuperset(node.kinds)
                total += not is_move
                ahead += node.makes if is_move else ()
        return total


def _in_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the ops that produce new tensors; a malformed file must not cause an endless loop."""
    seen = set[str]()
    for node in nodes:
        if seen.isdisjoint(node.makes) and not set(node.reads) & set(node.makes):
            seen.update(node.reads, node.makes)
            yield node


def skeleton_of(model: Model, ops: OpTable) -> Skeleton:
    """Return the skeleton of the model's first graph."""
    keys, graph, uses = tensor_keys(model), model.main, Uses(model.main)
    nodes, values = [], dict[str, Array]()
    for op in graph.ops:
        weights = _weights(op, uses, ops)
        if weights is not None:
            values[keys[weights]] = _real(weights)
        reads = tuple(keys[t] for t in op.inputs if t is not None and _holds_numbers(t) and _constant(t, uses) is None)
        if reads:
            makes, clamps = tuple(keys[t] for t in op.outputs), fused_activation(op).bounds is not None
            nodes.append(Node((op.kind,), reads, makes, None if weights is None else keys[weights], clamps))
    return Skeleton([keys[t] for t in graph.inputs], nodes, values)


def _weights(op: Op, uses: Uses, ops: OpTable) -> Tensor | None:
    constants = (_constant(t, uses) for t in spec_of(op, ops).weight_tensors(op))
    return next((t for t in constants if t is not None), None)


def _constant(tensor: Tensor | None, uses: Uses) -> Tensor | None:
    """Return the constant that a tensor is, or that it is derived from by ops that only move values."""
    while tensor is not None and tensor.data is None:
        maker = uses.producer(tensor)
        tensor = maker.inputs[0] if maker is not None and maker.kind in MOVES else None
    return tensor


def _holds_numbers(tensor: Tensor) -> bool:
    return tensor.dtype.is_float or tensor.params is not None


def _real(tensor: Tensor) -> Array:
    assert tensor.data is not None
    if tensor.params is None or tensor.dtype is DType.FLOAT32:
        return tensor.data.astype(np.float32)
    return dequantize(tensor.data, tensor.params)


@dataclass(frozen=True)
class Place:
    """Our tensor that corresponds to one of theirs, and how that was determined."""

    name: str
    found_by: str


def find_places(theirs: Skeleton, ours: Skeleton, named: Collection[str]) -> dict[str, list[Place]]:
    """Return where the `named` tensors of theirs are in ours; a tensor is omitted if an earlier tensor of ours already
    holds the same values."""
    matcher = _Matcher(theirs, ours)
    matcher.match()
    found: dict[str, list[Place]] = {}
    for node, (other, how) in matcher.pairs.items():
        if node.weights is not None and other.weights is not None and node.weights in named:
            found.setdefault(node.weights, []).append(Place(other.weights, how))
    for root, (other_root, how) in matcher.roots.items():
        known = ((theirs.aliases.get(name, name), is_clamped) for name, is_clamped in theirs.forms(root))
        forms = [form for form in known if form[0] in named]
        found |= {name: [] for name, _ in forms if name not in found}
        for name, is_clamped in _distinct(ours.forms(other_root)):
            fitting = [n for n, clamped in forms if clamped == is_clamped] or [n for n, _ in forms if is_clamped]
            if fitting:
                found.setdefault(fitting[0], []).append(Place(name, how))
    return found


def _distinct(forms: Iterator[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Yield the first name of the clamped values and of the unclamped ones; later names only move them."""
    seen = set[bool]()
    for name, is_clamped in forms:
        if is_clamped not in seen:
            seen.add(is_clamped)
            yield name, is_clamped


@dataclass
class _Matcher:
    """Matches two skeletons: `pairs` are ops of theirs with ops of ours, `roots` are tensors, each with how it was
    matched."""

    theirs: Skeleton
    ours: Skeleton
    pairs: dict[Node, tuple[Node, str]] = field(default_factory=dict)
    roots: dict[str, tuple[str, str]] = field(default_factory=dict)
    _taken: set[Node] = field(default_factory=set)

    def match(self) -> None:
        if len(self.theirs.inputs) == len(self.ours.inputs):
            for name, place in zip(self.theirs.inputs, self.ours.inputs, strict=True):
                self.roots[name] = (place, "its position among the inputs")
        self._by(self._same_weights, "the values of weights")
        self._grow()
        for node, other in self._rest_in_order():
            self._pair(node, other, "the order of layers")
        self._grow()

    def _grow(self) -> None:
        before = -1
        while len(self.pairs) > before:
            before = len(self.pairs)
            self._by(self._same_sources, "what it is computed from")
            self._by(self._same_results, "what is computed from it")

    def _by(self, fits: Callable[[Node, Node], bool], how: str) -> None:
        """Pair ops that fit each other uniquely."""
        free = [node for node in self.ours.computing if node not in self._taken]
        fitting = {node: [other for other in free if fits(node, other)] for node in self._open()}
        for node, others in fitting.items():
            if len(others) == 1 and sum(others[0] in found for found in fitting.values()) == 1:
                self._pair(node, others[0], how)

    def _pair(self, node: Node, other: Node, how: str) -> None:
        self.pairs[node] = (other, how)
        self._taken.add(other)
        sides = [(self.theirs.reads(node), self.ours.reads(other)), (node.makes, other.makes)]
        for mine, yours in sides:
            if len(mine) == len(yours) and (len(mine) == 1 or node.weights is not None or mine is node.makes):
                for name, place in zip(mine, yours, strict=True):
                    self.roots.setdefault(name, (place, how))

    def _open(self) -> list[Node]:
        return [node for node in self.theirs.computing if node not in self.pairs]

    def _same_weights(self, node: Node, other: Node) -> bool:
        if node.weights is None or other.weights is None or not set(node.kinds) & set(other.kinds):
            return False
        return same_values(self.theirs.values[node.weights], self.ours.values[other.weights])

    def _can_be(self, node: Node, other: Node) -> bool:
        if not set(node.kinds) & set(other.kinds) or (node.weights is None) != (other.weights is None):
            return False
        if node.weights is None or other.weights is None:
            return True
        return _size(self.theirs.values[node.weights]) == _size(self.ours.values[other.weights])

    def _same_sources(self, node: Node, other: Node) -> bool:
        known = [self.roots.get(name, ("", ""))[0] for name in self.theirs.reads(node)]
        if not known or "" in known or not self._can_be(node, other):
            return False
        return sorted(known) == sorted(self.ours.reads(other))

    def _same_results(self, node: Node, other: Node) -> bool:
        known = [self.roots.get(name, ("", ""))[0] for name in node.makes]
        return bool(known) and "" not in known and self._can_be(node, other) and tuple(known) == other.makes

    def _rest_in_order(self) -> Iterator[tuple[Node, Node]]:
        """Pair layers whose weights were changed, for example by folding a normalization, if both sides have equally
        many of the same sizes."""
        left = [node for node in self._open() if node.weights is not None]
        free = [node for node in self.ours.computing if node not in self._taken and node.weights is not None]
        sizes = [[_size(side.values[node.weights or ""]) for node in nodes] for side, nodes in self._sides(left, free)]
        if sizes[0] == sizes[1] and all(self._can_be(*pair) for pair in zip(left, free, strict=True)):
            yield from zip(left, free, strict=True)

    def _sides(self, left: list[Node], free: list[Node]) -> list[tuple[Skeleton, list[Node]]]:
        return [(self.theirs, left), (self.ours, free)]


def _size(values: Array) -> tuple[int, ...]:
    """Return the dimensions of weights in sorted order."""
    return tuple(sorted(n for n in values.shape if n != 1))


def same_values(one: Array, other: Array) -> bool:
    """Whether two constants hold the same values up to rounding, in any order of axes."""
    if _size(one) != _size(other):
        return False
    one, other = one.squeeze(), other.squeeze()
    norm = float(np.linalg.norm(one))
    for order in permutations(range(other.ndim)):
        if tuple(other.shape[k] for k in order) == one.shape:
            apart = float(np.linalg.norm(one - other.transpose(order)))
            if apart <= SIMILAR * norm:
                return True
    return False
