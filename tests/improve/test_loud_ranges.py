"""A few loud samples do not decide the ranges of all others, unless that is right; users are told which these are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import KEPT_SAMPLES, Bench
from zeropoint.bench.loud_split import FEWEST_QUIET
from zeropoint.bench.measure import ErrorTable
from zeropoint.improve import search as search_module
from zeropoint.improve.candidate import Step
from zeropoint.improve.pipeline import Result
from zeropoint.improve.steps import STEPS, WITHOUT_LOUD
from zeropoint.recipe import preset

from ..nets import Net, normal, outputs_of, samples_for


def layers():
    net = Net()
    x = net.input(1, 8)
    for k in range(3):
        width = x.shape[-1]
        x = net.dense(x, normal(16, width, seed=k, spread=0.3), normal(16, seed=9 + k, spread=0.1), activation=1)
    return net.model(net.dense(x, normal(4, 16, seed=7, spread=0.3), normal(4, spread=0.1)))


def clamped():
    """The same behind a clamp that lets no loud sample through."""
    net = Net()
    x = net("RELU6", [net.input(1, 8)])
    return net.model(net.dense(x, normal(4, 8, seed=7), normal(4)))


def with_loud(model, count: int, *numbers: int, factor: float = 200.0):
    samples = [x for (x,) in samples_for(model, count)]
    return [x * factor if k in numbers else x for k, x in enumerate(samples)]


def error(model, result: Result, samples) -> float:
    """The error on samples of which none is loud."""
    (wanted,), (found,) = (outputs_of(one, [(x,) for x in samples]) for one in (model, result.model))
    table = ErrorTable()
    for pair in zip(wanted, found, strict=True):
        table.add(*pair)
    return table.error.share


def without_the_step(monkeypatch, model, samples, **options) -> Result:
    with monkeypatch.context() as patched:
        patched.setattr(search_module, "STEPS", [step for step in STEPS if step.name != WITHOUT_LOUD])
        return zeropoint.quantize(model, data=samples, target="integer", **options)


@pytest.mark.parametrize(("count", "number"), [(40, 5), (90, 10), (90, 89), (63, 61)])
def test_a_loud_sample_does_not_spoil_the_ranges_of_others(monkeypatch, count, number):
    """It is named by its place in the data, also where some samples before it are held back."""
    model = layers()
    samples = with_loud(model, count, number)
    result = zeropoint.quantize(model, data=samples, target="integer")
    assert any(f"ranges without sample {number} were taken" in note for note in result.notes)
    assert any(f"sample {number} drives values" in warning for warning in result.warnings)
    others = [x for k, x in enumerate(with_loud(model, count)) if k != number]
    before = without_the_step(monkeypatch, model, samples)
    assert error(model, result, others) < 0.2 * error(model, before, others)
    assert max(one.high.value for one in result.stats.tensors.values()) < 20


def test_several_are_named():
    model = layers()
    result = zeropoint.quantize(model, data=with_loud(model, 90, 4, 33, 70), target="integer")
    assert any("ranges without samples 4, 33 and 70 were taken" in note for note in result.notes)


def test_those_held_back_do_no_harm_and_are_not_counted():
    model = layers()
    samples = with_loud(model, 90, 3, 50)  # every fourth is held back
    result = zeropoint.quantize(model, data=samples, target="integer")
    assert any("ranges without sample 50 were taken" in note for note in result.notes)


@pytest.mark.parametrize("count", [300, 90])
def test_samples_in_memory_suffice_if_these_are_many(monkeypatch, count):
    most = FEWEST_QUIET if count == 90 else KEPT_SAMPLES
    monkeypatch.setattr(Bench.__init__, "__kwdefaults__", {**Bench.__init__.__kwdefaults__, "kept": most})
    model = layers()
    result = zeropoint.quantize(model, data=with_loud(model, count, count - 2), target="integer")
    taken = f"ranges without sample {count - 2}, those of {most} others in memory, were taken"
    assert any(taken in note for note in result.notes)


def test_too_few_in_memory_are_not_taken(monkeypatch):
    monkeypatch.setattr(Bench.__init__, "__kwdefaults__", {**Bench.__init__.__kwdefaults__, "kept": 20})
    model = layers()
    result = zeropoint.quantize(model, data=with_loud(model, 90, 10), target="integer")
    assert any("ranges without sample 10 could not be tried" in note for note in result.notes)


@pytest.mark.parametrize(("make", "mode"), [(layers, "int16x8"), (clamped, "int8")])
def test_loud_samples_that_do_no_harm_change_nothing(monkeypatch, make, mode):
    model = make()
    samples = with_loud(model, 90, 10)
    result = zeropoint.quantize(model, mode, data=samples, target="integer")
    assert any("ranges with sample 10 were kept" in note for note in result.notes)
    before = without_the_step(monkeypatch, model, samples, mode=mode)
    assert zeropoint.to_bytes(result.model) == zeropoint.to_bytes(before.model)
    assert result.stats.samples == before.stats.samples


def test_nothing_is_said_where_none_is_loud(monkeypatch):
    model = layers()
    samples = with_loud(model, 90)
    result = zeropoint.quantize(model, data=samples, target="integer")
    assert not any("ranges with" in note for note in (*result.notes, *result.warnings)[1:])
    assert not any(step.what.startswith(WITHOUT_LOUD) for step in result.steps)
    before = without_the_step(monkeypatch, model, samples)
    assert zeropoint.to_bytes(result.model) == zeropoint.to_bytes(before.model)


def test_what_loud_samples_lose_counts_by_their_share():
    """Also if they are not among those that judge."""
    model = layers()
    samples = with_loud(model, 40, 35)
    bench = Bench(model, samples, judged=16)
    split = bench.loud
    assert split is not None
    clipped = zeropoint.quantize(model, stats=split.quiet_stats, target="integer").model
    plain = bench.errors(clipped, range(16)).share
    lost = bench.on([split.bench.rows[35]]).errors(clipped, [0]).share
    assert lost > 0.3
    assert split.error(bench, clipped) == pytest.approx(plain * 39 / 40 + lost / 40)
    assert split.error(bench, model) == 0


def test_calibrate_names_them(run, tmp_path):
    model = layers()
    path, data = tmp_path / "model.tflite", tmp_path / "samples.npz"
    path.write_bytes(zeropoint.to_bytes(model))
    np.savez(data, np.concatenate(with_loud(model, 90, 11, 50)))
    code, out, _ = run("calibrate", path, "--data", data, "-o", tmp_path / "model.stats")
    assert code == 0
    assert "samples 11 and 50 drive values" in " ".join(out.split())


@pytest.mark.parametrize("is_for_loud", [True, False])
def test_later_steps_may_do_more_against_loud_samples(monkeypatch, is_for_loud):
    """So they are taken with both ranges, and the summary says which way was kept."""

    def mend(lab, best):
        if (best.without_loud is None) is is_for_loud:
            yield replace(best, request=replace(best.request, recipe=preset("int16x8")))

    known = [step for step in STEPS if step.name in ("ranges and biases", WITHOUT_LOUD)]
    monkeypatch.setattr(search_module, "STEPS", [*known, Step("mending", ("standard",), mend)])
    result = zeropoint.quantize(layers(), data=with_loud(layers(), 90, 10, factor=20.0), target="integer")
    assert any(
        ("with sample 10 were kept" if is_for_loud else "without sample 10 were taken") in n for n in result.notes
    )
    kept = {step.what: step.kept for step in result.steps}
    if is_for_loud:
        assert kept["mending, ranges with loud samples"]
        assert not kept[WITHOUT_LOUD]
    else:
        assert kept["mending"]
        assert kept[WITHOUT_LOUD]


def test_modes_without_ranges_do_not_mention_them():
    model = layers()
    result = zeropoint.quantize(model, "weights", data=with_loud(model, 90, 10))
    assert not any("sample 10" in text for text in (*result.warnings, *result.notes))


def test_doctor_does_not_take_them_for_wrong_data():
    model = layers()
    samples = with_loud(model, 60, 10, factor=20.0)
    found = zeropoint.doctor(model, data=samples)
    assert any("sample 10 drives values" in note for note in found.notes)
    assert "loud_samples" not in {finding.cause for finding in found.findings}
