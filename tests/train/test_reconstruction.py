"""Reconstruction: blocks of a graph, and what max effort learns in them."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import Bench
from zeropoint.errors import MissingExtra
from zeropoint.improve.candidate import no_progress
from zeropoint.improve.refiner import Refiner
from zeropoint.ops import OPS
from zeropoint.plan.request import Request
from zeropoint.plan.rewrite import build
from zeropoint.recipe import preset
from zeropoint.recipe_files import recipe_from
from zeropoint.train import block_training, reconstruction
from zeropoint.train.backend import array_of
from zeropoint.train.reconstruction import Reconstruction, blocks_of, joined, learned_uses

from ..nets import Net, normal, samples_for


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Few steps are enough to see that something is learned."""
    monkeypatch.setattr(reconstruction, "STEPS", (100, 100))


def convolutions(x, net, *channels):
    for number, wide in enumerate(channels):
        x = net.conv(x, normal(wide, 3, 3, x.shape[3], seed=number) / 4)
    return x


def chain(layers=2):
    net = Net()
    return net.model(convolutions(net.input(1, 6, 6, 3), net, *[8] * layers))


def learned(model, effort="max", **options):
    """With 2 bits for all weights."""
    rules = recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]})
    data = samples_for(model, 72)
    return zeropoint.quantize(model, data=data, recipe=rules, effort=effort, target="integer", **options)


def test_blocks_end_where_a_single_tensor_leads_on():
    """A residual block is one, layers of a chain go by two, and one that would be left over joins the last."""
    net = Net()
    x = convolutions(net.input(1, 8, 8, 4), net, 4, 4)
    x = net("ADD", [x, convolutions(x, net, 4, 4, 4)])
    model = net.model(convolutions(x, net, 4, 4, 4))
    kinds = [[op.kind for op in block.ops] for block in blocks_of(model.main, OPS)]
    assert kinds == [["CONV_2D"] * 2, ["CONV_2D"] * 3 + ["ADD"], ["CONV_2D"] * 3]
    blocks = blocks_of(model.main, OPS)
    assert [(len(block.inputs), len(block.outputs)) for block in blocks] == [(1, 1)] * 3
    assert blocks[0].outputs == blocks[1].inputs


def test_the_last_block_is_judged_in_front_of_the_softmax(digits):
    model = zeropoint.load(digits)
    *_, output = blocks_of(model.main, OPS)[-1].outputs
    assert output is model.main.ops[-1].inputs[0]
    assert model.main.ops[-1].kind == "SOFTMAX"


def test_the_same_is_learned_from_the_same_seed(monkeypatch):
    errors = defaultdict(lambda: count(1000, -1))  # every state is taken for better than the last
    monkeypatch.setattr(block_training.BlockTraining, "_error", lambda self, *_: next(errors[self]))
    start = learned(chain(), "standard")
    request = Request(recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]}), effort="max")
    samples = samples_for(chain(), 32)
    refiner = Refiner(start.prepared, request, samples[4:], no_progress, 512)
    found = [Reconstruction(refiner, samples[:4], no_progress, seed).of(start.planned) for seed in (0, 0, 1)]
    assert [(one.changed, one.blocks) for one in found] == [(1, 1)] * 3
    one, other, another = (one.planned.plans[0] for one in found)
    assert one.groups == other.groups
    assert all(np.array_equal(value, other.constants.values[key]) for key, value in one.constants.values.items())
    assert any(not np.array_equal(v, another.constants.values[key]) for key, v in one.constants.values.items())


def trained(result, request):
    """The only graph of a result, ready to learn."""
    learner = Reconstruction(Refiner(result.prepared, request, [], no_progress, 64), [], no_progress)
    return block_training.BlockTraining.of(result.planned, result.planned.plans[0], learner).model


def test_roundings_go_from_float_weights_to_those_of_the_plan():
    """At first weights are what they are in float, but for those that compensate or are cut off; rounded before
    anything is learned, they are the plan's integers."""
    result = learned(chain(), "standard")
    model = trained(result, Request(recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]})))
    plan = result.planned.plans[0]
    for use, rounding in model.learning.by_use.items():
        scale = rounding.quantizer.first
        exact, held = np.clip(use.data / scale, -1, 1), np.round(plan.constants.at(use) / scale)
        soft = array_of(rounding.between)
        np.testing.assert_array_equal(array_of(rounding.whole), held)
        np.testing.assert_array_less(np.abs(soft - held), 0.5)
        alike = np.abs(exact - held) < 0.5 - block_training.LEAST_LEAD
        np.testing.assert_allclose(soft[alike], exact[alike], atol=0.011)
        assert alike.mean() > 0.5


def test_the_regularizer_is_zero_at_integers_and_reaches_further_with_a_smaller_exponent():
    result = learned(chain(), "standard")
    model = trained(result, Request(recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]})))
    rounding = next(iter(model.learning.by_use.values()))
    count = rounding.lower.size
    rounding.variable.assign(np.full(rounding.lower.shape, 1e3, np.float32))
    assert float(array_of(rounding.penalty(20.0))) == 0
    rounding.variable.assign(np.zeros(rounding.lower.shape, np.float32))  # in the middle
    assert float(array_of(rounding.penalty(2.0))) == pytest.approx(count)
    rounding.variable.assign(np.full(rounding.lower.shape, 0.03, np.float32))
    assert float(array_of(rounding.penalty(2.0))) < 0.9 * float(array_of(rounding.penalty(20.0)))


def test_biases_follow_the_weights():
    """For inputs that are always their means, outputs stay the same whatever the weights are rounded to."""
    net = Net()
    model = net.model(net.dense(net.input(1, 12), normal(5, 12), normal(5)))
    rules = {"rules": [{"scheme": "int8", "weights": "int2"}]}
    rows = [(np.abs(sample[0]),) for sample in samples_for(model, 40)]
    result = zeropoint.quantize(model, data=rows, recipe=recipe_from(rules), effort="quick", target="integer")
    refiner = Refiner(result.prepared, Request(recipe_from(rules)), [], no_progress, 64)
    learner = Reconstruction(refiner, [], no_progress, stats=result.stats)
    training = block_training.BlockTraining.of(result.planned, result.planned.plans[0], learner)
    ((bias, rounding),) = training.model.learning.by_bias.items()
    before = training._found().values
    rng = np.random.default_rng(0)
    rounding.variable.assign(rng.normal(size=rounding.lower.shape).astype(np.float32))
    after = training._found().values
    (use,) = training.model.learning.by_use
    assert not np.array_equal(before[use], after[use])
    x = np.mean([row[0][0] for row in rows], axis=0)
    outputs = [values[use] @ x + values[bias] for values in (before, after)]
    np.testing.assert_allclose(*outputs, atol=1e-4)


def test_learning_starts_from_nearest_rounding_and_gets_better():
    """On samples that are not learned from. Rounding with compensation, from which it usually starts, is hard to beat
    in a network that small."""
    start, rows = learned(chain(), "quick"), samples_for(chain(), 80)
    plan, request = start.plan, Request(recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]}))
    refiner = Refiner(start.prepared, request, rows[16:], no_progress, 512)
    search = Reconstruction(refiner, rows[:16], no_progress)
    (block,) = blocks_of(plan.graph, OPS)
    made = search.learned_plan(start.planned, plan, block)
    assert made is not plan
    others = Bench(start.prepared, samples_for(chain(), 120)[80:], judged=40)
    before, after = (others.error(build(replace(start.planned, plans=(p,)), OPS)) for p in (plan, made))
    assert after < before


def test_blocks_with_large_activations_learn_from_smaller_batches(monkeypatch):
    """So that the memory of a step is bounded; no smaller than a few samples."""
    model = chain(4)
    refiner = Refiner(model, Request(preset("int8")), [], no_progress, vectors=64)
    search = Reconstruction(refiner, [], no_progress)
    block = joined(model.main, blocks_of(model.main, OPS), OPS)
    activations = 4 * 6 * 6 * 8

    def batch(samples):
        monkeypatch.setattr(reconstruction, "STEP_BYTES", int(samples * reconstruction.COPIES * 4 * activations))
        return search._schedule(block)[1]

    assert [batch(samples) for samples in (1000, 32, 17.5, 4, 1)] == [32, 32, 17, 4, 4]


@pytest.mark.parametrize(("samples", "of"), [(4 * 4, 3), (4 * 2, 2), (1, 0)])
def test_blocks_that_need_too_much_memory_are_not_learned(monkeypatch, samples, of):
    """Even with the smallest batch: first all blocks together, then each of them."""
    layer = reconstruction.COPIES * 4 * 6 * 6 * 8
    monkeypatch.setattr(reconstruction, "LARGEST_STEP", samples * layer)
    (note,) = (note for note in learned(chain(4)).notes if "blocks learned something" in note)
    assert f" of {of} blocks" in note


def test_mixtures_lie_between_samples_and_only_real_numbers_are_mixed():
    model = chain()
    rows = [tuple(sample) for sample in samples_for(model, 6)]
    request = Request(recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]}))

    def learned_from(rows, seed=0, most=1000):
        refiner = Refiner(model, request, rows, no_progress, 512)
        return list(Reconstruction(refiner, rows, no_progress, seed).learned_from(most))

    found, again, other = (learned_from(rows, seed) for seed in (0, 0, 1))
    for most in (4, 9):  # the samples come first, and then the same mixtures as if there were room for more
        assert [row[0].tobytes() for row in learned_from(rows, most=most)] == [row[0].tobytes() for row in found[:most]]
    assert len(found) == len(rows) * (1 + reconstruction.MIXTURES)
    every = np.stack([row[0] for row in rows])
    assert all((every.min(axis=0) <= row[0]).all() and (row[0] <= every.max(axis=0)).all() for row in found)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(found, again, strict=True))
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(found, other, strict=True))
    assert len(learned_from([(np.arange(4, dtype=np.int32),)] * 6)) == 6


def test_in_the_end_all_blocks_learn_together():
    model = chain(4)
    blocks = blocks_of(model.main, OPS)
    whole = joined(model.main, blocks, OPS)
    assert whole.ops == tuple(model.main.ops)
    assert whole.outputs == (*blocks[0].outputs, *blocks[1].outputs)
    assert joined(model.main, blocks[1:], OPS) == blocks[1]
    assert any(
        note.endswith("of 3 blocks learned something that holds on other samples") for note in learned(model).notes
    )


def test_what_an_average_is_taken_of_tells_more_than_a_few_classes():
    net = Net()
    x = convolutions(net.input(1, 8, 8, 4), net, 4, 8)
    pooled = net("MEAN", [x, np.array([1, 2], np.int32)], (1, 8))
    model = net.model(net.dense(pooled, normal(3, 8)))
    (block,) = blocks_of(model.main, OPS)
    assert block.outputs == (x, model.main.outputs[0])


def test_if_weights_have_few_bits_only_their_roundings_are_learned():
    model = chain(4)
    rules = [{"scheme": "int8"}, {"name": model.main.ops[3].name, "scheme": "int8", "weights": "int4"}]
    result = zeropoint.quantize(model, data=samples_for(model, 8), recipe=recipe_from({"rules": rules}), effort="quick")
    plan = result.planned.plans[0]
    assert {use.op for use in learned_uses(plan, plan.constants.grids)} == {plan.graph.ops[3]}
    wide = zeropoint.quantize(model, data=samples_for(model, 8), effort="quick").planned.plans[0]
    assert len(learned_uses(wide, wide.constants.grids)) == 4


def test_interrupted_it_keeps_what_it_has(monkeypatch):
    run, calls = block_training.BlockTraining.run, []

    def interrupting(self, *args):
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(block_training.BlockTraining, "run", interrupting)
    result = learned(chain(4))
    assert len(calls) == 2
    assert any(note.startswith("interrupted; ") for note in result.notes)
    assert result.verdict.snr is not None


def test_blocks_that_gain_nothing_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(block_training, "RATE", 1e3)  # wrecks everything
    monkeypatch.setattr(block_training, "ROUNDING_RATE", 1e4)
    monkeypatch.setattr(reconstruction, "STEPS", (4, 4))
    high, result = (learned(chain(), effort, record=False) for effort in ("high", "max"))
    assert any(note.startswith("0 of 1 ") for note in result.notes)
    assert zeropoint.to_bytes(result.model) == zeropoint.to_bytes(high.model)


def test_without_keras_nothing_is_begun(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setattr("zeropoint.train.find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(MissingExtra, match=r"max effort needs Keras 3: pip install 'zeropoint\[tensorflow\]'"):
        learned(chain())
