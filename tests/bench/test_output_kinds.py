"""Kinds of outputs are recognized, and what is said of them is true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import Bench
from zeropoint.bench.errors import compared_outputs
from zeropoint.bench.judged_outputs import KINDS, JudgedOutputs
from zeropoint.bench.kind_recognition import RECOGNIZED, OutputSeen, kind_of
from zeropoint.bench.output_kinds import ROWS, blank_of, least_likely, least_text, text_of
from zeropoint.comparison.sums import KIND_SAMPLES, RunningFigures
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.ops import OPS

from ..nets import Net, normal, samples_for


def kinds_of(model: Model, samples=None) -> list[str]:
    """What each output looks like."""
    bench = Bench(model, samples_for(model, 12) if samples is None else samples)
    columns = zip(*bench.float_outputs, strict=True)
    pairs = zip(compared_outputs(model.main, OPS), columns, strict=True)
    return [kind_of(OutputSeen(one, model.main, OPS, values)) for one, values in pairs]


# How a kind is recognized.


def softmax_vector():
    net = Net()
    return net, net("SOFTMAX", [net.dense(net.input(1, 16), normal(5, 16))], beta=1.0)


def logits():
    net = Net()
    return net, net.dense(net.input(1, 64), normal(10, 64))


def sigmoid_map():
    net = Net()
    return net, net("LOGISTIC", [net.conv(net.input(1, 16, 16, 3), normal(1, 3, 3, 3))])


def softmax_map():
    net = Net()
    return net, net("SOFTMAX", [net.conv(net.input(1, 16, 16, 3), normal(4, 3, 3, 3))], beta=1.0)


def unit_vector():
    net = Net()
    return net, net("L2_NORMALIZATION", [net.dense(net.input(1, 16), normal(32, 16))])


def wide_vector():
    net = Net()
    return net, net("RELU", [net.dense(net.input(1, 200), normal(128, 200), normal(128, seed=1))])


def autoencoder():
    net = Net()
    return net, net.dense(net("TANH", [net.dense(net.input(1, 24), normal(4, 24))]), normal(24, 4))


def picture():
    net = Net()
    return net, net.conv(net.input(1, 16, 16, 3), normal(3, 3, 3, 3))


def sound():
    net = Net()
    return net, net.dense(net.input(1, 16), normal(5000, 16))


def token_logits():
    net = Net()
    ids = net.input(1, 6, dtype=DType.INT32)
    vectors = net("GATHER", [normal(8, 16), ids], (1, 6, 16))
    return net, net("BATCH_MATMUL", [vectors, normal(1, 16, 40)], (1, 6, 40))


def regression():
    net = Net()
    return net, net("TANH", [net.dense(net.input(1, 8), normal(3, 8))])


def landmarks():
    net = Net()
    return net, net("TANH", [net.dense(net.input(1, 8), normal(10, 8, spread=0.1), normal(10, seed=1))])


OUTPUTS = {
    softmax_vector: "classes",
    logits: "classes",
    sigmoid_map: "mask",
    softmax_map: "mask",
    unit_vector: "embedding",
    wide_vector: "embedding",
    autoencoder: "signal",
    picture: "signal",
    sound: "signal",
    token_logits: "tokens",
    regression: "values",
    landmarks: "points",
}


@pytest.mark.parametrize("build", OUTPUTS, ids=lambda build: build.__name__)
def test_outputs_are_recognized(build):
    net, output = build()
    assert kinds_of(net.model(output)) == [OUTPUTS[build]]


@pytest.mark.parametrize("squashed", [True, False])
def test_boxes_and_their_scores_are_recognized(squashed):
    """One score for each place of a wider output, whether the sigmoid is in the file or in the program behind it."""
    net = Net()
    x = net.input(1, 10, 8)
    boxes, scores = (net("BATCH_MATMUL", [x, normal(1, 8, width, seed=width)], (1, 10, width)) for width in (4, 1))
    scores = net("LOGISTIC", [scores]) if squashed else scores
    model = net.model(boxes, scores)
    assert kinds_of(model) == ["points", "scores"]
    decided = {one.place: one.decides for one in compared_outputs(model.main, OPS)}
    assert decided == {0: None, 1: "each" if squashed else "logits"}


def test_what_users_say_counts():
    net, output = regression()
    model = net.model(output)
    said = JudgedOutputs(kinds={output.name: "embedding"})
    found = zeropoint.quantize(model, data=samples_for(model, 12), effort="quick", outputs=said).verdict
    assert [one.kind for one in found.outputs] == ["embedding"]
    net, boxes = Net(), None
    boxes = net("BATCH_MATMUL", [net.input(1, 10, 8), normal(1, 8, 3)], (1, 10, 3))
    model = net.model(boxes)
    for kind, decides in (("scores", "logits"), ("points", None)):
        (one,) = compared_outputs(model.main, OPS, JudgedOutputs(kinds={boxes.name: kind}))
        assert one.decides == decides


def test_a_stream_of_samples_is_recognized_as_all_of_them_are():
    net, output = landmarks()
    model = net.model(output)
    (one,) = compared_outputs(model.main, OPS)
    values = [values[0] for values in Bench(model, samples_for(model, 3 * KIND_SAMPLES)).float_outputs]
    for count in (1, 3, KIND_SAMPLES, 3 * KIND_SAMPLES):
        running = RunningFigures(OutputSeen(one, model.main, OPS, ()))
        for own in values[:count]:
            running.add(own, own + np.float32(0.5))
        kind, figures = running.figures()
        assert kind == kind_of(OutputSeen(one, model.main, OPS, values[: min(count, KIND_SAMPLES)]))
        assert figures.text == said(kind, values[:count], [own + np.float32(0.5) for own in values[:count]]).text
    assert RunningFigures(OutputSeen(one, model.main, OPS, ())).figures() is None


def test_every_kind_has_a_row_and_bears_more_where_it_is_usable_than_where_it_is_good():
    assert set(ROWS) == set(KINDS)
    for kind, row in ROWS.items():
        assert row.kind == kind
        by_error, by_answers = 0 < row.limits[0] < row.limits[1] < 0.5, row.shares[0] > row.shares[1] > 0
        assert by_error or (by_answers and row.limits == (1, 1))
    assert {kind for kind, _ in RECOGNIZED} == set(KINDS)


# What is said.


def said(kind, wanted, found):
    row = ROWS[kind]
    return row.say([row.look(np.float32(one), np.float32(other)) for one, other in zip(wanted, found, strict=True)])


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*(?:e-?\d+)?", text)]


def one_hot(answers, size=4, height=0.9):
    rest = (1 - height) / (size - 1)
    return [np.full((1, size), rest) + (height - rest) * np.eye(size)[[answer]] for answer in answers]


def test_classes_are_counted():
    answers = [k % 4 for k in range(20)]
    others = [*answers[:17], *((k + 1) % 4 for k in answers[17:])]
    figures = said("classes", one_hot(answers), one_hot(others))
    assert figures.text == "the same in 17 of 20"
    assert figures.share == 17 / 20
    assert figures.least == least_likely(17, 20)


def test_only_classes_that_the_float_model_is_sure_of_count():
    sure, unsure = one_hot([0] * 10), one_hot([1] * 5, height=0.3)
    figures = said("classes", [*sure, *unsure], [*sure, *one_hot([2] * 5)])
    assert figures.text == "the same in 10 of 10 of which the float model is sure (10 of all 15)"
    assert figures.share == 1
    figures = said("classes", unsure, one_hot([1, 1, 2, 2, 2]))
    assert figures.text == "the same in 2 of 5; the float model is sure of none"
    assert figures.least == least_likely(2, 5)


@pytest.mark.parametrize("form", [lambda p: p, lambda p: np.log(p) + 7, np.log], ids=["each", "logits", "logarithms"])
def test_classes_may_be_logits_or_logarithms_of_probabilities(form):
    figures = said("classes", list(map(form, one_hot([0, 1, 2, 3, 0]))), list(map(form, one_hot([0, 1, 2, 3, 1]))))
    assert figures.text == "the same in 4 of 5"


def test_tokens_are_counted_place_by_place():
    wanted = [np.concatenate(one_hot([0, 1, 2, 3], height=0.3))[None]]
    found = [np.concatenate(one_hot([0, 1, 3, 3], height=0.3))[None]]
    figures = said("tokens", wanted, found)
    assert figures.text == "the same in 3 of 4 places"
    assert figures.share == 0.75


def written(text: str, size: int = 12) -> np.ndarray:
    """The probabilities of a sequence of classes; those in no letter are the blank, the last of them."""
    classes = [size - 1 if letter == "-" else ord(letter) - ord("a") for letter in text]
    return np.concatenate(one_hot(classes, size))[None]


def test_text_is_read_as_ctc_does():
    """Of a run of equal letters the first counts; a blank parts equal letters."""
    values = written("--aa-a-bb---c--")
    assert blank_of(values) == 11
    assert text_of(values, 11) == [0, 0, 1, 2]
    assert blank_of(values[..., ::-1]) == 0
    same = written("-aaa-a--b---c--")  # the same text at other places
    figures = said("text", [values] * 20, [same] * 19 + [written("--aa-a-bb---d--")])
    assert figures.text == "the same in 19 of 20 samples"
    assert figures.share == 19 / 20
    assert figures.least == least_likely(19, 20)


@pytest.mark.parametrize("form", [lambda p: p, np.log, lambda p: 3 * np.log(p) + 5])
def test_a_sequence_that_mostly_says_nothing_is_text(form):
    """Short letters between blanks; not long runs, as of events in a sound, nor a sequence without blanks."""
    net = Net()
    output = net("BATCH_MATMUL", [net.input(1, 15, 8), normal(1, 8, 12)], (1, 15, 12))
    model = net.model(output)
    (one,) = compared_outputs(model.main, OPS)
    for texts, kind in (
        (["--aa-a-bb---c--", "a---b----------"], {"text"}),
        (["-aaaaaaaa------", "-----bbbbbbbb--"], {"tokens", "values", "signal", "detections"}),
        (["abcdefghijkabcd", "kjihgfedcbaabcd"], {"tokens", "values", "signal", "detections"}),
        (["---------------", "---------------"], {"tokens", "values", "signal", "detections"}),
    ):
        values = [np.float32(form(written(text))) for text in texts]
        assert kind_of(OutputSeen(one, model.main, OPS, values)) in kind


@pytest.mark.parametrize("least", [0.99999, 0.9995, 0.75, 0.5])
def test_what_is_likely_at_least_is_rounded_down(least):
    assert 0 <= least - float(least_text(least).rstrip("%")) / 100 < 0.001 + 1e-12


@pytest.mark.parametrize("form", [lambda p: p, lambda p: 20 * (p - 0.5)], ids=["probabilities", "logits"])
def test_scores_above_the_threshold_are_counted(form):
    """At one half, or at zero."""
    wanted = np.full((2, 1, 50, 1), 0.1)
    wanted[0, 0, :3] = wanted[1, 0, :1] = 0.9
    found = wanted.copy()
    found[0, 0, 0], found[1, 0, 10:12] = 0.4, 0.6
    figures = said("scores", form(wanted), form(found))
    assert figures.text == "3 of the 4 above the threshold in the float model, and 2 others (of 100)"
    assert figures.share == pytest.approx(2 * 3 / (4 + 5))
    assert figures.least == least_likely(3, 4)
    assert said("scores", form(wanted), form(wanted)).share == 1


def test_without_anything_above_the_threshold_false_alarms_are_counted():
    nothing = np.full((2, 1, 50, 1), 0.1)
    alarms = nothing.copy()
    alarms[0, 0, 5] = 0.8
    assert said("scores", nothing, nothing).share == 1
    figures = said("scores", nothing, alarms)
    assert figures.text == "1 of 100 above the threshold, none in the float model"
    assert figures.share == 0


def test_masks_are_compared_by_their_overlap():
    wanted = np.zeros((20, 1, 8, 8, 1))
    wanted[:, 0, :4] = 1  # 32 pixels
    found = wanted.copy()
    found[:10, 0, 4] = 1  # 8 more
    figures = said("mask", wanted, found)
    assert figures.share == pytest.approx((1 + 0.8) / 2)
    assert numbers(figures.text) == pytest.approx([90.0, 80.0], abs=0.1)
    assert said("mask", wanted, 0 * wanted).share == 0


def test_empty_masks_are_equal():
    """As in frames without a person."""
    empty = np.zeros((1, 1, 8, 8, 1))
    assert said("mask", empty, empty).share == 1


def test_masks_of_several_classes_are_compared_pixel_by_pixel():
    wanted, found = np.zeros((2, 1, 1, 8, 8, 3))
    wanted[..., 0], found[..., 0], found[0, 0, 0] = 1, 1, [0, 0, 1]
    assert said("mask", [wanted], [found]).share == pytest.approx(7 / 8)


@pytest.mark.parametrize("kind", ["points", "values"])
def test_differences_are_given_beside_the_usual_range(kind):
    wanted = [np.linspace(0, 100, 101)[None] + k for k in range(10)]
    figures = said(kind, wanted, [one + 0.5 for one in wanted])
    typical, worst, usual = numbers(figures.text)
    assert (typical, worst) == (0.5, 0.5)
    assert usual == pytest.approx(90, abs=10)
    assert figures.share is None
    outlying = [one + np.where(np.arange(101) < 10, 7, 0.25) for one in wanted]
    assert numbers(said(kind, wanted, outlying).text)[:2] == [0.25, 7]
    assert said(kind, wanted, [one * np.nan for one in wanted]).text == "some are not numbers"


@pytest.mark.parametrize("angle", [0.0, 0.5, 30.0, 90.0, 180.0])
def test_embeddings_are_compared_by_their_angle(angle):
    """Their length means nothing."""
    turned = np.array([[np.cos(np.radians(angle)), np.sin(np.radians(angle))]])
    figures = said("embedding", [np.array([[1.0, 0.0]])] * 5, [3 * turned] * 5)
    assert numbers(figures.text)[:2] == pytest.approx([angle, angle], abs=0.05)


def test_an_angle_to_nothing_is_as_wide_as_can_be_unless_both_are_nothing():
    zero, one = np.zeros((1, 4)), np.ones((1, 4))
    assert numbers(said("embedding", [one], [zero]).text)[0] >= 90
    assert numbers(said("embedding", [zero], [zero]).text)[0] == 0


def test_an_angle_to_what_is_no_number_is_as_wide_as_can_be():
    one = np.ones((1, 4))
    assert numbers(said("embedding", [one], [one * np.nan]).text)[0] == 180


@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_signals_are_compared_by_their_noise_without_their_mean(noise):
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal((10, 1, 4000)) + 50
    figures = said("signal", wanted, wanted + noise * rng.standard_normal(wanted.shape))
    assert numbers(figures.text)[0] == pytest.approx(-20 * np.log10(noise), abs=0.5)


def test_equal_outputs_of_every_kind_are_said_to_be_equal():
    wanted = [*np.random.default_rng(0).uniform(0.01, 0.99, (12, 1, 9, 9, 1))]
    for kind in KINDS:
        figures = said(kind, wanted, wanted)
        assert figures.share in (None, 1.0)


# How likely the same is for others.


@pytest.mark.parametrize("share", [0.5, 0.75, 1.0])
def test_the_least_likely_share_is_below_the_share_and_reaches_it_with_many_samples(share):
    bounds = [least_likely(int(share * count), count) for count in (4, 16, 64, 256, 4096, 10**6)]
    assert bounds == sorted(bounds)
    assert all(0 < bound < share for bound in bounds)
    assert bounds[-1] == pytest.approx(share, abs=2e-3)


def test_more_hits_make_more_likely():
    bounds = [least_likely(hits, 20) for hits in range(21)]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(0, abs=1e-12)
    assert least_likely(0, 0) == 0


@pytest.mark.parametrize("truth", [0.6, 0.8, 0.95])
def test_the_least_likely_share_is_hardly_ever_above_the_true_one(truth):
    """The lower end of a 95 % interval: in one case of forty, and a little more often near 1."""
    hits = np.random.default_rng(0).binomial(40, truth, 4000)
    assert np.mean([least_likely(int(one), 40) > truth for one in hits]) < 0.06


def test_the_page_about_the_verdict_has_the_limits_of_each_kind():
    page = (Path(__file__).parents[2] / "docs" / "error.md").read_text(encoding="utf-8")
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    limits = {cells[0]: cells[-2:] for cells in table if cells[0] in KINDS}
    assert limits == {
        kind: ["answers"] * 2 if row.limits == (1, 1) else [f"{limit:g}" for limit in row.limits]
        for kind, row in ROWS.items()
    }
