"""The rows of the op table: few fields, and slots of recurrent layers that are what their names say."""

from __future__ import annotations

from dataclasses import fields

from zeropoint.ops import OPS, Bias, CellState, Coefficients, OpSpec, OutputState, Weight
from zeropoint.ops.recurrent import LSTM, Gate, LstmSlot

from ..build import act, op


def test_a_row_stays_small():
    assert len(fields(OpSpec)) < 18


def test_slots_of_an_lstm_have_the_roles_of_their_names():
    roles = OPS[LSTM].inputs
    assert isinstance(roles[LstmSlot.OUTPUT_STATE], OutputState)
    assert isinstance(roles[LstmSlot.CELL_STATE], CellState)
    assert isinstance(roles[LstmSlot.PROJECTION], Weight)
    for gate in Gate:
        assert isinstance(roles[gate.weights], Weight)
        assert isinstance(roles[gate.recurrent_weights], Weight)
        assert roles[gate.bias] == Bias((LstmSlot.INPUT, gate.weights), gain=gate.normalization)
        assert gate.peephole is None or isinstance(roles[gate.peephole], Coefficients)
        assert roles[gate.normalization] == Coefficients(hybrid=False)


def test_activations_are_the_operands_that_data_flow_through():
    x, y, shape = act("x", 4), act("y", 2, 2), act("shape", 2)
    reshape = op("RESHAPE", [x, shape], y)
    assert list(OPS["RESHAPE"].read_activations(reshape)) == [x]
    assert list(OPS["RESHAPE"].made_activations(reshape)) == [y]
    several = op("CONCATENATION", [x, None, y], shape)
    assert list(OPS["CONCATENATION"].read_activations(several)) == [x, y]
