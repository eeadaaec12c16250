"""The tree of decisions, as a program: what to try next, by what was measured so far.

First every mode for the whole model. Where int8 loses too much, high effort, then more bits for the ops that lose most.
Then, for the smallest model, fewer bytes for the weights of those layers that can do with them, and high effort beyond
the place where that ends. All follow a path from careful to bold along which few places are tried: two at a time, which
leave a third of the path each time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..bench.bench import Bench
from ..calibration import Stats
from ..dtypes import DType
from ..graph.model import Model
from ..graph.query import constants
from ..recipe import DYNAMIC, FLOAT, INT8, INT16X8, WEIGHTS, Effort, Recipe, Rule, Scheme, preset
from ..targets import CPU, Target, target_named
from .budget import Objective
from .islands import Harm, harmful_ops, widened
from .sensitivity import Layer, config_bytes, described, narrowed, path, weight_forms, weight_layers
from .trial import Configuration, Trial

Round = Generator[Sequence[Configuration], Sequence[Trial], None]
"""Candidates to be tried, side by side if there is room; their trials are sent back."""

Found = Generator[Sequence[Configuration], Sequence[Trial], int]
"""The same, with a number in the end."""

Say = Callable[[str], None]

NARROWED: Mapping[str, Scheme] = {"weights": WEIGHTS, "dynamic": DYNAMIC, "int8": INT8}
"""Modes whose weights can have fewer bits, those first that leave most of the accuracy to them."""

LEAST_STEP = 0.02
"""Share of the bytes below which two places on a path are as good as one."""


@dataclass(frozen=True)
class Question:
    """What the tree is walked for. `bench` has the float model and rows to run it on, `stats` what calibration saw."""

    bench: Bench
    stats: Callable[[], Stats]
    target: Target
    objective: Objective
    say: Say

    def candidate(self, label: str, recipe: Recipe, note: str = "") -> Configuration:
        return Configuration(label, replace(recipe, target=self.target.name), note=note)


def takes_float(target: Target) -> bool:
    """Whether a target is meant to compute in float as well."""
    return target.costs is not None


def walk(question: Question) -> Round:
    """The whole tree."""
    uniform = yield [question.candidate(*mode) for mode in uniform_modes(question.target, question.objective)]
    trials = {trial.label: trial for trial in uniform}
    yield from wider_ops(question, trials)
    if question.objective != "fastest":
        yield from fewer_bits(question, trials)


def uniform_modes(target: Target, objective: Objective) -> Iterator[tuple[str, Recipe]]:
    """Modes for the whole model, by name."""
    modes = ("float16", "dynamic", "weights", "int8", "int16x8") if takes_float(target) else ("int8", "int16x8")
    yield from ((mode, preset(mode)) for mode in modes)
    if objective == "fastest":
        yield "float", Recipe((Rule(FLOAT),))
    else:
        yield from ((f"{mode}, 4-bit weights", preset(mode, 4)) for mode in modes if mode in NARROWED)


def fewer_bits(question: Question, trials: dict[str, Trial]) -> Round:
    """Weights in fewer bytes, layer by layer, in a mode that keeps the budget without; then the same at high effort."""
    mode = narrowed_mode(question.bench, trials)
    if mode is None:
        question.say("fewer bits are not tried: float16 and 8-bit weights lose too much already")
        return
    base = NARROWED[mode]
    layers = weight_layers(question.bench, question.target, base)
    if not layers:
        return
    question.say(_sensitivity_line(layers))
    steps = path(layers)

    def at(place: int, effort: Effort = "standard") -> Configuration:
        label = f"{mode}, mixed {place} of {len(steps) - 1}{'' if effort == 'standard' else f', {effort} effort'}"
        candidate = question.candidate(label, narrowed(layers, steps[place]), described(steps[place]))
        return replace(candidate, effort=effort, path=f"bits, {effort} effort", step=place)

    # What the layers take is known, and with it what a file takes that has the same of everything else.
    others = trials[mode].size - config_bytes(layers, (weight_forms(base)[0],) * len(layers))
    largest = min(t.size for t in trials.values() if t.within)
    places = _smaller([others + config_bytes(layers, config) for config in steps], largest)
    kept = yield from boldest(at, places)
    if bolder := places[kept : kept + HIGH_PLACES]:
        yield from boldest(lambda place: at(place, "high"), bolder)


HIGH_PLACES = 4
"""Places beyond the last one that keeps the budget where high effort is tried."""


def narrowed_mode(bench: Bench, trials: Mapping[str, Trial]) -> str | None:
    """The mode in which weights are narrowed: one that keeps the budget before, and has the finer choices."""
    able = [mode for mode in NARROWED if mode in trials and trials[mode].within]
    if not able and "weights" in trials and trials["float16"].within and not trials["weights"].refusal:
        return "weights"  # from float16 on
    if "dynamic" in able and _is_dense(bench):
        able.remove("dynamic")
        able.insert(0, "dynamic")  # its kernels take blocks

    def least(mode: str) -> int:
        return min(t.size for t in trials.values() if t.within and t.label.partition(",")[0] == mode)

    # Without DEQUANTIZE ops, int8 takes less beside the weights, which counts in small models.
    smaller = (mode for mode in able if least(mode) < (1 - LEAST_STEP) * least(able[0]))
    return min(smaller, key=least, default=next(iter(able), None))


def _is_dense(bench: Bench) -> bool:
    """Whether most of the weights belong to ops whose kernels take blocks of 4-bit ones."""
    held = [
        (op.kind, t.size) for op in bench.entry.graph.ops for t in op.inputs if t is not None and t.data is not None
    ]
    in_blocks = sum(size for kind, size in held if kind in bench.ops and bench.ops[kind].kernels.blockwise)
    return 2 * in_blocks > sum(size for _, size in held)


def _smaller(sizes: Sequence[int], largest: int) -> list[int]:
    """Places on a path that are smaller than `largest`, and differ enough to be told apart, from large to small."""
    kept: list[int] = []
    for place, size in enumerate(sizes):
        if size < (1 - LEAST_STEP) * (sizes[kept[-1]] if kept else largest):
            kept.append(place)
    return kept


def boldest(at: Callable[[int], Configuration], places: Sequence[int]) -> Found:
    """Find the last of `places`, from careful to bold, that keeps the budget, two at a time; give how many keep it."""
    low, high = 0, len(places)  # what is below `low` keeps the budget, what is from `high` on does not
    while low < high:
        third = (high - low) // 3
        tried = sorted({low + third, min(high - 1, low + 2 * third + (high - low) % 3 // 2)})
        found = yield [at(places[k]) for k in tried]
        for k, trial in zip(tried, found, strict=True):
            if not trial.within:  # what is bolder and keeps the budget does so by luck
                high = k
                break
            low = k + 1
    return low


def _sensitivity_line(layers: Sequence[Layer]) -> str:
    dear = sorted(layers, key=lambda layer: -layer.hull()[-1].error)[:3]
    names = ", ".join(layer.label for layer in dear)
    return f"{len(layers)} layers measured one by one in the float model; fewer bits cost most in {names}"


def wider_ops(question: Question, trials: dict[str, Trial]) -> Round:
    """Where int8 loses too much: high effort, then the ops that lose most in float or in 16 bits."""
    int8 = trials.get("int8")
    if int8 is None or int8.within or int8.refusal or int8.drop is None:
        return
    if question.objective == "smallest" and any(t.within for t in trials.values() if t.label != "int16x8"):
        return  # what keeps the budget already is as small as int8 with islands could be
    (high,) = yield [replace(question.candidate("int8, high effort", preset("int8")), effort="high")]
    if high.within:
        return
    harms = harmful_ops(question.bench, question.stats(), question.target)
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
    return ", ".join(f"{h.kind} '{h.name.split(';')[0]}'" for h in harms[:3]) + (" ..." if len(harms) > 3 else "")


def _harm_line(harms: Sequence[Harm]) -> str:
    return f"{len(harms)} ops measured one by one in int8; most is lost in {_harm_names(harms[:3])}"


def estimated_lines(model: Model, size: int, objective: Objective, target: str | None) -> Iterator[str]:
    """The tree on estimates alone: nothing is quantized or run."""
    chosen = CPU if target is None else target_named(target)
    floats = [t for graph in model.graphs for t in constants(graph) if t.dtype is DType.FLOAT32]
    held = sum(4 * t.size for t in {id(t.buffer): t for t in floats}.values())
    yield f"float: {size:,} bytes, of which {held:,} are weights"
    for label, recipe in uniform_modes(chosen, objective):
        guess = size - held + held * recipe.least_bits / 32
        yield f"{label}: about {size / guess:.1f} × smaller"
    yield f"if int8 loses too much: the ops that lose most in {'float' if takes_float(chosen) else '16 bits'}"
    if objective != "fastest":
        guess = size - held + held * 2 / 32
        yield f"then weights of 8, 4 or 2 bits, layer by layer: at most about {size / guess:.1f} × smaller"
    yield "the best of them on the samples that did not steer"
