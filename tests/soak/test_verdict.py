"""The judge accuses ranges that cut something off, and no ranges for what less than a unit decides."""

from __future__ import annotations

import numpy as np

import zeropoint
from tools.soak.graphs import RandomGraph
from tools.soak.verdict import Subject, cut_off, outputs
from zeropoint.calibration.given_ranges import Range, Ranges
from zeropoint.dtypes import DType
from zeropoint.graph import Model

from ..nets import Net


def found(model: Model, row: np.ndarray, **options: object) -> list[str]:
    samples = [(row,)] * 2
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


def test_what_less_than_a_unit_decides_is_no_matter_of_ranges():
    """An int16 sigmoid reaches 32767/32768, and is compared with 1."""
    net = Net()
    probability = net("LOGISTIC", [net("ADD", [net.input(1, 8), np.float32([0.5])])])
    scores = net("MUL", [net("CAST", [net("EQUAL", [probability, np.float32([1])])]), np.float32([3])])
    net.ops[2].outputs[0].dtype = DType.BOOL
    assert found(net.model(scores), np.linspace(20, 40, 8, dtype=np.float32)[None]) == []
