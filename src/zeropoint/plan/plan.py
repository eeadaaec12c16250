"""Everything that rewriting will do, as a value. Rewriting itself decides nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from ..affine import QuantParams
from ..display import Brief, Displayed
from ..dtypes import Array, DType
from ..errors import printable
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, called_graphs
from ..parallel import cached_property
from ..recipe import Scheme
from ..targets import OpVerdict

SkipCode = Literal[
    "recipe",
    "custom",
    "subgraph",
    "kernel",
    "fused",
    "type",
    "need",
    "range",
    "infinite",
    "scale",
    "weights",
    "target",
    "island",
]
"""Why an op stays float, for programs; the wording of messages may change."""

Key = TypeVar("Key")
NewKey = TypeVar("NewKey")
Value = TypeVar("Value")

RepairCode = Literal["bias_overflow", "widened", "float16_range", "float16_precision"]


@dataclass(frozen=True)
class Skipped:
    """An op that stays float, and why."""

    op: Op
    reason: str
    code: SkipCode

    def __str__(self) -> str:
        return printable(f"{self.op.label} '{self.op.name}': {self.reason}")


@dataclass(frozen=True)
class Repair:
    """Something that was changed so that the result is correct: a scale raised, a constant left alone."""

    tensor: Tensor
    text: str
    code: RepairCode

    def __str__(self) -> str:
        return printable(f"'{self.tensor.name}': {self.text}")


Form = QuantParams | DType
"""Integers with their parameters, or another float type."""


@dataclass(frozen=True)
class Packed:
    """How a constant of a float op is stored.

    `unpacked`: a DEQUANTIZE converts it to float32 before the op reads it; otherwise the op's kernel takes it directly.
    """

    form: Form
    unpacked: bool

    def __str__(self) -> str:
        shown = self.form.label if isinstance(self.form, DType) else str(self.form)
        return f"{shown}{'  unpacked' if self.unpacked else ''}"


def form_type(form: Form) -> DType:
    return form if isinstance(form, DType) else form.dtype


class Held(NamedTuple):
    """A tensor in an integer type: as its producer stores it, or after a conversion to that type."""

    tensor: Tensor
    dtype: DType


Node = Held | Use
"""A place where values are stored or read."""


@dataclass(frozen=True)
class Origin:
    """Where given parameters come from. It no longer applies once they have changed."""

    text: str
    form: Form


@dataclass(frozen=True)
class Group:
    """Places that share parameters: a kernel requires one scale for all of them, or no conversion is needed between
    them.

    `fixed` parameters are prescribed, by a kernel or by the user. Values beyond `limits` need not be distinguished.
    """

    nodes: tuple[Node, ...]
    params: QuantParams
    fixed: bool = False
    symmetric: bool = False
    nonnegative: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)

    def widened(self, factor: float) -> Group:
        """Return the group with a range wider by this factor."""
        (low, high), dtype, name = self.params.range(), self.params.dtype, self.nodes[0].tensor.name
        params = QuantParams.from_range(low * factor, high * factor, dtype, self.symmetric, name=name)
        return replace(self, params=params)


@dataclass(frozen=True)
class Constants:
    """What replaces a model's constants.

    `values` are arrays by key, `keys` the key that each use reads: uses with the same key keep sharing their bytes.
    `grids` are the parameters of weights.
    """

    values: Mapping[str, Array] = field(default_factory=dict)
    keys: Mapping[Use, str] = field(default_factory=dict)
    grids: Mapping[Use, QuantParams] = field(default_factory=dict)

    def at(self, use: Use) -> Array | None:
        """Return the values at `use`: the new ones, or those of the file."""
        key, tensor = self.keys.get(use), use.op.inputs[use.slot]
        if key is not None:
            return self.values[key]
        return None if tensor is None else tensor.data


@dataclass(frozen=True, repr=False)
class Plan(Displayed):
    """How each tensor of a graph is stored, and what each use of it wants; rewriting converts where the two differ.

    `schemes` are the ops that compute in integers, `groups` and `constants` what their parameters follow from (see
    `derive`): `stored` has an entry for every activation that is not float, `wanted` one for every use that is not
    float, of activations and of constants. `packed` says how constants of float ops are stored, `dynamic` for which of
    these ops the target is the reason. `inputs` and `outputs` are the graph's own as the caller sees them. `index` is
    the graph's position in its model. `bias_limit` is the largest integer that the target accepts in a bias. `verdicts`
    say where each op will run on the target, `wide_ops` why ops have 16 bits although the recipe asks for 8. `received`
    is what ops that call other graphs return as integers. `origins` records tensors and uses whose parameters were
    given.
    """

    graph: Graph
    index: int = 0
    schemes: Mapping[Op, Scheme] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    constants: Constants = field(default_factory=Constants)
    stored: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    wanted: Mapping[Use, QuantParams] = field(default_factory=dict)
    inputs: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    outputs: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    packed: Mapping[Use, Packed] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    repairs: tuple[Repair, ...] = ()
    dynamic: Mapping[Op, Scheme] = field(default_factory=dict)
    bias_limit: float | None = None
    verdicts: Mapping[Op, OpVerdict] = field(default_factory=dict)
    wide_ops: Mapping[Op, str] = field(default_factory=dict)
    received: Mapping[Tensor, QuantParams] = field(default_factory=dict)
    origins: Mapping[Tensor | Use, Origin] = field(default_factory=dict)

    @property
    def does_anything(self) -> bool:
        return bool(self.schemes or self.packed or self.inputs or self.outputs)

    def params(self, node: Node) -> QuantParams | None:
        return next((group.params for group in self.groups if node in group.nodes), None)

    def form(self, use: Use) -> Form | None:
        """Return how the values at `use` are stored; None if they are float."""
        return self.packed[use].form if use in self.packed else self.wanted.get(use)

    def origin(self, place: Tensor | Use) -> str | None:
        """Return who gave the parameters of a tensor or use; None if they were measured or computed."""
        given = self.origins.get(place)
        held = self.form(place) if isinstance(place, Use) else self.stored.get(place)
        return given.text if given is not None and given.form == held else None

    @property
    def given(self) -> dict[Tensor, str]:
        """The tensors whose parameters were given, and by whom."""
        found = ((p.tensor if isinstance(p, Use) else p, self.origin(p)) for p in self.origins)
        return {tensor: text for tensor, text in found if text is not None}

    def key(self, use: Use) -> str:
        """Return a key for the values at `use` that is unique in the model."""
        return f"{self.index}:{self._positions[use.op]}:{use.slot}"

    @cached_property
    def _positions(self) -> dict[Op, int]:
        return {op: k for k, op in enumerate(self.graph.ops)}

    def with_float_ends(self) -> Plan:
        """Return the plan with float inputs and outputs for the caller."""
        stored = {t: p for t, p in self.stored.items() if t not in self.inputs}
        return replace(self, inputs={}, outputs={}, stored=stored)

    def with_float_calls(self) -> Plan:
        """Return the plan with floats for the graphs that its ops call, as if it were the only plan."""
        stored = {t: p for t, p in self.stored.items() if t not in self.received}
        wanted = {use: p for use, p in self.wanted.items() if not any(use.op.graphs())}
        return replace(self, received={}, stored=stored, wanted=wanted)

    def without(self, ops: Collection[Op]) -> Plan:
        """Return the plan with these ops in float. All others keep their parameters, so that nothing is decided
        again."""
        left = set(ops)
        states = {t for op in left for t in op.inputs if t is not None and t.is_variable}
        made = states.union(*(op.outputs for op in left))
        keys = {use: key for use, key in self.constants.keys.items() if use.op not in left}
        grids = {use: grid for use, grid in self.constants.grids.items() if use.op not in left}
        return replace(
            self,
            schemes={op: scheme for op, scheme in self.schemes.items() if op not in left},
            constants=replace(self.constants, keys=keys, grids=grids),
            stored={t: params for t, params in self.stored.items() if t not in made},
            wanted={use: params for use, params in self.wanted.items() if use.op not in left},
        )

    def without_explanations(self) -> Plan:
        """Return only what rewriting needs."""
        return replace(self, groups=(), skipped=(), repairs=(), dynamic={}, verdicts={}, wide_ops={}, origins={})

    def on(self, twin: Graph) -> Plan:
        """Return what rewriting needs of this plan, for an exact copy of the graph."""
        tensors = dict(zip(self.graph.tensors, twin.tensors, strict=True))
        ops = dict(zip(self.graph.ops, twin.ops, strict=True))
        return self.without_explanations().mapped(twin, tensors.__getitem__, ops.__getitem__)

    def mapped(self, graph: Graph, tensor: Callable[[Tensor], Tensor], op: Callable[[Op], Op]) -> Plan:
        """Return the plan with tensors and ops replaced."""

        def node(n: Node) -> Node:
            return Held(tensor(n.tensor), n.dtype) if isinstance(n, Held) else use(n)

        def use(u: Use) -> Use:
            return Use(op(u.op), u.slot)

        def place(p: Tensor | Use) -> Tensor | Use:
            return use(p) if isinstance(p, Use) else tensor(p)

        keys, grids = _rekeyed(self.constants.keys, use), _rekeyed(self.constants.grids, use)
        return replace(
            self,
            graph=graph,
            schemes=_rekeyed(self.schemes, op),
            groups=tuple(replace(group, nodes=tuple(map(node, group.nodes))) for group in self.groups),
            constants=replace(self.constants, keys=keys, grids=grids),
            stored=_rekeyed(self.stored, tensor),
            wanted=_rekeyed(self.wanted, use),
            inputs=_rekeyed(self.inputs, tensor),
            outputs=_rekeyed(self.outputs, tensor),
            packed=_rekeyed(self.packed, use),
            skipped=tuple(replace(s, op=op(s.op)) for s in self.skipped),
            repairs=tuple(replace(r, tensor=tensor(r.tensor)) for r in self.repairs),
            dynamic=_rekeyed(self.dynamic, op),
            verdicts=_rekeyed(self.verdicts, op),
            wide_ops=_rekeyed(self.wide_ops, op),
            received=_rekeyed(self.received, tensor),
            origins=_rekeyed(self.origins, place),
        )

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        labels = {op: self._label(op) for op in self.graph.ops}
        kinds = Counter(label for label in labels.values() if label != "float")
        what = ", ".join(f"{n} {label}" for label, n in kinds.items()) or "nothing in integers"
        yield f"plan for '{self.graph.name}': {what}, {len(self.skipped)} float"
        for tensor in self.graph.inputs:
            yield f"  input '{tensor.name}' given as {self.inputs.get(tensor) or 'float32'}{self._by(tensor)}"
        reasons = {**self.wide_ops, **{s.op: s.reason for s in self.skipped}}
        for op in self.graph.ops:
            yield f"  {op.label} {labels[op]}  '{op.name}'"
            if op in reasons:
                yield f"      because {reasons[op]}"
            if op in self.verdicts:
                yield f"      runs {self.verdicts[op]}"
            yield from self._operand_lines(op)
        for tensor in self.graph.outputs:
            yield f"  output '{tensor.name}' given as {self.outputs.get(tensor) or 'float32'}"
        for repair in self.repairs:
            yield f"  repaired {repair}"

    def _operand_lines(self, op: Op) -> Iterator[str]:
        uses = [Use(op, slot) for slot, tensor in enumerate(op.inputs) if tensor is not None]
        yield from (f"      in  {self._use(use)}" for use in uses if use.tensor.dtype.is_float)
        made = [tensor for tensor in op.outputs if tensor.dtype.is_float]
        yield from (f"      out {self.stored.get(tensor) or 'float32'}{self._by(tensor)}" for tensor in made)

    def _by(self, place: Tensor | Use) -> str:
        text = self.origin(place)
        return "" if text is None else f"  given: {text}"

    def _label(self, op: Op) -> str:
        if op in self.schemes:
            return self.schemes[op].label
        if any(op.graphs()) and any(Use(op, k) in self.wanted for k in range(len(op.inputs))):
            return "passing integers"
        held = [p for k in range(len(op.inputs)) if (p := self.packed.get(Use(op, k))) is not None]
        if not held:
            return "float"
        return "float, weights unpacked" if all(p.unpacked for p in held) else "hybrid"

    def _use(self, use: Use) -> str:
        wanted, stored = self.wanted.get(use), self.stored.get(use.tensor)
        shown = str(wanted or "float32")
        if use.tensor.is_constant:
            return f"{self.packed.get(use, shown)}  constant{self._by(use)}"
        converted = "" if stored == wanted else f"  converted from {stored or 'float32'}"
        return f"{shown}{converted}{self._by(use)}"


@dataclass(frozen=True, repr=False)
class Planned(Brief):
    """A prepared float model, and the plans for its graphs; `notes` are for the user."""

    model: Model
    plans: tuple[Plan, ...]
    notes: tuple[str, ...] = ()

    def with_float_ends(self) -> Planned:
        """Return the plans with float inputs and outputs of the model; what its graphs pass to each other is
        unchanged."""
        called = called_graphs(self.model)
        plans = (plan if plan.graph in called else plan.with_float_ends() for plan in self.plans)
        return replace(self, plans=tuple(plans))


def _rekeyed(known: Mapping[Key, Value], key: Callable[[Key], NewKey]) -> dict[NewKey, Value]:
    return {key(old): value for old, value in known.items()}
