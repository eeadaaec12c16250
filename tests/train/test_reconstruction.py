"""Reconstruction: blocks of a graph, and what max effort learns in them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import zeropoint
from zeropoint.errors import MissingExtra
from zeropoint.improve.candidate import no_progress
from zeropoint.improve.gptq import Refiner
from zeropoint.ops import OPS
from zeropoint.plan.request import Request
from zeropoint.recipe_files import recipe_from
from zeropoint.train import block_training, reconstruction
from zeropoint.train.reconstruction import Reconstruction, blocks_of

from ..nets import Net, normal, samples_for


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Few steps are enough to see that something is learned."""
    monkeypatch.setattr(reconstruction, "STEPS", (16, 16))


def convolutions(x, net, *channels):
    for number, count in enumerate(channels):
        x = net.conv(x, normal(count, 3, 3, x.shape[3], seed=number) / 4)
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
    (output,) = blocks_of(model.main, OPS)[-1].outputs
    assert output is model.main.ops[-1].inputs[0]
    assert model.main.ops[-1].kind == "SOFTMAX"


def test_the_same_is_learned_from_the_same_seed():
    start = learned(chain(), "standard")
    request = Request(recipe_from({"rules": [{"scheme": "int8", "weights": "int2"}]}), effort="max")
    refiner = Refiner(start.prepared, request, samples_for(chain(), 32), no_progress, 512)
    found = [Reconstruction(refiner, no_progress, seed).of(start.planned) for seed in (0, 0, 1)]
    assert [(one.changed, one.blocks) for one in found] == [(1, 1)] * 3
    one, other, another = (one.planned.plans[0] for one in found)
    assert one.groups == other.groups
    assert all(np.array_equal(value, other.constants.values[key]) for key, value in one.constants.values.items())
    assert any(not np.array_equal(v, another.constants.values[key]) for key, v in one.constants.values.items())


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
    monkeypatch.setattr(reconstruction, "STEPS", (4, 4))
    high, result = (learned(chain(), effort, record=False) for effort in ("high", "max"))
    assert any(note.startswith("0 of 1 ") for note in result.notes)
    assert zeropoint.to_bytes(result.model) == zeropoint.to_bytes(high.model)


def test_without_keras_nothing_is_begun(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setattr("zeropoint.train.find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(MissingExtra, match=r"max effort needs Keras 3: pip install 'zeropoint\[tensorflow\]'"):
        learned(chain())
