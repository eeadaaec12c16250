"""The verdict: good models are called good, ruined ones broken, on samples that calibration did not use."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import FEWEST_IN_ALL, HELD_BACK_EVERY, MOST_HELD_BACK, Bench
from zeropoint.bench.verdict import CLEAR, PRECISE, Verdict, verdict
from zeropoint.calibration import Settings
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.sources.models import load

from ..nets import Net, normal, samples_for


@pytest.fixture(scope="module")
def images():
    return [image[None] for image in digits_data()["calibration"][:80]]


def test_a_good_classifier(digits, images):
    found = zeropoint.quantize(digits, data=images).verdict
    assert found.level == "good"
    assert found.held_back
    assert found.samples == len(images) // HELD_BACK_EVERY
    assert 0 < found.sure <= found.samples
    assert f"{found.agreeing} of {found.sure} samples that calibration did not use" in str(found)
    assert "doctor" not in str(found)


def test_samples_that_look_wrong_leave_no_good_verdict(digits, images):
    result = zeropoint.quantize(digits, data=[0 * image for image in images])
    assert any("all samples hold zeros" in warning for warning in result.warnings)
    assert result.verdict.samples_look_wrong
    assert result.verdict.level == "doubtful"
    assert str(result.verdict).startswith("look at it")
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
    assert (found.level, found.sure) == ("good", 0)
    assert "SNR of the outputs" in found.summary
    net = Net()
    another = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4, seed=9)))
    assert verdict(Bench(model, samples), another).level == "broken"


def test_samples_are_held_back_only_if_there_are_enough():
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    few, some, many = (Bench(model, samples_for(model, n), holds_back=True) for n in (FEWEST_IN_ALL - 1, 80, 400))
    assert few.stats.samples == FEWEST_IN_ALL - 1
    assert not few.unseen_rows
    assert some.stats.samples == 80 - len(some.unseen_rows) == 70
    assert len(many.unseen_rows) == MOST_HELD_BACK
    held = {row[0].tobytes() for row in some.rows}
    assert not any(row[0].tobytes() in held for row in some.unseen_rows)
    assert not Bench(model, samples_for(model, 80)).unseen_rows


@pytest.mark.parametrize(("limit", "held_back"), [(20, 0), (FEWEST_IN_ALL, FEWEST_IN_ALL // HELD_BACK_EVERY)])
def test_the_limit_counts_samples_that_are_held_back(limit, held_back):
    """None are if the limit leaves too few, however many are given."""
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    bench = Bench(model, samples_for(model, 80), Settings(limit=limit), holds_back=True)
    assert (bench.stats.samples, len(bench.unseen_rows)) == (limit - held_back, held_back)


def test_progress_counts_samples_that_are_held_back():
    net = Net()
    model, shown = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4))), []
    assert Bench(model, samples_for(model, 80), holds_back=True, progress=shown.append).stats.samples == 70
    assert shown[-1] == 80


def test_without_data_the_verdict_is_unknown(digits):
    found = zeropoint.quantize(digits, "dynamic").verdict
    assert found == Verdict("unknown")
    assert "zeropoint.compare(FLOAT" in str(found)


def test_a_model_without_float_outputs_has_an_unknown_verdict_which_says_why():
    net = Net()
    above = net("GREATER", [net.input(1, 8), np.float32([0])])
    above.dtype = DType.BOOL
    found = zeropoint.quantize(net.model(above), data=[(normal(1, 8),)] * 4, effort="quick").verdict
    assert (found.level, found.samples) == ("unknown", 4)
    assert "no output is in float" in str(found)


def test_close_calls_do_not_count(digits, images):
    """Noise has no class: what the float model makes of it is a close call."""
    noise = [np.full_like(images[0], v) for v in np.linspace(0, 1, 24)]
    found = zeropoint.quantize(digits, data=noise).verdict
    assert found.sure <= found.samples


def test_equal_outputs_are_exact_in_every_line(digits, images):
    made = zeropoint.quantize(digits, data=images[:16], effort="quick").model
    again = zeropoint.quantize(made, data=images[:16])
    assert "SNR of the outputs exact, measured at" in str(again.verdict)
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


def test_coordinates_are_compared_with_the_mode_dynamic_although_their_snr_looks_good():
    """Their mean makes the SNR, while the error is as large as what they vary by."""
    net = Net()
    x = net.input(1, 16)
    coarse = net("SUB", [net("ADD", [x, np.float32(300)]), np.float32(300)])
    model = net.model(net.dense(coarse, normal(4, 16), np.full(4, 20, np.float32)))
    result = zeropoint.quantize(model, "int8", data=samples_for(model, 8), strict=True, effort="quick")
    assert CLEAR < result.verdict.snr < PRECISE
    assert result.verdict.level == "good"
    assert result.verdict.dynamic.snr > result.verdict.snr + 3


def test_nothing_is_said_of_the_mode_dynamic_where_integers_do_as_well(digits, images):
    assert zeropoint.quantize(digits, data=images).verdict.dynamic is None
