"""Ops that do most of the harm are found and left float, where the target runs float at all."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from zeropoint.affine import QuantParams
from zeropoint.bench.bench import Bench
from zeropoint.calibration import Range, Ranges, calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Op, Tensor
from zeropoint.improve import island_steps
from zeropoint.improve import steps as steps_module
from zeropoint.improve.candidate import Candidate, Lab, ProposalOutcome
from zeropoint.improve.float_islands import MOST_WORK, FloatShare, Harms, find_island
from zeropoint.improve.island_steps import FoundIsland, with_smallest_weights
from zeropoint.improve.pipeline import quantize_on, run
from zeropoint.improve.steps import clipped_outliers
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Island, Request
from zeropoint.recipe import DYNAMIC, FLOAT, FLOAT16, WEIGHTS, preset
from zeropoint.recipe_files import recipe_from
from zeropoint.targets import CPU, INTEGER

from ..nets import Net, normal, samples_for

OPS = tuple(Op("ADD", [], []) for _ in range(40))


def search(harm: dict[int, float], work: dict[int, int] | None = None, **others) -> list[int]:
    """Which of 40 ops are left float if each adds so much to the relative squared error of the outputs."""

    def snr(left):
        return -10 * math.log10(1e-6 + sum(error for k, error in harm.items() if OPS[k] not in left))

    amounts = {op: (work or {}).get(k, 1) for k, op in enumerate(OPS)}
    return [OPS.index(op) for op in find_island(amounts, snr, snr(()), lambda _: None, **others)]


@pytest.mark.parametrize("culprit", [0, 7, 20, 39])
def test_one_op_is_found_with_few_beside_it(culprit):
    found = search({**dict.fromkeys(range(40), 1e-4), culprit: 0.3})
    assert culprit in found
    assert len(found) <= 3


def test_culprits_far_apart_are_found_together():
    """Each of them left float by itself would hardly show, because the others go on doing harm."""
    found = search({2: 0.1, 33: 0.1})
    assert {2, 33} <= set(found)
    assert len(found) <= 6


def test_a_stretch_is_kept_whole_if_its_halves_bring_less():
    assert search({0: 0.1, 4: 0.1}) == [0, 1, 2, 3, 4]


def test_nothing_is_left_float_for_a_small_gain():
    assert search(dict.fromkeys(range(40), 0.01)) == []


def test_ops_that_compute_nothing_are_left_float_together_if_the_harm_is_everywhere():
    layers = dict.fromkeys(range(0, 40, 4), 100)
    work = {k: layers.get(k, 0) for k in range(40)}
    harm = {k: 0.01 for k in range(40) if k not in layers}
    assert search(harm, work) == [k for k in range(40) if k not in layers]


def test_most_of_the_work_stays_in_integers():
    work = {k: 1000 if k < 2 else 1 for k in range(40)}
    assert MOST_WORK * sum(work.values()) < 1000
    assert search({0: 0.1, 1: 0.1}, work) == []


def test_half_of_the_work_may_be_left_float_if_the_model_is_of_no_use_otherwise():
    work = {k: 1000 if k in (0, 20, 39) else 1 for k in range(40)}
    assert search({0: 0.3}, work) == []
    assert 0 in search({0: 0.3}, work, share=FloatShare(rescue=0.5))


def test_parts_that_hold_too_much_work_are_not_measured():
    work = {k: 1000 if k < 5 else 1 for k in range(40)}
    harms = Harms.of(OPS)
    assert search({0: 0.1, 20: 0.1}, work, harms=harms)[0] == 20
    assert len(harms.measured) == 8


def test_what_cannot_save_the_model_within_the_usual_share_is_not_run():
    """Of four equal culprits one stretch fits into the share, and one alone brings too little."""
    tried = []

    def snr(left):
        tried.append(left)
        return -10 * math.log10(1e-6 + sum(0.1 for k in (2, 12, 22, 32) if OPS[k] not in left))

    found = find_island(dict.fromkeys(OPS, 1), snr, snr(()), lambda _: None, FloatShare(0.13, 0.6))
    assert {OPS[k] for k in (2, 12, 22, 32)} <= set(found)
    assert len(tried[1 + 8]) == 20  # after the stretches, all four at once


def test_stretches_may_be_measured_in_another_way():
    measured = []

    def harm(part):
        measured.append(part)
        return 0.3 if OPS[7] in part else 1e-4

    harms = Harms.of(OPS, harm)
    assert 7 in search({**dict.fromkeys(range(40), 1e-4), 7: 0.3}, harms=harms)
    assert measured[:8] == list(harms.stretches)
    assert all(set(part) < set(harms.stretches[1]) for part in measured[8:])  # the culprit's own


def test_halves_that_do_too_much_harm_are_measured_and_not_run():
    """Both halves of each stretch are needed: measured by itself, the second shows that."""
    harm = {0: 0.1, 4: 0.1, 20: 0.1, 24: 0.1}

    def measure(part):
        return sum(harm.get(OPS.index(op), 0.0) for op in part)

    kept = [0, 1, 2, 3, 4, 20, 21, 22, 23, 24]
    harms, before = Harms.of(OPS, measure), runs_of_a_search(harm, Harms.of(OPS))
    assert runs_of_a_search(harm, harms) <= before - 8 - 2  # nor are the stretches themselves
    assert search(harm, harms=Harms.of(OPS, measure)) == search(harm) == kept


def test_ops_that_compute_nothing_are_taken_at_once_if_they_bring_more_than_the_whole_island():
    layers = dict.fromkeys(range(0, 40, 4), 100)
    work = {OPS[k]: layers.get(k, 0) for k in range(40)}
    tried = []

    def snr(left):
        tried.append(left)
        return -10 * math.log10(1e-3 + sum(0.01 for k in range(40) if k not in layers and OPS[k] not in left))

    others = tuple(op for op in OPS if not work[op])
    assert find_island(work, snr, snr(()), lambda _: None, FloatShare(0.5)) == others
    assert len(tried) - tried.index(others) <= 2  # nothing was shortened


def test_ops_that_compute_nothing_are_not_tried_again_if_they_did_too_little_harm():
    """The second search has a culprit left beside which those ops matter no more than before."""
    work = {op: 100 if k % 4 == 0 else 0 for k, op in enumerate(OPS)}
    harm = {**{k: 1e-4 for k in range(40) if k % 4}, 0: 0.3, 20: 0.05}
    others, harms = tuple(op for op in OPS if not work[op]), Harms.of(OPS)
    for left, is_tried in ((), True), (OPS[:5], False):
        tried = set()

        def snr(more, left=left, tried=tried):
            tried.add(more)
            return -10 * math.log10(1e-6 + sum(e for k, e in harm.items() if OPS[k] not in {*more, *left}))

        own = {op: macs for op, macs in work.items() if op not in left}
        assert find_island(own, snr, snr(()), lambda _: None, harms=harms)
        assert (tuple(op for op in others if op not in left) in tried) == is_tried


def test_a_stretch_that_costs_no_work_is_not_tried_part_by_part():
    tried = []

    def snr(left):
        tried.append(left)
        return 30.0 if OPS[38] in left else 5.0

    work = {op: 0 if k >= 35 else 1000 for k, op in enumerate(OPS)}
    assert find_island(work, snr, 5.0, lambda _: None) == OPS[35:]
    assert len(tried) <= 10


def runs_of_a_search(harm, harms=None, left=()):
    """How many models are run to find the island, if the ops of `left` are float already."""
    tried = []

    def snr(more):
        tried.append(more)
        return -10 * math.log10(1e-6 + sum(e for k, e in harm.items() if OPS[k] not in more and k not in left))

    work = {op: 1 for k, op in enumerate(OPS) if k not in left}
    find_island(work, snr, snr(()), lambda _: None, harms=harms)
    return len(set(tried))


def test_what_an_earlier_search_measured_is_not_measured_again():
    harm, harms = {2: 0.4, 33: 0.01, 20: 0.01, 12: 0.01}, Harms.of(OPS)
    runs_of_a_search(harm, harms)
    first_stretch = tuple(range(5))
    alone = runs_of_a_search(harm, Harms.of(OPS), first_stretch)
    assert len(harms.measured) == 8
    assert runs_of_a_search(harm, harms, first_stretch) == alone - 7


def test_what_is_left_of_stretches_is_tried_together_if_it_is_short():
    left = {OPS[k]: 1 for k in (3, 8, 20, 21, 22)}
    assert Harms.of(OPS).left_in(left) == [(OPS[3], OPS[8]), OPS[20:23]]


def test_what_the_sum_of_errors_rules_out_is_not_run():
    """Two equal culprits in the middle of their stretches: neither can be missed, nor can the half that holds it."""
    assert runs_of_a_search({2: 0.2, 32: 0.2}) <= 8 + 1 + 2 * 2 + 3


def fragile_model():
    """Its first sum swamps small numbers with large ones, which the next op takes away again."""
    net = Net()
    x = net.input(1, 8, 8, 4)
    offset = np.float32(100) * np.sign(normal(1, 8, 8, 4, seed=3))
    small = net("SUB", [net("ADD", [x, offset]), offset])
    for k in range(6):
        small = net("RELU", [net.conv(small, normal(4, 1, 1, 4, seed=k))])
    return net.model(small)


def quantize(model, **changes):
    request = replace(Request(preset("int8"), target=CPU), **changes)
    return quantize_on(model, request, samples_for(model))


def test_the_outputs_come_closer_and_the_summary_says_by_which_ops():
    model = fragile_model()
    result = quantize(model)
    left = [s for s in result.skipped if s.code == "island"]
    assert {"ADD", "SUB"} <= {s.op.kind for s in left}
    layers = [op for op in model.main.ops if op.kind == "CONV_2D"]
    assert sum(s.op.kind == "CONV_2D" for s in left) < len(layers) / 2
    assert "the SNR of the outputs rises from" in left[0].reason
    step = next(s for s in result.steps if s.what == "float islands")
    assert step.kept
    assert f"{len(left)} ops left float" in result.notes[-1]


def near_identity(seed: int) -> Array:
    return np.eye(4, dtype=np.float32).reshape(4, 1, 1, 4) + 0.1 * normal(4, 1, 1, 4, seed=seed)


def swamped(net: Net, x: Tensor, size: float) -> Tensor:
    """Between two layers, what varies is small beside what does not."""
    offset, back = np.full(4, size, np.float32), near_identity(91)
    return net.conv(net.conv(x, near_identity(90), offset, activation=1), back, -(back.reshape(4, 4) @ offset))


@pytest.mark.parametrize("is_kept", [True, False])
def test_two_islands_of_a_large_model_are_planned_at_once(monkeypatch, is_kept):
    """The second does less than a twentieth of the harm. If both are not kept together, the first is tried alone."""
    monkeypatch.setattr(island_steps, "ISLAND_MACS", 1.0)
    net = Net()
    x = swamped(net, net.input(1, 8, 8, 4), 800)
    for k in range(12):
        x = net("RELU", [net.conv(x, near_identity(k))])
    model = net.model(swamped(net, x, 110))
    bench = Bench(model, samples_for(model))
    request = Request(preset("int8"), bench.stats, target=CPU, method="mse")
    best = Candidate(prepare_model(model, request), request)
    proposals = island_steps.float_islands(Lab(bench, "standard", error=bench.error(best.model())), best)
    both = next(proposals)
    layers = [op.name for op in best.prepared.model.main.ops if op.kind == "CONV_2D"]
    assert {*layers[:2], *layers[-2:]} <= both.request.islands.keys()
    first = None
    with suppress(StopIteration):
        first = proposals.send(ProposalOutcome(both if is_kept else best, 0.1))
    assert (first is None) == is_kept
    if first is not None:
        assert {*layers[:2]} <= first.request.islands.keys()
        assert not {*layers[-2:]} & first.request.islands.keys()


@pytest.mark.parametrize(
    ("scheme", "weights", "file"),
    [
        (DYNAMIC, DType.INT8, DType.INT8),
        (WEIGHTS, DType.FLOAT32, DType.INT8),
        (FLOAT16, DType.FLOAT32, DType.FLOAT16),
        (FLOAT, DType.FLOAT32, DType.FLOAT32),
    ],
)
def test_layers_of_an_island_can_hold_their_weights_in_fewer_bytes(scheme, weights, file):
    net = Net()
    hidden = net.dense(net.input(1, 64), normal(32, 64), np.zeros(32, np.float32), name="hidden", activation=1)
    model = net.model(net.dense(hidden, normal(64, 32), np.zeros(64, np.float32), name="out"))
    stats = calibrate(model, samples_for(model))
    request = Request(preset("int8"), stats, target=CPU, islands={"hidden": Island(scheme, "to see")})
    result = run(model, request)
    assert [s.reason for s in result.skipped if s.code == "island"] == ["to see"]
    hidden = next(op for op in result.model.main.ops if op.name == "hidden")
    assert [t.dtype for t in hidden.inputs[:2]] == [DType.FLOAT32, weights]
    makers = {t: op for op in result.model.main.ops for t in op.outputs}
    held = hidden.inputs[1] if weights is file else makers[hidden.inputs[1]].inputs[0]
    assert held.data is not None
    assert held.dtype is file


def test_layers_of_an_island_hold_8_bits_where_no_fast_kernel_takes_fewer():
    """They were float32 then: a file with 4-bit weights was larger than one with 8."""
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 16), normal(32, 3, 3, 16), name="conv"))
    stats = calibrate(model, samples_for(model))
    recipe = recipe_from({"rules": [{"scheme": "int8", "weights": "int4"}]})
    result = run(model, Request(recipe, stats, target=CPU, islands={"conv": Island(DYNAMIC, "to see")}))
    conv = next(op for op in result.model.main.ops if op.kind == "CONV_2D")
    assert [t.dtype for t in conv.inputs[:2]] == [DType.FLOAT32, DType.INT8]


def test_tables_of_an_island_hold_8_bits_although_no_kernel_takes_them_beside_floats():
    """The word vectors of a transformer were float32 then: its int8 file was half as large again as needed."""
    net = Net()
    indices = net.input(4, dtype=DType.INT32)
    rows = net("GATHER", [normal(64, 32), indices], shape=(4, 32), name="rows")
    model = net.model(net.dense(rows, normal(8, 32), name="out"))
    samples = [(np.array([k, 9, 63, 2 * k], np.int32),) for k in range(8)]
    request = Request(preset("int8"), calibrate(model, samples), target=CPU)
    result = run(model, replace(request, islands={"rows": Island(DYNAMIC, "to see")}))
    gather = next(op for op in result.model.main.ops if op.kind == "GATHER")
    unpack = next(op for op in result.model.main.ops if gather.inputs[0] in op.outputs)
    assert (unpack.kind, unpack.inputs[0].dtype, gather.outputs[0].dtype) == ("DEQUANTIZE", DType.INT8, DType.FLOAT32)


@pytest.mark.parametrize(("lost", "tried"), [(1.0, [DYNAMIC]), (5.0, [DYNAMIC, WEIGHTS])])
def test_larger_weights_are_only_tried_if_small_ones_lose_much_of_the_gain(lost, tried):
    model = fragile_model()
    asked = []

    class Samples:
        def error(self, made):
            asked.append(made)
            return 10 ** -((20.0 - (lost if len(asked) == 1 else 0.0)) / 10)

    request = Request(preset("int8"), calibrate(model, samples_for(model)), target=CPU)
    best = Candidate(prepare_model(model, request), request)
    layers = tuple(op for op in best.prepared.model.main.ops if op.kind == "CONV_2D")[:1]
    found = FoundIsland(layers, 10.0, 20.0)
    chosen, gain = with_smallest_weights(best, found, Samples(), 10.0, 30.0)
    assert len(asked) == len(tried)
    assert next(iter(chosen.request.islands.values())).scheme is tried[-1]
    assert gain == pytest.approx(9.0 if lost == 1.0 else 10.0)


def test_ops_whose_scales_were_given_compute_with_them():
    """A user who gives the parameters of a tensor wants to have them."""
    model = fragile_model()
    added = next(op for op in model.main.ops if op.kind == "ADD").outputs[0]
    params = QuantParams.from_range(-110.0, 110.0, DType.INT8)
    given = Ranges({added.name: Range(-110.0, 110.0, "test", params)})
    result = quantize(model, ranges=given)
    assert not {"ADD", "SUB"} & {s.op.kind for s in result.skipped}
    assert result.given[added.name] == "test"


@pytest.mark.parametrize("changes", [{"target": INTEGER}, {"effort": "quick"}])
def test_all_stays_in_integers_if_that_is_asked_for(changes):
    result = quantize(fragile_model(), **changes)
    assert not [s for s in result.skipped if s.code == "island"]


def test_good_models_are_left_alone():
    net = Net()
    model = net.model(net.conv(net.input(1, 8, 8, 4), normal(4, 1, 1, 4)))
    assert not [s for s in quantize(model).skipped if s.code == "island"]


def test_outliers_are_cut_off_in_one_place_if_that_makes_no_difference(monkeypatch):
    monkeypatch.setattr(steps_module, "outliers", lambda _: {"input": {"x": (-1.0, 1.0)}})
    net = Net()
    model = net.model(net.dense(net.input(1, 8, name="x"), normal(8, 8)))
    bench = Bench(model, samples_for(model))
    request = Request(preset("int8"), bench.stats, method="minmax")
    best = Candidate(prepare_model(model, request), request)
    lab = Lab(bench, "standard", error=0.1)
    for error, count in ((0.1001, 1), (0.2, 3)):
        proposals, answer = clipped_outliers(lab, best), ProposalOutcome(best, error)
        tried = [next(proposals)]
        with suppress(StopIteration):
            while True:
                tried.append(proposals.send(answer))
        assert len(tried) == count
