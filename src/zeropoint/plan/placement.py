"""Decides which ops stay float because the target is faster that way: a minimum cut between integers and floats.

An op that the target runs slowly in integers may be faster in float, but then values are converted before and after it,
and it may pay to leave its neighbours float as well. Each op has a cost on either side, each tensor one if it has to be
converted, and a minimum cut finds the cheapest split. Nothing is timed: costs follow from sizes, multiplications and
the target's table (`Costs`), so that the same model gives the same plan everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ..dtypes import DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import Activation, OpSpec, spec_of
from ..ops.execution import macs_of
from ..ops.layout import Convolution
from ..parallel import cached_property
from ..recipe import FLOAT, Recipe, Scheme
from ..targets import Costs, Target
from .match import TargetAnswers
from .minimum_cut import FORBIDDEN, Network
from .plan import Skipped
from .request import Interface

INTEGERS, FLOATS = "integers", "floats"


@dataclass(frozen=True)
class Placement:
    """Decides for the ops of one graph that could compute in integers, `schemes`."""

    graph: Graph
    schemes: Mapping[Op, Scheme]
    answers: TargetAnswers

    def choose(self, recipe: Recipe, interface: Interface) -> tuple[dict[Op, Scheme], list[Skipped]]:
        """Return the schemes of ops that leave integers, dynamic or float, and what to report about those that are
        float."""
        costs = self.target.costs
        if costs is None or not any(self._slow(op) for op in self.schemes):
            return {}, []
        in_8_bits = (op for op, scheme in self.schemes.items() if scheme.activations is DType.INT8)
        free = dict.fromkeys(op for op in in_8_bits if not self._is_bound(op, recipe))
        kept = self._network(free, costs, interface).cut()
        left = [op for op in free if op not in kept or self._is_table(op)]
        chosen = {op: self._on_floats(op) or FLOAT for op in left}
        return chosen, [self._skipped(op) for op, scheme in chosen.items() if scheme is FLOAT]

    def _network(self, free: Collection[Op], costs: Costs, interface: Interface) -> Network[object]:
        """Return what the `free` ops take in integers and in float, and what conversions take between the two."""
        network: Network[object] = Network(INTEGERS, FLOATS)
        for op in self.schemes:
            network.add(INTEGERS, op, FORBIDDEN if op not in free else round(self._float_cost(op, costs)))
        for op in free:
            network.add(op, FLOATS, round(self._integer_cost(op, costs)))
        for pad, layer in self._fused_pads(costs):
            network.add(pad, layer, FORBIDDEN)
            network.add(layer, pad, FORBIDDEN)
        for tensor in self.graph.tensors:
            if tensor.dtype is DType.FLOAT32 and tensor.data is None:
                self._connect(network, tensor, interface, round(costs.call + costs.conversion * tensor.size))
        return network

    def _connect(self, network: Network[object], tensor: Tensor, interface: Interface, cost: int) -> None:
        """Add the cost of converting a tensor, which is paid once however many ops read it in the other form."""
        producer = self._uses.producer(tensor)
        maker = self._side(producer, interface.input)
        readers = {self._side(use.op, interface.input) for use in self._uses.readers(tensor) if self._flows(use)}
        if self._uses.is_output(tensor):
            readers.add(self._side(None, interface.output))
        ordered = sorted(readers, key=lambda side: self._places.get(side, -1))
        for reader in ordered:
            network.add((tensor, "to float"), reader, FORBIDDEN)
            network.add(reader, (tensor, "to integers"), FORBIDDEN)
        if readers:
            network.add(maker, (tensor, "to float"), cost)
            network.add((tensor, "to integers"), maker, cost)

    def _fused_pads(self, costs: Costs) -> Iterator[tuple[Op, Op]]:
        """Yield padding that takes no time of its own if the convolution that reads it computes in the same type."""
        for op in self.schemes if costs.fused_pads else ():
            readers = [use.op for use in self._uses.readers(op.outputs[0])] if op.kind == "PAD" else []
            if len(readers) == 1 and readers[0] in self.schemes and self._is_convolution(readers[0]):
                yield op, readers[0]

    def _is_convolution(self, op: Op) -> bool:
        return isinstance(self.ops[op.kind].layout, Convolution)

    def _side(self, op: Op | None, ends: DType) -> object:
        """Return the node of an op; for ops that are not to be decided, the side they are on."""
        if op is None:
            return FLOATS if ends is DType.FLOAT32 else INTEGERS
        return op if op in self.schemes else FLOATS

    def _flows(self, use: Use) -> bool:
        return isinstance(spec_of(use.op, self.ops).input_role(use.slot), Activation)

    @cached_property
    def _uses(self) -> Uses:
        return Uses(self.graph)

    @cached_property
    def _places(self) -> dict[object, int]:
        return {op: k for k, op in enumerate(self.graph.ops)}

    def _is_bound(self, op: Op, recipe: Recipe) -> bool:
        """Whether integers were requested explicitly, or the op is a layer, or float would make the file much
        larger."""
        rule = recipe.rule(op)
        if rule is not None and not rule.is_general:
            return True
        held = sum(t.size for t in self.ops[op.kind].held_tensors(op) if t.data is not None)
        is_layer = self.ops[op.kind].macs is not None and held > 0
        return (is_layer or held >= self.schemes[op].min_elements) and self._on_floats(op) is None

    def _on_floats(self, op: Op) -> Scheme | None:
        """Return float activations with integer weights, if a layer may have that."""
        if self._may_be_float(op):
            return replace(self.schemes[op], activations=None, symmetric=False, unpacked=True)
        return self._dynamic(op)

    def _may_be_float(self, op: Op) -> bool:
        """Whether it is a depthwise layer, and these may compute in float."""
        spec, costs = self.ops[op.kind], self.target.costs
        if spec.layout is None or costs is None or not costs.float_depthwise:
            return False
        return all(t.data is not None for t in spec.held_tensors(op)) and spec.layout.is_depthwise(op)

    def _dynamic(self, op: Op) -> Scheme | None:
        """Return integer weights with activations quantized at run time, if the target supports that for a dense or
        recurrent layer."""
        spec, scheme = self.ops[op.kind], self.schemes[op]
        if self.target.costs is None or not self.target.costs.dynamic:
            return None
        if spec.macs is None or self._is_convolution(op) or scheme.weights not in spec.hybrid:
            return None
        weights = spec.held_tensors(op)
        if any(t.data is None for t in weights) or sum(t.size for t in weights) < scheme.min_elements:
            return None
        made = replace(scheme, activations=None)
        is_fast = self.answers.verdict(op, made).speed == "fast"
        return made if is_fast or self._slow(op) else None

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        return self.answers.ops

    @property
    def target(self) -> Target:
        return self.answers.target

    def _slow(self, op: Op) -> bool:
        return self.answers.verdict(op, self.schemes[op]).speed != "fast"

    def _is_table(self, op: Op) -> bool:
        """Whether it is a function of one value that the target has in float alone. Between conversions, it reads a
        table there.

        Not after layers that may round their inputs as they run: between two of these, floats need no conversion.
        """
        costs, spec = self.target.costs, self.ops[op.kind]
        if costs is None or costs.table is None or not spec.is_pointwise or not self._slow(op):
            return False
        sources = [self._uses.producer(t) for t in op.inputs if t is not None]
        is_function = len(sources) == len(op.outputs) == 1 and sources[0] in self.schemes
        if not is_function or sources[0] is None or self._dynamic(sources[0]) is not None:
            return False
        return self.answers.verdict(op, FLOAT).speed == "fast"

    def _integer_cost(self, op: Op, costs: Costs) -> float:
        if costs.table is not None and self._is_table(op):
            return costs.call + costs.table * self._size(op)
        if self._slow(op):
            each = costs.moved_integer if self.ops[op.kind].moves_values else costs.slow
            return costs.slow_call + costs.slow_integer_mac * macs_of(op, self.ops) + each * self._size(op)
        each = costs.moved_integer if self.ops[op.kind].moves_values else costs.integer
        mac = costs.float_mac if self._may_be_float(op) else costs.integer_mac
        return costs.call + mac * macs_of(op, self.ops) + each * self._size(op)

    def _float_cost(self, op: Op, costs: Costs) -> float:
        dynamic, macs = self._dynamic(op), macs_of(op, self.ops)
        is_slow = self.answers.verdict(op, dynamic or FLOAT).speed != "fast"
        call = costs.slow_call if is_slow else costs.call
        if dynamic is not None:  # quantizes its input at run time
            source = next(self.ops[op.kind].read_activations(op))
            return call + costs.call + costs.integer_mac * macs + self._size(op) + costs.rounding * source.size
        each = costs.slow if is_slow and not self.ops[op.kind].moves_values else 1.0
        return call + costs.float_mac * macs + each * self._size(op)

    def _size(self, op: Op) -> int:
        """Return the size of the largest activation of the op."""
        spec = self.ops[op.kind]
        return max((t.size for t in (*spec.read_activations(op), *spec.made_activations(op))), default=0)

    def _skipped(self, op: Op) -> Skipped:
        verdict = self.answers.verdict(op, self.schemes[op])
        if verdict.speed != "fast":
            return Skipped(op, f"float is faster on {self.target.name}: it {verdict.reason}", "target")
        return Skipped(op, f"float is faster on {self.target.name}: its neighbours are float, too", "target")
