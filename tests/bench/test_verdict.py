"""The verdict: good models are called good, ruined ones broken, on samples that calibration did not use."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import FEWEST_IN_ALL, HELD_BACK_FIRST, HELD_BACK_LATER, MOST_HELD_BACK, Bench
from zeropoint.bench.judged_outputs import JudgedOutputs
from zeropoint.bench.output_kinds import least_likely, least_text
from zeropoint.bench.verdict import FEWEST, Verdict, verdict
from zeropoint.calibration import Settings
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.sources.models import load

from ..nets import Net, normal, samples_for


def held_back_of(count: int) -> int:
    """How many of so many samples calibration does not see."""
    first, later = min(count, FEWEST_IN_ALL) // HELD_BACK_FIRST, max(0, count - FEWEST_IN_ALL) // HELD_BACK_LATER
    return min(first + later, MOST_HELD_BACK) if count >= FEWEST_IN_ALL else 0


@pytest.fixture(scope="module")
def images():
    return [image[None] for image in digits_data()["calibration"][:80]]


def test_a_good_classifier(digits, images):
    found = zeropoint.quantize(digits, data=images).verdict
    assert found.level == "good"
    assert found.held_back
    assert found.samples == held_back_of(len(images)) == 18
    assert [one.kind for one in found.outputs] == ["classes"]
    assert "classes: the same in 18 of 18" in str(found)
    assert f"likely at least {least_text(least_likely(18, 18))} of others" in str(found)
    assert "on 18 samples that calibration did not use" in str(found)
    assert "doctor" not in str(found)


def test_samples_that_look_wrong_leave_no_good_verdict(digits, images):
    result = zeropoint.quantize(digits, data=[0 * image for image in images])
    assert any("all samples hold zeros" in warning for warning in result.warnings)
    assert result.verdict.samples_look_wrong
    assert result.verdict.level == "unknown"  # all are copies of one
    assert result.verdict.samples == 1
    levels = {level: Verdict(level).on_wrong_samples().level for level in ("good", "doubtful", "broken", "unknown")}
    assert levels == {"good": "doubtful", "doubtful": "doubtful", "broken": "broken", "unknown": "unknown"}
    assert "do first what the warning about them says" in str(result.verdict)


def test_one_sample_is_called_one_sample(digits, images):
    found = zeropoint.quantize(digits, data=images[:1]).verdict
    assert "on 1 sample of the calibration" in str(found)


@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_a_ruined_classifier(digits, images, effort):
    found = zeropoint.quantize(digits, data=[1000 * i for i in images[:40]] + images[40:], effort=effort)
    bench = Bench(load(digits), images[:24])
    spoilt = verdict(bench, found.model)
    assert spoilt.level == "broken"
    assert str(spoilt).startswith("BROKEN")
    assert "zeropoint.doctor(FLOAT, data=DATA)" in spoilt.advice


def test_outputs_that_are_no_classes_are_judged_by_their_noise():
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    samples = samples_for(model, 80)
    found = zeropoint.quantize(model, data=samples).verdict
    assert found.level == "good"
    assert [(one.kind, one.share) for one in found.outputs] == [("signal", None)]
    assert "noise" in found.summary
    assert "(SNR " in found.summary
    net = Net()
    another = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4, seed=9)))
    assert verdict(Bench(model, samples), another).level == "broken"


def test_samples_are_held_back_only_if_there_are_enough():
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    few, some, many = (Bench(model, samples_for(model, n), holds_back=True) for n in (FEWEST_IN_ALL - 1, 80, 400))
    assert few.stats.samples == FEWEST_IN_ALL - 1
    assert not few.unseen_rows
    assert some.stats.samples == 80 - len(some.unseen_rows) == 80 - held_back_of(80) == 62
    assert len(many.unseen_rows) == held_back_of(400) == MOST_HELD_BACK
    held = {row[0].tobytes() for row in some.rows}
    assert not any(row[0].tobytes() in held for row in some.unseen_rows)
    assert not Bench(model, samples_for(model, 80)).unseen_rows


@pytest.mark.parametrize(("limit", "held_back"), [(20, 0), (FEWEST_IN_ALL, FEWEST_IN_ALL // HELD_BACK_FIRST)])
def test_the_limit_counts_samples_that_are_held_back(limit, held_back):
    """None are if the limit leaves too few, however many are given."""
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    bench = Bench(model, samples_for(model, 80), Settings(limit=limit), holds_back=True)
    assert (bench.stats.samples, len(bench.unseen_rows)) == (limit - held_back, held_back)


def test_progress_counts_samples_that_are_held_back():
    net = Net()
    model, shown = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4))), []
    assert Bench(model, samples_for(model, 80), holds_back=True, progress=shown.append).stats.samples == 62
    assert shown[-1] == 80


def test_without_data_the_verdict_is_unknown(digits):
    found = zeropoint.quantize(digits, "dynamic").verdict
    assert found == Verdict("unknown")
    assert "zeropoint.compare(FLOAT" in str(found)


def test_a_model_without_float_outputs_has_an_unknown_verdict_which_says_why():
    net = Net()
    above = net("GREATER", [net.input(1, 8), np.float32([0])])
    above.dtype = DType.BOOL
    model = net.model(above)
    found = zeropoint.quantize(model, data=samples_for(model, 4), effort="quick").verdict
    assert (found.level, found.samples) == ("unknown", 4)
    assert "no output is in float" in str(found)


def test_close_calls_do_not_count(digits, images):
    """Noise has no class: what the float model makes of it is a close call."""
    noise = [np.full_like(images[0], v) for v in np.linspace(0, 1, 24)]
    found = zeropoint.quantize(digits, data=noise).verdict
    (classes,) = found.outputs
    exact = [values[0].max() for values in Bench(load(digits), noise).float_outputs]
    sure = sum(value >= 0.5 for value in exact)
    assert f"of {sure} of which the float model is sure" in classes.text if sure else "of none of which" in classes.text


def test_equal_outputs_are_exact_in_every_line(digits, images):
    made = zeropoint.quantize(digits, data=images[:16], effort="quick").model
    again = zeropoint.quantize(made, data=images[:16])
    assert "error 0 of what it varies by (SNR exact)" in str(again.verdict)
    assert any("SNR of the outputs exact, measured at" in note for note in again.notes)


def test_a_verdict_says_so_if_float_activations_were_clearly_better():
    net = Net()
    x = net.input(1, 16)
    swamped = net("SUB", [net("ADD", [x, np.float32(1000)]), np.float32(1000)])
    model = net.model(net.dense(swamped, normal(4, 16)))
    result = zeropoint.quantize(model, "int8", data=samples_for(model, 8), strict=True, effort="quick")
    assert result.verdict.dynamic is not None
    assert result.verdict.dynamic.snr > result.verdict.snr + 3
    assert "; the mode dynamic would reach" in str(result.verdict)


def test_coordinates_are_judged_by_what_they_vary_by():
    """Their mean does not count: the error is as large as the variation, and the mode dynamic would do better."""
    net = Net()
    x = net.input(1, 16)
    coarse = net("SUB", [net("ADD", [x, np.float32(300)]), np.float32(300)])
    model = net.model(net.dense(coarse, normal(4, 16), np.full(4, 20, np.float32)))
    result = zeropoint.quantize(model, "int8", data=samples_for(model, 16), strict=True, effort="quick")
    assert result.verdict.level == "broken"
    assert result.verdict.snr < 10
    assert result.verdict.dynamic.snr > result.verdict.snr + 3
    assert result.verdict.dynamic.level == "good"


def test_nothing_is_said_of_the_mode_dynamic_where_integers_do_as_well(digits, images):
    assert zeropoint.quantize(digits, "int16x8", data=images).verdict.dynamic is None


# Who says "good" must know it.


def dense(outputs: int, *, seed: int = 0, net: Net | None = None, x=None, spread: float = 0.25):
    net = net or Net()
    x = net.input(1, 16) if x is None else x
    return net, net.dense(x, normal(outputs, 16, seed=seed, spread=spread))


def judged(model, spoilt, count: int = 48, **options) -> Verdict:
    return verdict(Bench(model, samples_for(model, count), **options), spoilt)


def in_integers(model, mode: str = "int8", count: int = 48) -> Verdict:
    """Of a version that no search can rescue."""
    options = {"strict": True, "target": "integer", "effort": "quick"}
    return zeropoint.quantize(model, mode, data=samples_for(model, count), **options).verdict


def offset_output():
    net, y = dense(4)
    return net.model(net("ADD", [net("MUL", [net("TANH", [y]), np.float32(0.5)]), np.float32(1000)]))


def test_an_output_that_becomes_constant_is_not_good():
    """1000 + 0.5 f(x): by energy, its SNR would be 60 dB."""
    assert in_integers(offset_output()).level == "broken"


def channels_of_three_sizes(alive=(1, 1, 1)):
    net, y = dense(3)
    return net.model(net("MUL", [y, np.float32([1e3, 1, 1e-2]) * np.float32(alive)]))


def test_channels_that_one_scale_for_all_leaves_nothing_of_are_not_good():
    model = channels_of_three_sizes()
    assert in_integers(model).level in ("doubtful", "broken")
    for alive in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1)):
        assert judged(model, channels_of_three_sizes(alive)).level in ("doubtful", "broken"), alive


def exponential_channels(alive=(1, 1, 1, 1)):
    """One that reaches thousands, and three around 1e-3, which a scale for all rounds to nothing even in 16 bits."""
    net, y = dense(4)
    rises = net("EXP", [net("ADD", [y, np.float32([8, -7, -7, -7])])])
    return net.model(net("MUL", [rises, np.float32(alive)]))


def test_exponential_channels_of_which_most_become_constant_are_not_good():
    model = exponential_channels()
    for mode in ("int8", "int16x8"):
        assert in_integers(model, mode).level in ("doubtful", "broken"), mode
    assert judged(model, exponential_channels((1, 0, 0, 0))).level in ("doubtful", "broken")


def unit_vectors(own: float = 1.0):
    """Vectors of length 1 that nearly all point the same way; `own` is what remains of what tells them apart."""
    net, y = dense(32)
    common = np.float32(30) * normal(32, seed=9)
    return net.model(net("L2_NORMALIZATION", [net("ADD", [net("MUL", [y, np.float32(own)]), common])]))


@pytest.mark.parametrize("own", [0.0, 0.3])
def test_unit_vectors_whose_differences_are_lost_are_not_good(own):
    """The angle to the float model's is a fraction of a degree, as are the angles between its own."""
    found = judged(unit_vectors(), unit_vectors(own))
    assert [one.kind for one in found.outputs] == ["embedding"]
    assert found.level in ("doubtful", "broken")


def classes_beside_a_rare_one(answers_rare: bool = True):
    """Of four classes, samples show three."""
    net, y = dense(4, spread=1.0)
    rare = net("ADD", [y, np.float32([0, 0, 0, -40 if answers_rare else -80])])
    return net.model(net("SOFTMAX", [rare], beta=1.0))


def test_a_class_that_no_sample_shows_is_named():
    found = judged(classes_beside_a_rare_one(), classes_beside_a_rare_one(False))
    assert found.unseen == (3,)
    assert "class 3 occurs in no sample" in str(found)
    assert "give samples of it" in found.advice
    assert found.level == "doubtful"
    few = judged(classes_beside_a_rare_one(), classes_beside_a_rare_one(False), 12)
    assert few.unseen == ()  # so few samples need not show all


@pytest.mark.parametrize(("different", "times"), [(1, 1), (1, 48), (2, 24), (2, 48), (7, 10)])
def test_copies_of_samples_say_no_more_than_one_of_them(different, times):
    net, y = dense(4)
    model = net.model(net("SOFTMAX", [y], beta=1.0))
    found = verdict(Bench(model, samples_for(model, different) * times), model)
    assert found.samples == different < FEWEST
    assert found.copies == different * (times - 1)
    assert found.level == "unknown"
    if times > 1:
        assert f"{found.copies} that are copies left out" in str(found)


@pytest.mark.parametrize(("different", "times"), [(2, 48), (20, 10)])
def test_copies_are_not_held_back_from_calibration_and_then_called_new(different, times):
    net, y = dense(4)
    model = net.model(net("SOFTMAX", [y], beta=1.0))
    found = verdict(Bench(model, samples_for(model, different) * times, holds_back=True), model)
    assert not found.held_back or found.samples < different
    assert found.level == ("unknown" if different < FEWEST else found.level)


@pytest.mark.parametrize("loudness", [1e2, 1e3, 1e4, 1e5])
def test_what_one_loud_sample_leaves_of_the_others_is_not_good(loudness):
    """It sets the range, so that all others become constant; by energy nothing is wrong."""
    net, y = dense(3)
    model = net.model(y)
    samples = samples_for(model, 48)
    samples[3] = (samples[3][0] * np.float32(loudness),)
    said = JudgedOutputs(kinds={y.name: "values"})  # not classes, which would be counted
    made = zeropoint.quantize(model, data=samples, strict=True, target="integer", effort="quick", outputs=said)
    assert made.verdict.level in ("doubtful", "broken")
    found = verdict(Bench(model, samples, outputs=said), made.model)
    assert found.level in ("doubtful", "broken")


def many_outputs(dead: int | None = None):
    net = Net()
    x = net.input(1, 16)
    outputs = [net("TANH", [dense(3, seed=k, net=net, x=x)[1]]) for k in range(20)]
    return net.model(*(net("MUL", [y, np.float32(k != dead)], name=f"y{k}") for k, y in enumerate(outputs)))


def test_one_dead_output_of_twenty_is_not_good():
    """And it is the one that is spoken of."""
    model = many_outputs()
    assert judged(model, many_outputs()).level == "good"
    found = judged(model, many_outputs(dead=13))
    assert found.level == "doubtful"
    assert [one.level for one in found.outputs] == ["good"] * 13 + ["broken"] + ["good"] * 6
    assert found.summary.index(found.outputs[13].name) < found.summary.index("and 18 other outputs")


@pytest.mark.parametrize("count", [1, FEWEST - 1, FEWEST])
def test_few_samples_of_values_leave_it_unknown(count):
    net, y = dense(3)
    model = net.model(net("TANH", [y]))
    found = judged(model, model, count)
    assert found.level == ("good" if count >= FEWEST else "unknown")
    assert ("too few different samples" in found.advice) == (count < FEWEST)


def test_maps_of_few_samples_say_more_than_vectors():
    net = Net()
    model = net.model(net.conv(net.input(1, 16, 16, 3), normal(3, 3, 3, 3)))
    assert judged(model, model, 2).level == "good"


def test_classes_whose_number_the_file_does_not_say(digits, images):
    """Behind calls of graphs without shapes, a file knows no shape either."""
    model = load(digits)
    made = zeropoint.quantize(model, data=images[:16], effort="quick").model
    output = model.main.outputs[0]
    output.shape, output.shape_signature = (), None
    found = verdict(Bench(model, images), made, on_all=True)
    assert [one.kind for one in found.outputs] == ["classes"]
    assert found.error < 0.1
