"""Everything that rewriting will do, as a value. Rewriting decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..affine import QuantParams
from ..dtypes import Array
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use
from ..recipe import Scheme
from .forms import Packed


@dataclass(frozen=True)
class Skipped:
    """An op that stays float, and why."""

    op: Op
    reason: str

    def __str__(self) -> str:
        return f"{self.op.label} '{self.op.name}': {self.reason}"


@dataclass(frozen=True)
class Repair:
    """Something that was changed so that the result is right: a scale raised, a constant clipped."""

    tensor: Tensor
    text: str

    def __str__(self) -> str:
        return f"'{self.tensor.name}': {self.text}"


@dataclass(frozen=True)
class Plan:
    """What each tensor is stored as, and what each use of it wants; rewriting converts where the two differ.

    `stored` has an entry for every activation that is not float; `wanted` one for every use that is not float, of
    activations and of constants. `packed` are constants that float ops read, and how they are held. `values` are
    numbers to put in place of a constant's at a use. `inputs` and `outputs` say what the graph's own are to be for the
    caller. Values beyond a tensor's `limits` need not be told apart.
    """

    graph: Graph
    schemes: Mapping[Op, Scheme] = field(default_factory=dict)  # the ops that compute in integers
    stored: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    wanted: Mapping[Use, QuantParams] = field(default_factory=dict)
    inputs: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    outputs: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    values: Mapping[Use, Array] = field(default_factory=dict)  # constants that are better with other numbers
    packed: Mapping[Use, Packed] = field(default_factory=dict)
    limits: Mapping[Tensor, tuple[float, float]] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    repairs: tuple[Repair, ...] = ()

    @property
    def does_anything(self) -> bool:
        return bool(self.schemes or self.packed or self.inputs or self.outputs)

    def on(self, twin: Graph) -> Plan:
        """The same plan for an exact copy of the graph."""
        tensors = dict(zip(self.graph.tensors, twin.tensors, strict=True))
        ops = dict(zip(self.graph.ops, twin.ops, strict=True))
        return replace(
            self,
            graph=twin,
            schemes={ops[op]: scheme for op, scheme in self.schemes.items()},
            stored={tensors[t]: p for t, p in self.stored.items()},
            wanted={Use(ops[use.op], use.slot): p for use, p in self.wanted.items()},
            inputs={tensors[t]: p for t, p in self.inputs.items()},
            outputs={tensors[t]: p for t, p in self.outputs.items()},
            values={Use(ops[use.op], use.slot): v for use, v in self.values.items()},
            packed={Use(ops[use.op], use.slot): p for use, p in self.packed.items()},
            limits={tensors[t]: ends for t, ends in self.limits.items()},
            skipped=tuple(Skipped(ops[s.op], s.reason) for s in self.skipped),
            repairs=tuple(Repair(tensors[r.tensor], r.text) for r in self.repairs),
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        reasons = {s.op: s.reason for s in self.skipped}
        labels = {op: self._label(op) for op in self.graph.ops}
        kinds = Counter(label for label in labels.values() if label != "float")
        what = ", ".join(f"{n} {label}" for label, n in kinds.items()) or "nothing in integers"
        lines = [f"plan for '{self.graph.name}': {what}, {len(self.skipped)} float"]
        lines += [f"  input '{t.name}' given as {self.inputs.get(t) or 'float32'}" for t in self.graph.inputs]
        for op in self.graph.ops:
            lines.append(f"  {op.label} {labels[op]}  '{op.name}'")
            if op in reasons:
                lines.append(f"      because {reasons[op]}")
            for slot, tensor in enumerate(op.inputs):
                if tensor is not None and tensor.dtype.is_float:
                    lines.append(f"      in  {self._use(tensor, Use(op, slot))}")
            lines += [f"      out {self.stored.get(t) or 'float32'}" for t in op.outputs if t.dtype.is_float]
        lines += [f"  output '{t.name}' given as {self.outputs.get(t) or 'float32'}" for t in self.graph.outputs]
        lines += [f"  repaired {repair}" for repair in self.repairs]
        return lines

    def _label(self, op: Op) -> str:
        if op in self.schemes:
            return self.schemes[op].label
        held = [p for k in range(len(op.inputs)) if (p := self.packed.get(Use(op, k))) is not None]
        if not held:
            return "float"
        return "float, weights unpacked" if all(p.unpacked for p in held) else "hybrid"

    def _use(self, tensor: Tensor, use: Use) -> str:
        wanted = self.wanted.get(use)
        shown = str(wanted or "float32")
        if tensor.is_constant:
            return f"{self.packed.get(use, shown)}  constant"
        stored = self.stored.get(tensor)
        return shown if stored == wanted else f"{shown}  converted from {stored or 'float32'}"
