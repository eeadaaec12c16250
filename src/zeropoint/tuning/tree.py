"""The tree of decisions, as a program: what to try next, by what was measured so far.

First every mode for the whole model. Where int8 loses too much, high effort, then more bits for the ops that lose most.
Then, for the smallest model, fewer bytes for the weights of those layers that can do with them, and high effort beyond
the place where that ends. All follow a path from careful to bold along which few places are tried (see `boldness`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..bench.bench import Bench
from ..display import counted
from ..dtypes import DType
from ..errors import printable
from ..graph.model import Model
from ..graph.query import constants
from ..recipe import DYNAMIC, FLOAT, INT8, INT16X8, WEIGHTS, Effort, Recipe, Rule, Scheme, preset
from ..targets import CPU, Target, target_named
from .boldness import Forecast, boldest
from .budget import Objective
from .islands import Harm, harmful_ops, widened
from .sensitivity import (
    Layer,
    config_bytes,
    config_error,
    described,
    narrowed,
    path,
    usual_config,
    usual_size,
    weight_layers,
)
from .trial import Configuration, Trial

Round = Generator[Sequence[Configuration], Sequence[Trial], None]
"""Candidates to be tried, side by side if there is room; their trials are sent back."""

Trials = Mapping[str, Trial]
"""Those of modes for the whole model, by label."""

Say = Callable[[str], None]

NARROWED: Mapping[str, Scheme] = {"weights": WEIGHTS, "dynamic": DYNAMIC, "int8": INT8}
"""Modes whose weights can have fewer bits, those first that leave most of the accuracy to them."""

LEAST_STEP = 0.02
"""Share of the bytes below which two places on a path are as good as one."""

SIZE_TOLERANCE = 1.1
"""How much smaller than expected a model may turn out: what is made for a processor has conversions here and there."""


@dataclass(frozen=True)
class Aim:
    """What is wanted of a model, as far as the tree has to know: `max_size` in bytes, and whether its score matters."""

    objective: Objective
    max_size: float | None = None
    limits_score: bool = True

    def smaller(self, sizes: Sequence[int], trials: Trials) -> list[int]:
        """Places on a path with about these sizes, from large to small, that are smaller than what keeps the budget
        already, perhaps small enough for it, and differ enough to be told apart."""
        able = min((t.size for t in trials.values() if t.within), default=math.inf)
        most = able if self.limits_score else math.inf
        kept: list[int] = []
        for place, size in enumerate(sizes):
            is_smaller = size < (1 - LEAST_STEP) * (sizes[kept[-1]] if kept else most)
            if is_smaller and (self.max_size is None or size <= SIZE_TOLERANCE * self.max_size):
                kept.append(place)
        return kept


@dataclass(frozen=True)
class Question:
    """What the tree is walked for. `bench` has the float model and rows to run it on; `calibrated` gives a bench with
    the samples that calibrate, for as many comparisons as it is asked for.

    `steps` are those of training, 0 if nothing may be trained.
    """

    bench: Bench
    calibrated: Callable[[int], Bench]
    target: Target
    aim: Aim
    say: Say
    steps: int = 0

    @cached_property
    def harms(self) -> tuple[Harm, ...]:
        return harmful_ops(self.bench, self.calibrated(0).stats, self.target)

    def usual_size(self, mode: str, trials: Trials) -> int:
        """What the model takes in a mode, if all layers whose weights are narrowed have 8-bit ones."""
        base = NARROWED[mode]
        return trials[mode].size if base.activations is not None else usual_size(self.bench, self.target, base)

    def candidate(self, label: str, recipe: Recipe, note: str = "") -> Configuration:
        return Configuration(label, replace(recipe, target=self.target.name), note=printable(note))


def takes_float(target: Target) -> bool:
    """Whether a target is meant to compute in float as well."""
    return target.costs is not None


def walk(question: Question) -> Round:
    """The whole tree, but for training."""
    uniform = yield [question.candidate(*mode) for mode in uniform_modes(question.target, question.aim.objective)]
    trials = {trial.label: trial for trial in uniform}
    yield from wider_ops(question, trials)
    if question.aim.objective != "fastest":
        yield from fewer_bits(question, trials)


def training(question: Question, missed: Sequence[Trial], best: Trial | None) -> Round:
    """Train the best few of those that only lose too much, if they would be smaller or faster than the best so far."""

    def gain(trial: Trial) -> float:
        return trial.size if question.aim.objective != "fastest" or trial.latency is None else trial.latency

    recipes: dict[Recipe, Trial] = {}
    for trial in sorted(missed, key=lambda t: math.inf if t.drop is None else t.drop.value):
        if best is None or gain(trial) < gain(best):
            recipes.setdefault(in_integers(trial.candidate.recipe), trial)
    if not recipes:
        question.say("nothing is trained: no model that only loses too much would be better than the best one")
        return
    yield [
        replace(question.candidate(f"{trial.label}, trained", recipe, trial.candidate.note), steps=question.steps)
        for recipe, trial in list(recipes.items())[:TRAINED]
    ]


TRAINED = 3
"""How many models are trained."""


def in_integers(recipe: Recipe) -> Recipe:
    """The same widths of weights in integer arithmetic, which is what can be trained."""
    return replace(recipe, rules=tuple(replace(rule, scheme=_in_integers(rule.scheme)) for rule in recipe.rules))


def _in_integers(scheme: Scheme) -> Scheme:
    if scheme.activations is not None or scheme.weights is None:
        return scheme
    is_narrow = scheme.weights.is_integer and scheme.weights.bits < 8
    granularity = scheme.granularity if scheme.per_tensor else INT8.granularity
    return replace(INT8, weights=DType.INT4 if is_narrow else DType.INT8, granularity=granularity)


def uniform_modes(target: Target, objective: Objective) -> Iterator[tuple[str, Recipe]]:
    """Modes for the whole model, by name."""
    modes = ("float16", "dynamic", "weights", "int8", "int16x8") if takes_float(target) else ("int8", "int16x8")
    yield from ((mode, preset(mode)) for mode in modes)
    if objective != "smallest" and takes_float(target):
        yield "float", Recipe((Rule(FLOAT),))
    if objective != "fastest":
        yield from ((f"{mode}, 4-bit weights", preset(mode, 4)) for mode in modes if mode in NARROWED)


def fewer_bits(question: Question, trials: Trials) -> Round:
    """Weights in fewer bytes, layer by layer, in a mode that keeps the budget without."""
    if not question.aim.limits_score and question.aim.max_size is None:
        return
    modes = narrowed_modes(question.bench, trials)
    if not modes:
        question.say("fewer bits are not tried: float16 and 8-bit weights lose too much already")
    for mode in modes:
        made: list[Trial] = []
        yield from _noting(narrowing(question, trials, mode), made)
        if any(trial.within for trial in made):
            return


def _noting(rounds: Round, made: list[Trial]) -> Round:
    """The same rounds; their trials are added to `made`."""
    asked = next(rounds, None)
    while asked is not None:
        found = yield asked
        made += found
        try:
            asked = rounds.send(found)
        except StopIteration:
            asked = None


def narrowing(question: Question, trials: Trials, mode: str) -> Round:
    """Follow the path of a mode to its last place within the budget, and try high effort on the next few."""
    layers = weight_layers(question.bench, question.calibrated, question.target, NARROWED[mode])
    if not layers:
        return
    question.say(_sensitivity_line(layers))
    steps = path(layers)

    def at(place: int, effort: Effort = "standard") -> Configuration:
        label = f"{mode}, mixed {place} of {len(steps) - 1}{'' if effort == 'standard' else f', {effort} effort'}"
        candidate = question.candidate(label, narrowed(layers, steps[place]), described(steps[place]))
        return replace(candidate, effort=effort, path=f"{mode}, {effort} effort", step=place)

    # What the layers take is known, and with it what a file takes that has the same of everything else.
    usual = usual_config(layers, NARROWED[mode])
    others = question.usual_size(mode, trials) - config_bytes(layers, usual)
    places = question.aim.smaller([others + config_bytes(layers, config) for config in steps], trials)
    if not question.aim.limits_score:  # then the most careful that is small enough is wanted
        yield [at(place) for place in places[:FIRST_PLACES]]
        return
    known = (config_error(layers, usual), trials[mode].used)
    forecast = Forecast([config_error(layers, config) for config in steps], (known,))
    kept = yield from boldest(at, places, forecast)
    yield from _at_high_effort(lambda place: at(place, "high"), places[kept : kept + HIGH_PLACES])


FIRST_PLACES = 2
"""The most careful places on a path, which are tried if the size alone is limited."""

HIGH_PLACES = 4
"""Places beyond the last one that keeps the budget where high effort is tried."""


def _at_high_effort(at: Callable[[int], Configuration], places: Sequence[int]) -> Round:
    """Two after the other, as long as they keep the budget."""
    for start in range(0, len(places), 2):
        found = yield [at(place) for place in places[start : start + 2]]
        if any(trial.used > 1 for trial in found):
            return


def narrowed_modes(bench: Bench, trials: Trials) -> Sequence[str]:
    """The modes in which weights are narrowed, the second if the first leads nowhere: such as keep the budget before.

    Without DEQUANTIZE ops, int8 takes less beside the weights, which counts in small models; the others are closer to
    the float model.
    """
    able = [mode for mode in NARROWED if mode in trials and trials[mode].used <= 1]
    if not able and "weights" in trials and trials["float16"].used <= 1 and not trials["weights"].refusal:
        return ["weights"]  # from float16 on
    if "dynamic" in able and _is_dense(bench):
        able = ["dynamic", *(mode for mode in able if mode != "dynamic")]  # its kernels take blocks

    def size(mode: str) -> int:
        return trials.get(f"{mode}, 4-bit weights", trials[mode]).size or trials[mode].size

    lighter = [mode for mode in able if size(mode) < (1 - 2 * LEAST_STEP) * size(able[0])]
    return [*sorted(lighter, key=size)[:1], *able[:1]]


def _is_dense(bench: Bench) -> bool:
    """Whether most of the weights belong to ops whose kernels take blocks of 4-bit ones."""
    held = [
        (op.kind, t.size) for op in bench.entry.graph.ops for t in op.inputs if t is not None and t.data is not None
    ]
    in_blocks = sum(size for kind, size in held if kind in bench.ops and bench.ops[kind].kernels.blockwise)
    return 2 * in_blocks > sum(size for _, size in held)


def _sensitivity_line(layers: Sequence[Layer]) -> str:
    dear = sorted(layers, key=lambda layer: -layer.hull()[-1].error)[:3]
    names = ", ".join(layer.label for layer in dear)
    return f"{counted(len(layers), 'layer')} measured one by one in the float model; fewer bits cost most in {names}"


def wider_ops(question: Question, trials: Trials) -> Round:
    """Where int8 loses too much: high effort, then the ops that lose most in float or in 16 bits."""
    int8 = trials.get("int8")
    if int8 is None or int8.used <= 1 or int8.refusal or int8.drop is None:
        return
    if question.aim.objective == "smallest" and any(t.within for t in trials.values() if t.label != "int16x8"):
        return  # what keeps the budget already is as small as int8 with islands could be
    (high,) = yield [replace(question.candidate("int8, high effort", preset("int8")), effort="high")]
    if high.used <= 1:
        return
    harms = question.harms
    if len(harms) < 2:
        return
    island = FLOAT if takes_float(question.target) else INT16X8
    question.say(_harm_line(harms))
    # From careful (most ops widened) to bold (one op widened).
    counts = sorted({min(len(harms), max(1, round(len(harms) * share))) for share in SHARES}, reverse=True)

    def at(place: int) -> Configuration:
        chosen = harms[: counts[place]]
        kind = "float" if island is FLOAT else "16-bit"
        label = f"int8, {len(chosen)} {kind} {'op' if len(chosen) == 1 else 'ops'}"
        candidate = question.candidate(label, widened(chosen, INT8, island), _harm_names(chosen))
        return replace(candidate, path="islands", step=place)

    yield from boldest(at, range(len(counts)))


SHARES = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5)
"""Of the ops, that may be widened."""


def _harm_names(harms: Sequence[Harm]) -> str:
    return ", ".join(f"{h.kind} '{h.name}'" for h in harms[:3]) + (" ..." if len(harms) > 3 else "")


def _harm_line(harms: Sequence[Harm]) -> str:
    return f"{counted(len(harms), 'op')} measured one by one in int8; most is lost in {_harm_names(harms[:3])}"


def estimated_lines(model: Model, size: int, objective: Objective, target: str | None, trains: bool) -> Iterator[str]:
    """The tree on estimates alone: nothing is quantized or run."""
    chosen = CPU if target is None else target_named(target)
    floats = [t for graph in model.graphs for t in constants(graph) if t.dtype is DType.FLOAT32]
    held = sum(4 * t.size for t in {id(t.buffer): t for t in floats}.values())
    yield f"float: {size:,} bytes, of which {held:,} are weights"
    for label, recipe in uniform_modes(chosen, objective):
        if recipe.rules[0].scheme == FLOAT:
            continue
        guess = size - held + held * min(rule.scheme.weights.bits for rule in recipe.rules if rule.scheme.weights) / 32
        yield f"{label}: about {size / guess:.1f} × smaller"
    island = "float" if takes_float(chosen) else "16 bits"
    yield f"if int8 loses too much: high effort, then the ops that lose most in {island}"
    if objective != "fastest":
        widths, least = ("16, 8, 4 or 2 bits", 2) if takes_float(chosen) else ("8 or 4 bits", 4)
        most = size / (size - held + held * least / 32)
        yield f"then weights of {widths}, layer by layer, with one or more scales: at most about {most:.1f} × smaller"
        yield "then the places just beyond the last one within the budget at high effort"
    if trains:
        yield f"then training of at most {TRAINED} that lose too much"
    yield "the best of them on the samples that did not steer"
