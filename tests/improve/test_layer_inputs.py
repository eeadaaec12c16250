"""The inputs of layers: the same however they are gathered."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.graph.model import Model
from zeropoint.improve import layer_inputs
from zeropoint.improve.layer_inputs import ColumnBlocks, Frontier, Moments, live_tensors

from .. import build


@pytest.mark.parametrize("inputs", [1, 7, 8, 9, 30])
def test_blocks_are_put_together_again(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "MOST_INPUTS", 8)
    blocks, values = ColumnBlocks(inputs), np.random.default_rng(0).normal(size=(3, 2, inputs))
    parts = blocks.split(values, fill=5.0)
    assert parts.shape == (3 * blocks.count, 2, blocks.width)
    assert blocks.width <= 8
    assert parts.sum() == pytest.approx(values.sum() + 6 * 5.0 * (blocks.count * blocks.width - inputs))
    np.testing.assert_array_equal(blocks.join(parts), values)


def test_all_samples_count_the_same_in_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    samples = [tuple(rng.normal(size=(2, 2, count, 4)).astype(np.float32)) for count in (3, 5, 1)]
    for together in (1, 4, 512):
        monkeypatch.setattr(layer_inputs, "TOGETHER", together)
        found = Moments.of(samples)
        np.testing.assert_allclose(found.first, np.mean([x.mean(axis=1) for x, _ in samples], axis=0), rtol=1e-5)
        np.testing.assert_allclose(found.float_first, np.mean([f.mean(axis=1) for _, f in samples], axis=0), rtol=1e-5)
        for own, k in ((found.second, 0), (found.cross, 1)):
            wanted = np.mean([s[k].transpose(0, 2, 1) @ s[0] / s[0].shape[1] for s in samples], axis=0)
            np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-6)


def residual() -> Model:
    """x -> a -> b -> c = a + b -> d: `a` is still to be read behind `b`."""
    rng = np.random.default_rng(2)
    x, a, b, c, d = (build.act(name, 1, 4) for name in "xabcd")
    weights = [build.const(f"w{k}", rng.normal(size=(4, 4)).astype(np.float32)) for k in range(3)]
    dense = [
        build.op("FULLY_CONNECTED", [source, w], made, options="FullyConnectedOptions")
        for source, w, made in ((x, weights[0], a), (a, weights[1], b), (c, weights[2], d))
    ]
    total = build.op("ADD", [a, b], c, options="AddOptions")
    return Model([build.graph("main", [x], [d], dense[0], dense[1], total, dense[2])])


def test_what_later_ops_read_is_held() -> None:
    graph = residual().main
    names = [[t.name for t in live_tensors(graph, place)] for place in range(4)]
    assert names == [["x"], ["a"], ["a", "b"], ["c"]]


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_layers_read_the_same_whether_samples_are_held_or_not(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "HELD", held)
    model, rng = residual(), np.random.default_rng(3)
    graph, rows = model.main, [(rng.normal(size=(1, 4)).astype(np.float32),) for _ in range(3)]
    frontier, places = Frontier(graph, rows, in_sequence=False), []
    w0, w1 = (op.inputs[1].data for op in graph.ops[:2])  # type: ignore[union-attr]
    for op in (graph.ops[0], graph.ops[1], graph.ops[3]):
        stretch = frontier.until(model, graph, op, 0)
        read = np.concatenate([stretch.run(k) for k in range(len(rows))])
        x = np.concatenate([row[0] for row in rows])
        a = x @ w0.T
        wanted = {"x": x, "a": a, "c": a + a @ w1.T}[stretch.source.name]
        np.testing.assert_allclose(read, wanted, rtol=1e-4, atol=1e-5)
        places.append(frontier.place)
    assert places == ([0, 1, 3] if held else [0, 0, 0])


@pytest.mark.parametrize(("held", "in_sequence", "macs"), [(1 << 20, False, 7), (0, False, 11), (1 << 20, True, 11)])
def test_work_is_that_of_the_runs_between_layers(held, in_sequence, macs, monkeypatch) -> None:
    """The layers are the first, the second and the last op, behind 0, 4 and 7 multiply-accumulates."""
    monkeypatch.setattr(layer_inputs, "HELD", held)
    graph = residual().main
    frontier = Frontier(graph, [()] * 3, in_sequence)
    layers = [(op, op.inputs[0]) for op in (graph.ops[0], graph.ops[1], graph.ops[3])]
    cost = dict(zip(graph.ops, (4, 2, 1, 5), strict=True))
    assert frontier.macs_until(graph, layers, cost.__getitem__) == macs


def test_unpacked_weights_are_not_held_for_each_sample() -> None:
    """LiteRT's delegate cannot give what it unpacks from float16 as an output, and no sample changes it."""
    model, rng = residual(), np.random.default_rng(4)
    graph, arrays, unpacking = model.main, [], []
    for k, dense in enumerate(op for op in graph.ops if op.kind == "FULLY_CONNECTED"):
        arrays.append(dense.inputs[1].data.astype(np.float16))  # type: ignore[union-attr]
        dense.inputs[1] = build.act(f"u{k}", 4, 4)
        unpacking.append(build.op("DEQUANTIZE", [build.const(f"h{k}", arrays[-1])], dense.inputs[1]))
    graph = build.graph("main", graph.inputs, graph.outputs, *unpacking, *graph.ops)
    rows = [(rng.normal(size=(1, 4)).astype(np.float32),) for _ in range(2)]
    frontier = Frontier(graph, rows, in_sequence=False)
    for op in (graph.ops[4], graph.ops[6]):
        read = [frontier.until(Model([graph]), graph, op, 0).run(k) for k in range(1)]
    x, first, second = rows[0][0], *(a.astype(np.float32).T for a in arrays[:2])
    np.testing.assert_allclose(read[0], x @ first + x @ first @ second, rtol=1e-4, atol=1e-5)
    assert [len(row) for row in frontier.rows] == [1, 1]
