"""Devices and runtimes that models are made for: where each op runs, why, and what would change that.

A target is a value; its facts are rows. `plan/match.py` asks it which ops may compute in integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, get_args

from ..display import Brief
from ..dtypes import DType
from ..parallel import cached_property
from .conditions import Condition
from .device_conditions import BiasBelow
from .typed_op import TypedOp

Speed = Literal["fast", "slow", "refused"]
"""fast: runs as the target intends; slow: runs, but elsewhere; refused: a model with this op does not run."""

SPEEDS: tuple[Speed, ...] = get_args(Speed)
"""The best first."""


class Rewrite(Enum):
    """A change that adapts a model to a target, before planning: see `plan/target_rewrites.py` and `plan/prepared.py`.
    GATED_WEIGHTS is a step of `improve`, because samples decide on it."""

    SHORT_CONCATENATIONS = "concatenations of more inputs than the target takes are split into several"
    UNIT_STEPS = "strided slices are replaced by reshapes and slices without strides"
    FIXED_SHAPES = "dynamic dimensions are fixed, and what is computed from shapes alone becomes constant"
    PLAIN_CLAMPS = "RELU_0_TO_1 and RELU_N1_TO_1 become ops with a fused activation"
    SELECT_V2 = "SELECT becomes SELECT_V2 if both compute the same"
    PIXEL_SHUFFLE = "transposed convolutions of few channels without overlap become CONV_2D and DEPTH_TO_SPACE"
    LINEAR_LAYERS = "convolutions without an activation between them become one where that has fewer multiplications"
    SPACE_TO_DEPTH = "strided convolutions of few channels read as many neighbouring pixels as their stride as one"
    GATED_WEIGHTS = "gates before 1x1 convolutions multiply weights instead of pixels where there are fewer weights"
    LONG_LSTM = "LSTM layers list all 24 inputs, including absent ones"


@dataclass(frozen=True)
class OpVerdict:
    """Where an op runs: how fast and on what (`place`). If it is not fast, why, and what would change that."""

    speed: Speed
    place: str
    reason: str = ""
    remedy: str = ""

    @property
    def why(self) -> str:
        """The reason and the remedy, as the rest of a sentence about the op."""
        return "; ".join(filter(None, (self.reason, self.remedy)))

    def is_slower_than(self, other: OpVerdict) -> bool:
        return SPEEDS.index(self.speed) > SPEEDS.index(other.speed)

    def __str__(self) -> str:
        where = f"{self.speed}, {self.place}" if self.place else self.speed
        return f"{where}: it {self.why}" if self.why else where


@dataclass(frozen=True)
class TargetRule:
    """A row: ops of these `kinds`, computing in these types, run with this `speed` if all conditions are met.

    `activations` and `weights` are the types that the row applies to, empty for any; float `weights` distinguish float
    arithmetic from dynamic range. Rows for ops that are not fast have a `reason`.
    """

    kinds: tuple[str, ...] = ()
    activations: tuple[DType, ...] = ()
    conditions: tuple[Condition, ...] = ()
    weights: tuple[DType, ...] = ()
    speed: Speed = "fast"
    reason: str = ""
    remedy: str = ""

    def is_about(self, op: TypedOp) -> bool:
        if self.kinds and op.label not in self.kinds:
            return False
        if self.activations and op.activations not in self.activations:
            return False
        return not self.weights or op.weights is None or op.weights.dtype in self.weights


@dataclass(frozen=True)
class Costs:
    """The cost of operations, relative to passing one float through a fast op. Only orders of magnitude.

    They are medians over x86 with AVX2, where integer multiplication is as slow as float, and processors with
    instructions for products of bytes (VNNI, dot product on ARM), where it is four times as fast. `dynamic`: dense
    layers between floats may quantize their inputs at run time. `float_depthwise`: depthwise layers may stay float on
    processors on which their integer arithmetic is no faster, because those instructions only sum over channels.
    `fused_pads`: a PAD is fused into the convolution that reads it, unless a conversion stands between the two.
    `table`: functions of one value that exist only in float are computed as a table between conversions from and to
    integers, which then take no time; None if not.
    """

    float_mac: float = 0.1
    integer_mac: float = 0.04
    slow_integer_mac: float = 0.4
    integer: float = 1.0
    moved_integer: float = 0.3
    conversion: float = 0.75
    rounding: float = 0.5
    table: float | None = 1.0
    slow: float = 20.0
    call: float = 500.0
    slow_call: float = 5000.0
    dynamic: bool = True
    float_depthwise: bool = False
    fused_pads: bool = True


@dataclass(frozen=True, repr=False)
class Target(Brief):
    """A device or runtime: `rules` say what runs at `place`; the first applicable rule whose conditions are met
    decides.

    Ops that no rule covers run slowly on the `fallback`; without one they are refused. `about` describes the target to
    users, `source` says where the facts come from, `version` which version they hold for. `rewrites` are applied to
    models first. With `costs`, ops that are not fast in integers stay float where that takes less time. `tool` is the
    device's own tool, which has the last word: `runtime/device_tools.py` runs it.
    """

    name: str
    about: str
    place: str
    rules: tuple[TargetRule, ...]
    source: str
    version: str = ""
    fallback: Target | None = None
    rewrites: tuple[Rewrite, ...] = ()
    costs: Costs | None = None
    tool: Literal["tflm", "vela"] | None = None

    def without(self, rewrite: Rewrite) -> Target:
        """Return the target without one of its rewrites."""
        return replace(self, rewrites=tuple(r for r in self.rewrites if r is not rewrite))

    def verdict(self, op: TypedOp) -> OpVerdict:
        """Return where `op` runs."""
        broken: OpVerdict | None = None
        for rule in self._about(op):
            found = next(((why, c.remedy) for c in rule.conditions if (why := c.broken(op)) is not None), None)
            if found is None:
                return OpVerdict(rule.speed, "" if rule.speed == "refused" else self.place, rule.reason, rule.remedy)
            if rule.speed != "refused":  # a row about a failure that does not apply is no reason
                broken = broken or OpVerdict("refused", "", *found)
        unknown = broken or OpVerdict("refused", "", *self._unknown(op))
        elsewhere = None if self.fallback is None else self.fallback.verdict(op)
        if elsewhere is None or elsewhere.speed == "refused":
            return elsewhere or unknown
        return replace(unknown, speed="slow", place=elsewhere.place)

    @cached_property
    def bias_limit(self) -> float | None:
        """The largest integer in a bias that is accepted in every layer, with a bit to spare."""
        conditions = (c for rule in self.rules for c in rule.conditions if isinstance(c, BiasBelow))
        return min((c.limit / 2 for c in conditions), default=None)

    def conditions(self, op: TypedOp) -> tuple[Condition, ...]:
        """Return what the target demands of `op` to run it fast."""
        return next((rule.conditions for rule in self._about(op) if rule.speed == "fast"), ())

    def may_demand(self, label: str, condition: type[Condition]) -> bool:
        """Whether a rule about ops of this kind has such a condition."""
        return condition in self._demanded.get(label, self._demanded[""])

    @cached_property
    def _demanded(self) -> Mapping[str, frozenset[type]]:
        """The classes of conditions in the rules for each kind of op; under "" in those for any op."""
        rules = {"": self._general, **self._by_kind}
        conditions = {kind: [c for rule in own for c in rule.conditions] for kind, own in rules.items()}
        return {kind: frozenset(b for c in own for b in type(c).__mro__) for kind, own in conditions.items()}

    def _about(self, op: TypedOp) -> Iterator[TargetRule]:
        return (rule for rule in self._by_kind.get(op.label, self._general) if rule.is_about(op))

    @cached_property
    def _general(self) -> tuple[TargetRule, ...]:
        """The rules that apply to any op."""
        return tuple(rule for rule in self.rules if not rule.kinds)

    @cached_property
    def _by_kind(self) -> Mapping[str, tuple[TargetRule, ...]]:
        """The rules for each kind, in order, including general ones."""
        kinds = {kind for rule in self.rules for kind in rule.kinds}
        return {kind: tuple(r for r in self.rules if not r.kinds or kind in r.kinds) for kind in kinds}

    def _unknown(self, op: TypedOp) -> tuple[str, str]:
        """Return the reason for an op that no rule covers, and the types in which there is a rule for it."""
        known = [rule for rule in self._by_kind.get(op.label, ()) if rule.kinds and rule.speed == "fast"]
        types = {t.label: t for rule in known for t in rule.activations}
        if not types and op.activations is not None and any(rule.activations for rule in self._general):
            return f"computes in {op.activations.label}, which is no type of {self.place}", "quantize it"
        if not types:
            return f"is not among the ops of {self.place}", ""
        weights = "" if op.weights is None else f" with {op.weights.dtype.label} weights"
        held = "" if op.activations is None else f"computes in {op.activations.label}{weights}"
        has = f"{self.place} {'have' if self.place.endswith('s') else 'has'}"  # "TFLM's kernels"
        return f"{held}, for which {has} no {op.label}", f"{has} it in {' and '.join(types)}"
