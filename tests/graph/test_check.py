"""The table of invariants: each is broken once, and the report says in words what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel
from zeropoint.graph import Graph, Model, Quantization, check, problems
from zeropoint.graph.check import GRAPH_INVARIANTS, MODEL_INVARIANTS, no_dangling_tensors
from zeropoint.ops.check import check_runnable
from zeropoint.report.inspection import inspect
from zeropoint.runtime import Runner, Session
from zeropoint.tflite import load, to_bytes

from .. import build

Break = Callable[[Model], object]


def replace_option(model: Model, name: str, graph: Graph) -> None:
    call = model.main.ops[0]
    call.options = call.options.replace(**{name: graph})


def recursive(model: Model) -> None:
    """The branch calls itself: LiteRT follows that until the process dies."""
    then = model.graphs[1]
    choice = build.const("always", np.array(True))
    call = build.op(
        "IF", [choice, *then.inputs], *then.outputs, options="IfOptions", thenSubgraphIndex=then, elseSubgraphIndex=-1
    )
    then.ops[:] = [call]
    then.tensors[:] = [*then.inputs, *then.outputs, choice]


BROKEN: list[tuple[str, Callable[[], Model], Break, str]] = [
    ("tensors_belong", build.float_cnn, lambda m: m.main.tensors.append(m.main.tensors[0]), "listed twice"),
    (
        "tensors_belong",
        build.float_cnn,
        lambda m: m.main.tensors.remove(m.main.tensor("axes")),
        "MEAN 'mean' refers to 'axes', which is not in the graph",
    ),
    (
        "tensors_belong",
        build.float_cnn,
        lambda m: m.main.outputs.append(build.act("stray", 1)),
        "'stray' is not in the graph",
    ),
    (
        "one_producer",
        build.float_cnn,
        lambda m: m.main.ops.append(m.main.ops[-1]),
        "'scores' is an output of SOFTMAX but already an output of SOFTMAX",
    ),
    (
        "one_producer",
        build.float_cnn,
        lambda m: m.main.inputs.append(m.main.tensor("pool")),
        "'pool' is an output of MAX_POOL_2D but already a graph input",
    ),
    ("producers_first", build.float_cnn, lambda m: m.main.ops.reverse(), "reads 'logits' before anything has produced"),
    ("producers_first", build.float_cnn, lambda m: m.main.ops.pop(), "the output 'scores' is never produced"),
    (
        "shapes_are_sane",
        build.float_cnn,
        lambda m: setattr(m.main.tensor("pool"), "shape", (1, -1)),
        r"'pool' has the shape \[1, -1\]",
    ),
    (
        "shapes_are_sane",
        build.dynamic,
        lambda m: setattr(m.main.tensor("x"), "shape_signature", (-1,)),
        "'x' has 2 dimensions but a signature of 1",
    ),
    (
        "data_fits",
        build.float_cnn,
        lambda m: setattr(m.main.tensor("axes"), "dtype", DType.INT64),
        "'axes'> has 8 bytes where 16 are needed",
    ),
    (
        "parameters_fit",
        build.quantized_cnn,
        lambda m: setattr(m.main.tensor("conv/w"), "quantization", Quantization((1.0, 2.0, 3.0), (0,), 0)),
        "'conv/w' has 3 scales for 2 slices along axis 0",
    ),
    (
        "parameters_fit",
        build.quantized_cnn,
        lambda m: setattr(m.main.tensor("conv/w"), "quantization", Quantization((1.0, 2.0), (0, 0), 4)),
        "'conv/w' is quantized along axis 4 but has 4 dimensions",
    ),
    (
        "no_dangling_tensors",
        build.float_cnn,
        lambda m: m.main.tensors.append(build.act("lost", 1)),
        "nothing refers to 'lost'",
    ),
    (
        "signatures_fit",
        build.branches,
        lambda m: m.signatures[1].inputs.update(extra=m.main.inputs[0]),
        "'just_add' names 'choice' as input 'extra', which it is not",
    ),
    (
        "signatures_fit",
        build.branches,
        lambda m: setattr(m.signatures[1], "graph", Graph("elsewhere")),
        "'just_add' belongs to no graph",
    ),
    (
        "calls_stay_inside",
        build.branches,
        lambda m: replace_option(m, "thenSubgraphIndex", Graph("elsewhere")),
        "IF 'y' calls a graph that is not in the model",
    ),
    ("calls_end", build.branches, recursive, "the graph 'then' calls itself"),
]


@pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())
def test_a_legal_model_has_no_problems(make):
    model = make()
    assert list(problems(model)) == []
    assert [p for g in model.graphs for p in no_dangling_tensors(g)] == []


@pytest.mark.parametrize(("name", "make", "damage", "words"), BROKEN, ids=[f"{b[0]}-{k}" for k, b in enumerate(BROKEN)])
def test_a_broken_model_is_reported_in_words(name, make, damage, words):
    model = make()
    damage(model)
    if name == "no_dangling_tensors":  # files from elsewhere may have these
        check(model)
        (problem,) = no_dangling_tensors(model.main)
        assert problem == words
        return
    with pytest.raises(InvalidModel, match=words):
        check(model)
    with pytest.raises(InvalidModel, match=words):
        to_bytes(model)


def test_every_invariant_is_broken_above():
    known = {f.__name__ for f in (*GRAPH_INVARIANTS, *MODEL_INVARIANTS, no_dangling_tensors)}
    assert {name for name, *_ in BROKEN} == known


def test_a_model_that_reads_what_nothing_fills_is_carried_but_not_run():
    """Compiled models read scratch memory; parts of models read what the rest would have made."""
    model = build.float_cnn()
    model.main.inputs.clear()
    model.signatures.clear()
    same = load(to_bytes(model))
    with pytest.raises(InvalidModel, match=r"CONV_2D 'stem' reads 'image', which nothing fills; .* not run"):
        check_runnable(same)
    for content in (same, to_bytes(same)):
        with pytest.raises(InvalidModel, match="nothing fills"):
            Session(content)
    with pytest.raises(InvalidModel, match="nothing fills"):
        Runner(same)
    assert inspect(same).remarks == (
        "CONV_2D 'stem' reads 'image', which nothing fills: the model can be inspected, but not run here",
    )


def test_a_vector_has_no_choice_of_an_axis():
    """TOCO gave biases the axis of their weights. LiteRT refuses that since; what is written names the only axis."""
    model = build.quantized_cnn()
    bias = model.main.tensor("conv/b")
    expected = to_bytes(model)
    assert bias.quantization is not None
    bias.quantization = replace(bias.quantization, axis=3)
    check(model)
    assert bias.params is not None
    assert bias.params.axis == 0
    assert inspect(model).remarks == ("'conv/b' is quantized along axis 3, which a vector does not have; taken as 0",)
    assert to_bytes(model) == expected
    Session(model)


def test_a_model_needs_a_graph():
    with pytest.raises(InvalidModel, match="no graph"):
        check(Model([]))


def test_of_many_problems_a_few_are_told():
    model = build.float_cnn()
    for tensor in model.main.tensors:
        tensor.shape = (-1,)
    with pytest.raises(InvalidModel, match=r"\(and more\)$") as caught:
        check(model)
    assert str(caught.value).count(";") == 2
