"""The decision tree, as a program: what to try next, based on what was measured so far.

First every mode for the whole model. If int8 loses too much: high effort, then more bits for the ops that lose most.
Then, for the smallest model, fewer bytes for the weights of layers that tolerate it, and high effort beyond the point
where that ends. All follow a path from careful to bold along which few positions are tried (see `boldness`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeVar

from ..bench.bench import Bench
from ..display import counted
from ..dtypes import DType
from ..graph.model import Model
from ..graph.query import constants
from ..parallel import cached_property
from ..recipe import FLOAT, INT8, INT16X8, Effort, Recipe, Rule, Scheme, preset
from ..targets import CPU, Target, target_named
from .boldness import Forecast, boldest
from .budget import Objective
from .islands import Harm, widened
from .question import LEAST_STEP, NARROWED, Question, Trials, takes_float
from .sensitivity import (
    Config,
    Layer,
    config_bytes,
    config_error,
    described,
    narrowed,
    path,
    usual_config,
    weight_forms,
)
from .trial import Configuration, Trial

Round = Generator[Sequence[Configuration], Sequence[Trial], None]
"""Candidates to be tried, side by side if there is room; their trials are sent back. None at all are proposed before
something is measured that takes its time, so that a search whose time is up can end there."""

T = TypeVar("T")


def walk(question: Question) -> Round:
    """Walk the whole tree, except for training."""
    trials = yield from whole_modes(question)
    yield from wider_ops(question, trials)
    if question.aim.objective != "fastest":
        yield from fewer_bits(question, trials)


def whole_modes(question: Question) -> Generator[Sequence[Configuration], Sequence[Trial], Trials]:
    """Try every mode for the whole model; return the trials. If only the size counts, 16-bit activations come last:
    they take as many bytes as 8-bit ones, and by far the most time on kernels that are not made for them."""
    modes = dict(uniform_modes(question.target, question.aim.objective))
    wide = modes.pop("int16x8") if question.aim.objective == "smallest" and question.aim.limits_score else None
    found = yield [question.candidate(*mode) for mode in modes.items()]
    kept = min((trial for trial in found if trial.within), key=lambda trial: trial.size, default=None)
    if wide is not None and (kept is None or kept.size > HARDLY_LARGER * smallest_in_8_bits(found)):
        found = (*found, *(yield [question.candidate("int16x8", wide)]))
    elif wide is not None and kept is not None:
        question.say(f"int16x8 is not tried: it would hardly be smaller than {kept.label}")
    return {trial.label: trial for trial in found}


HARDLY_LARGER = 1.05
"""If the best model so far is at most this many times as large as another one could be, that one is not tried."""


def smallest_in_8_bits(trials: Sequence[Trial]) -> float:
    """Return the bytes of the smallest model with 8-bit weights, within the budget or not; no other model with such
    weights can be expected to take fewer."""
    made = [t for t in trials if t.candidate.recipe.rules[0].scheme.weights is DType.INT8 and not t.refusal]
    return min((t.size for t in made), default=0)


def estimated_size(model: Model, size: int, bits: int) -> int:
    """Return about how many bytes a float model of `size` bytes takes if all its weights have this many bits."""
    floats = [t for graph in model.graphs for t in constants(graph) if t.dtype is DType.FLOAT32]
    held = sum(4 * t.size for t in {t.buffer: t for t in floats}.values())
    return size - held + held * bits // 32


def training(question: Question, missed: Sequence[Trial], best: Trial | None) -> Round:
    """Train the best few models that only lose too much, if they would be smaller or faster than the best so far."""

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
"""Number of models that are trained."""


def in_integers(recipe: Recipe) -> Recipe:
    """Return the recipe with the same weight widths in integer arithmetic, which is what can be trained."""
    return replace(recipe, rules=tuple(replace(rule, scheme=_in_integers(rule.scheme)) for rule in recipe.rules))


def _in_integers(scheme: Scheme) -> Scheme:
    if scheme.activations is not None or scheme.weights is None:
        return scheme
    is_narrow = scheme.weights.is_integer and scheme.weights.bits < 8
    granularity = scheme.granularity if scheme.per_tensor else INT8.granularity
    return replace(INT8, weights=DType.INT4 if is_narrow else DType.INT8, granularity=granularity)


def uniform_modes(target: Target, objective: Objective) -> Iterator[tuple[str, Recipe]]:
    """Yield the modes for the whole model, by name."""
    modes = ("float16", "dynamic", "weights", "int8", "int16x8") if takes_float(target) else ("int8", "int16x8")
    yield from ((mode, preset(mode)) for mode in modes)
    if objective != "smallest" and takes_float(target):
        yield "float", Recipe((Rule(FLOAT),))
    if objective != "fastest":
        yield from ((f"{mode}, 4-bit weights", preset(mode, 4)) for mode in modes if mode in NARROWED)


def fewer_bits(question: Question, trials: Trials) -> Round:
    """Reduce the bytes of weights layer by layer, in a mode that is within the budget without that."""
    if not question.aim.limits_score and question.aim.max_size is None:
        return
    modes = narrowed_modes(question.bench, trials)
    if not modes:
        question.say("fewer bits are not tried: float16 and 8-bit weights lose too much already")
    for mode in modes:
        made: list[Trial] = []
        yield from _noted(narrowing(question, trials, mode), made)
        if any(trial.within for trial in made):
            return


def _noted(
    rounds: Generator[Sequence[Configuration], Sequence[Trial], T], made: list[Trial]
) -> Generator[Sequence[Configuration], Sequence[Trial], T]:
    """Run the same rounds and return what they return, adding their trials to `made`."""
    try:
        asked = next(rounds)
        while True:
            found = yield asked
            made += found
            asked = rounds.send(found)
    except StopIteration as end:
        result: T = end.value
        return result


@dataclass(frozen=True)
class WeightPath:
    """Configurations of layers from careful to bold, as candidates of a mode; `name` tells paths of a mode apart."""

    question: Question
    mode: str
    layers: Sequence[Layer]
    name: str = "mixed"

    @cached_property
    def steps(self) -> list[Config]:
        return path(self.layers)

    def at(self, place: int, effort: Effort = "standard") -> Configuration:
        last, more = len(self.steps) - 1, "" if effort == "standard" else f", {effort} effort"
        label, config = f"{self.mode}, {self.name} {place} of {last}{more}", self.steps[place]
        candidate = self.question.candidate(label, narrowed(self.layers, config), described(config))
        return replace(candidate, effort=effort, path=f"{self.mode}, {self.name}, {effort} effort", step=place)

    def smaller(self, trials: Trials) -> list[int]:
        """Return the places that are worth trying. A file is expected to have the usual size, with other bytes for the
        layers."""
        usual = usual_config(self.layers, NARROWED[self.mode])
        others = self.question.usual_size(self.mode, trials) - config_bytes(self.layers, usual)
        return self.question.aim.smaller([others + config_bytes(self.layers, c) for c in self.steps], trials)

    def forecast(self, known: Sequence[tuple[Config, Trial]]) -> Forecast:
        """Return a forecast for the path, given the trials of some configurations."""
        points = tuple((config_error(self.layers, config), trial.used) for config, trial in known)
        return Forecast([config_error(self.layers, config) for config in self.steps], points)


def narrowing(question: Question, trials: Trials, mode: str) -> Round:
    """Follow the path of a mode to its last position within the budget, and try high effort on the next few."""
    yield ()
    layers = question.layers(mode)
    if not layers:
        return
    question.say(_sensitivity_line(layers))
    way = WeightPath(question, mode, layers)
    places = way.smaller(trials)
    if not question.aim.limits_score:  # then the most careful one that is small enough is wanted
        yield [way.at(place) for place in places[:FIRST_PLACES]]
        return
    made: list[Trial] = []
    usual = usual_config(layers, NARROWED[mode])
    kept = yield from _noted(boldest(way.at, places, way.forecast([(usual, trials[mode])])), made)
    yield from _noted(_at_high_effort(way, places[kept : kept + HIGH_PLACES], made), made)
    four = trials.get(f"{mode}, 4-bit weights")
    if four is not None and is_misled(made, four):
        question.say(f"{four.label} loses less than larger mixes: layers are tried with 8 or 4 bits alone")
        yield from four_bits_alone(WeightPath(question, mode, plain(layers, mode), "4 bits"), trials, made)


def is_misled(made: Sequence[Trial], four: Trial) -> bool:
    """Whether some mix is larger than the model with all layers in 4 bits, and still loses more.

    Then the output errors that layers cause say little about the score: few of the outputs count, as in a detector.
    """
    if four.drop is None or four.used <= 1:
        return False
    return any(t.drop is not None and t.size > four.size and t.drop.value > four.drop.value for t in made)


def plain(layers: Sequence[Layer], mode: str) -> list[Layer]:
    """Return the layers with only the choices of 8 and 4 bits, in the granularity of the mode with 4-bit weights."""
    forms = weight_forms(NARROWED[mode])[:2]
    few = (replace(layer, choices=tuple(c for c in layer.choices if c.scheme in forms)) for layer in layers)
    return [layer for layer in few if layer.choices]


def four_bits_alone(way: WeightPath, trials: Trials, made: Sequence[Trial]) -> Round:
    """Try mixes between all layers in 8 bits and all layers in 4 bits; the scores of both are known."""
    ends = [(way.steps[0], trials[way.mode]), (way.steps[-1], trials[f"{way.mode}, 4-bit weights"])]
    places = way.smaller({**trials, **{trial.label: trial for trial in made}})
    yield from boldest(way.at, [p for p in places if p < len(way.steps) - 1], way.forecast(ends))


FIRST_PLACES = 2
"""Number of the most careful positions on a path that are tried if only the size is limited."""

HIGH_PLACES = 4
"""Number of positions beyond the last one within the budget at which high effort is tried."""


HIGH_REACH = 2.0
"""Share of the budget used at standard effort beyond which high effort is not expected to help."""


def _at_high_effort(way: WeightPath, places: Sequence[int], made: Sequence[Trial]) -> Round:
    """Try positions one by one until one exceeds the budget: high effort takes longest, and bolder positions would fail
    as well. Positions that were far beyond the budget at standard effort, according to `made`, are not tried."""
    used = {trial.candidate.step: trial.used for trial in made}
    for place in takewhile(lambda place: used.get(place, 1.0) <= HIGH_REACH, places):
        (found,) = yield [way.at(place, "high")]
        if found.used > 1:
            return


def narrowed_modes(bench: Bench, trials: Trials) -> Sequence[str]:
    """Return the modes in which weights are narrowed, the second if the first fails: those within the budget before.

    Without DEQUANTIZE ops, int8 needs fewer bytes besides the weights, which matters in small models; the others are
    closer to the float model.
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
    """Whether most of the weights belong to ops whose kernels support blocks of 4-bit weights."""
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
    """If int8 loses too much: try high effort, then the ops that lose most in float or in 16 bits."""
    int8 = trials.get("int8")
    if int8 is None or int8.used <= 1 or int8.refusal or int8.drop is None:
        return
    if question.aim.objective == "smallest" and any(t.within for t in trials.values() if t.label != "int16x8"):
        return  # a trial within the budget is already as small as int8 with islands could be
    (high,) = yield [replace(question.candidate("int8, high effort", preset("int8")), effort="high")]
    if high.used <= 1:
        return
    yield ()
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
"""Maximum share of the ops that may be widened."""


def _harm_names(harms: Sequence[Harm]) -> str:
    return ", ".join(f"{h.kind} '{h.name}'" for h in harms[:3]) + (" ..." if len(harms) > 3 else "")


def _harm_line(harms: Sequence[Harm]) -> str:
    return f"{counted(len(harms), 'op')} measured one by one in int8; most is lost in {_harm_names(harms[:3])}"


def estimated_lines(model: Model, size: int, objective: Objective, target: str | None, trains: bool) -> Iterator[str]:
    """Yield the tree as text, from estimates alone: nothing is quantized or run."""
    chosen = CPU if target is None else target_named(target)
    yield f"float: {size:,} bytes, of which {size - estimated_size(model, size, 0):,} are weights"
    for label, recipe in uniform_modes(chosen, objective):
        if recipe.rules[0].scheme == FLOAT:
            continue
        bits = min(rule.scheme.weights.bits for rule in recipe.rules if rule.scheme.weights)
        only = ", if nothing of this size keeps the budget" if label == "int16x8" and objective == "smallest" else ""
        yield f"{label}: about {size / estimated_size(model, size, bits):.1f} × smaller{only}"
    island = "float" if takes_float(chosen) else "16 bits"
    yield f"if int8 loses too much: high effort, then the ops that lose most in {island}"
    if objective != "fastest":
        widths, least = ("16, 8, 4 or 2 bits", 2) if takes_float(chosen) else ("8 or 4 bits", 4)
        most = size / estimated_size(model, size, least)
        yield f"then weights of {widths}, layer by layer, with one or more scales: at most about {most:.1f} × smaller"
        yield "then the places just beyond the last one within the budget at high effort"
    if trains:
        yield f"then training of at most {TRAINED} that lose too much"
    yield "the best of them on the samples that did not steer"
