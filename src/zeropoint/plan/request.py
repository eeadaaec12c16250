"""What to make of a model: the request, and how it is resolved from a user's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..bench.judged_outputs import PLAIN, JudgedOutputs
from ..calibration import Method, Ranges, Stats
from ..calibration.range_methods import PERCENTILE, Bounds, require_percentile
from ..dtypes import DType
from ..errors import InvalidRecipe, argument, spelled
from ..files import PathLike
from ..ops import OPS, OpSpec
from ..recipe import Effort, Recipe, Scheme, preset, require_effort
from ..recipe_files import load_recipe
from ..targets import CPU, INTEGER, Target, target_named

RangeChoice = Method | Literal["auto"]
"""A method, or "auto": try several on the data and keep the best; without data, FALLBACK."""

WEIGHT_METHODS: tuple[Method, ...] = ("minmax", "mse")

FALLBACK: Method = "mse"
"""The best single method on average over real models."""


@dataclass(frozen=True)
class Interface:
    """The types of the graph's float inputs and outputs as callers see them."""

    input: DType = DType.FLOAT32
    output: DType = DType.FLOAT32

    @property
    def is_narrow(self) -> bool:
        """Whether integers that are fed back pass through 8 bits."""
        return not (self.input.is_float or self.output.is_float) and min(self.input.bits, self.output.bits) == 8


@dataclass(frozen=True)
class Island:
    """How an op computes that loses too much in 8 bits, in float or with 16-bit activations, and why."""

    scheme: Scheme
    why: str = ""


@dataclass(frozen=True)
class Request:
    """What to make of a model. Ranges come from `ranges` first, otherwise from `stats`."""

    recipe: Recipe
    stats: Stats | None = None
    ranges: Ranges = field(default_factory=lambda: Ranges({}))
    method: RangeChoice = "auto"
    interface: Interface = field(default_factory=Interface)
    strict: bool = False
    effort: Effort = "standard"
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS)
    methods: Mapping[str, Method] = field(default_factory=dict)  # by tensor, in place of `method`
    limits: Mapping[str, Bounds] = field(default_factory=dict)  # by tensor: values beyond are clipped
    target: Target = INTEGER
    measure: bool = False  # time placements of the ops on this machine, and use a clearly faster one
    islands: Mapping[str, Island] = field(default_factory=dict)  # by the key of an op's first output
    allow_unmatched: bool = False  # accept rules that match no op
    percentile: float = PERCENTILE  # of the range method with this name
    record: bool = True  # record in the file's metadata how it was made
    states: tuple[tuple[str, str], ...] = ()  # keys of state inputs, each with that of the output that fills it
    seed: int = 0  # random seed, used only at max effort
    outputs: JudgedOutputs = PLAIN  # what they are, and how much each counts

    def __post_init__(self) -> None:
        require_effort(self.effort)
        require_percentile(self.percentile)

    @property
    def may_leave_float(self) -> bool:
        """Whether ops that lose too much in 8 bits may stay float: the target runs float as well, and it is allowed."""
        return self.target.costs is not None and not self.strict

    @property
    def chooses_ranges(self) -> bool:
        """Whether ranges are ours to choose, by the error of the outputs if there is data."""
        return self.recipe.has_integer_ops and self.method == "auto"

    @property
    def range_method(self) -> Method:
        """The method that chooses ranges of activations where nothing is tried."""
        if self.method == "auto":
            return "minmax" if self.effort == "quick" else FALLBACK
        return self.method

    @property
    def weight_method(self) -> Method | None:
        """The method that chooses the scales of weights where only these are quantized; None to decide by their
        bits."""
        if self.method == "auto":
            return "minmax" if self.effort == "quick" else None
        return self.method if self.method in WEIGHT_METHODS else None

    def require_consistent(self) -> None:
        """Raise for options that need integer arithmetic in a mode that has none."""
        if self.recipe.has_integer_ops:
            return
        if self.interface != Interface():
            raise InvalidRecipe(
                f"integer inputs and outputs need integer arithmetic ({argument('mode', 'int8')}, or int16x8); where "
                "only weights are quantized, activations are float"
            )
        if self.strict:
            raise InvalidRecipe(
                f"{argument('strict', True)} needs integer arithmetic ({argument('mode', 'int8')}, or int16x8); this "
                "mode computes in float"
            )
        if self.method not in (*WEIGHT_METHODS, "auto"):
            raise InvalidRecipe(f"{self.method!r} is for ranges of activations; for weights choose minmax or mse")


@dataclass(frozen=True)
class WeightOptions:
    """Options for weights that a mode leaves open."""

    bits: int = 8
    block: int | None = None
    asymmetric: bool = False
    min_elements: int | None = None


def resolve_recipe(
    mode: str | None, recipe: Recipe | PathLike | None, weights: WeightOptions, *, training: bool = False
) -> Recipe:
    """Return the recipe, read if it is a path, or else that of a mode. Some rules are only for `training`."""
    if recipe is not None:
        if mode is not None or weights != WeightOptions():
            raise InvalidRecipe("give a recipe, or a mode with weight options, not both")
        found = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
        if found.is_for_training and not training:
            raise InvalidRecipe(
                f"the recipe has train_bits, which need training: {spelled('zeropoint.distill', 'zeropoint train')}; "
                'without it, name the bits of weights ("weights": "int4")'
            )
        return found
    changes: dict[str, object] = {"block": weights.block, "asymmetric": weights.asymmetric}
    if weights.min_elements is not None:
        changes["min_elements"] = weights.min_elements
    return preset("int8" if mode is None else mode, weights.bits, **changes)


def resolve_target(asked: Target | str | None, recipe: Recipe, interface: Interface, strict: bool) -> Target:
    """Return the target: as requested here or in the recipe; otherwise `cpu` if inputs and outputs are float.

    Integer inputs and outputs are mostly for devices that have only integers.
    """
    name = asked.name if isinstance(asked, Target) else asked
    if recipe.target is not None and name is not None and name != recipe.target:
        raise InvalidRecipe(f"the target {name} and the recipe's target {recipe.target} differ; omit one of them")
    if isinstance(asked, Target):
        return asked
    if (chosen := name or recipe.target) is not None:
        return target_named(chosen)
    return INTEGER if strict or interface != Interface() or recipe.is_unsigned else CPU


TypeLike = str | type | np.dtype[Any] | DType
"""A type of inputs or outputs: "int8", np.int8, np.dtype("int8"), DType.INT8."""


def interface_of(input: TypeLike, output: TypeLike) -> Interface:
    return Interface(_end_type("input", input), _end_type("output", output))


def _end_type(what: str, asked: TypeLike) -> DType:
    allowed = ("float32", "int8", "uint8", "int16")
    try:
        name = asked.label if isinstance(asked, DType) else asked if isinstance(asked, str) else np.dtype(asked).name
    except TypeError:
        name = str(asked)
    if name not in allowed:
        raise InvalidRecipe(f"the {what} type {name!r} is not one of {', '.join(allowed)}")
    return DType.parse(name)


def require_one_source(data: object, stats: object) -> None:
    """Raise if the ranges of activations would come from two sources."""
    if data is not None and stats is not None:
        raise InvalidRecipe(f"give {argument('data')} or {argument('stats')}, not both")
