"""The search as users call it: what it finds keeps the budget, can be made again, and goes on where it ended."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint import Budget, SearchSettings, tune
from zeropoint.bench.bench import Bench
from zeropoint.bench.latency import Benchmark, Latency, Timing
from zeropoint.demo import digits as digits_data
from zeropoint.errors import InvalidRecipe, InvalidSample, MissingExtra, ZeropointError
from zeropoint.recipe_files import load_recipe
from zeropoint.runtime.device_tools import ToolReport
from zeropoint.targets import TARGETS
from zeropoint.tflite import load
from zeropoint.train import start_keras
from zeropoint.tuning import latency as latency_module
from zeropoint.tuning import question as question_module
from zeropoint.tuning import search as search_module
from zeropoint.tuning import tree as tree_module
from zeropoint.tuning.question import Question
from zeropoint.tuning.result import Tuned
from zeropoint.tuning.trial import Workpiece

DATA = digits_data()
CALIBRATION = [image[None] for image in DATA["calibration"][:48]]
IMAGES, LABELS = [image[None] for image in DATA["test_images"]], DATA["test_labels"]


def found(digits: bytes, **given) -> Tuned:
    asked = {"budget": Budget(max_drop=2), "evaluation": IMAGES, "labels": LABELS, **given}
    return tune(digits, CALIBRATION, **asked)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "trials"


@pytest.fixture(scope="module")
def smallest(digits, store) -> Tuned:
    return found(digits, search=SearchSettings(store=store))


def test_the_smallest_model_within_the_budget_is_found(smallest):
    assert smallest.met
    assert len(smallest.trials) <= 20
    failed = min((t.candidate.step for t in smallest.trials if t.candidate.path and not t.within), default=99)
    assert smallest.best.size == min(t.size for t in smallest.trials if t.within and t.candidate.step < failed)
    uniform = [t for t in smallest.trials if t.within and "mixed" not in t.label]
    assert smallest.best.size < 0.9 * min(t.size for t in uniform)
    assert smallest.final.drop.samples == len(IMAGES) // 2
    assert smallest.final.holds_within_error


def test_a_lucky_place_on_a_path_is_not_taken(smallest):
    path = [t for t in smallest.trials if t.candidate.path]
    first = min(path, key=lambda t: t.candidate.step)
    last = replace(first, candidate=replace(first.candidate, step=99), size=1)
    search = object.__new__(search_module.Search)
    search.objective, search.baseline, search.allowed = "smallest", smallest.baseline, smallest.allowed
    search.trials = [replace(first, within=False, used=1.5), replace(last, within=True), smallest.trials[0]]
    assert search.best() is search.trials[2]
    search.trials[0] = replace(first, within=True, used=0.5)
    assert search.best() is search.trials[1]


def test_every_decision_is_a_line(smallest):
    text = "\n".join(smallest.lines)
    assert max(map(len, smallest.lines)) < 200, "names are short"
    assert "dynamic: 2.0 × smaller" in text
    assert all(any(line.startswith(t.label) for line in smallest.lines) for t in smallest.trials)
    assert "measured one by one" in text
    assert "did not steer" in smallest.lines[-1]


def test_the_recipe_makes_the_same_bytes_again(smallest, digits, tmp_path):
    path = tmp_path / "best.toml"
    path.write_text(smallest.recipe_text, "utf-8")
    made = zeropoint.quantize(digits, recipe=load_recipe(path), data=CALIBRATION)
    assert zeropoint.to_bytes(made.model) == smallest.best.content
    smallest.save(tmp_path / "best.tflite")
    assert (tmp_path / "best.tflite").read_bytes() == smallest.best.content
    assert zeropoint.to_bytes(smallest.model) == smallest.best.content


def test_the_front_has_nothing_that_another_beats(smallest):
    front = smallest.front
    assert [t.size for t in front] == sorted(t.size for t in front)
    assert [t.drop.value for t in front] == sorted((t.drop.value for t in front), reverse=True)
    assert smallest.best in front


def test_the_log_is_json_and_the_table_html(smallest):
    log = json.loads(json.dumps(smallest.to_json(), allow_nan=False))
    assert [t["label"] for t in log["trials"]] == [t.label for t in smallest.trials]
    assert log["chosen"] == smallest.best.label
    table = replace(smallest, lines=("<script>",))._repr_html_()
    assert table.count("<tr>") == len(smallest.trials) + 1
    assert "<script>" not in table


def test_the_same_search_goes_on_from_its_store(smallest, digits, store, monkeypatch):
    monkeypatch.setattr(Workpiece, "carry_out", lambda *_: pytest.fail("all of it is known"))
    monkeypatch.setattr(question_module, "weight_layers", lambda *_: pytest.fail("layers are known as well"))
    again = found(digits, search=SearchSettings(store=store))
    assert [(t.label, t.content, t.drop) for t in again.trials] == [
        (t.label, t.content, t.drop) for t in smallest.trials
    ]
    assert again.lines == smallest.lines


@pytest.mark.parametrize("change", ["data", "labels", "metric", "target"])
def test_results_of_other_inputs_are_not_taken(smallest, digits, store, monkeypatch, change):
    made = []
    carry_out = Workpiece.carry_out
    monkeypatch.setattr(Workpiece, "carry_out", lambda *given: made.append(1) or carry_out(*given))
    other = {
        "data": {"evaluation": IMAGES[:400], "labels": LABELS[:400]},
        "labels": {"labels": np.roll(LABELS, 1), "budget": Budget(max_drop="50%")},
        "metric": {"metric": "top5"},
        "target": {"target": "integer"},
    }
    found(digits, search=SearchSettings(trials=1, store=store), **other[change])
    assert made == [1]


def test_damaged_trials_are_made_again(smallest, digits, store, tmp_path):
    copy = tmp_path / "trials"
    copy.mkdir()
    for file in store.iterdir():
        content = file.read_bytes()
        (copy / file.name).write_bytes(content[:-1] if file.suffix == ".tflite" else content)
    again = found(digits, search=SearchSettings(trials=1, store=copy))
    assert again.trials[0].content == smallest.trials[0].content


def test_a_store_of_another_version_is_refused(digits, tmp_path):
    (tmp_path / "store.json").write_text('{"schema": 0}')
    with pytest.raises(InvalidRecipe, match="another version"):
        found(digits, search=SearchSettings(store=tmp_path))
    (tmp_path / "store.json").rename(tmp_path / "mine.txt")
    with pytest.raises(InvalidRecipe, match="other files"):
        found(digits, search=SearchSettings(store=tmp_path))


def test_an_interrupt_keeps_what_was_measured(digits, monkeypatch):
    carry_out = Workpiece.carry_out

    def interrupted(piece, candidate):
        if candidate.label == "int8":
            raise KeyboardInterrupt
        return carry_out(piece, candidate)

    monkeypatch.setattr(Workpiece, "carry_out", interrupted)
    tuned = found(digits, search=SearchSettings(trials=4))
    assert tuned.interrupted
    assert tuned.met
    assert tuned.best.label == "dynamic"


def test_what_a_devices_tool_has_to_tell_is_asked_for_first(digits, monkeypatch):
    monkeypatch.setattr(Workpiece, "carry_out", lambda *_: pytest.fail("a trial was made"))
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    with pytest.raises(MissingExtra, match="tflm"):
        found(digits, budget=Budget(max_drop=2, max_ram="64kB"), target="tflm")


def test_cycles_of_the_device_count_more_than_times_of_this_machine(smallest):
    first, *_ = smallest.trials
    search = object.__new__(search_module.Search)
    search.objective, search.allowed = "fastest", smallest.allowed
    slow, fast = (replace(first, latency=1 / cycles, tool=ToolReport("tool", cycles=cycles)) for cycles in (900, 300))
    assert search._rank(fast) < search._rank(slow)


def test_a_trial_shows_itself_without_its_bytes(smallest):
    assert len(repr(smallest.best)) < 3000
    assert "TFL3" not in repr(smallest)


@pytest.mark.parametrize("limit", [{"seconds": 1e-9}, {"trials": 8}], ids=["seconds", "trials"])
def test_layers_are_not_measured_for_trials_that_will_not_be_made(digits, limit, monkeypatch, store, smallest):
    monkeypatch.setattr(question_module, "weight_layers", lambda *_: pytest.fail("that takes its time"))
    known = len([t for t in smallest.trials if not t.candidate.path])
    given = limit if "seconds" in limit else {"trials": known}
    tuned = found(digits, search=SearchSettings(store=store, **given))
    assert any(line.startswith("stopped after ") for line in tuned.lines)


def test_time_and_trials_are_limits(digits):
    none = found(digits, search=SearchSettings(seconds=0))
    assert none.trials == ()
    assert none.lines[-1] == "nothing was tried in the time that was given"
    some = found(digits, search=SearchSettings(trials=2))
    assert [t.label for t in some.trials] == ["float16", "dynamic"]
    assert "2 trials" in "\n".join(some.lines)


def test_a_budget_that_cannot_be_met_has_a_closest_model(digits):
    tuned = found(digits, budget=Budget(max_drop=2, max_size=100), search=SearchSettings(trials=3))
    assert not tuned.met
    assert tuned.best is None
    assert tuned.closest.size == min(t.size for t in tuned.trials), "the size is what is missed"
    assert "no model keeps the budget" in tuned.lines[-1]
    with pytest.raises(InvalidRecipe, match="no model keeps the budget"):
        _ = tuned.model


def test_the_fastest_is_not_slower_than_float(digits, monkeypatch):
    monkeypatch.setattr(latency_module, "ROUNDS", 3)
    tuned = found(digits, objective="fastest")
    assert tuned.met
    fastest = min(t.latency for t in tuned.trials if t.within)
    assert tuned.best.latency <= tuned.baseline.latency
    assert tuned.best.latency <= fastest / search_module.CLEARLY
    assert "float" in [t.label for t in tuned.trials]


def timings(monkeypatch, seconds) -> list[list[str]]:
    """Replace the clock: `seconds` is asked for the time of a model of some name. What was timed together is listed."""
    asked = []

    def timed(models, options):
        assert options.clock == "cpu"
        asked.append(list(models))
        latencies = {name: Latency(1, t, t, t, t, options.rounds) for name in models for t in [seconds(name)]}
        return Benchmark(tuple(Timing(n, 1, (v,), None, (), {}) for n, v in latencies.items()), 2)

    monkeypatch.setattr(latency_module, "benchmark", timed)
    return asked


def test_what_is_fastest_is_timed_beside_the_float_model(digits, monkeypatch):
    """Rounds of all models take turns, and the float model's own time is the same wherever it appears."""
    asked = timings(monkeypatch, lambda name: 2.0 if name == latency_module.REFERENCE else 1.95)
    tuned = found(digits, objective="fastest", search=SearchSettings(trials=6))
    assert all(names[0] == latency_module.REFERENCE for names in asked)
    assert len(asked) == 2 + latency_module.REPEATS, "the fastest are timed again"
    assert tuned.best.label == "float", "what is not clearly faster may be slower next time"
    assert tuned.best.latency == tuned.baseline.latency == 2.0


def test_one_disturbed_measurement_does_not_decide(digits, monkeypatch):
    """A model that is timed too slow once is among the fastest all the same, and wins when these are timed again."""
    calls = Counter()

    def seconds(name: str) -> float:
        calls[name] += 1
        true = {latency_module.REFERENCE: 2.0, "int8": 1.0, "dynamic": 1.2}.get(name, 2.5)
        is_disturbed = (name, calls[name]) in {("int8", 1), ("int8", 3), (latency_module.REFERENCE, 4)}
        return true * (1.3 if is_disturbed else 1)

    timings(monkeypatch, seconds)
    tuned = found(digits, objective="fastest", search=SearchSettings(trials=6))
    assert tuned.best.label == "int8"
    assert tuned.best.latency == pytest.approx(1.0)


def test_slow_models_are_timed_in_fewer_rounds(digits, monkeypatch):
    asked = []

    def timed(models, options):
        asked.append(options.rounds)
        took = Latency(1, 1.0, 1.0, 1.0, 1.0, options.rounds)
        return Benchmark(tuple(Timing(name, 1, (took,), None, (), {}) for name in models), 2)

    monkeypatch.setattr(latency_module, "benchmark", timed)
    latency_module.Stopwatch(load(digits)).timed({"same": digits})
    assert asked == [1, latency_module.FEWEST_ROUNDS]


def closeness(outputs, truth):
    return -float(np.mean([np.abs(o[0] - t).mean() for o, t in zip(outputs, truth, strict=True)]))


@pytest.fixture(scope="module")
def never_met(digits) -> dict:
    """Outputs have to be those of the float model: no quantized model keeps such a budget."""
    exact = np.stack([row[0] for row in Bench(load(digits), ()).on([(i,) for i in IMAGES]).outputs(load(digits))])
    return {"budget": Budget(min_metric=-1e-6), "metric": closeness, "labels": exact, "target": "integer"}


def test_training_is_the_last_branch(digits, never_met, tmp_path, monkeypatch):
    """What loses too much is trained, as `zeropoint train` would, on what calibrates."""
    for module in (search_module, tree_module):
        monkeypatch.setattr(module, "TRAINED", 1)
    monkeypatch.setattr(search_module, "obstacles", lambda *_: ())
    search = SearchSettings(trials=1, allow_training=True, training_steps=2, store=tmp_path / "trials")
    tuned = found(digits, search=search, **never_met)
    assert [(t.label, t.candidate.steps) for t in tuned.trials] == [("int8", 0), ("int8, trained", 2)]
    trained = tuned.trials[-1]
    again = zeropoint.distill(digits, CALIBRATION, steps=2, recipe=trained.candidate.recipe, target="integer")
    assert zeropoint.to_bytes(again.result.model) == trained.content
    assert tuned.to_json()["trials"][-1]["training_steps"] == 2
    monkeypatch.setattr(Workpiece, "carry_out", lambda *_: pytest.fail("all of it is known"))
    assert found(digits, search=search, **never_met).trials[-1].content == trained.content


def test_the_best_few_that_lose_too_much_are_trained(smallest):
    """Those that are smaller than the best, the ones that lose least first, in integer arithmetic."""
    best, *missed = smallest.trials
    said = []
    question = Question(None, None, TARGETS["cpu"], question_module.Aim("smallest"), said.append, steps=7)
    asked = next(tree_module.training(question, missed, best))
    assert len(asked) == tree_module.TRAINED
    assert all(c.steps == 7 and c.recipe.has_integer_ops and c.label.endswith(", trained") for c in asked)
    first = next(t for t in missed if f"{t.label}, trained" == asked[0].label)
    assert first.drop.value == min(t.drop.value for t in missed)
    assert next(tree_module.training(question, [replace(first, size=best.size)], best), None) is None
    assert "nothing is trained" in said[0]


def test_trained_trials_of_another_backend_version_are_not_taken(monkeypatch):
    start_keras()
    before = search_module._training(10)
    monkeypatch.setattr(import_module(before[2]), "__version__", "0.0")
    assert search_module._training(10) != before


def test_training_needs_keras(digits, monkeypatch):
    monkeypatch.setattr(Workpiece, "carry_out", lambda *_: pytest.fail("a trial was made"))
    monkeypatch.setattr("zeropoint.train.find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(MissingExtra, match="Keras 3"):
        found(digits, search=SearchSettings(allow_training=True))
    with pytest.raises(InvalidRecipe, match="training steps"):
        SearchSettings(training_steps=0)


@pytest.mark.parametrize(
    ("budget", "what"),
    [
        (Budget(max_drop=2, max_size=100), "of the weights"),
        (Budget(max_drop=2, max_latency="1us"), "of the arithmetic"),
    ],
    ids=["size", "latency"],
)
def test_what_stands_in_the_way_is_named_with_its_cost(digits, budget, what, monkeypatch):
    monkeypatch.setattr(latency_module, "ROUNDS", 3)
    tuned = found(digits, budget=budget, search=SearchSettings(trials=1))
    named = [line for line in tuned.lines if line.startswith("in the way: ")]
    assert len(named) == 3
    assert all(what in line and "top-1" in line and "points if it alone has" in line for line in named)
    assert any("'wide_relu_1/Relu'" in line for line in named)


def test_ops_that_lose_most_stand_in_the_way_of_a_score(digits, never_met):
    tuned = found(digits, search=SearchSettings(trials=1), **never_met)
    named = [line for line in tuned.lines if line.startswith("in the way: ")]
    assert len(named) == 3
    assert all("of the error of int8; closeness −" in line and "if it alone has int8" in line for line in named)
    shares = [int(line.partition("': ")[2].partition("%")[0]) for line in named]
    assert shares == sorted(shares, reverse=True)


def test_a_size_below_every_mode_is_reached_by_fewer_bits(digits, smallest):
    """Careful places on the path are too large: that is no reason to look no further."""
    modes = [t for t in smallest.trials if not t.candidate.path]
    size = (min(t.size for t in modes) + smallest.best.size) // 2
    tuned = found(digits, budget=Budget(max_drop=2, max_size=size))
    assert tuned.met
    assert tuned.best.size <= size
    assert not any(t.within for t in tuned.trials if not t.candidate.path)


def test_the_smallest_of_all_comes_closest_to_a_size_that_nothing_reaches(digits, smallest):
    tuned = found(digits, budget=Budget(max_drop=2, max_size=100))
    assert not tuned.met
    assert tuned.closest.size < 0.9 * min(t.size for t in smallest.trials if not t.candidate.path)


def test_if_only_the_size_is_limited_the_most_accurate_is_taken(digits, smallest):
    size = min(t.size for t in smallest.trials if not t.candidate.path) - 1000
    tuned = found(digits, budget=Budget(max_size=size))
    able = [t for t in tuned.trials if t.within]
    assert able
    assert tuned.best.size <= size
    assert tuned.best.drop.value == min(t.drop.value for t in able)
    assert tuned.best.size > 0.8 * size, "no smaller than it has to be"


def test_without_labels_the_float_model_is_the_measure(digits):
    tuned = tune(digits, IMAGES[:100], budget=Budget(max_drop=5), search=SearchSettings(trials=1))
    assert tuned.scale.metric == "agreement"
    assert tuned.baseline.score == 1
    assert tuned.limit == 50


def test_integer_targets_are_given_integers(digits):
    tuned = found(digits, target=TARGETS["integer"], search=SearchSettings(trials=2))
    assert [t.label for t in tuned.trials] == ["int8", "int8, 4-bit weights"]


def test_wide_activations_are_tried_where_they_can_be_the_smallest(digits, smallest):
    """Their weights have 8 bits: what is as small already and keeps the budget leaves nothing to gain."""
    assert "int16x8 is not tried: it would hardly be smaller than int8, 4-bit weights" in smallest.lines
    tuned = found(digits, target=TARGETS["integer"], metric=lambda _: 0.5, budget=Budget(max_size=10_000))
    assert [t.label for t in tuned.trials][:2] == ["int8", "int16x8"], "if only the size is limited, all are tried"
    never = Budget(max_drop=2, max_size=100)
    assert "int16x8" in [t.label for t in found(digits, budget=never, search=SearchSettings(trials=8)).trials]


def test_too_few_samples_are_noticed(digits):
    tuned = found(digits, budget=Budget(max_drop=0.1), search=SearchSettings(trials=1))
    assert any("too few for this budget" in line and "2000 in all" in line for line in tuned.lines)


def test_labels_of_other_samples_are_noticed(digits):
    """They have the right number and the right classes, so nothing else would tell."""
    mixed_up = np.random.default_rng(0).permutation(LABELS)
    for labels, is_noticed in ((LABELS, False), (mixed_up, True)):
        lines = found(digits, labels=labels, search=SearchSettings(trials=1)).lines
        assert any("are these the labels of these samples" in line for line in lines) is is_noticed


def test_a_metric_that_fails_for_one_model_refuses_that_one(digits):
    """It worked for the float model; all else that was tried is still of use."""

    def score(model):
        return 0.9 if Path(model).stat().st_size > 15_000 else float("nan")

    tuned = found(digits, metric=score, budget=Budget(max_drop="2%"), search=SearchSettings(trials=2))
    half, dynamic = tuned.trials
    assert (half.refusal, half.within) == ("", True)
    assert "your metric score returned nan" in dynamic.refusal
    assert tuned.best is half


def test_a_metric_that_fails_on_the_last_part_is_noticed_first(digits, monkeypatch):
    monkeypatch.setattr(Workpiece, "carry_out", lambda *_: pytest.fail("a trial was made"))
    last = {int(k) for k in np.random.default_rng(0).permutation(len(IMAGES))[len(IMAGES) // 2 :]}

    def score(outputs, truth):
        return float("nan") if last & {int(k) for k in truth} else 0.9

    with pytest.raises(InvalidRecipe, match="finite"):
        found(digits, metric=score, labels=np.arange(len(IMAGES)))


def test_nothing_is_left_behind_if_the_cluster_cannot_be_reached(digits, tmp_path):
    with pytest.raises(ZeropointError, match="cannot reach"):
        found(digits, search=SearchSettings(store=tmp_path / "trials", on="127.0.0.1:1"))
    assert not any(tmp_path.iterdir())


def test_a_budget_below_the_standard_error_is_noticed(digits):
    """So many samples would do that the error, which falls with the root of their number, is as large as the budget."""
    noise = np.random.default_rng(0).normal(size=len(IMAGES))

    def noisy(outputs, truth):
        return float(np.mean([truth[k] * np.sign(o[0].ravel()[0] - 1e-7) for k, o in enumerate(outputs)]))

    tuned = found(digits, metric=noisy, labels=noise, budget=Budget(max_drop="0.1%"), search=SearchSettings(trials=4))
    unsure = [line for line in tuned.lines if "too few to tell this budget from chance" in line]
    error = tuned.chosen.drop.error
    assert bool(unsure) == (error > tuned.allowed)
    assert unsure
    needed = 2 * math.ceil(len(IMAGES) / 2 * (error / tuned.allowed) ** 2)
    assert f"about {needed:,} in all would do" in unsure[0]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"labels": LABELS[:-1]}, InvalidSample, "labels for 450 samples"),
        ({"labels": LABELS + 5}, InvalidSample, "10 classes"),
        ({"budget": Budget(min_metric=0.999)}, InvalidRecipe, "float model itself"),
        ({"metric": lambda _: 1 / 0}, InvalidRecipe, "ZeroDivisionError"),
        ({"metric": lambda _: np.nan}, InvalidRecipe, "finite"),
        ({"metric": lambda _: float(np.random.default_rng().normal())}, InvalidSample, "same score each time"),
        ({"metric": "snr"}, InvalidRecipe, "min_metric"),
        ({"objective": "best"}, InvalidRecipe, "smallest"),
        ({"evaluation": IMAGES[:3], "labels": LABELS[:3]}, InvalidSample, "too few"),
        ({"target": "toaster"}, InvalidRecipe, "toaster"),
        ({"budget": Budget(max_drop=2, max_ram="9kB")}, InvalidRecipe, "no tool reports the RAM .* cpu; .* tflm"),
        (
            {"budget": Budget(max_cycles=9), "target": "tflm"},
            InvalidRecipe,
            "no tool reports the cycles .* tflm",
        ),
    ],
)
def test_bad_input_is_said_before_any_trial(digits, monkeypatch, given, error, words):
    monkeypatch.setattr(Workpiece, "carry_out", lambda *_: pytest.fail("a trial was made"))
    with pytest.raises(error, match=words):
        found(digits, **given)
