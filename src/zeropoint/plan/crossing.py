"""Integers that pass between graphs: where a loop or branch and its surroundings agree on parameters.

Every graph is first planned by itself, with floats at its ends. If the called graphs hold a value in integers wherever
they read or produce it, the value is passed as integers, with one scale on all sides: the iterations of a loop then
pass on their states unchanged. The graphs are planned again with that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..affine import QuantParams
from ..calibration import Grid
from ..dtypes import DType
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import OpSpec
from ..ops.calls import CALLS, Passed, first_passed
from ..sources.ports import entry_graphs
from .match import reads_only_shape
from .plan import Held, Node, Plan
from .tensor_ranges import TensorRanges


@dataclass(frozen=True)
class Crossing:
    """The values that enter and leave a graph, and the graphs it calls, as integers.

    `uses` are the inputs of calls, `received` their outputs, `inputs` and `outputs` the graph's own. `calls` pass no
    floats at all.
    """

    uses: Mapping[Use, QuantParams] = field(default_factory=dict)
    received: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    inputs: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    outputs: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    calls: frozenset[Op] = frozenset()

    @property
    def nodes(self) -> dict[Node, QuantParams]:
        """The places where integers pass, with their parameters."""
        nodes: dict[Node, QuantParams] = {use: params for use, params in self.uses.items()}  # noqa: C416 - another type
        for held in (self.received, self.inputs, self.outputs):
            nodes |= {Held(tensor, params.dtype): params for tensor, params in held.items()}
        return nodes


NOTHING_CROSSES = Crossing()


@dataclass(frozen=True)
class _Port:
    """One value that a call passes: what the caller gives and receives, and where the called graphs take and return
    it."""

    op: Op
    use: Use | None
    received: Tensor | None
    inputs: tuple[tuple[Graph, Tensor], ...]
    outputs: tuple[tuple[Graph, Tensor], ...]

    @property
    def is_float(self) -> bool:
        tensor = self.received if self.use is None else self.use.tensor
        return tensor is not None and tensor.dtype is DType.FLOAT32


def crossings(
    model: Model, plans: Sequence[Plan], ops: Mapping[str, OpSpec], ranges: TensorRanges, *, strict: bool = False
) -> dict[Graph, Crossing]:
    """Return what can cross as integers, by graph, given plans in which nothing does. `strict`: floats are not an
    option."""
    planned = {plan.graph: plan for plan in plans}
    counts = Counter(callee for g in model.graphs for op in g.ops for callee in op.graphs())
    once = {g for g, count in counts.items() if count == 1} - set(entry_graphs(model))
    found: dict[Graph, Crossing] = {}
    agreement = _CommonParameters(planned, ops, ranges, strict)
    for graph in planned:
        for op in graph.ops:
            ports = [port for port in _ports(op) if port.is_float] if set(op.graphs()) <= once else []
            agreed = {port: params for port in ports if (params := agreement.params(graph, port)) is not None}
            for port, params in agreed.items():
                _note(found, graph, port, params)
            if agreed and len(agreed) == len(ports):
                found[graph] = replace(found[graph], calls=found[graph].calls | {op})
    return found


def _note(found: dict[Graph, Crossing], caller: Graph, port: _Port, params: QuantParams) -> None:
    known = found.get(caller, NOTHING_CROSSES)
    uses = known.uses if port.use is None else {**known.uses, port.use: params}
    received = known.received if port.received is None else {**known.received, port.received: params}
    found[caller] = replace(known, uses=uses, received=received)
    for graph, tensor in port.inputs:
        known = found.get(graph, NOTHING_CROSSES)
        found[graph] = replace(known, inputs={**known.inputs, tensor: params})
    for graph, tensor in port.outputs:
        known = found.get(graph, NOTHING_CROSSES)
        found[graph] = replace(known, outputs={**known.outputs, tensor: params})


def _ports(op: Op) -> Iterator[_Port]:
    """Yield the values that a loop carries, or that enter and leave branches."""
    called = [(row, graph) for row in CALLS.get(op.kind, ()) if isinstance(graph := op.option(row.option), Graph)]
    if op.kind not in ("IF", "WHILE") or len(called) != 2:
        return
    giving = [graph for row, graph in called if row.gives is Passed.ALL]
    first = first_passed(op)
    slots = range(first, len(op.inputs))
    takes = {k: tuple((g, g.inputs[k - first]) for _, g in called) for k in slots}
    gives = {k: tuple((g, g.outputs[k]) for g in giving) for k in range(len(op.outputs))}
    if op.kind == "WHILE":
        yield from (_Port(op, Use(op, k), op.outputs[k], takes[k], gives[k]) for k in slots if op.inputs[k] is not None)
    else:
        yield from (_Port(op, Use(op, k), None, takes[k], ()) for k in slots if op.inputs[k] is not None)
        yield from (_Port(op, None, op.outputs[k], (), gives[k]) for k in gives)


@dataclass(frozen=True)
class _CommonParameters:
    plans: Mapping[Graph, Plan]
    ops: Mapping[str, OpSpec]
    ranges: TensorRanges
    strict: bool

    def params(self, caller: Graph, port: _Port) -> QuantParams | None:
        """Return parameters that all uses of a value in the called graphs can share; None if one of them has it in
        float."""
        if any(graph not in self.plans for graph, _ in (*port.inputs, *port.outputs)):
            return None
        forms = [f for graph, t in port.inputs for f in self._read(self.plans[graph], t)]
        forms += [f for graph, t in port.outputs for f in self._made(self.plans[graph], t)]
        known = [f for f in forms if f is not None]
        if not known or len(known) < len(forms) or len({f.dtype for f in known}) > 1:
            return None
        # A loop saves conversions in every iteration; branches, which may have their own scales, only if the caller
        # has the integers already, or floats are not an option.
        if port.op.kind == "IF" and not self.strict and not self._is_integer_around(self.plans[caller], port):
            return None
        return self._shared(known, port)

    def _read(self, plan: Plan, tensor: Tensor) -> Iterator[QuantParams | None]:
        for use in Uses(plan.graph).readers(tensor):
            if not reads_only_shape(use, self.ops):
                yield plan.wanted.get(use)

    def _made(self, plan: Plan, tensor: Tensor) -> Iterator[QuantParams | None]:
        """Yield the parameters of a tensor where it is produced; nothing if it is only passed through or constant, and
        so can take any form."""
        if tensor not in plan.graph.inputs and tensor.data is None:
            yield plan.stored.get(tensor)

    def _is_integer_around(self, plan: Plan, port: _Port) -> bool:
        if port.use is not None:
            return port.use.tensor in plan.stored
        assert port.received is not None
        return any(f is not None for f in (*self._read(plan, port.received), plan.outputs.get(port.received)))

    def _shared(self, known: Sequence[QuantParams], port: _Port) -> QuantParams:
        """Return what a kernel fixes, if that covers the value's range; what all have in common; or else what covers
        the range.

        Readers may use a wider range for tensors that are tied to it there. That is their own concern.
        """
        dtype, places = known[0].dtype, [tensor for _, tensor in (*port.inputs, *port.outputs)]
        grid = Grid(dtype.bits, dtype is DType.INT16)
        spans = [self.ranges.choose(t, None, grid) for t in places if self.ranges.knows(t)] or [
            f.range() for f in known
        ]
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        for graph, tensor in port.outputs:
            for group in self.plans[graph].groups:
                if group.fixed and Held(tensor, dtype) in group.nodes and _holds(group.params, low, high):
                    return group.params
        if len(set(known)) == 1:
            return known[0]
        symmetric = all(f.is_symmetric for f in known)
        return QuantParams.from_range(low, high, dtype, symmetric, name=port.op.name)


def _holds(params: QuantParams, low: float, high: float) -> bool:
    """Whether at most the last step is clipped, as for a tanh of 1."""
    least, greatest = params.range()
    return least - params.scale <= low and high <= greatest + params.scale
