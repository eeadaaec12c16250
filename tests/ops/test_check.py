"""What kernels rely on without looking: each rule is broken once, and the refusal says in words what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel
from zeropoint.graph import Graph, Model
from zeropoint.graph.check import RUNNABLE_INVARIANTS
from zeropoint.ops.calls import CALLS
from zeropoint.ops.check import OP_INVARIANTS, check_runnable
from zeropoint.runtime import Runner, Session
from zeropoint.tflite import load, to_bytes

from .. import build
from ..conformance.samples import SAMPLES

Break = Callable[[Model], object]


def op_of(model: Model, kind: str):
    return next(op for graph in model.graphs for op in graph.ops if op.kind == kind)


def without(kind: str, slot: int) -> Break:
    return lambda model: op_of(model, kind).inputs.__setitem__(slot, None)


def retyped(name: str, dtype: DType) -> Break:
    def change(model: Model) -> None:
        (tensor,) = [t for graph in model.graphs for t in graph.tensors if t.name == name]
        tensor.dtype = dtype

    return change


def uncalled(kind: str, option: str) -> Break:
    def change(model: Model) -> None:
        op = op_of(model, kind)
        assert op.options is not None
        op.options = op.options.replace(**{option: -1})

    return change


def sparser(**changes: object) -> Break:
    """With another second level: that of the columns."""

    def change(model: Model) -> None:
        thin = model.main.tensor("thin")
        assert thin.sparsity is not None
        rows, columns = thin.sparsity["dimMetadata"]
        thin.sparsity = thin.sparsity.replace(dimMetadata=(rows, columns.replace(**changes)))

    return change


def vector(*values: int):
    thin = build.sparse().main.tensor("thin")
    assert thin.sparsity is not None
    return thin.sparsity["dimMetadata"][1]["arraySegments"].replace(values=values)


def reordered(model: Model) -> None:
    thin = model.main.tensor("thin")
    assert thin.sparsity is not None
    thin.sparsity = thin.sparsity.replace(traversalOrder=(0, 7))


def set_shape(name: str, *shape: int) -> Break:
    return lambda model: setattr(model.main.tensor(name), "shape", shape)


BROKEN: list[tuple[str, Callable[[], Model], Break, str]] = [
    ("has_operands", build.float_cnn, without("ADD", 1), "ADD 'sum' has no input 1; .* inspected, but not run"),
    ("has_operands", build.float_cnn, lambda m: op_of(m, "MEAN").inputs.pop(), "MEAN 'mean' has no input 1"),
    ("has_operands", build.sparse, without("DENSIFY", 0), "DENSIFY 'full' has no input 0"),
    ("types_agree", build.float_cnn, retyped("pool", DType.INT8), "has both float32 'sum' and int8 'pool'"),
    ("types_agree", build.float_cnn, retyped("scores", DType.INT8), "has both float32 'logits' and int8 'scores'"),
    ("indices_are_whole", build.float_cnn, retyped("axes", DType.FLOAT32), "has float32 'axes' where indices"),
    ("indices_are_whole", build.loop, retyped("cond/go", DType.FLOAT32), "has float32 'cond/go' where indices"),
    (
        "sizes_can_be_counted",
        build.float_cnn,
        set_shape("sum", 1, 65536, 65536, 4),
        "'sum' has the shape .* can allocate",
    ),
    ("channels_fit", build.float_cnn, set_shape("logits", 1, 7), "'logits' has 3 channels where its output has 7"),
    (
        "channels_fit",
        build.float_cnn,
        lambda m: op_of(m, "CONV_2D").inputs.__setitem__(2, m.main.tensor("logits/w")),
        "CONV_2D 'stem' has 12 biases for 4 channels",
    ),
    ("unpacks_in_shape", build.sparse, set_shape("full", 4, 2), r"DENSIFY 'full' makes \[4, 2\] of \[2, 4\]"),
    ("calls_fit", build.branches, uncalled("IF", "elseSubgraphIndex"), "IF 'y' calls no graph"),
    (
        "calls_fit",
        build.branches,
        retyped("then/x", DType.INT32),
        r"IF 'y' calls 'then', whose inputs are \[int32\] where \[float32\] belong",
    ),
    ("calls_fit", build.branches, lambda m: m.graphs[1].outputs.clear(), r"whose outputs are \[\] where"),
    ("calls_fit", build.branches, without("IF", 0), "IF 'y' has an absent input"),
    ("inputs_are_filled", build.float_cnn, lambda m: m.main.inputs.clear(), "'image', which nothing fills"),
    ("sparsity_fits", build.sparse, sparser(arrayIndices=vector(2, 0, 9)), "sparse constant .*'thin'.* is damaged"),
    ("sparsity_fits", build.sparse, sparser(arraySegments=vector(0, 5, 3)), "is damaged"),
    ("sparsity_fits", build.sparse, sparser(arraySegments=vector(0, 3)), "is damaged"),
    ("sparsity_fits", build.sparse, sparser(format=0, denseSize=-1), "is damaged"),
    ("sparsity_fits", build.sparse, reordered, "is damaged"),
]


@pytest.mark.parametrize(("name", "make", "damage", "words"), BROKEN, ids=[f"{b[0]}-{k}" for k, b in enumerate(BROKEN)])
def test_what_kernels_rely_on_is_checked(name, make, damage, words):
    model = make()
    check_runnable(model)
    damage(model)
    with pytest.raises(InvalidModel, match=words):
        check_runnable(model)


def test_every_rule_is_broken_above():
    assert {name for name, *_ in BROKEN} == {f.__name__ for f in (*RUNNABLE_INVARIANTS, *OP_INVARIANTS)}


def test_nothing_gets_past_it_to_litert():
    model = build.float_cnn()
    without("ADD", 1)(model)
    model = load(to_bytes(model))  # it can be read, and looked at
    assert zeropoint.inspect(model).ops
    sample = [np.zeros((1, 4, 4, 1), np.float32)]
    for run in (
        lambda: Session(to_bytes(model)),
        lambda: Runner(model),
        lambda: zeropoint.calibrate(model, sample),
        lambda: zeropoint.quantize(model, data=sample),
        lambda: zeropoint.quantize(model, "float16"),
        lambda: zeropoint.compare(model, build.float_cnn(), sample),
    ):
        with pytest.raises(InvalidModel, match="ADD 'sum' has no input 1"):
            run()


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_without_a_graph_is_refused(kind):
    x, y = build.act("x", 1), build.act("y", 1)
    with pytest.raises(InvalidModel, match=f"{kind} 'y' calls no graph"):
        check_runnable(Model([build.graph("main", [x], [y], build.op(kind, [x], y))]))


@pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())
def test_legal_models_pass(make):
    check_runnable(make())


def test_samples_of_all_rows_pass():
    for sample in SAMPLES:
        check_runnable(sample.model())


def test_a_graph_called_with_nothing():
    x, y, z = build.act("x", 1), build.act("y", 1), build.act("z", 1)
    once = Graph("once", [z], [], [], [z])
    call = build.op("CALL_ONCE", [], options="CallOnceOptions", initSubgraphIndex=once)
    with pytest.raises(InvalidModel, match=r"whose outputs are \[float32\] where \[\] belong"):
        check_runnable(Model([build.graph("main", [x], [y], call, build.op("ABS", [x], y)), once]))
