"""The bench: everything is measured once, whatever form the other version of the model has."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench import bench as bench_module
from zeropoint.bench.bench import Bench, spread
from zeropoint.bench.judged_outputs import JudgedOutputs
from zeropoint.bench.measure import SampledError
from zeropoint.bench.sample_checks import SampleEvidence
from zeropoint.bench.verdict import verdict
from zeropoint.calibration import Settings
from zeropoint.calibration.collect import collect_stats
from zeropoint.dtypes import DType
from zeropoint.graph.edit import copy_model, set_constant
from zeropoint.runtime import Runner, Session

from ..diagnosis.faults import conv_net, images, plainly, saved
from ..nets import Net, normal, samples_for


def test_samples_are_calibrated_once_for_all_views(monkeypatch):
    calls = []

    def counting(*args, **options):
        calls.append(args)
        return collect_stats(*args, **options)

    monkeypatch.setattr(bench_module, "collect_stats", counting)
    bench = Bench(conv_net(), (sample for sample in images(12)), Settings(10))
    other = bench.judging(4)
    assert other.stats is bench.stats
    assert len(bench.rows) == 10
    assert len(other.judged_rows) == 4
    assert len(calls) == 1


@pytest.mark.parametrize("per_sample", [1, 3])
@pytest.mark.parametrize("count", [20, 70])
@pytest.mark.parametrize("room", [9, 1000])
def test_outputs_that_calibration_has_seen_are_those_of_the_float_model(per_sample, count, room, monkeypatch):
    """Whether samples are held back or not, are more than fit into memory, or are several runs each."""
    model, data = conv_net(), images(count * per_sample)
    samples = [np.concatenate([x for (x,) in data[k : k + per_sample]]) for k in range(0, len(data), per_sample)]
    monkeypatch.setattr(bench_module, "activation_bytes", lambda _: 0)
    monkeypatch.setattr(bench_module, "LEAST_KEPT_BYTES", room * samples[0].nbytes)
    bench, given = Bench(model, samples, holds_back=True), []
    runs = Runner.invoke
    monkeypatch.setattr(Runner, "invoke", lambda self, row: (given.append(row), runs(self, row))[1])
    _ = bench.stats
    before, wanted = len(given), bench.wanted(len(bench.judged_rows))
    assert (len(given) == before) == (per_sample == 1 and (count, room) != (20, 9))
    for row, values in zip(bench.judged_rows, wanted, strict=True):
        np.testing.assert_allclose(values[0], Session(model).run(row)[0], atol=1e-5)


def test_integer_ends_and_left_out_samples_make_no_difference():
    model, data = conv_net(), images()
    bench = Bench(model, data).judging(8)
    error = bench.error(plainly(model, data))
    integers = bench.error(plainly(model, data, input_type="uint8", output_type="int8"))
    assert 0 < error < 2e-3
    assert integers == pytest.approx(error, rel=1)
    assert bench.error(model) == 0
    without = Bench(model, [*data[2:], *data[:2]]).judging(6)  # the same samples say what is usual
    assert bench.error(plainly(model, data), frozenset((0, 1))) == pytest.approx(without.error(plainly(model, data)))


def test_inputs_are_found_by_name():
    net = Net()
    a, b = net.input(1, 4, name="a"), net.input(1, 4, name="b")
    model = saved(net.model(net("SUB", [a, b], name="out")))
    swapped = copy_model(model)
    swapped.main.inputs.reverse()
    data = [(normal(1, 4, seed=k), normal(1, 4, seed=100 + k)) for k in range(4)]
    assert Bench(model, data).error(saved(swapped)) == 0


def test_outputs_are_real_numbers():
    model, data = conv_net(), images(6)
    bench = Bench(model, data)
    found = bench.outputs(plainly(model, data, output_type="int8"))
    assert len(found) == len(bench.float_outputs) == 6
    for exact, own in zip(bench.float_outputs, found, strict=True):
        np.testing.assert_allclose(own[0], exact[0], atol=0.2)


def test_what_a_partly_quantized_file_computes_in_integers_is_compared_as_real_numbers():
    """The logits of such a classifier are integers in calibration, too."""
    net = Net()
    x = net("MUL", [net.input(1, 16), normal(16)], name="front")
    logits = net("FULLY_CONNECTED", [x, normal(4, 16), normal(4, seed=1)], (1, 4))
    model = net.model(net("SOFTMAX", [logits], beta=1.0))
    data = samples_for(model, 12)
    given = zeropoint.quantize(model, data=data, effort="quick", target="integer", keep_float="front").model
    bench = Bench(given, data).judging(8)
    assert bench.compared[0].tensor(given.main).dtype is DType.INT8
    _ = bench.stats  # records the values of the first runs
    assert bench.error(given) == 0


@pytest.mark.parametrize("count", [1, 7, 56, 175, 256])
def test_every_beginning_of_the_order_is_spread_over_all_samples(count):
    order = spread(count)
    assert sorted(order) == list(range(count))
    for taken in range(8, count, 8):
        edges = [-1, *sorted(order[:taken]), count]
        assert max(np.diff(edges)) <= 3 * count / taken + 1


def test_samples_sorted_by_kind_are_judged_and_fitted_on_all_kinds():
    data = [(np.full((1, 8, 8, 3), k // 16 + k / 1000, np.float32),) for k in range(64)]  # four kinds, in turn
    bench = Bench(conv_net(), data, judged=20, holds_back=True, fits=True)
    kinds = [int(row[0].flat[0]) for row in bench.rows]
    assert {kind: kinds[:20].count(kind) for kind in range(4)} == pytest.approx(dict.fromkeys(range(4), 5), abs=1)
    assert set(kinds[20:]) == set(range(4))


@pytest.mark.parametrize(("effort", "held"), [("standard", 20), ("high", 30)])
def test_more_samples_are_kept_if_weights_are_fitted_to_them(effort, held, monkeypatch):
    made: list[Bench] = []

    class Watched(Bench):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("zeropoint.bench.bench.activation_bytes", lambda _: 0)
    monkeypatch.setattr("zeropoint.bench.bench.LEAST_KEPT_BYTES", 20 * images(1)[0][0].nbytes)
    monkeypatch.setattr("zeropoint.bench.bench.LEAST_FITTED_BYTES", 30 * images(1)[0][0].nbytes)
    monkeypatch.setattr("zeropoint.improve.pipeline.Bench", Watched)
    zeropoint.quantize(conv_net(), "int8", data=images(40), effort=effort)
    assert [len(bench.rows) for bench in made] == [held]


@pytest.mark.parametrize(("effort", "held"), [("quick", 24), ("standard", 40)])
def test_no_more_samples_are_held_than_are_run_again(effort, held, monkeypatch):
    """A generator of large samples must not fill the memory for nothing."""
    made: list[Bench] = []

    class Watched(Bench):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("zeropoint.improve.pipeline.Bench", Watched)
    zeropoint.quantize(conv_net(), "int8", data=lambda: iter(images(40)), effort=effort)
    assert [len(bench.rows) for bench in made] == [held]


def test_outputs_count_by_their_weights():
    net = Net()
    x = net.input(1, 16)
    names = ("good", "bad")
    model = saved(net.model(*(net.dense(x, normal(4, 16, seed=k), name=name) for k, name in enumerate(names))))
    spoilt = copy_model(model)
    bad = next(op for op in spoilt.main.ops if op.name == "bad")
    set_constant(bad.inputs[1], 0 * bad.inputs[1].data, bad.inputs[1].dtype, None)
    spoilt, data = saved(spoilt), samples_for(model, 12)

    def share(**weights: float) -> float:
        bench = Bench(model, data, outputs=JudgedOutputs(weights=weights))
        return bench.errors(spoilt, range(12)).share

    alone = share(good=0)
    assert alone > 0.3
    assert share(bad=0) == 0
    assert share() == share(good=3, bad=3) == pytest.approx(alone / 2)
    assert share(good=3) == pytest.approx(alone / 4)


@pytest.mark.parametrize("is_small", [True, False])
def test_more_samples_are_run_only_where_the_first_do_not_decide(monkeypatch, is_small):
    model, data = conv_net(), images(40)
    bench, runs = Bench(model, data, judged=40), list[int]()
    monkeypatch.setattr(bench_module, "STAYS_LOADED", 1 << 24 if is_small else 0)
    errors = bench_module.Loaded.errors

    def counting(self, places, **named):
        runs.append(len(places))
        return errors(self, places, **named)

    monkeypatch.setattr(bench_module.Loaded, "errors", counting)
    close, far = plainly(model, data), plainly(model, [(0.1 * values,) for (values,) in data])
    good, bad = bench.judged(close), bench.judged(far)
    assert good.beats(bad)
    assert not bad.beats(good)
    assert runs == [8, 8, 16]  # the good one might have been bad only later
    assert not bench.judged(plainly(model, data)).beats(good)  # equal ones: all samples tell
    assert runs == [8, 8, 16, 8, 16, 16, 16]
    assert bench.judging(8).error(close) == bench.judging(8).error(close)
    assert len(runs) == 7  # what was measured is not run again
    assert good.value == pytest.approx(bench.error(close))
    assert bench.judged(far, at_once=True).value == pytest.approx(bench.error(far))


def test_what_was_measured_is_not_run_again_on_fewer_samples(monkeypatch):
    """The yardstick is the same for any number of samples that judge."""
    model, data = conv_net(), images(12)
    made = plainly(model, data)
    expected = [Bench(model, data).judging(count).error(made) for count in (3, 8, 12)]
    bench = Bench(model, data)
    bench.judged(made)  # on 8 samples
    runs = []
    errors = bench_module.Loaded.errors
    monkeypatch.setattr(
        bench_module.Loaded,
        "errors",
        lambda self, places, **named: runs.append(list(places)) or errors(self, places, **named),
    )
    assert [bench.judging(count).error(made) for count in (3, 8)] == expected[:2]
    assert not runs
    assert bench.judging(12).error(made) == expected[2]
    assert runs == [[8, 9, 10, 11]]


def test_runs_end_when_the_error_is_too_large_for_sure():
    model, data = conv_net(), images(12)
    bench = Bench(model, data)
    loaded = bench_module.Loaded(bench, plainly(model, data))
    whole = loaded.errors(range(12))
    share = SampledError(tuple(whole)).share
    assert len(loaded.errors(range(12), most=share * 1.001)) == 12
    cut_short = loaded.errors(range(12), most=share / 3)
    assert 0 < len(cut_short) < 12
    assert sum(cut_short) / 12 > share / 3
    assert cut_short == whole[: len(cut_short)]


def test_samples_that_are_held_back_are_run_once_for_checks_and_verdict(monkeypatch):
    model, data = conv_net(), images(80)
    made, bench = plainly(model, data), Bench(model, data, holds_back=True)
    assert len(bench.unseen_rows) == 18
    given = []
    values = bench_module.Loaded.values
    monkeypatch.setattr(bench_module.Loaded, "values", lambda self, rows: given.extend(rows) or values(self, rows))
    evidence = SampleEvidence(bench)
    assert len(evidence.looked_at) == 16
    assert evidence.answer.variation == evidence.answer_to(evidence.looked_at).variation > 0
    given.clear()
    verdict(bench, made)
    assert not given


def test_ops_that_only_pass_errors_on_are_not_the_worst():
    net = Net()
    made = net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4))
    flat = net("RESHAPE", [made, np.int32([1, 256])], (1, 256))
    model = net.model(flat)
    result = zeropoint.quantize(model, data=samples_for(model, 24))
    assert result.worst
    assert all(op.error > op.before for op in result.worst)


def test_a_version_that_litert_does_not_run_is_as_bad_as_can_be():
    """The delegate refuses some combinations of kernels: a search that comes upon one goes on."""
    net, broken = Net(), Net()
    model = net.model(net.dense(net.input(1, 8), normal(4, 8)))
    other = broken.model(broken.dense(broken.input(1, 8), normal(4, 7)))
    bench = Bench(model, samples_for(model, 12))
    assert bench.error(other) == np.inf
    assert bench.judged(model).beats(bench.judged(other))
    assert not bench.judged(other).beats(bench.judged(model))
