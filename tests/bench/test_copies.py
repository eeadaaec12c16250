"""Copies of samples are found, and others are not."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import FEWEST_IN_ALL, Bench
from zeropoint.bench.copies import LOOKED_AT, KnownSamples

from ..nets import Net, normal, samples_for

FORMS = {
    "array": lambda a, _: a,
    "tuple": lambda a, b: (a, b),
    "mapping": lambda a, b: {"b": b, "a": a},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("size", [1, 7, LOOKED_AT, 10 * LOOKED_AT + 3])
def test_a_copy_is_known_and_what_differs_in_one_element_is_not(form, size):
    rng = np.random.default_rng(size)
    a, b = rng.normal(size=(2, 1, size)).astype(np.float32)
    known = KnownSamples([form(a, b)])
    assert form(a.copy(), b.copy()) in known
    for place in {0, size // 2, size - 1}:
        other = a.copy()
        other[0, place] += 1
        assert form(other, b) not in known


def test_shape_and_order_tell_samples_apart():
    a, b = np.zeros((1, 6), np.float32), np.ones((1, 6), np.float32)
    known = KnownSamples([(a, b)])
    assert (b, a) not in known
    assert (a.reshape(2, 3), b) not in known
    assert {"x": b, "y": a} not in known
    assert {"y": b, "x": a} in known


def test_what_cannot_be_an_array_is_only_equal_to_itself():
    ragged = [1, [2, 3]]
    known = KnownSamples([(ragged,)])
    assert (ragged,) in known
    assert ([1, [2, 3]],) not in known


@pytest.mark.parametrize("times", [1, 2, 3])
def test_samples_given_several_times_leave_as_many_held_back(times):
    """Calibration takes none of those that are held back, nor their copies."""
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    samples = samples_for(model, 80)
    bench = Bench(model, [(row[0].copy(),) for _ in range(times) for row in samples], holds_back=True)
    held_back = {row[0].tobytes() for row in bench.unseen_rows}
    assert bench.stats.samples + len(bench.unseen_rows) + bench.copies_apart == 80 * times
    assert not any(row[0].tobytes() in held_back for row in bench.rows)
    assert len(held_back) >= 18
    found = zeropoint.quantize(model, data=[row for _ in range(times) for row in samples]).verdict
    assert (found.level, found.held_back) == ("good", True)
    assert found.samples == len(held_back)


def test_few_samples_are_all_used_copies_too():
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    samples = samples_for(model, FEWEST_IN_ALL // 2 - 1) * 2
    bench = Bench(model, samples, holds_back=True)
    assert bench.stats.samples == len(samples)
    assert not bench.unseen_rows
