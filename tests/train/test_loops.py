"""Loops of Keras's recurrent layers: written out while training, one loop again when exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import Array
from zeropoint.errors import UnsupportedOp
from zeropoint.graph.model import Model
from zeropoint.runtime import Session
from zeropoint.train import Schedule, distill, export, parity, static_values, trainable
from zeropoint.train.backend import array_of

from ..frameworks import keras, unwarned

STEPS, FEATURES = 2, 4


def sequences(count: int = 8) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, STEPS, FEATURES)).astype(np.float32) for _ in range(count)]


def recurrent(kind: str) -> Model:
    """As TensorFlow's converter makes it of layers that are not unrolled."""
    with unwarned():
        library = keras()
        library.utils.set_random_seed(0)
        layers = library.layers
        layer = {
            "gru": lambda: layers.GRU(3, return_sequences=True),
            "lstm": lambda: layers.LSTM(3),
            "bidirectional": lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        }[kind]()
        sequence = library.Input((STEPS, FEATURES), batch_size=1)
        return zeropoint.load(library.Model(sequence, layers.Dense(2)(layer(sequence))))


def body_weights(trained: Any) -> list[Array]:
    bodies = trained.graph.parts[1:]
    return [c.value for body in bodies for c in body.constants if c.variable.trainable]


def loops(model: Model) -> int:
    return sum(op.kind == "WHILE" for graph in model.graphs for op in graph.ops)


@pytest.mark.parametrize("kind", ["gru", "lstm", "bidirectional"])
def test_what_was_trained_is_what_the_loop_computes(kind):
    model, samples = recurrent(kind), sequences()
    net = trainable(model, "int8", zeropoint.calibrate(model, samples))
    assert (len(net.graph.parts), loops(model)) == ((3, 2) if kind == "bidirectional" else (2, 1))
    assert all(any(op in part.blueprint.plan.schemes for op in part.ops) for part in net.graph.parts)
    before = body_weights(net)
    assert before
    with unwarned():
        library = keras()
        net.compile(optimizer=library.optimizers.Adam(1e-2), loss="mse", jit_compile=False)
        target = np.ones(net(samples[0]).shape, np.float32)
        losses = [float(net.train_on_batch(samples[0], target)) for _ in range(3)]
    assert losses[-1] < losses[0]
    assert all(not np.array_equal(old, new) for old, new in zip(before, body_weights(net), strict=True))
    result = export(net)
    assert (len(result.model.graphs), loops(result.model)) == (len(model.graphs), loops(model))
    (found,) = parity(net, result, samples)
    assert found.equal == 1.0, found


def test_a_loop_is_distilled_in_fewer_and_fewer_bits():
    """What a stage has learned in the body is where the next one starts."""
    model, samples = recurrent("gru"), sequences()
    done = distill(
        model, samples, train_bits=("w8a8", "w2a8"), every_layer=True, schedule=Schedule(2, 1, 1e-2, checks=1)
    )
    assert loops(done.result.model) == 1
    assert done.trained.least_bits == 2
    (found,) = parity(done.trained, done.result, samples)
    assert found.equal == 1.0, found


def test_the_float_graph_computes_as_the_loop_does():
    model, samples = recurrent("gru"), sequences(2)
    net = trainable(model, quantize=False)
    session = Session(model)
    for sample in samples:
        np.testing.assert_allclose(array_of(net(sample)), session.run((sample,))[0], atol=1e-5)


def test_loops_that_do_not_count_up_to_a_constant_are_refused(monkeypatch):
    model = recurrent("gru")
    monkeypatch.setattr(static_values, "MOST_ITERATIONS", STEPS - 1)
    with pytest.raises(UnsupportedOp, match=f"more than {STEPS - 1} iterations"):
        trainable(model, quantize=False)
    (loop,) = (op for op in model.graphs[0].ops if op.kind == "WHILE")
    condition, _ = static_values.loop_graphs(loop)
    states = [t for t in condition.inputs if t.dtype.is_float]
    condition.ops[0].inputs[:] = [states[0], states[0]]
    with pytest.raises(UnsupportedOp, match="count up to a constant"):
        trainable(model, quantize=False)
