"""What the tree is walked for: the goal, the model with its samples, and what was measured of its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..bench.bench import Bench
from ..errors import printable
from ..parallel import cached_property
from ..recipe import DYNAMIC, INT8, WEIGHTS, Recipe, Scheme
from ..targets import Target
from .budget import Objective
from .islands import Harm, harmful_ops
from .sensitivity import Layer, layers_content, layers_from, usual_size, weight_layers
from .store import Measurements
from .trial import Configuration, Trial

Trials = Mapping[str, Trial]
"""Trials of modes for the whole model, by label."""

Say = Callable[[str], None]

NARROWED: Mapping[str, Scheme] = {"weights": WEIGHTS, "dynamic": DYNAMIC, "int8": INT8}
"""Modes whose weights can have fewer bits, most accurate first."""

LEAST_STEP = 0.02
"""Share of the bytes below which two positions on a path count as one."""

SIZE_TOLERANCE = 1.1
"""How much smaller than expected a model may turn out: models for a CPU have a varying number of conversions."""


@dataclass(frozen=True)
class Aim:
    """What the tree needs to know about the goal: `max_size` in bytes, and whether the score matters."""

    objective: Objective
    max_size: float | None = None
    limits_score: bool = True

    def smaller(self, sizes: Sequence[int], trials: Trials) -> list[int]:
        """Return positions on a path with about these sizes, from large to small, that are smaller than any trial
        within the budget, possibly small enough for it, and distinguishable. If none is small enough, the smallest
        comes closest."""
        able = min((t.size for t in trials.values() if t.within), default=math.inf)
        most = able if self.limits_score else math.inf
        largest = math.inf if self.max_size is None else max(SIZE_TOLERANCE * self.max_size, min(sizes, default=0))
        kept: list[int] = []
        for place, size in enumerate(sizes):
            is_smaller = size < (1 - LEAST_STEP) * (sizes[kept[-1]] if kept else most)
            if is_smaller and size <= largest:
                kept.append(place)
        return kept


@dataclass(frozen=True)
class Question:
    """What the tree is walked for. `bench` has the float model and rows to run it on; `calibrated` returns a bench with
    the calibration samples, for the given number of comparisons.

    `steps` are those of training, 0 if nothing may be trained. `measured` keeps what was measured of the layers.
    """

    bench: Bench
    calibrated: Callable[[int], Bench]
    target: Target
    aim: Aim
    say: Say
    steps: int = 0
    measured: Measurements | None = None

    @cached_property
    def harms(self) -> tuple[Harm, ...]:
        return harmful_ops(self.bench, self.calibrated(0).stats, self.target)

    def layers(self, mode: str) -> tuple[Layer, ...]:
        """Return the layers with the cost of each choice in a mode; they are measured once, also for later searches."""
        base, name = NARROWED[mode], f"layers, {mode}"
        known = None if self.measured is None else layers_from(self.measured.find(name), base)
        if known is None:
            known = weight_layers(self.bench, self.calibrated, self.target, base)
            if self.measured is not None:
                self.measured.add(name, layers_content(known, base))
        return known

    def usual_size(self, mode: str, trials: Trials) -> int:
        """Return the size of the model in a mode, with 8-bit weights in all layers whose weights are narrowed."""
        base = NARROWED[mode]
        return trials[mode].size if base.activations is not None else usual_size(self.bench, self.target, base)

    def candidate(self, label: str, recipe: Recipe, note: str = "") -> Configuration:
        return Configuration(label, replace(recipe, target=self.target.name), note=printable(note))


def takes_float(target: Target) -> bool:
    """Whether a target is meant to compute in float as well."""
    return target.costs is not None
