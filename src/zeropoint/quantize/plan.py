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

Form = QuantParams | None
"""How a tensor's numbers are held: affine integers, or None for float."""


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
    activations and of constants. `values` are numbers to put in place of a constant's at a use. `inputs` and
    `outputs` say what the graph's own are to be for the caller.
    """

    graph: Graph
    schemes: Mapping[Op, Scheme]  # the ops that compute in integers
    stored: Mapping[Tensor, QuantParams]
    wanted: Mapping[Use, QuantParams]
    inputs: Mapping[Tensor, QuantParams]
    outputs: Mapping[Tensor, QuantParams]
    values: Mapping[Use, Array] = field(default_factory=dict)  # constants that are better with other numbers
    skipped: tuple[Skipped, ...] = ()
    repairs: tuple[Repair, ...] = ()

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
            skipped=tuple(Skipped(ops[s.op], s.reason) for s in self.skipped),
            repairs=tuple(Repair(tensors[r.tensor], r.text) for r in self.repairs),
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        reasons = {s.op: s.reason for s in self.skipped}
        kinds = Counter(s.label for s in self.schemes.values())
        what = ", ".join(f"{n} {label}" for label, n in kinds.items()) or "nothing in integers"
        lines = [f"plan for '{self.graph.name}': {what}, {len(self.skipped)} float"]
        lines += [f"  input '{t.name}' given as {self.inputs.get(t) or 'float32'}" for t in self.graph.inputs]
        for op in self.graph.ops:
            scheme = self.schemes.get(op)
            lines.append(f"  {op.label} {'float' if scheme is None else scheme.label}  '{op.name}'")
            if op in reasons:
                lines.append(f"      because {reasons[op]}")
            for slot, tensor in enumerate(op.inputs):
                if tensor is not None and tensor.dtype.is_float:
                    lines.append(f"      in  {self._use(tensor, Use(op, slot))}")
            lines += [f"      out {self.stored.get(t) or 'float32'}" for t in op.outputs if t.dtype.is_float]
        lines += [f"  output '{t.name}' given as {self.outputs.get(t) or 'float32'}" for t in self.graph.outputs]
        lines += [f"  repaired {repair}" for repair in self.repairs]
        return lines

    def _use(self, tensor: Tensor, use: Use) -> str:
        wanted = self.wanted.get(use)
        shown = str(wanted or "float32")
        if tensor.is_constant:
            return f"{shown}  constant"
        stored = self.stored.get(tensor)
        return shown if stored == wanted else f"{shown}  converted from {stored or 'float32'}"
