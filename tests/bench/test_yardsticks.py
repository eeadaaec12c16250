"""Outputs beside scores are compared only where the float model finds something."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import Bench
from zeropoint.bench.errors import Compared, compared_outputs
from zeropoint.bench.measure import error_of_sample, flipped
from zeropoint.bench.verdict import verdict
from zeropoint.bench.yardsticks import Yardsticks
from zeropoint.graph import Model
from zeropoint.ops import OPS

from ..nets import Net, normal, samples_for

BOXES, SCORES = Compared(0, scored_by=1), Compared(1, "each")


def boxes_and_scores(count: int, positions: int = 50) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One thing in each sample, at some position."""
    rng = np.random.default_rng(0)
    scores = np.full((count, 1, positions, 1), 0.1)
    scores[np.arange(count), 0, rng.integers(0, positions, count)] = 0.9
    return list(rng.normal(size=(count, 1, positions, 4)) + 10), list(scores)


def test_errors_where_nothing_is_do_not_count_and_others_count_in_full():
    boxes, scores = boxes_and_scores(12)
    sticks = Yardsticks.of((BOXES, SCORES), (boxes, scores))
    for own, score in zip(boxes, scores, strict=True):
        (box, _) = references = sticks.references((own, score))
        is_there = score.reshape(-1) > 0.5
        elsewhere, there = own.copy(), own.copy()
        elsewhere[0, ~is_there] += 100
        there[0, is_there] += 100
        assert box.part(elsewhere) == 0
        assert box.part(there) > 0.9
        assert error_of_sample(references, (there, score), (1, 1)) == pytest.approx(box.part(there) / 2)


def test_a_sample_with_nothing_says_nothing_of_boxes():
    boxes, scores = boxes_and_scores(12)
    sticks = Yardsticks.of((BOXES, SCORES), (boxes, scores))
    box, score = sticks.references((boxes[0], 0 * scores[0]))
    assert not box.says_something
    assert score.says_something
    assert box.part(boxes[0] + 100) == 0


def test_if_nothing_is_anywhere_all_positions_count():
    boxes, scores = boxes_and_scores(12)
    sticks = Yardsticks.of((BOXES, SCORES), (boxes, [0 * one for one in scores]))
    box, _ = sticks.references((boxes[0], 0 * scores[0]))
    assert box.says_something
    assert box.part(boxes[0] + 100) > 0.9


def detector(squashed: bool) -> Model:
    net = Net()
    x = net.input(1, 40, 8)
    boxes, scores = (net("BATCH_MATMUL", [x, normal(1, 8, width, seed=width)], (1, 40, width)) for width in (4, 1))
    return net.model(boxes, net("LOGISTIC", [scores]) if squashed else scores)


@pytest.mark.parametrize("squashed", [True, False])
def test_boxes_know_their_scores(squashed):
    assert [one.scored_by for one in compared_outputs(detector(squashed).main, OPS)] == [1, None]


@pytest.mark.parametrize("squashed", [True, False])
def test_the_verdict_and_compare_look_where_something_is(squashed):
    """Both say the same of both outputs, on the same samples."""
    model = detector(squashed)
    samples = samples_for(model, 12)
    made = zeropoint.quantize(model, data=samples, effort="quick").model
    found = verdict(Bench(model, samples), made, on_all=True)
    assert "where something is above the threshold" in found.outputs[0].text
    assert "where" not in found.outputs[1].text
    rows = zeropoint.compare(model, made, samples).outputs
    boxes = found.outputs[0].error
    assert 10 ** (-rows[0].deviation.snr / 10) == pytest.approx(boxes / (1 - boxes), rel=1e-3)
    assert rows[0].text == found.outputs[0].text.partition(", where")[0]


def test_where_no_sample_held_back_shows_anything_boxes_are_unknown():
    model = detector(squashed=True)
    against = np.broadcast_to(-normal(1, 8, 1, seed=1).reshape(8), (1, 40, 8)).astype(np.float32)
    samples = samples_for(model, 80)
    held_back = [k for k in range(80) if (k + 1) % (4 if k < 64 else 8) == 0]
    for k in held_back:
        samples[k] = (against * np.float32(1 + k / 100),)
    made = zeropoint.quantize(model, data=samples, effort="quick").model
    found = verdict(Bench(model, samples, holds_back=True), made)
    assert (found.held_back, found.samples) == (True, len(held_back))
    assert found.outputs[0].level == found.level == "unknown"
    assert "points 'out0': nothing is above the threshold" in str(found)


def test_answers_that_flip_count_where_they_are_asked_for():
    """Probabilities that all fall a little below one half are close, and find nothing."""
    _, scores = boxes_and_scores(12)
    found = [np.where(one > 0.5, 0.49, one) for one in scores]
    smooth, counting = (Yardsticks.of((SCORES,), (scores,), decides) for decides in ((), (True,)))
    for wanted, own in zip(scores, found, strict=True):
        (close,), (flips,) = smooth.references((wanted,)), counting.references((wanted,))
        assert close.part(own) < 0.5
        assert flips.part(own) == 1
        assert close.part(wanted) == flips.part(wanted) == 0


@pytest.mark.parametrize(
    ("wanted", "found", "share"),
    [([0.9, 0.9, 0.1], [0.9, 0.2, 0.1], 0.5), ([0.1, 0.1], [0.2, 0.3], 0), ([0.9], [0.1], 1)],
)
def test_flips_are_counted_among_those_that_are_yes_in_one_of_both(wanted, found, share):
    assert flipped(np.array(wanted), np.array(found)) == flipped(np.array(found), np.array(wanted)) == share
