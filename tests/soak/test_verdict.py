"""The judge accuses ranges that cut something off, and no ranges for what less than a unit decides."""

from __future__ import annotations

import numpy as np

import zeropoint
from tools.soak.graphs import RandomGraph
from tools.soak.oracle import Opened
from tools.soak.verdict import Subject, cut_off, different_unseen, distant_constants, outputs
from zeropoint.calibration.given_ranges import Range, Ranges
from zeropoint.dtypes import DType
from zeropoint.graph import Model

from .. import build
from ..nets import Net


def found(model: Model, *rows: np.ndarray, **options: object) -> list[str]:
    samples = [(row,) for row in rows]
    stats = zeropoint.calibrate(model, samples)
    result = zeropoint.quantize(model, "int16x8", stats=stats, effort="quick", **options)
    given = Subject(RandomGraph(model, samples), stats, outputs(model, samples, "optimized"), ("optimized",))
    return list(cut_off(given, result))


def test_a_range_that_ends_too_early_is_found():
    net = Net()
    model = net.model(net("ABS", [net("ADD", [net.input(1, 8), np.float32([0.5])])]))
    row = np.linspace(-9, 9, 8, dtype=np.float32)[None]
    assert found(model, row) == []
    (text,) = found(model, row, ranges=Ranges({model.main.ops[0].outputs[0].name: Range(-2.0, 2.0, "here")}))
    assert "cut off where their ranges end" in text


def test_floats_end_where_their_readers_do():
    """(x - c) - x is -c whatever x is, so x is cut off, for both of its readers; nothing is lost."""
    net = Net()
    x = net.input(7)
    model = net.model(net("SUB", [net("SUB", [x, np.float32([0.7630735])]), x]))
    row = np.linspace(-2.7, 3, 7, dtype=np.float32)
    assert found(model, row) == []
    other = Net()
    model = other.model(other("ADD", [other.input(7), np.float32([0.5])]))
    (text,) = found(model, row, ranges=Ranges({"x0": Range(-0.5, 0.5, "here")}))
    assert "cut off where their ranges end" in text


def test_what_less_than_a_unit_decides_is_no_matter_of_ranges():
    """An int16 sigmoid reaches 32767/32768, and is compared with 1."""
    net = Net()
    probability = net("LOGISTIC", [net("ADD", [net.input(1, 8), np.float32([0.5])])])
    scores = net("MUL", [net("CAST", [net("EQUAL", [probability, np.float32([1])])]), np.float32([3])])
    net.ops[2].outputs[0].dtype = DType.BOOL
    assert found(net.model(scores), np.linspace(20, 40, 8, dtype=np.float32)[None]) == []


def test_states_are_kept_as_they_were_in_calibration():
    """One step of a recurrent layer in each run: every other step cancels what the one before it left in the state."""
    net = Net()
    zeros, open_gate = np.zeros((4, 4), np.float32), np.full(4, 9, np.float32)
    weights = [zeros, zeros, np.eye(4, dtype=np.float32), zeros, *[zeros] * 4, *[None] * 3]
    biases = [open_gate, open_gate, np.zeros(4, np.float32), open_gate, None, None]
    states = [build.act(f"state{k}", 1, 4) for k in range(2)]
    for state in states:
        state.is_variable = True
    operands = [net.input(1, 1, 4), *weights, *biases, *states]
    made = net("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (1, 1, 4), fusedActivationFunction=4)
    model = net.model(net("ABS", [net("ADD", [made, np.float32([1])])]))
    assert found(model, *(np.full((1, 1, 4), value, np.float32) for value in (-1, 1, -1, 1))) == []


def test_what_the_delegate_computes_otherwise_unseen_is_found():
    net = Net()
    model = net.model(net("ABS", [net("ADD", [net.input(1, 8), np.float32([0.5])])]), net("RELU", [net.inputs[0]]))
    samples = [(np.linspace(-9, 9, 8, dtype=np.float32)[None],)] * 2
    made = outputs(model, samples, "delegate")
    seen = list(Opened(model).values(samples, "delegate"))
    assert list(different_unseen(model, seen, made)) == []
    made[1][0][0, 3] += 1
    (text,) = different_unseen(model, seen, made)
    assert "output 0" in text


def test_the_weights_of_merged_layers_are_not_those_of_one():
    net = Net()
    x = net.input(1, 4, 4, 8)
    for k in range(2):
        x = net.conv(x, np.random.default_rng(k).normal(size=(8, 1, 1, 8)).astype(np.float32), np.zeros(8, np.float32))
        net.ops[-1].inputs[1].name = f"c{k}"
    model = net.model(x)
    samples = [(np.random.default_rng(k).normal(size=(1, 4, 4, 8)).astype(np.float32),) for k in range(4)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick").model
    assert [op.kind for op in made.main.ops].count("CONV_2D") == 1
    assert list(distant_constants(RandomGraph(model, samples), made)) == []


def test_a_constant_may_end_where_a_softmax_no_longer_sees_it():
    """Of -763 beside numbers around 1, a softmax makes 0, as it does of -21; of -5 it makes a few thousandths."""
    for far, most, said in ((-763.0, 900.0, 0), (-5.0, 9.0, 1)):
        net = Net()
        lower = np.float32([most / 3, far, most / 2, most])
        model = net.model(net("SOFTMAX", [net("MINIMUM", [net("ABS", [net.input(4, 4)]), lower])], beta=1.0))
        model.main.ops[1].inputs[1].name = "c0"
        samples = [(np.random.default_rng(k).normal(size=(4, 4)).astype(np.float32),) for k in range(4)]
        given = Ranges({model.main.ops[1].outputs[0].name: Range(-2.0, most, "here")}) if said else None
        made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer", ranges=given).model
        constant = next(t for t in made.main.tensors if t.name == "c0")
        assert constant.params is not None
        assert constant.params.range()[0] > far + constant.params.scale
        assert len(list(distant_constants(RandomGraph(model, samples), made))) == said
