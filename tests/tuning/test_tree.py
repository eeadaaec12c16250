"""The search on a path finds its place in few steps; layers give up their bits in the order of price."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint import quantize
from zeropoint.affine import PerTensor
from zeropoint.bench.bench import Bench
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.recipe import DYNAMIC, FLOAT16, INT8, WEIGHTS, Recipe, preset
from zeropoint.targets import TARGETS
from zeropoint.tflite import load
from zeropoint.tuning.boldness import Forecast, boldest
from zeropoint.tuning.evaluation import Drop
from zeropoint.tuning.question import LEAST_STEP, SIZE_TOLERANCE, Aim
from zeropoint.tuning.sensitivity import (
    BITS,
    Choice,
    Layer,
    config_bytes,
    described,
    layers_content,
    layers_from,
    narrowed,
    path,
    unsaturated,
    usual_config,
    weight_forms,
    weight_layers,
)
from zeropoint.tuning.tree import WeightPath, four_bits_alone, is_misled, narrowing, plain, smallest_in_8_bits
from zeropoint.tuning.trial import Configuration, Trial

from .. import build
from ..nets import normal


def configuration(place: int) -> Configuration:
    return Configuration(str(place), preset("weights"))


def tried_on(rounds, used) -> list[int]:
    """The places that a search asks for, given how much of the budget each uses."""
    asked, tried = next(rounds, None), []
    while asked is not None:
        assert 1 <= len(asked) <= 2
        tried += [int(c.label) for c in asked]
        try:
            asked = rounds.send([Trial(c, used=used[int(c.label)]) for c in asked])
        except StopIteration:
            asked = None
    assert len(set(tried)) == len(tried), "nothing is tried twice"
    return tried


@given(st.integers(1, 60), st.data())
def test_the_last_place_that_keeps_the_budget_is_found(count, data):
    last = data.draw(st.integers(-1, count - 1))
    tried = tried_on(boldest(configuration, range(count)), [float(k > last) * 2 for k in range(count)])
    assert max((k for k in tried if k <= last), default=-1) == last
    assert len(tried) <= 12


RISING = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=60).map(lambda steps: list(accumulate(steps)))


@given(RISING, st.data())
def test_a_forecast_may_be_wrong_and_the_place_is_found_all_the_same(errors, data):
    count = len(errors)
    last = data.draw(st.integers(-1, count - 1))
    uses = st.lists(st.floats(0.0, 9.0), min_size=count, max_size=count)
    used = [min(u, 1.0) if k <= last else u + 1.01 for k, u in enumerate(data.draw(uses))]
    known = tuple(data.draw(st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(-1.0, math.inf)), max_size=3)))
    tried = tried_on(boldest(configuration, range(count), Forecast(errors, known)), used)
    assert max((k for k in tried if k <= last), default=-1) == last
    assert len(tried) <= 14


@given(st.floats(0.4, 1.2), st.floats(-8, -3), st.integers(20, 60))
def test_where_the_drop_grows_with_a_power_of_the_error_few_trials_do(power, end, count):
    """What the mode with 8-bit weights uses of the budget is known."""
    errors = [math.exp(end + 8 * (k / (count - 1) - 0.5)) for k in range(count)]
    used = [math.exp(power * (math.log(error) - end)) for error in errors]
    known = ((math.exp(end - 4), math.exp(-4 * power)),)
    tried = tried_on(boldest(configuration, range(count), Forecast(errors, known)), used)
    assert max(k for k in tried if used[k] <= 1) == max(k for k in range(count) if used[k] <= 1)
    assert len(tried) <= 6


def test_luck_does_not_count():
    """A place behind one that fails is not searched further."""
    rounds = boldest(configuration, range(30))
    asked = next(rounds)
    careful = int(asked[0].label)
    later = rounds.send([Trial(asked[0], used=2.0), Trial(asked[1], used=0.5)])
    assert all(int(c.label) < careful for c in later)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 1000), st.data())
def test_places_are_smaller_than_what_is_there_and_small_enough(sizes, able, data):
    sizes = sorted(sizes, reverse=True)
    limit = data.draw(st.one_of(st.none(), st.integers(1, 1000)))
    trials = {"int8": Trial(configuration(0), size=able, within=True, used=0.5)}
    places = Aim("smallest", limit).smaller(sizes, trials)
    assert all(sizes[k] < able for k in places)
    assert limit is None or all(sizes[k] <= max(SIZE_TOLERANCE * limit, sizes[-1]) for k in places)
    assert places or sizes[-1] >= (1 - LEAST_STEP) * able, "if none is small enough, the smallest comes closest"
    assert all(sizes[b] < sizes[a] for a, b in pairwise(places))
    if limit is not None and places:
        beyond = Aim("smallest", limit, limits_score=False).smaller(sizes, trials)
        assert sizes[beyond[0]] >= sizes[places[0]], "if the score does not matter, the most careful counts"


FORMS = weight_forms(WEIGHTS)
CHOICES = st.tuples(*(st.tuples(st.integers(100, 10000), st.floats(1e-6, 1.0)) for _ in FORMS))
LAYERS = st.lists(CHOICES, min_size=1, max_size=8).map(
    lambda rows: [
        Layer("CONV_2D", f"layer{k}", tuple(Choice(form, *row) for form, row in zip(FORMS, choices, strict=True)))
        for k, choices in enumerate(rows)
    ]
)


def cost(layers, config) -> tuple[int, float]:
    chosen = [layer.choice(scheme) for layer, scheme in zip(layers, config, strict=True)]
    return sum(c.bytes for c in chosen), sum(c.error for c in chosen)


@given(LAYERS)
def test_a_path_goes_from_wide_to_narrow_at_rising_prices(layers):
    costs = [cost(layers, config) for config in path(layers)]
    assert all(a[0] > b[0] and a[1] <= b[1] for a, b in pairwise(costs))
    prices = [(b[1] - a[1]) / (a[0] - b[0]) for a, b in pairwise(costs)]
    assert all(a <= b * (1 + 1e-6) + 1e-12 for a, b in pairwise(prices))
    assert costs[-1][0] == sum(min(c.bytes for c in layer.choices) for layer in layers)


@given(LAYERS, st.data())
def test_no_choice_of_the_same_price_is_better(layers, data):
    """Every place on the path is the best for some price of a byte."""
    steps = path(layers)
    place = data.draw(st.integers(0, len(steps) - 1))
    other = tuple(data.draw(st.sampled_from(FORMS)) for _ in layers)
    size, error = cost(layers, steps[place])
    other_size, other_error = cost(layers, other)
    assert not (other_size <= size and other_error < error * (1 - 1e-9) - 1e-12)


@given(st.floats(1e-4, 0.09), st.floats(0.2, 3.0))
def test_errors_that_saturate_do_not_make_fewer_bits_look_cheap(small, large):
    """Where 4 and 2 bits are both of no use, the path still goes to 4 first."""
    bytes_and_noise = {DType.INT8: (800, 1.0), DType.INT4: (400, 250.0), DType.INT2: (200, 12000.0)}
    errors = (small, large, 1.01 * large)
    measured = tuple(
        Choice(form, size, error, noise)
        for form, error, (size, noise) in zip(FORMS, errors, bytes_and_noise.values(), strict=False)
    )
    layer = Layer("CONV_2D", "layer", unsaturated(measured))
    assert [c.scheme.weights for c in layer.hull()] == list(BITS)
    assert layer.choices[0] == measured[0]
    assert all(c.error >= m.error for c, m in zip(layer.choices, measured, strict=True))
    without_noise = tuple(replace(c, noise=0.0) for c in measured)
    assert unsaturated(without_noise) == without_noise


def test_a_recipe_names_the_layers_that_differ():
    layers = [Layer("CONV_2D", f"layer{k}", ()) for k in range(3)]
    wide, narrow = weight_forms(WEIGHTS)[:2]
    config = (narrow, replace(wide, granularity=PerTensor()), narrow)
    recipe = narrowed(layers, config)
    assert isinstance(recipe, Recipe)
    assert [(rule.name, rule.scheme.weights) for rule in recipe.rules] == [(None, DType.INT4), ("layer1", DType.INT8)]
    assert described(config) == "of 3 layers 1 in 8 bits, 2 in 4; 1 with one scale"


def test_each_mode_has_the_granularities_that_its_kernels_take():
    """Blocks are for hybrid kernels, one scale for those that have none; float16 for what computes in float."""
    for base, has_blocks, has_half in ((WEIGHTS, False, True), (DYNAMIC, True, True), (INT8, False, False)):
        forms = weight_forms(base)
        assert [form.weights for form in forms[:3]] == list(BITS)
        assert any(form.block for form in forms) is has_blocks
        assert any(form.per_tensor for form in forms) is not has_blocks
        assert any(form.label == FLOAT16.label for form in forms) is has_half


@pytest.mark.parametrize("base", [WEIGHTS, DYNAMIC, INT8], ids=lambda base: base.label)
def test_layers_are_measured_in_the_forms_that_they_can_have(digits, base):
    """Every layer has some; one scale instead of many takes fewer bytes."""
    rows = [(image[None],) for image in digits_data()["test_images"][:4]]
    calibration = [(image[None],) for image in digits_data()["calibration"][:16]]

    def calibrated(judged: int) -> Bench:
        return Bench(load(digits), calibration, judged=judged, holds_back=judged > 0)

    layers = weight_layers(Bench(load(digits), ()).on(rows), calibrated, TARGETS["cpu"], base)
    steps = path(layers)
    assert layers_from(json.loads(json.dumps(layers_content(layers, base))), base) == layers
    assert layers_from([{"kind": "CONV_2D"}], base) is layers_from(None, base) is None
    assert len(layers) == 5
    assert config_bytes(layers, steps[-1]) < config_bytes(layers, usual_config(layers, base))
    for layer in layers:
        known = {c.scheme: c for c in layer.choices}
        for scheme in (scheme for scheme in known if scheme.per_tensor):
            assert known[scheme].bytes < known[replace(scheme, granularity=base.granularity)].bytes
    if base is INT8:
        kinds = {layer.kind: {c.scheme.weights for c in layer.choices} for layer in layers}
        assert kinds["DEPTHWISE_CONV_2D"] == {DType.INT8}, "LiteRT has no other kernel"


def test_a_table_that_a_mode_reads_with_another_op_has_as_few_bits_as_any():
    """Dynamic range turns GATHER into EMBEDDING_LOOKUP, whose kernel takes 8, 4 and 2 bits."""
    ids = build.act("ids", 6, dtype=DType.INT32)
    table, weights = build.const("table", normal(50, 64)), build.const("w", normal(8, 64, seed=1))
    found = build.op("GATHER", [table, ids], build.act("rows", 6, 64), options="GatherOptions")
    dense = build.op("FULLY_CONNECTED", [found.outputs[0], weights, None], build.act("y", 6, 8))
    model = Model([build.graph("main", [ids], [dense.outputs[0]], found, dense)])
    rows = [(np.arange(k, k + 6, dtype=np.int32),) for k in range(4)]

    layers = weight_layers(
        Bench(model, ()).on(rows),
        lambda judged: Bench(model, rows, judged=judged, holds_back=judged > 0),
        TARGETS["cpu"],
        DYNAMIC,
    )
    assert [(layer.kind, layer.is_replaced) for layer in layers] == [("GATHER", True), ("FULLY_CONNECTED", False)]
    assert {c.scheme.weights for c in layers[0].choices} == {*BITS, DType.FLOAT16}
    wide, narrow = weight_forms(DYNAMIC)[:2]
    for scheme in (narrow, wide):
        other = wide if scheme is narrow else narrow
        made = quantize(model, recipe=narrowed(layers, (scheme, other)), data=rows, effort="quick").model
        types = {t.shape: t.dtype for t in made.main.tensors if t.is_constant}
        assert types[50, 64] is scheme.weights
        assert types[8, 64] is other.weights


# Where the errors of the outputs say little about the score.


def trial(size: int, drop: float, used: float, label: str = "weights") -> Trial:
    return Trial(replace(configuration(0), label=label), size, Drop(0.5, drop, 0.0, 10), used=used)


FOUR = trial(500, 0.03, 1.5, "weights, 4-bit weights")


@pytest.mark.parametrize(
    ("mix", "four", "misled"),
    [
        (trial(600, 0.04, 2.0), FOUR, True),
        (trial(600, 0.02, 0.9), FOUR, False),
        (trial(400, 0.04, 2.0), FOUR, False),
        (trial(600, 0.04, 2.0), replace(FOUR, used=0.5), False),
    ],
    ids=["larger and worse", "better", "smaller", "4 bits keep the budget"],
)
def test_a_mix_that_is_larger_and_worse_than_4_bits_everywhere_tells_that_errors_mislead(mix, four, misled):
    assert is_misled([mix], four) == misled


@pytest.mark.parametrize("refused", [False, True], ids=["made", "refused"])
def test_a_model_with_8_bit_weights_takes_as_much_as_others_with_such_weights(refused):
    """Those of 4 bits or float16 tell nothing about it, nor does one that could not be made."""
    sizes = {"float16": 2000, "dynamic": 1100, "weights": 1150}
    trials = [Trial(Configuration(mode, preset(mode)), size) for mode, size in sizes.items()]
    trials.append(Trial(Configuration("int8", preset("int8")), 1050, refusal="no kernel" if refused else ""))
    trials.append(Trial(Configuration("weights, 4-bit weights", preset("weights", 4)), 700))
    assert smallest_in_8_bits(trials) == (1100 if refused else 1050)
    assert smallest_in_8_bits(trials[:1]) == 0


class SizesAlone:
    """A question of which only sizes are asked."""

    aim = Aim("smallest")

    def usual_size(self, mode, trials):
        return trials[mode].size

    def candidate(self, label, recipe, note=""):
        return Configuration(label, recipe, note=note)


def dear_layers(forms) -> tuple[Layer, ...]:
    """Twelve layers, each of which costs more than the one before."""
    costs = [[0.01 * n * (k + 1) for n in range(len(forms))] for k in range(12)]
    return tuple(
        Layer("CONV_2D", f"layer{k}", tuple(Choice(form, 100 // (n + 1), own[n]) for n, form in enumerate(forms)))
        for k, own in enumerate(costs)
    )


class Measured(SizesAlone):
    """A question whose layers are known."""

    def layers(self, mode):
        assert mode == "weights"
        return dear_layers(weight_forms(WEIGHTS)[:2])

    def say(self, line):
        pass


@pytest.mark.parametrize(("beyond", "count"), [(1.5, 1), (3.0, 0)], ids=["a little over", "far over"])
def test_high_effort_is_for_what_is_a_little_over_the_budget(beyond, count):
    """Where one place fails, a bolder one is not tried: these trials take longest."""
    trials = {"weights": replace(trial(1300, 0.0, 0.1), within=True)}
    rounds, efforts = narrowing(Measured(), trials, "weights"), []
    asked = next(rounds, None)
    while asked is not None:
        efforts += [c.effort for c in asked]
        try:
            asked = rounds.send([Trial(c, used=0.5 if c.step <= 7 else beyond) for c in asked])
        except StopIteration:
            asked = None
    assert efforts.count("standard") >= 2
    assert efforts.count("high") == count


def test_layers_in_8_or_4_bits_alone_are_tried_between_two_known_ends():
    forms = weight_forms(WEIGHTS)
    layers = dear_layers(forms)
    way = WeightPath(SizesAlone(), "weights", plain(layers, "weights"), "4 bits")
    assert {scheme for config in way.steps for scheme in config} == set(forms[:2])
    trials = {"weights": replace(trial(1300, 0.0, 0.1), within=True), FOUR.label: replace(FOUR, size=700)}
    rounds, tried = four_bits_alone(way, trials, ()), {}
    asked = next(rounds, None)
    while asked is not None:
        tried |= {c.step: c for c in asked}
        try:
            asked = rounds.send([Trial(c, used=0.5 if c.step <= 7 else 1.5) for c in asked])
        except StopIteration:
            asked = None
    assert {7, 8} <= set(tried)
    assert len(tried) <= 6
    assert 12 not in tried, "all of them in 4 bits is known"
    assert {c.path for c in tried.values()} == {"weights, 4 bits, standard effort"}
