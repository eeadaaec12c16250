"""The measure of error: bounded for each sample, relative to what outputs vary by, and told apart from chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from zeropoint.bench.measure import ErrorTable, SampledError, Yardstick, channel_axis, dot, error_of_sample

from ..nets import normal

SHAPES = [(1, 6), (1, 5, 7, 3), (1, 40, 4), (1, 3, 60), (1, 50, 1), (1, 8, 8, 1), (7, 5), (1, 1, 6), (9,), ()]
"""Vectors, maps, boxes in both orders, and maps with one channel."""

finite = st.floats(-1e6, 1e6, width=32)


def outputs(shape, count=12, seed=0):
    return [np.asarray(normal(*shape, seed=seed + k)) for k in range(count)]


def noisy(values, spread=0.1):
    rng = np.random.default_rng(99)
    return [np.asarray(one + rng.normal(0, spread, one.shape), np.float32) for one in values]


def table(wanted, found, **options) -> ErrorTable:
    made = ErrorTable(**options)
    for pair in zip(wanted, found, strict=True):
        made.add(*pair)
    return made


def parts(wanted, found, **options) -> np.ndarray:
    return np.array(table(wanted, found, **options).error.parts)


# What a part is.


@given(arrays(np.float32, (5, 4), elements=finite), arrays(np.float32, (5, 4), elements=finite))
def test_parts_are_between_0_and_1_and_0_only_for_equal_values(wanted, found):
    for part, one, other in zip(parts(wanted, found), wanted, found, strict=True):
        assert 0 <= part <= 1
        assert part == 0 or not np.array_equal(one, other)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_values_have_no_error_and_no_numbers_have_all_of_it(shape):
    wanted = outputs(shape)
    assert not parts(wanted, wanted).any()
    found = noisy(wanted)
    for broken in (math.nan, math.inf, -math.inf):
        spoilt = [values.copy() for values in found]
        spoilt[3].flat[-1] = broken
        share = table(wanted, spoilt).error.parts[3]
        assert share >= 1 / max(1, wanted[0].shape[-1] if shape else 1)
        spoilt[3] = np.full(shape, broken, np.float32)
        assert table(wanted, spoilt).error.parts[3] == 1
        assert Yardstick.of_values(wanted).reference(wanted[3]).part(spoilt[3]) == 1


@pytest.mark.parametrize("limit", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_on_both_sides_is_no_error(limit):
    """A mask of the float model may be minus infinity; other values count as without it."""
    wanted = outputs((1, 20, 4))
    for values in wanted:
        values[0, :5, 0] = limit
    assert not parts(wanted, wanted).any()
    found = noisy(wanted)
    assert np.all((parts(wanted, found) > 0) & (parts(wanted, found) < 0.1))
    stick = Yardstick.of_values(wanted)
    assert stick.reference(wanted[0]).part(wanted[0]) == 0
    assert 0 < stick.reference(wanted[0]).part(found[0]) < 0.1


def test_noise_as_large_as_the_variation_is_half_of_the_error():
    """And its value is 1: 0 dB."""
    wanted = [sign * np.float32([[1, -2, 3]]) for sign in (1, -1)]
    error = table(wanted, [2 * values for values in wanted]).error
    assert error.share == pytest.approx(0.5)
    assert error.value == pytest.approx(1)


def test_more_noise_is_more_error():
    wanted = outputs((1, 20, 4))
    shares = [table(wanted, noisy(wanted, spread)).error.share for spread in (0, 1e-3, 0.01, 0.1, 1, 10)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] > 0.9


# What it depends on.


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1e10], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scaling_both_sides_changes_nothing(shape, scale):
    wanted = outputs(shape)
    found, factor = noisy(wanted), np.float32(scale)
    scaled = parts([factor * values for values in wanted], [factor * values for values in found])
    assert scaled == pytest.approx(parts(wanted, found), rel=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adding_a_constant_to_both_sides_changes_next_to_nothing(shape):
    """Energy would call the same noise a millionth of the error."""
    wanted = outputs(shape)
    found = noisy(wanted)
    shifted = parts([values + np.float32(100) for values in wanted], [values + np.float32(100) for values in found])
    assert shifted == pytest.approx(parts(wanted, found), rel=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_permuting_samples_permutes_parts(shape):
    wanted, order = outputs(shape), np.random.default_rng(0).permutation(12)
    found = noisy(wanted)
    permuted = parts([wanted[k] for k in order], [found[k] for k in order])
    np.testing.assert_allclose(permuted, parts(wanted, found)[order], rtol=1e-9)


def test_permuting_channels_changes_nothing():
    wanted, order = outputs((1, 20, 4)), [2, 0, 3, 1]
    found = noisy(wanted)
    permuted = parts([values[..., order] for values in wanted], [values[..., order] for values in found])
    np.testing.assert_allclose(permuted, parts(wanted, found), rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_streams_references_and_halves_agree(shape):
    """Sums are exact however samples are split, and the bench measures what a comparison does."""
    wanted = outputs(shape)
    found = noisy(wanted)
    whole, halves = table(wanted, found), [table(wanted[part], found[part]) for part in (slice(5), slice(5, 12))]
    first, second = halves
    joined = ErrorTable(first.moments + second.moments, first.errors + second.errors, first.axis)
    assert joined.error == whole.error
    stick = Yardstick.of_values(wanted)
    single = [stick.reference(one).part(other) for one, other in zip(wanted, found, strict=True)]
    assert single == pytest.approx(whole.error.parts, rel=1e-4)


@pytest.mark.parametrize(("loudness", "remains"), [(100, 0.8), (1000, 0.35)])
def test_one_loud_sample_moves_the_error_by_no_more_than_its_share(loudness, remains):
    """Quantized or float, however loud it is. Beside its own part, it changes what is usual: by how much is limited."""
    count = 40
    wanted = outputs((1, 20, 4), count)
    found = noisy(wanted)
    before = table(wanted, found).error
    spoilt = [*found[:7], loudness * found[7], *found[8:]]
    after = table(wanted, spoilt).error
    assert after.parts[7] > 0.99
    assert after.parts[:7] + after.parts[8:] == before.parts[:7] + before.parts[8:]
    assert after.share <= before.share + 1 / count
    loud = [*wanted[:7], loudness * wanted[7], *wanted[8:]]
    for own in (found, spoilt):
        moved = table(loud, own).error
        ratios = np.delete(moved.parts, 7) / np.delete(before.parts, 7)
        assert remains < ratios.min() <= ratios.max() < 1.2
        assert abs(moved.share - before.share) < 1 / count + (1 - remains) * before.share


def test_a_quiet_sample_is_not_asked_for_more_than_others():
    """Noise that nobody notices elsewhere is not all of the error where the float model says next to nothing."""
    wanted = [*outputs((1, 20, 4), 11), np.full((1, 20, 4), 1e-6, np.float32)]
    error = table(wanted, noisy(wanted, 0.01)).error
    assert error.parts[-1] < 0.01
    assert error.parts[-1] > max(error.parts[:-1])


# Channels.


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 10), 1),  # a vector: each element
        ((10,), 0),
        ((1, 1, 200), 2),
        ((1, 5000), None),  # a signal
        ((1, 1), None),
        ((), None),
        ((30, 4), 1),
        ((30, 1), None),
        ((30, 1000), None),
        ((1, 20, 4), 2),
        ((1, 84, 8400), 1),
        ((1, 8400, 84), 2),
        ((1, 16, 100), 2),  # not so much longer
        ((1, 8, 8, 3), 3),
        ((1, 8, 8, 1), None),
        ((1, 50, 1), None),
    ],
    ids=str,
)
def test_which_axis_holds_channels(shape, axis):
    assert channel_axis(shape) == axis


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)], ids=["last", "first"])
def test_a_dead_channel_of_another_kind_is_seen(order):
    """Boxes in pixels beside scores of a thousandth of their size: 84 channels of 8,400 places, or the other way."""
    sizes = np.float32([1000, 1000, 1])
    wanted = [(one * sizes).transpose(order) for one in outputs((1, 400, 3))]
    found = []
    for values in wanted:
        dead = values.transpose(order).copy()
        dead[..., 2] = 0
        found.append(dead.transpose(order))
    assert channel_axis(wanted[0].shape) == (2 if order == (0, 1, 2) else 1)
    assert table(wanted, found).error.share > 0.1
    energy = sum(((a - b) ** 2).sum() for a, b in zip(wanted, found, strict=True)) / sum((a**2).sum() for a in wanted)
    assert energy < 1e-5


def test_a_dead_element_of_a_vector_is_seen():
    wanted = [one * np.float32([1e3, 1, 1e-2]) for one in outputs((1, 3))]
    for alive, least in (([1, 1, 0], 0.1), ([1, 0, 0], 0.2), ([0, 1, 1], 0.1)):
        assert table(wanted, [one * np.float32(alive) for one in wanted]).error.share > least


def test_channels_of_one_kind_are_judged_together():
    """The same noise in one of them is as bad as in another, although one is ten times fainter (in variance)."""
    wanted = [one * np.sqrt(np.float32([1, 0.1])) for one in outputs((1, 200, 2))]
    noise = np.random.default_rng(0).normal(0, 0.1, (12, 1, 200)).astype(np.float32)
    shares = []
    for channel in range(2):
        found = [one.copy() for one in wanted]
        for values, own in zip(found, noise, strict=True):
            values[..., channel] += own
        shares.append(table(wanted, found).error.share)
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)


def test_an_axis_that_varies_between_samples_holds_no_channels():
    wanted = [normal(1, 10, 3 + k % 2, seed=k) for k in range(8)]
    found = noisy(wanted)
    made = table(wanted, found)
    assert made.axis is None
    assert np.all((np.array(made.error.parts) > 0) & (np.array(made.error.parts) < 0.1))
    stick = Yardstick.of_values(wanted)
    single = [stick.reference(one).part(other) for one, other in zip(wanted, found, strict=True)]
    assert np.mean(single) == pytest.approx(made.error.share, rel=0.1)
    unseen = Yardstick.of_values(outputs((1, 10, 3))).reference(normal(1, 10, 4))  # a shape that comes later
    assert unseen.part(unseen.values) == 0
    assert 0 < unseen.part(unseen.values + np.float32(0.1)) < 0.1


def test_the_number_of_places_may_vary():
    wanted = [normal(1, 10 + k, 3, seed=k) for k in range(8)]
    found = noisy(wanted)
    stick = Yardstick.of_values(wanted)
    single = [stick.reference(one).part(other) for one, other in zip(wanted, found, strict=True)]
    assert single == pytest.approx(table(wanted, found).error.parts, rel=1e-4)
    assert max(single) < 0.05


# Outputs that say little.


@pytest.mark.parametrize("value", [0.0, 5.0, 1e-30])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_constant_output_may_be_off_by_a_little_and_not_by_its_own_value(shape, value):
    wanted = [np.full(shape, value, np.float32)] * 6
    assert not parts(wanted, wanted).any()
    assert parts(wanted, [values * np.float32(1.001) for values in wanted]).max(initial=0) < 0.02
    if value:
        assert parts(wanted, [2 * values for values in wanted]).min(initial=1) > 0.9
    assert parts(wanted, [values + np.float32(1) for values in wanted]).max() <= 1


def test_a_constant_channel_beside_others_counts_by_its_value():
    wanted = [np.concatenate([one, np.full((1, 20, 1), 7, np.float32)], -1) for one in outputs((1, 20, 2))]
    assert table(wanted, [one + np.float32([0, 0, 0.001]) for one in wanted]).error.share < 0.01
    assert table(wanted, [one * np.float32([1, 1, 0]) for one in wanted]).error.share > 0.1


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 0, 4), (0,)], ids=str)
def test_empty_outputs_have_no_error(shape):
    wanted = [np.zeros(shape, np.float32)] * 3
    assert not parts(wanted, wanted).any()
    stick = Yardstick.of_values(wanted)
    assert [stick.reference(one).part(one) for one in wanted] == [0, 0, 0]


def test_no_samples_have_no_error():
    assert ErrorTable().error == SampledError()
    assert SampledError().share == SampledError().value == 0


def test_what_varies_less_than_matters_counts_as_if_it_varied_that_much():
    """Logits that hardly differ say nothing, so no noise much smaller than 1 can be wrong."""
    wanted = [1e-3 * one for one in outputs((1, 6))]
    found = noisy(wanted, 0.01)
    assert table(wanted, found).error.share > 0.5
    assert table(wanted, found, least=1.0).error.share < 0.01


def test_uninitialized_outputs_are_no_reason_to_fail():
    """LiteRT's delegate leaves the output of some pools as it found it: any bits, signalling NaNs among them."""
    values = np.full((1, 5, 5, 3), 0x7F800001, np.uint32).view(np.float32)
    assert table([values], [values]).error.parts in ((0.0,), (1.0,))
    assert Yardstick.of_values([values]).reference(values).part(np.zeros_like(values)) == 1
    assert np.isnan(dot(values.ravel(), values.ravel()))


# Errors of several outputs and samples.


def test_outputs_count_by_their_weights():
    wanted = outputs((1, 6)), outputs((1, 20, 4), seed=50)
    found = [noisy(wanted[0], 0.1), noisy(wanted[1], 1.0)]
    exact = [Yardstick.of_values(values).reference(values[0]) for values in wanted]
    own = [values[0] for values in found]
    single = [one.part(values) for one, values in zip(exact, own, strict=True)]
    assert error_of_sample(exact, own, (1.0, 1.0)) == pytest.approx(sum(single) / 2)
    assert error_of_sample(exact, own, (3.0, 1.0)) == pytest.approx((3 * single[0] + single[1]) / 4)
    assert error_of_sample(exact, own, (0.0, 2.0)) == pytest.approx(single[1])


def test_the_value_is_noise_to_variation_and_parts_add_up_to_the_share():
    error = SampledError((0.1, 0.3))
    assert error.share == pytest.approx(0.2)
    assert error.value == pytest.approx(0.25)
    assert SampledError((1.0, 1.0)).value == math.inf
    assert error + SampledError((0.5,)) == SampledError((0.1, 0.3, 0.5))


def errors(noise) -> SampledError:
    """Of samples with this much noise relative to what they vary by."""
    return SampledError(tuple(one / (1 + one) if math.isfinite(one) else 1.0 for one in noise))


def test_a_small_gain_on_all_samples_counts_and_a_large_one_on_a_single_loud_sample_does_not():
    before = [1.0] * 10 + [100.0]
    everywhere = [error * 0.99 for error in before[:10]] + [99.0]
    loud = [*before[:10], 0.5]
    assert errors(everywhere[:10]).beats(errors(before[:10]))
    assert errors(loud).value < errors(everywhere).value
    assert not errors(loud).beats(errors(before))


def test_chance_rarely_beats_anything():
    """Differences without a mean exceed their standard error in one case of six."""
    rng = np.random.default_rng(0)
    pairs = [(errors(rng.uniform(1, 2, 24)), errors(rng.uniform(1, 2, 24))) for _ in range(300)]
    assert 0.08 < np.mean([one.beats(other) for one, other in pairs]) < 0.25


def test_what_is_not_finite_never_wins_and_always_loses():
    broken, fine = errors([math.nan, 1.0, 1.0]), errors([1.0, 1.0, 1.0])
    assert broken.share > fine.share
    assert errors([math.nan] * 3).value == math.inf
    assert fine.beats(errors([math.nan] * 3))
    assert not broken.beats(fine)
    assert not broken.beats(broken)
    assert not fine.beats(fine)
    assert errors([1.0]).beats(errors([2.0]))  # of one sample no spread is known
