"""The search on a path finds its place in few steps; layers give up their bits in the order of price."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zeropoint.dtypes import DType
from zeropoint.recipe import WEIGHTS, Recipe, preset
from zeropoint.tuning.sensitivity import BITS, Choice, Layer, narrowed, path
from zeropoint.tuning.tree import boldest
from zeropoint.tuning.trial import Configuration, Trial


@given(st.integers(1, 60), st.data())
def test_the_last_place_that_keeps_the_budget_is_found(count, data):
    last = data.draw(st.integers(-1, count - 1))
    rounds = boldest(lambda place: Configuration(str(place), preset("weights")), range(count))
    asked, tried = next(rounds, None), set()
    while asked is not None:
        assert 1 <= len(asked) <= 2
        assert not tried & {int(c.label) for c in asked}, "nothing is tried twice"
        tried |= {int(c.label) for c in asked}
        try:
            asked = rounds.send([Trial(c, within=int(c.label) <= last) for c in asked])
        except StopIteration:
            asked = None
    assert max((k for k in tried if k <= last), default=-1) == last
    assert len(tried) <= 10


def test_luck_does_not_count():
    """A place behind one that fails is not searched further."""
    rounds = boldest(lambda place: Configuration(str(place), preset("weights")), range(30))
    asked = next(rounds)
    careful = int(asked[0].label)
    later = rounds.send([Trial(asked[0], within=False), Trial(asked[1], within=True)])
    assert all(int(c.label) < careful for c in later)


ERRORS = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3).map(sorted)
LAYERS = st.lists(st.tuples(st.integers(100, 10000), ERRORS), min_size=1, max_size=8).map(
    lambda rows: [
        Layer(
            "CONV_2D", f"layer{k}", tuple(Choice(b, size * b.bits // 8, e) for b, e in zip(BITS, errors, strict=True))
        )
        for k, (size, errors) in enumerate(rows)
    ]
)


def cost(layers, config) -> tuple[int, float]:
    chosen = [next(c for c in layer.choices if c.weights is w) for layer, w in zip(layers, config, strict=True)]
    return sum(c.bytes for c in chosen), sum(c.error for c in chosen)


@given(LAYERS)
def test_a_path_goes_from_wide_to_narrow_at_rising_prices(layers):
    costs = [cost(layers, config) for config in path(layers)]
    assert all(a[0] > b[0] and a[1] <= b[1] for a, b in pairwise(costs))
    prices = [(b[1] - a[1]) / (a[0] - b[0]) for a, b in pairwise(costs)]
    assert all(a <= b * (1 + 1e-6) + 1e-12 for a, b in pairwise(prices))
    assert path(layers)[-1] == (DType.INT2,) * len(layers)


@given(LAYERS, st.data())
def test_no_choice_of_the_same_price_is_better(layers, data):
    """Every place on the path is the best for some price of a byte."""
    steps = path(layers)
    place = data.draw(st.integers(0, len(steps) - 1))
    other = tuple(data.draw(st.sampled_from(BITS)) for _ in layers)
    size, error = cost(layers, steps[place])
    other_size, other_error = cost(layers, other)
    assert not (other_size <= size and other_error < error * (1 - 1e-9) - 1e-12)


def test_a_recipe_names_the_layers_that_differ():
    layers = [Layer("CONV_2D", f"layer{k}", ()) for k in range(3)]
    recipe = narrowed(layers, (DType.INT4, DType.INT8, DType.INT4), WEIGHTS)
    assert isinstance(recipe, Recipe)
    assert [(rule.name, rule.scheme.weights) for rule in recipe.rules] == [(None, DType.INT4), ("layer1", DType.INT8)]
