"""Scores are what people take them for, their standard errors those of paired samples, and bad ones are refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from zeropoint.bench.measure import ErrorTable
from zeropoint.errors import InvalidRecipe, InvalidSample
from zeropoint.tuning import metric as metric_module
from zeropoint.tuning.evaluation import EvaluationSet, Judge, evaluation_set
from zeropoint.tuning.metric import (
    AGREEMENT,
    FUNCTION_DRAWS,
    SLOW_DRAWS,
    SNR,
    TOP1,
    TOP5,
    Answers,
    chosen_metric,
    own_metric,
)

RNG = np.random.default_rng(3)
LABELS = RNG.integers(10, size=200)
EXACT = [[row[None].astype(np.float32)] for row in np.eye(10)[LABELS] + RNG.normal(0, 0.3, (200, 10))]
FOUND = [[o[0] + RNG.normal(0, 0.2, (1, 10)).astype(np.float32)] for o in EXACT]


def max_of_three(a, b, c) -> float:
    return max(a, b, c)


def answers(outputs=FOUND, truth=LABELS, runs: int = 1) -> Answers:
    return Answers(outputs, EXACT, truth, b"", runs)


def test_shares_count_classes():
    best = np.array([o[0].argmax() for o in FOUND])
    assert TOP1.scorer(answers())(None) == pytest.approx(np.mean(best == LABELS))
    assert AGREEMENT.scorer(answers())(None) == pytest.approx(np.mean(best == [o[0].argmax() for o in EXACT]))
    assert TOP1.scorer(answers())(None) < TOP5.scorer(answers())(None) <= 1


def test_snr_is_by_the_measure_that_steers_searches():
    """Each output counts the same, however large its values; so does each sample."""
    tables = [ErrorTable(), ErrorTable()]
    pairs = [([a[0], 1e3 * b[0]], [b[0], 1e3 * a[0]]) for a, b in zip(EXACT, FOUND, strict=True)]
    for exact, found in pairs:
        for table, one, other in zip(tables, exact, found, strict=True):
            table.add(one, other)
    alone = [table.error.share for table in tables]
    both = Answers([found for _, found in pairs], [exact for exact, _ in pairs], LABELS, b"", 1)
    share = sum(alone) / 2
    assert SNR.scorer(answers())(None) == pytest.approx(-10 * math.log10(alone[0] / (1 - alone[0])))
    assert SNR.scorer(both)(None) == pytest.approx(-10 * math.log10(share / (1 - share)))


def test_a_loud_sample_moves_the_snr_no_more_than_any_other():
    spoilt = [[100 * o[0]] if k == 5 else o for k, o in enumerate(FOUND)]
    before, after = (10 ** (-SNR.scorer(answers(outputs))(None) / 10) for outputs in (FOUND, spoilt))
    assert before < after
    assert after / (1 + after) <= before / (1 + before) + 1 / len(FOUND)


def test_several_runs_of_a_sample_count_as_one():
    picks = np.array([3, 3, 60])
    pairs = answers(truth=LABELS[:100], runs=2)
    known = [SNR.scorer(answers())(np.array([2 * k, 2 * k + 1])) for k in picks]
    shares = [1 / (1 + 10 ** (snr / 10)) for snr in known]
    assert SNR.scorer(pairs)(picks) == pytest.approx(10 * math.log10(1 / np.mean(shares) - 1))


def test_the_standard_error_is_that_of_paired_samples():
    """For a mean it is known: the deviation of the single differences over the root of their number."""
    before, after = TOP1.scorer(answers(EXACT)), TOP1.scorer(answers())
    flips = [
        float(a[0].argmax() == y) - float(b[0].argmax() == y) for a, b, y in zip(EXACT, FOUND, LABELS, strict=True)
    ]
    known = np.std(flips, ddof=1) / math.sqrt(len(flips))
    assert TOP1.standard_error(before, after, 200) == pytest.approx(known, rel=0.15)
    assert TOP1.standard_error(after, after, 200) == 0


def test_a_slow_metric_is_asked_less_often(monkeypatch):
    asked = []
    metric = own_metric("f", lambda outputs: float(asked.append(1) or np.mean([o[0][0, 0] for o in outputs])))
    before, after = metric.scorer(answers(EXACT)), metric.scorer(answers())
    often = metric.standard_error(before, after, 200)
    assert len(asked) == 2 * FUNCTION_DRAWS
    monkeypatch.setattr(metric_module, "SLOW", -1.0)
    asked.clear()
    assert metric.standard_error(before, after, 200) == pytest.approx(often, rel=0.6)
    assert len(asked) == 2 * SLOW_DRAWS


@pytest.mark.parametrize("truth", [None, LABELS + 1, LABELS[:100], LABELS.astype(float)], ids=str)
def test_labels_have_to_fit(truth):
    runs = 1 if truth is None else 200 // len(truth)
    with pytest.raises(InvalidSample, match="label"):
        TOP1.require(answers(truth=truth, runs=runs))


def test_a_function_is_given_what_it_asks_for():
    share = own_metric(
        "f", lambda outputs, truth: np.mean([o[0].argmax() == y for o, y in zip(outputs, truth, strict=True)])
    )
    assert share.scorer(answers())(None) == TOP1.scorer(answers())(None)
    picks = np.array([5, 5, 7])
    assert share.scorer(answers())(picks) == pytest.approx(TOP1.scorer(answers())(picks))
    assert own_metric("f", lambda outputs: len(outputs)).scorer(answers())(None) == 200
    sizes = own_metric("f", lambda model: Path(model).stat().st_size)
    assert not sizes.splits
    assert sizes.scorer(Answers(FOUND, EXACT, None, b"1234"))(None) == 4


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda _: 1 / 0, r"ZeroDivisionError: .* \(line [0-9]+ of test_metric.py\)"),
        (lambda _: math.nan, "finite"),
        (lambda _: "good", "ValueError"),
    ],
)
def test_a_metric_that_fails_is_the_users(function, complaint):
    with pytest.raises(InvalidRecipe, match=complaint):
        own_metric("mine", function).scorer(answers())(None)


def test_a_metric_that_differs_between_two_runs_is_refused():
    metric = own_metric("mine", lambda _: float(RNG.normal()))
    with pytest.raises(InvalidSample, match="same score each time"):
        Judge(metric, EvaluationSet(tuple((o[0],) for o in EXACT)), EXACT, b"").require()


def test_the_metric_follows_from_the_data():
    assert chosen_metric(None, True, True) is TOP1
    assert chosen_metric(None, False, True) is AGREEMENT
    assert chosen_metric(None, False, False) is SNR
    assert chosen_metric("top-5", True, False) is TOP5
    for asked, complaint in (("topp", "unknown"), ("none.py:f", "there is no"), (max_of_three, "3 arguments")):
        with pytest.raises(InvalidRecipe, match=complaint):
            chosen_metric(asked, True, True)
    with pytest.raises(InvalidRecipe, match="your own"):
        chosen_metric("top1", True, True, lower_is_better=True)


def test_the_parts_have_no_sample_in_common():
    whole = evaluation_set([(np.array([k]),) for k in range(41)], np.arange(41))
    steering, final = whole.split(in_sequence=False)
    seen = [int(row[0][0]) for part in (steering, final) for row in part.rows]
    assert sorted(seen) == list(range(41))
    assert all(row[0][0] == y for part in (steering, final) for row, y in zip(part.rows, part.truth, strict=True))
    assert [row[0][0] for row in whole.split(in_sequence=True)[0].rows] == list(range(21))


def test_several_runs_may_belong_to_one_truth():
    pairs = evaluation_set([(np.array([k]),) for k in range(40)], np.arange(20))
    steering, _ = pairs.split(in_sequence=False)
    assert steering.runs == 2
    assert all(steering.rows[2 * k][0][0] == 2 * y for k, y in enumerate(steering.truth))
    with pytest.raises(InvalidSample, match="30 labels for 40"):
        evaluation_set(pairs.rows, np.arange(30))
    with pytest.raises(InvalidSample, match="too few"):
        evaluation_set(pairs.rows[:4], None).split(in_sequence=False)
