"""Edits: what a model computes changes only where it should, and every edit leaves a legal graph or none at all."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Graph, Model, Op, Tensor, Uses, check
from zeropoint.graph.check import no_dangling_tensors
from zeropoint.graph.edit import (
    copy_model,
    drop_unused,
    duplicate_constant,
    insert_after,
    remove_op,
    retype,
    set_constant,
    signatures_follow,
)
from zeropoint.runtime import Session

from .. import build


def outputs(model: Model) -> list[bytes]:
    session = Session(model, kernels="reference")
    return [a.tobytes() for a in session.run(build.sample(session.inputs))]


def legal(model: Model) -> bool:
    check(model)
    return not any(problem for graph in model.graphs for problem in no_dangling_tensors(graph))


def copy_of(source: Tensor) -> Op:
    """An op that changes nothing."""
    same = build.act("between", *source.shape)
    return build.op("RESHAPE", [source], same, options="ReshapeOptions", newShape=source.shape)


def edges(graph: Graph) -> list[Tensor]:
    return [t for t in graph.tensors if not t.is_constant]


@pytest.mark.parametrize("name", [t.name for t in edges(build.float_cnn().main)])
def test_inserting_and_removing_leaves_things_as_they_were(name):
    model = build.float_cnn()
    graph, before, computed = model.main, str(model), outputs(model)
    source = graph.tensor(name)
    between = copy_of(source)

    with signatures_follow(model):
        insert_after(graph, source, between, Uses(graph).readers(source), as_output=source in graph.outputs)
    assert legal(model)
    assert list(model.signatures[0].outputs.values()) == graph.outputs
    assert outputs(model) == computed
    assert [use.op for use in Uses(graph).readers(source)] == [between]

    with signatures_follow(model):
        remove_op(graph, between)
    assert legal(model)
    assert str(model) == before


def test_an_insertion_reaches_only_the_uses_it_is_given():
    model = build.float_cnn()
    graph = model.main
    stem = graph.tensor("stem")
    first, *rest = Uses(graph).readers(stem)
    between = copy_of(stem)
    insert_after(graph, stem, between, [first])
    assert legal(model)
    assert first.op.inputs[first.slot] is between.outputs[0]
    assert all(use.op.inputs[use.slot] is stem for use in rest)
    assert rest


def test_an_inserted_op_brings_its_constants_along():
    model = build.float_cnn()
    graph = model.main
    stem = graph.tensor("stem")
    shift = build.const("shift", np.float32(0))
    between = build.op("ADD", [stem, shift], build.act("between", *stem.shape), options="AddOptions")
    computed = outputs(model)
    insert_after(graph, stem, between, Uses(graph).readers(stem))
    assert graph.tensors.count(shift) == 1
    assert legal(model)
    assert outputs(model) == computed


def test_constants_change_for_one_tensor_only():
    model = build.shared()
    first, second = model.main.tensor("c"), model.main.tensor("d")
    assert first.buffer is second.buffer
    params = QuantParams.from_range(-2, 2, DType.INT4)
    set_constant(first, np.array([-8, 7]), DType.INT4, params)
    assert (first.dtype, first.params, first.data.tolist()) == (DType.INT4, params, [-8, 7])
    assert second.data.ravel().tolist() == [1.0, -2.0]
    check(model)


def test_a_duplicate_is_a_constant_of_its_own():
    model = build.shared()
    graph, computed = model.main, outputs(model)
    kept = graph.tensor("e")
    (use,) = Uses(graph).readers(kept)
    twin = duplicate_constant(graph, kept, [use])
    drop_unused(graph)
    assert legal(model)
    assert kept not in graph.tensors
    assert outputs(model) == computed
    set_constant(twin, np.float32([5, 5]), DType.FLOAT32)
    assert kept.data.tolist() == [1.0, -2.0]
    assert outputs(model) != computed


def test_duplicates_have_names_of_their_own():
    model = build.shared()
    graph = model.main
    kept = graph.tensor("e")
    names = [duplicate_constant(graph, kept, []).name for _ in range(3)]
    assert names == ["e/copy", "e/copy#2", "e/copy#3"]
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)


def test_a_new_type_forgets_the_old_range():
    tensor = build.quantized_cnn().main.tensor("image")
    params = QuantParams.from_range(0, 1, DType.UINT8)
    retype(tensor, DType.UINT8, params)
    assert (tensor.dtype, tensor.params, tensor.quantization.min) == (DType.UINT8, params, ())
    retype(tensor, DType.FLOAT32, None)
    assert tensor.quantization is None


@pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())
def test_a_copy_shares_bytes_and_nothing_else(make):
    model = make()
    before, twin = str(model), copy_model(model)
    assert str(twin) == before
    for graph, other in zip(model.graphs, twin.graphs, strict=True):
        assert not set(graph.tensors) & set(other.tensors)
        assert not set(graph.ops) & set(other.ops)
        assert all(a.buffer is b.buffer for a, b in zip(graph.tensors, other.tensors, strict=True))
        assert all(g in twin.graphs for op in other.ops for g in op.graphs())
        other.ops.clear()
        for tensor in other.tensors:
            retype(tensor, DType.INT8, None)
    assert str(model) == before


def wrong_shape(graph: Graph) -> None:
    insert_after(graph, graph.tensor("pool"), build.op("ABS", [graph.tensor("pool")], build.act("new", 7)), [])


def wrong_use(graph: Graph) -> None:
    pool = graph.tensor("pool")
    insert_after(graph, pool, copy_of(pool), Uses(graph).readers(graph.tensor("stem")))


def not_a_constant(graph: Graph) -> None:
    set_constant(graph.tensor("pool"), np.float32([1]), DType.FLOAT32)


def out_of_range(graph: Graph) -> None:
    set_constant(graph.tensor("stem/b"), np.array([100]), DType.INT4)


def nothing_to_read(graph: Graph) -> None:
    graph.ops[-1].inputs[0] = None
    try:
        remove_op(graph, graph.ops[-1])
    finally:
        graph.ops[-1].inputs[0] = graph.tensor("logits")


REFUSED = (wrong_shape, wrong_use, not_a_constant, out_of_range, nothing_to_read)


@pytest.mark.parametrize("edit", REFUSED, ids=lambda f: f.__name__)
def test_a_refused_edit_changes_nothing(edit):
    model = build.float_cnn()
    before = str(model)
    with pytest.raises(ValueError, match=r"\w"):
        edit(model.main)
    assert str(model) == before


def test_an_op_with_another_output_in_use_stays():
    x, a, b = build.act("x", 2), build.act("a", 2), build.act("b", 2)
    unpack = build.op("CUSTOM", [x], a, b)
    model = Model([build.graph("main", [x], [a, b], unpack)])
    with pytest.raises(ValueError, match="other outputs"):
        remove_op(model.main, unpack)
    assert legal(model)
