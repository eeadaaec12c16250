"""Samples computed together by graphs that a file runs one by one, since they do not leave the batch in its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.ops import OPS
from zeropoint.ops.sample_axis import with_sample_axis
from zeropoint.runtime import Session
from zeropoint.train import export, parity, trainable
from zeropoint.train.backend import array_of

from ..conformance.samples import SAMPLES
from ..nets import Net, normal, samples_for
from .test_compute import TOLERANCE, WITHOUT_GRADIENT, outputs

TOGETHER = 3

NOT_TOGETHER = {
    "their operands are indices, or shapes, that each sample has of its own": {
        "BROADCAST_TO",
        "DILATE",
        "DYNAMIC_UPDATE_SLICE",
        "FILL",
        "MATRIX_SET_DIAG",
        "ONE_HOT",
        "SCATTER_ND",
        "SELECT",
        "SPARSE_TO_DENSE",
    },
    "they make rows of blocks": {"BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND"},
}


def one_by_one(sample):
    """The inputs of a sample, if a file with them takes one sample at a time."""
    return all(t.shape[:1] == (1,) for t in sample.model().main.inputs)


def with_axis(net):
    """The graph with an axis of samples in front, whether it needs one or not."""
    graph = net.graph
    axis = with_sample_axis(graph.blueprint.plan.graph.inputs, graph.ops, graph.statics, OPS)
    if axis is None:
        return False
    net.graph = replace(graph, free=frozenset(), sample_axis=axis)
    return True


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.kind not in WITHOUT_GRADIENT and one_by_one(s)], ids=str)
def test_ops_compute_several_samples_as_they_compute_each(sample):
    model = sample.model()
    net, session = trainable(model, quantize=False), Session(model)
    if not with_axis(net):
        assert sample.kind in set().union(*NOT_TOGETHER.values()) or sample.kind in ("GATHER", "GATHER_ND")
        return
    rows = sample.draw(TOGETHER)
    together = outputs(net, [np.concatenate(column) for column in zip(*rows, strict=True)])
    each = [run_afresh(session, row) for row in rows]
    for k, found in enumerate(together):
        wanted = np.stack([result[k] for result in each])
        assert found.size == wanted.size
        gap = np.abs(found.reshape(wanted.shape).astype(np.float64) - wanted).max()
        assert gap <= TOLERANCE * max(1e-9, np.abs(wanted).max())


def run_afresh(session, row):
    session.reset()
    return session.run(row)


HEADS, STEPS, WIDTH = 2, 5, 4


def transformer():
    """One layer of attention as converters write it: without the batch, heads in front, a token that is learned."""
    net = Net()
    tokens, mask = net.input(1, STEPS, HEADS * WIDTH), net.input(1, STEPS)
    zeros, ones = np.zeros(3, np.int32), np.ones(3, np.int32)
    x = net(
        "STRIDED_SLICE", [tokens, zeros, ones, ones], (STEPS, HEADS * WIDTH), beginMask=6, endMask=6, shrinkAxisMask=1
    )
    heads = []
    for _ in range(3):
        y = net.dense(x, normal(HEADS * WIDTH, HEADS * WIDTH))
        y = net("RESHAPE", [y, np.array([STEPS, HEADS, WIDTH], np.int32)], (STEPS, HEADS, WIDTH))
        heads.append(net("TRANSPOSE", [y, np.array([1, 0, 2], np.int32)], (HEADS, STEPS, WIDTH)))
    scores = net("BATCH_MATMUL", heads[:2], (HEADS, STEPS, STEPS), adjY=True)
    hidden = net("RESHAPE", [mask, np.array([1, 1, STEPS], np.int32)], (1, 1, STEPS))
    shares = net("SOFTMAX", [net("ADD", [scores, hidden], (HEADS, STEPS, STEPS))], beta=1.0)
    seen = net("BATCH_MATMUL", [shares, heads[2]], (HEADS, STEPS, WIDTH))
    y = net("TRANSPOSE", [seen, np.array([1, 0, 2], np.int32)], (STEPS, HEADS, WIDTH))
    y = net("RESHAPE", [y, np.array([STEPS, HEADS * WIDTH], np.int32)], (STEPS, HEADS * WIDTH))
    y = net("CONCATENATION", [normal(1, HEADS * WIDTH), net("ADD", [x, y])], (STEPS + 1, HEADS * WIDTH), axis=0)
    y = net("MEAN", [y, np.array([0], np.int32)], (1, HEADS * WIDTH), keepDims=True)
    return net.model(net.dense(y, normal(3, HEADS * WIDTH)))


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_a_transformer_takes_batches_and_gives_the_same_as_one_by_one(mode):
    model = transformer()
    rows = samples_for(model, 6)
    net = trainable(model, mode, zeropoint.calibrate(model, rows))
    assert net.takes_any_batch
    together = outputs(net, [np.concatenate(column) for column in zip(*rows, strict=True)])[0]
    np.testing.assert_array_equal(together, np.concatenate([outputs(net, row)[0] for row in rows]))
    (found,) = parity(net, export(net), rows)
    assert found.worst <= 1
    assert found.equal >= 0.95


def test_a_transformer_learns_from_batches():
    model = transformer()
    rows = samples_for(model, 8)
    inputs = [np.concatenate(column) for column in zip(*rows, strict=True)]
    net = trainable(model, "int8", zeropoint.calibrate(model, rows))
    wanted = array_of(net(inputs)) + 0.5
    net.compile(optimizer="adam", loss="mse")
    before = net.evaluate(inputs, wanted, verbose=0)
    net.fit(inputs, wanted, epochs=10, verbose=0)
    assert net.evaluate(inputs, wanted, verbose=0) < before
