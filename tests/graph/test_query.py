"""Fingerprints: equal models have equal ones, and any change of anything shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropoint.dtypes import DType
from zeropoint.graph import Model, Tensor
from zeropoint.graph.edit import copy_model, set_constant
from zeropoint.graph.query import ROW, fingerprint
from zeropoint.tflite import load, to_bytes

from .. import build

SIZE = 3 * ROW // 4 + 5  # floats: three rows and a rest


def large() -> Model:
    data = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    x, y = build.act("x", SIZE), build.act("y", SIZE)
    return build.one_op("ADD", [x, build.const("c", data)], y, options="AddOptions")


def constant(model: Model) -> Tensor:
    return model.main.tensor("c")


@pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())
def test_the_same_model_has_the_same_fingerprint(make):
    model = make()
    assert fingerprint(model) == fingerprint(make()) == fingerprint(copy_model(model))
    assert fingerprint(load(to_bytes(model))) == fingerprint(model)


@settings(max_examples=60)
@given(place=st.integers(0, 4 * SIZE - 1), bit=st.integers(0, 7))
def test_every_bit_of_a_constant_shows(place, bit):
    model = large()
    before = fingerprint(model)
    raw = constant(model).buffer.raw.copy()
    raw[place] ^= 1 << bit
    set_constant(constant(model), raw.view(np.float32), DType.FLOAT32)
    assert fingerprint(model) != before


@settings(max_examples=60)
@given(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))
def test_the_order_of_a_constant_shows(a, b):
    model = large()
    before = fingerprint(model)
    data = constant(model).data.copy()
    data[[a, b]] = data[[b, a]]
    set_constant(constant(model), data, DType.FLOAT32)
    assert (fingerprint(model) != before) == (a != b)


@pytest.mark.parametrize("rows", [(1, 0, 2), (2, 1, 0)])
def test_the_order_of_its_rows_shows(rows):
    model = large()
    before = fingerprint(model)
    data = constant(model).data.copy()
    whole = 3 * ROW // 4
    data[:whole] = data[:whole].reshape(3, -1)[list(rows)].ravel()
    set_constant(constant(model), data, DType.FLOAT32)
    assert fingerprint(model) != before
