"""Fingerprints: equal models have equal ones, and any change of anything shows. Memory of activations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropoint.dtypes import DType
from zeropoint.graph import Model, Tensor
from zeropoint.graph.edit import copy_model, set_constant
from zeropoint.graph.query import ROW, activation_bytes, fingerprint, live_bytes
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


@pytest.mark.parametrize("read_late", [False, True])
def test_activations_live_until_the_last_op_that_reads_them(read_late):
    tensors = [build.act(f"t{k}", 10) for k in range(6)]
    ops = [build.op("ABS", [a], b) for a, b in pairwise(tensors)]
    if read_late:
        ops[-1] = build.op("ADD", [tensors[4], tensors[0]], tensors[5], options="AddOptions")
    chain = build.graph("main", tensors[:1], tensors[5:], *ops)
    assert activation_bytes(chain) == 6 * 40
    assert live_bytes(chain) == (3 if read_late else 2) * 40
    chain.outputs = tensors[1:]
    assert live_bytes(chain) == 6 * 40 - (0 if read_late else 40)


@pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())
def test_no_run_needs_more_memory_than_all_activations_take(make):
    for graph in make().graphs:
        assert live_bytes(graph) <= activation_bytes(graph)
