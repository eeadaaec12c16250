"""Recipe x op table x target: which ops compute in integers, and why the others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..affine import QuantParams
from ..display import counted
from ..dtypes import DType
from ..errors import InvalidRecipe, InvalidSample, argument
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use
from ..ops import (
    CONVERSIONS,
    Activation,
    Bias,
    CellState,
    OpSpec,
    Rescale,
    ShapeOnly,
    Weight,
    fused_activation,
    spec_of,
)
from ..recipe import Recipe, Scheme
from ..targets import Operand, OpVerdict, Target, TypedOp
from .needs import NEEDS, KernelUse
from .plan import Form, Plan, SkipCode, Skipped
from .request import Island, Request
from .tensor_ranges import TensorRanges

SHOWN = 20
"""Maximum number of tensors without a range that are listed."""


@dataclass(frozen=True)
class TargetAnswers:
    """What a target says about the float ops of a model under a given scheme. Cached for each."""

    target: Target
    ops: Mapping[str, OpSpec]
    known: dict[tuple[Op, Scheme], OpVerdict] = field(default_factory=dict, compare=False, repr=False)

    def verdict(self, op: Op, scheme: Scheme) -> OpVerdict:
        key = op, scheme
        if key not in self.known:
            self.known[key] = self.target.verdict(TypedOp.of_scheme(op, scheme, self.ops))
        return self.known[key]

    def is_faster_unpacked(self, op: Op, scheme: Scheme) -> bool:
        """Whether the target is slow at `op` with integer weights between floats, but takes it with weights that a
        DEQUANTIZE converts, which it does once, when it loads the model."""
        if scheme.weights is None or self.verdict(op, scheme).speed != "slow":
            return False
        weights = next((t for t in self.ops[op.kind].held_tensors(op) if t.data is not None), None)
        if weights is None or self.verdict(op, replace(scheme, unpacked=True)).speed != "fast":
            return False
        conversion = Op("DEQUANTIZE", [weights], [weights])
        typed = TypedOp(conversion, (Operand.of(weights, scheme.weights),), (Operand.of(weights, DType.FLOAT32),))
        return self.target.verdict(typed).speed == "fast"

    def with_kernel(self, op: Op, scheme: Scheme) -> Scheme:
        """Return the scheme with weights that have a kernel: if the kernel or the target lacks narrow weights, the next
        wider ones are used."""
        spec = spec_of(op, self.ops)
        if scheme.activations is None or not spec.weight_slots:
            return scheme
        known = spec.weights.get(scheme.activations, ())
        nearest = nearest_type(known, scheme.weights)
        wider = [t for t in known if nearest is not None and t.bits >= nearest.bits]
        for weights in sorted(wider, key=lambda t: t.bits):
            widened = scheme.held_in(weights)
            if self.verdict(op, widened).speed != "refused":
                return widened
        return scheme.held_in(nearest)

    def require_obeyed(self, recipe: Recipe, model: Model) -> None:
        """Raise if a rule that names ops asks for weights that LiteRT has and the target refuses: what is named is not
        silently widened."""
        for op in (op for graph in model.graphs for op in graph.ops):
            rule, asked = recipe.rule(op), recipe.scheme(op)
            if rule is None or rule.is_general or asked.weights is None or asked.activations is None:
                continue
            kernels = self.ops[op.kind].weights.get(asked.activations, ()) if op.kind in self.ops else ()
            if asked.weights in kernels and self.with_kernel(op, asked).weights is not asked.weights:
                raise InvalidRecipe(
                    f"the rule '{rule}' of the recipe asks for {asked.weights.label} weights, which the target "
                    f"{self.target.name} does not take in {op.label} '{op.name}'; change the rule or the target"
                )


@dataclass(frozen=True)
class Matcher:
    """Decides the scheme of every op of a graph. This is where the target is asked."""

    recipe: Recipe
    answers: TargetAnswers
    ranges: TensorRanges
    islands: Mapping[str, Island] = field(default_factory=dict)
    prefers_precision: bool = True  # floats are an option where integers are imprecise

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        return self.answers.ops

    def match(self, graph: Graph) -> tuple[dict[Op, Scheme], list[Skipped]]:
        """Return the schemes of the ops that compute in integers, and the ops that stay float."""
        schemes: dict[Op, Scheme] = {}
        skipped: list[Skipped] = []
        for op in graph.ops:
            asked = self.recipe.scheme(op)
            if not is_arithmetic(op, self.ops) or (asked.activations is None and asked.weights is not None):
                continue  # only constants of the latter are quantized: weight_only.py
            scheme = self._widened(op, asked) or self.answers.with_kernel(op, asked)
            refusal = next(self._refusals(op, scheme), None)
            if refusal is None:
                schemes[op] = scheme
            else:
                skipped.append(Skipped(op, refusal[1], refusal[0]))
        return schemes, skipped

    def island(self, op: Op) -> Island | None:
        return self.islands.get(self.ranges.keys.get(op.outputs[0], "")) if op.outputs else None

    def is_bound(self, op: Op) -> bool:
        """Whether integers were requested explicitly, or parameters are given or trained."""
        rule = self.recipe.rule(op)
        is_named = rule is not None and not rule.is_general
        return is_named or any(self.ranges.params(tensor) is not None for tensor in op.outputs)

    def narrowed(self, op: Op, scheme: Scheme) -> Scheme | None:
        """Return what the recipe asks for, if `scheme` is that of a 16-bit island."""
        asked = self.recipe.scheme(op)
        return self.answers.with_kernel(op, asked) if scheme.activations is not asked.activations else None

    def island_weights(self, op: Op) -> Scheme | None:
        """Return how an op of a float island stores its weights, if not in float32: dequantized before use, or as
        integers for a kernel that quantizes the activations at run time, if there is one and the target runs it
        fast."""
        island, spec = self.island(op), self.ops.get(op.kind)
        if island is None or spec is None or island.scheme.activations is not None or island.scheme.weights is None:
            return None
        if island.scheme.weights.is_float:
            return island.scheme
        scheme = replace(self.recipe.scheme(op), activations=None, unpacked=island.scheme.unpacked)
        held = spec.held_tensors(op)
        if any(t.data is None for t in held) or sum(t.size for t in held) < scheme.min_elements:
            return None
        if scheme.unpacked or not spec.hybrid:  # such as GATHER, whose table would be four times as large in float
            return replace(scheme, unpacked=True)
        return self._fast_on_floats(op, scheme)

    def _fast_on_floats(self, op: Op, scheme: Scheme) -> Scheme | None:
        """Return the scheme with the narrowest weights that the target runs fast between floats.

        Few kernels take floats and 4-bit weights, and fewer are fast: 8 bits are still a quarter of float32.
        """
        asked, known = scheme.weights, self.ops[op.kind].hybrid
        wider = [] if asked is None else sorted((t for t in known if t.bits >= asked.bits), key=lambda t: t.bits)
        held_in = (scheme.held_in(t) for t in wider)
        return next((one for one in held_in if self.answers.verdict(op, one).speed == "fast"), None)

    def _widened(self, op: Op, asked: Scheme) -> Scheme | None:
        """Return 16 bits for 16-bit islands, unless the kernel or the target supports only 8 bits well."""
        island = self.island(op)
        return None if island is None or island.scheme.activations is None else self.wide(op, asked)

    def wide(self, op: Op, asked: Scheme | None = None) -> Scheme | None:
        """Return what the recipe asks for with 16-bit activations, unless the kernel or the target supports only 8 bits
        well."""
        asked = asked or self.recipe.scheme(op)
        if asked.activations is not DType.INT8:
            return None
        wide = self.answers.with_kernel(op, replace(asked, activations=DType.INT16, symmetric=True))
        if next(self._refusals(op, wide), None) is not None:
            return None
        return None if self.answers.verdict(op, wide).is_slower_than(self.answers.verdict(op, asked)) else wide

    def _refusals(self, op: Op, scheme: Scheme) -> Iterator[tuple[SkipCode, str]]:
        """Yield why `op` cannot be computed as `scheme` asks; the first reason is reported."""
        kind, spec = scheme.activations, spec_of(op, self.ops)
        if kind is None:
            yield "recipe", "the recipe keeps it in float"
        elif (island := self.island(op)) is not None and island.scheme.activations is None:
            yield "island", island.why
        elif op.kind == "CUSTOM":
            yield "custom", f"{op.label} is a custom op, which only its author can quantize"
        elif any(op.graphs()):
            yield "subgraph", f"{op.label} runs other graphs, and passes floats to them"
        elif kind not in spec.types:
            yield "kernel", spec.kernels.note or f"LiteRT has no {kind.label} kernel for {op.label}"
        else:
            yield from self._limits(op, scheme, spec)

    def _limits(self, op: Op, scheme: Scheme, spec: OpSpec) -> Iterator[tuple[SkipCode, str]]:
        """Yield reasons why an existing kernel cannot be used."""
        kind, weights = scheme.activations, scheme.weights
        assert kind is not None
        if spec.weight_slots and weights is not None and weights not in spec.weights.get(kind, ()):
            what = f"{op.label} with {weights.label} weights and {kind.label} activations"
            yield "kernel", f"LiteRT has no kernel for {what}"
        fused = fused_activation(op)
        if fused.name not in ("NONE", spec.own_activation) and fused.bounds is None:
            yield "fused", f"integer kernels ignore its fused {fused.name}"
        yield from (("type", reason) for reason in _other_types(op, spec))
        use = KernelUse(op, spec, kind, self.ranges)
        preferred = spec.kernels.prefers if self.prefers_precision and not self.is_bound(op) else ()
        yield from (("need", need.value) for need in (*spec.kernels.needs, *preferred) if not NEEDS[need](use))
        for tensor in flowing_tensors(op, spec):
            if not self.ranges.knows(tensor):
                yield "range", f"the range of '{tensor.name}' is not known"
            elif self.ranges.is_unbounded(tensor) or self._multiplies_by_infinity(op, spec, tensor):
                # Some kernels abort the process with such scales.
                yield "infinite", f"'{tensor.name}' reaches values that stand for infinity"
        yield from self._refused_by_target(op, scheme)

    def _refused_by_target(self, op: Op, scheme: Scheme) -> Iterator[tuple[SkipCode, str]]:
        verdict, target = self.answers.verdict(op, scheme), self.answers.target.name
        if verdict.speed != "refused":
            return
        rule = self.recipe.rule(op)
        if rule is not None and not rule.is_general:
            raise InvalidRecipe(
                f"the recipe asks for {rule}, and the target {target} refuses that: "
                f"{op.label} '{op.name}' {verdict.reason}; change the rule, or choose another target"
            )
        yield "target", f"{target} refuses it: it {verdict.reason}"

    def _multiplies_by_infinity(self, op: Op, spec: OpSpec, tensor: Tensor) -> bool:
        """Whether a factor that is not a mask would be clipped: products of it with small numbers may be ordinary
        values."""
        is_mask = op.outputs[0] in self.ranges.bounded
        return spec.rescale is Rescale.PRODUCT and self.ranges.is_cut_short(tensor) and not is_mask


def nearest_type(known: Sequence[DType], asked: DType | None) -> DType | None:
    """Return the narrowest supported type that is no narrower than requested; otherwise the requested type."""
    assert asked is not None
    return min((t for t in known if t.bits >= asked.bits), key=lambda t: t.bits, default=asked)


def is_arithmetic(op: Op, ops: Mapping[str, OpSpec]) -> bool:
    """Whether float data flow through the op: not conversions, and not computations on indices and shapes."""
    if op.kind in CONVERSIONS:
        return False
    read = [t for k, t in enumerate(op.inputs) if t is not None and not reads_only_shape(Use(op, k), ops)]
    return any(t.dtype is DType.FLOAT32 for t in (*read, *op.outputs))


def reads_only_shape(use: Use, ops: Mapping[str, OpSpec]) -> bool:
    return isinstance(spec_of(use.op, ops).input_role(use.slot), ShapeOnly)


def flowing_tensors(op: Op, spec: OpSpec) -> Iterator[Tensor]:
    """Yield float operands that hold data and need a scale from their range."""
    for slot, tensor in enumerate(op.inputs):
        if tensor is not None and isinstance(spec.input_role(slot), Activation | CellState):
            yield tensor
    yield from spec.made_activations(op)


def _other_types(op: Op, spec: OpSpec) -> Iterator[str]:
    """Yield reasons if operands have other types than float32: the op already computes with something else."""
    for tensor in flowing_tensors(op, spec):
        if tensor.dtype is not DType.FLOAT32:
            yield f"'{tensor.name}' is {tensor.dtype.label}, not float32"
    for slot, operand in enumerate(op.inputs):
        if operand is None or not isinstance(spec.input_role(slot), Weight | Bias):
            continue
        if operand.dtype is not DType.FLOAT32:
            yield f"its weights are {operand.dtype.label} already"
        elif operand.data is None and isinstance(spec.input_role(slot), Bias):
            yield "its bias is not constant"


def require_ranges(plans: Iterable[Plan], ops: Mapping[str, OpSpec], ranges: TensorRanges) -> None:
    """Raise if ops stayed float only because ranges were given, or trained, for some tensors and not for others."""
    unknown = dict.fromkeys(
        tensor.name
        for plan in plans
        for skipped in plan.skipped
        if skipped.code == "range"
        for tensor in flowing_tensors(skipped.op, ops[skipped.op.kind])
        if not ranges.knows(tensor)
    )
    if unknown:
        names = [f"  '{name}'" for name in unknown]
        more = [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
        raise InvalidSample(
            f"{len(names)} {'tensor has' if len(names) == 1 else 'tensors have'} no range:",
            *names[:SHOWN],
            *more,
            f"give representative data ({argument('data')}) for these, or their ranges ({argument('ranges')}), or keep "
            f"what uses them in float ({argument('keep_float')})",
        )


def other_weight_notes(plans: Iterable[Plan], request: Request) -> Iterator[str]:
    """Yield notes on ops whose weights are stored in another way than requested, because LiteRT or the target lacks a
    kernel."""
    wider, narrowed, unblocked = Counter[tuple[str, str, str, str]](), Counter[tuple[str, str]](), Counter[str]()
    for op, form in (pair for plan in plans for pair in _held_weights(plan, request).items()):
        asked = request.recipe.scheme(op)
        if asked.weights is None or asked.levels is None:
            continue
        if form.levels.bits > asked.levels.bits:
            spec = request.ops[op.kind]
            kernels = spec.hybrid if asked.activations is None else spec.weights.get(asked.activations, ())
            who = request.target.name if asked.weights in kernels else "LiteRT"
            wider[op.label, asked.weights.label, form.dtype.label, who] += 1
        if form.narrowed is not None:
            narrowed[f"{form.narrowed}-bit", form.dtype.label] += 1
        if asked.block is not None and form.block is None:
            unblocked[op.label] += 1
    for (label, asked_label, made_label, who), count in wider.items():
        yield f"{count} {label} with {made_label} weights: {who} has no {asked_label} kernel for it"
    for (bits, held_as), count in narrowed.items():
        yield f"{counted(count, 'layer')} with {bits} weights, which {held_as} holds"
    for label, count in unblocked.items():
        yield f"{count} {label} with a scale for each channel: LiteRT has no kernel for such blocks of it"


def _held_weights(plan: Plan, request: Request) -> dict[Op, QuantParams]:
    """Return the parameters of each op's quantized weights."""
    grids = plan.constants.grids.items()
    held: dict[Use, Form] = {u: p for u, p in grids if u.slot in request.ops[u.op.kind].weight_slots}
    held |= {u: p.form for u, p in plan.packed.items() if not p.unpacked}
    return {use.op: form for use, form in held.items() if isinstance(form, QuantParams)}
