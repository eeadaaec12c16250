"""What a user asks for: ordered rules of the form "ops that match this get this scheme", and named presets."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .affine import PerBlock, PerTensor
from .display import Displayed
from .dtypes import DType, Levels
from .errors import InvalidRecipe, argument
from .graph.model import Op
from .train_bits import TrainBits

Effort = Literal["quick", "standard", "high", "max"]
"""quick: round-to-nearest weights, ranges by a single method. standard: bias correction, and several range methods are
tried. high: also GPTQ, where weights compensate for each other's rounding, layer by layer. max: also learned
roundings and ranges, block by block."""

EFFORTS: tuple[Effort, ...] = get_args(Effort)

SMALLEST = 1024
"""Where only weights are quantized, smaller constants stay float: a scale would not pay off."""


@dataclass(frozen=True)
class PerChannel:
    """One scale for each output channel of the weights, along whichever axis the op's channels are."""


WeightGranularity = PerChannel | PerTensor | PerBlock


@dataclass(frozen=True)
class Scheme:
    """How an op is computed, and how its weights are stored.

    With `activations` the op computes in integers. Without, it computes in float: weights None are float as well;
    otherwise the kernel takes weights of that type directly (dynamic range) or, with `unpacked`, a DEQUANTIZE converts
    them to float first. `narrowed` is the number of bits of weights that use only part of their type's range. With
    `mixed`, layers that need more precision get 8 bits. `granularity` says which weights share a scale, as far as the
    op's kernel supports it: some runtimes lack per-channel scales. `asymmetric` gives unpacked weights zero points.
    `min_elements` is the size from which weights of float ops are quantized. `effort` is the effort for this op, None
    for the default. `train_bits` says how training rounds it, such as "w2a8" or "ternary".
    """

    activations: DType | None
    weights: DType | None = DType.INT8
    narrowed: int | None = None
    mixed: bool = False
    symmetric: bool = False
    granularity: WeightGranularity = PerChannel()
    range: str | None = None
    unpacked: bool = False
    asymmetric: bool = False
    min_elements: int = SMALLEST
    effort: Effort | None = None
    train_bits: str | None = None

    @property
    def trained(self) -> TrainBits | None:
        """The bits that training reduces weights and activations to, if a rule asks for it."""
        return None if self.train_bits is None else TrainBits.parse(self.train_bits)

    @property
    def block(self) -> int | None:
        """The block size of blockwise weights; None for other granularities."""
        return self.granularity.size if isinstance(self.granularity, PerBlock) else None

    @property
    def per_tensor(self) -> bool:
        return isinstance(self.granularity, PerTensor)

    @property
    def levels(self) -> Levels | None:
        """The integers that weights are rounded to."""
        if self.weights is None or not self.weights.is_integer:
            return None
        return Levels(self.weights, self.narrowed or self.weights.bits)

    def held_in(self, weights: DType | None) -> Scheme:
        """Return the scheme with weights of a type that the kernel supports; narrow weights stored in int8 use its full
        range."""
        levels = self.levels
        if levels is None or weights is None or weights is self.weights:
            return self
        is_kept = weights.is_packed and levels.bits < weights.bits
        return dataclasses.replace(self, weights=weights, narrowed=levels.bits if is_kept else None)

    def widened(self) -> Scheme:
        """Return the scheme with 8-bit per-channel weights."""
        return dataclasses.replace(self, weights=DType.INT8, narrowed=None, granularity=PerChannel(), mixed=False)

    @property
    def label(self) -> str:
        if self.activations is not None:
            return "int16x8" if self.activations is DType.INT16 else self.activations.label
        if self.weights is None:
            return "float"
        if self.weights is DType.FLOAT16:
            return "float16"
        return "weights" if self.unpacked else "dynamic"


FLOAT = Scheme(None, None)
INT8 = Scheme(DType.INT8)
UINT8 = Scheme(DType.UINT8, DType.UINT8, granularity=PerTensor())
INT16X8 = Scheme(DType.INT16, symmetric=True)
DYNAMIC = Scheme(None)
WEIGHTS = Scheme(None, unpacked=True)
FLOAT16 = Scheme(None, DType.FLOAT16, unpacked=True, min_elements=0)

PRESETS: Mapping[str, Scheme] = {s.label: s for s in (INT8, INT16X8, UINT8, DYNAMIC, WEIGHTS, FLOAT16, FLOAT)}
MODES = tuple(name for name in PRESETS if name != "float")


@dataclass(frozen=True)
class Rule:
    """Selects ops by kind (glob) and by output name: `name` (glob), `regex` (matches anywhere), `scope` (leading path).

    `either` is a glob for the kind or the name, ignoring case.
    """

    scheme: Scheme
    ops: str = "*"
    name: str | None = None
    regex: str | None = None
    scope: str | None = None
    either: str | None = None

    def matches(self, op: Op) -> bool:
        if self.is_general:
            return True
        names = [t.name for t in op.outputs]
        # Converters join the names of fused ops with semicolons; users may know any one of them.
        parts = [part for name in names for part in (name, *name.split(";"))]
        return (
            fnmatch.fnmatchcase(op.label.upper(), self.ops.upper())
            and (self.name is None or _any_fits(parts, self.name))
            and (self.either is None or _any_fits(map(str.lower, (op.label, *parts)), self.either.lower()))
            and (self.regex is None or any(re.search(self.regex, n) for n in names))
            and (self.scope is None or _any_below(parts, self.scope))
        )

    @property
    def is_general(self) -> bool:
        """Whether the rule applies to all ops rather than to specific ones."""
        return self.ops == "*" and self.name is self.regex is self.scope is self.either is None

    def nearest(self, ops: Iterable[Op]) -> str | None:
        """Return the kind or name among `ops` that is spelled most like what the rule asks for."""
        kinds = dict.fromkeys(op.label for op in ops)
        names = dict.fromkeys(t.name for op in ops for t in op.outputs)
        choices = [*kinds] if self.ops != "*" else [*names] if self.either is None else [*kinds, *names]
        asked = self.either or self.name or self.scope or self.ops
        spelt = {choice.lower(): choice for choice in reversed(choices)}
        near = difflib.get_close_matches(asked.strip("*").lower(), spelt, 1)
        return spelt[near[0]] if near else None

    def __str__(self) -> str:
        asked = {"ops": self.ops if self.ops != "*" else None, "name": self.name, "regex": self.regex}
        asked |= {"scope": self.scope, "kind or name": self.either}
        text = ", ".join(f"{k} {v!r}" for k, v in asked.items() if v is not None)
        return f"{text or 'everything'} -> {self.scheme.label}"


def _any_fits(texts: Iterable[str], pattern: str) -> bool:
    # Names may contain brackets, which globs interpret.
    return any(text == pattern or fnmatch.fnmatchcase(text, pattern) for text in texts)


def _any_below(names: Iterable[str], scope: str) -> bool:
    return any(name == scope or name.startswith(scope.rstrip("/") + "/") for name in names)


@dataclass(frozen=True, repr=False)
class Recipe(Displayed):
    """Rules in order: the last one that matches an op decides. An op that none matches stays float.

    `target` is the name of the target; None leaves it open. `in_8_bits` are ops whose weights get 8 bits where the
    rules ask for fewer (mixed precision), `on_floats` those whose integer weights are dequantized before use where the
    rules ask for dynamic range. With `all_in_8_bits`, no weights have fewer than 8 bits.
    """

    rules: tuple[Rule, ...]
    target: str | None = None
    in_8_bits: frozenset[Op] = frozenset()
    on_floats: frozenset[Op] = frozenset()
    all_in_8_bits: bool = False

    def rule(self, op: Op) -> Rule | None:
        """Return the rule that decides for `op`."""
        return next((rule for rule in reversed(self.rules) if rule.matches(op)), None)

    def leaves_free(self, op: Op, activations: DType) -> bool:
        """Whether `op` gets these activations from a rule for all ops: nobody named it, so it may be rewritten."""
        rule = self.rule(op)
        return rule is not None and rule.is_general and rule.scheme.activations is activations

    def scheme(self, op: Op) -> Scheme:
        rule = self.rule(op)
        scheme = FLOAT if rule is None else rule.scheme
        scheme = dataclasses.replace(scheme, unpacked=True) if op in self.on_floats else scheme
        is_narrow = scheme.levels is not None and scheme.levels.bits < 8
        return scheme.widened() if op in self.in_8_bits or (self.all_in_8_bits and is_narrow) else scheme

    def then(self, *rules: Rule) -> Recipe:
        return dataclasses.replace(self, rules=(*self.rules, *rules))

    def keeping_float(self, patterns: Iterable[str] | None) -> Recipe:
        """Return a recipe that also keeps ops in float that match one of the patterns; a single string is one
        pattern, None is no pattern."""
        if patterns is not None and not isinstance(patterns, Iterable):
            raise InvalidRecipe(f"{argument('keep_float')} takes names or patterns, not {patterns!r}")
        return self.then(*map(keep_float, (patterns,) if isinstance(patterns, str) else patterns or ()))

    @property
    def is_for_training(self) -> bool:
        """Whether some rule sets the bits that training rounds to."""
        return any(rule.scheme.train_bits is not None for rule in self.rules)

    def unmixed(self) -> Recipe:
        """Return the recipe without mixed precision, as training uses it: every layer has the requested bits."""
        rules = (dataclasses.replace(rule, scheme=dataclasses.replace(rule.scheme, mixed=False)) for rule in self.rules)
        return dataclasses.replace(self, rules=(*rules,))

    @property
    def has_integer_ops(self) -> bool:
        """Whether some rule asks for integer arithmetic, which needs the ranges of activations."""
        return any(rule.scheme.activations is not None for rule in self.rules)

    @property
    def is_unsigned(self) -> bool:
        """Whether some rule asks for the older uint8 kernels."""
        return any(rule.scheme.activations is DType.UINT8 for rule in self.rules)

    @property
    def has_wide_activations(self) -> bool:
        """Whether some rule asks for 16-bit activations."""
        return any(rule.scheme.activations is DType.INT16 for rule in self.rules)

    @property
    def least_bits(self) -> int:
        """The bits of the narrowest weights that some rule asks for."""
        return min((levels.bits for rule in self.rules if (levels := rule.scheme.levels) is not None), default=32)

    @property
    def rounds_weights(self) -> bool:
        """Whether some rule asks for integer weights."""
        return any(rule.scheme.weights is not None and rule.scheme.weights.is_integer for rule in self.rules)

    def effort(self, op: Op, usual: Effort) -> Effort:
        """Return the effort for `op`; `usual` if no rule sets one."""
        return self.scheme(op).effort or usual

    def highest_effort(self, usual: Effort) -> Effort:
        return max((usual, *(r.scheme.effort for r in self.rules if r.scheme.effort)), key=EFFORTS.index)

    def spelled_out(self, ops: list[Op], short_names: Mapping[str, str]) -> Recipe:
        """Return the recipe with full op names in rules that match only by the short names that users are shown."""
        shown = {
            op: dataclasses.replace(
                op, outputs=[dataclasses.replace(t, name=short_names.get(t.name, t.name)) for t in op.outputs]
            )
            for op in ops
        }
        unmatched = self.unmatched(ops)

        def spelled(rule: Rule) -> list[Rule]:
            found = [op.name for op, short in shown.items() if rule.matches(short)] if rule in unmatched else []
            return [Rule(rule.scheme, rule.ops, name) for name in found] or [rule]

        return dataclasses.replace(self, rules=tuple(one for rule in self.rules for one in spelled(rule)))

    def unmatched(self, ops: list[Op]) -> list[Rule]:
        """Return the specific rules that match no op: most likely their names are misspelled."""
        return [rule for rule in self.rules if not rule.is_general and not any(map(rule.matches, ops))]


_STORED = {2: DType.INT2, 3: DType.INT4, 4: DType.INT4, **dict.fromkeys((5, 6, 7, 8), DType.INT8)}
WEIGHT_TYPES = {f"int{bits}": Levels(dtype, bits) for bits, dtype in _STORED.items()}
"""Weight types by their name in rules, each stored in the narrowest type that LiteRT has for it."""

MIXED = 4
"""With this many bits or fewer, layers that need 8 keep them (mixed precision), unless a recipe sets the bits."""

BLOCKS = (32, 64, 128, 256)


def preset(name: str, weight_bits: int = 8, **changes: Any) -> Recipe:
    """Return the recipe called `name`, one of MODES, for all ops with such a kernel; `changes` are as in a rule of a
    file."""
    if f"int{weight_bits}" not in WEIGHT_TYPES:
        raise InvalidRecipe(f"weights of {weight_bits} bits are not supported; choose 2 to 8")
    if isinstance(name, Recipe):
        raise InvalidRecipe("a recipe is given as mode=; give it as recipe=")
    if name not in MODES:
        raise InvalidRecipe(f"unknown mode {name!r}; choose from {', '.join(MODES)}")
    if name in ("float16", "uint8"):
        if weight_bits != 8:
            has = "no integer weights" if name == "float16" else "weights of 8 bits"
            raise InvalidRecipe(f"{name} has {has}; omit the weight bits, or choose another mode")
    else:
        changes = {"weights": f"int{weight_bits}", "mixed": weight_bits <= MIXED, **changes}
    return Recipe((Rule(changed_scheme(PRESETS[name], changes, f"mode {name}")),))


def changed_scheme(scheme: Scheme, changes: dict[str, Any], where: str) -> Scheme:
    """Return `scheme` with the changes that a file asks for; raises if they contradict each other."""
    others = {key: value for key, value in changes.items() if key not in ("per_tensor", "block", "weights")}
    if (levels := WEIGHT_TYPES.get(changes.get("weights", ""))) is not None:
        others |= {"weights": levels.dtype, "narrowed": levels.narrowed}
    if (text := changes.get("train_bits")) is not None:
        bits = TrainBits.parse(text, f"{where}: ")
        if scheme.label != "int8":
            raise InvalidRecipe(f"{where}: train_bits is for the scheme int8, not for {scheme.label}")
        if "weights" not in changes:
            levels = WEIGHT_TYPES[bits.weight_type]
            others |= {"weights": levels.dtype, "narrowed": levels.narrowed}
    block, granularity = changes.get("block"), scheme.granularity
    if block is not None:
        granularity = PerBlock(1, block)
    elif "per_tensor" in changes:
        granularity = PerTensor() if changes["per_tensor"] else PerChannel()
    scheme = dataclasses.replace(scheme, granularity=granularity, **others)
    _require_consistent(scheme, where)
    return scheme


def _require_consistent(scheme: Scheme, where: str) -> None:
    """Raise if the settings of a scheme contradict each other."""
    if scheme.block is not None:
        if scheme.block not in BLOCKS:
            raise InvalidRecipe(f"{where}: blocks of {scheme.block} are not supported; choose {_choices(BLOCKS)}")
        if scheme.label != "dynamic" or scheme.weights is not DType.INT4:
            raise InvalidRecipe(f"{where}: blocks need the mode dynamic and 4-bit weights; LiteRT has no other kernels")
    if scheme.asymmetric and scheme.label != "weights":
        raise InvalidRecipe(f"{where}: asymmetric weights need the mode weights; integer kernels require zero point 0")
    if scheme.effort is not None:
        require_effort(scheme.effort, f"{where}: ")
    if scheme.min_elements < 0:
        raise InvalidRecipe(f"{where}: the smallest number of elements cannot be {scheme.min_elements}")


def reaches(effort: Effort, least: Effort) -> bool:
    """Whether `effort` is at least `least`."""
    return EFFORTS.index(effort) >= EFFORTS.index(least)


def require_effort(effort: str, where: str = "") -> None:
    """Raise if `effort` does not exist."""
    if effort not in EFFORTS:
        raise InvalidRecipe(f"{where}unknown effort {effort!r}; choose {_choices(EFFORTS)}")


def _choices(values: Iterable[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}"


def keep_float(pattern: str) -> Rule:
    """Return a rule that keeps ops in float whose kind or output name matches the glob."""
    return Rule(FLOAT, either=pattern)
