"""Where LiteRT's plain kernels write over what is still to be read, copies are made; and only there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Op, Tensor
from zeropoint.graph.edit import copy_model
from zeropoint.ops import OPS, Trait
from zeropoint.plan.in_place import copy_overwritten
from zeropoint.runtime import Kernels, Runner, Session

from .. import build
from ..conformance.samples import SAMPLES, Fed, Sample

PLAIN: tuple[Kernels, ...] = ("optimized", "reference")
VIEWS = sorted(kind for kind, spec in OPS.items() if Trait.VIEW in spec.traits)
VIEW_OPTIONS = {"RESHAPE": "ReshapeOptions", "EXPAND_DIMS": "ExpandDimsOptions", "SQUEEZE": "SqueezeOptions"}


def places() -> list[tuple[Sample, int]]:
    """Where the ops of all samples are fed with floats: no scalars, and nothing that they read twice."""
    return [
        (sample, slot)
        for sample in SAMPLES
        for slot, operand in enumerate(sample.operands)
        if isinstance(operand, Fed)
        and operand.shape
        and operand.tensor("").dtype is DType.FLOAT32
        and sample.operands.count(operand) == 1
    ]


def is_overwritten(sample: Sample, slot: int) -> bool:
    """What the op table says."""
    spec, operand, (result, *_) = OPS[sample.kind], sample.operands[slot], sample.model().main.outputs
    is_as_large = isinstance(operand, Fed) and math.prod(operand.shape) == result.size
    return is_as_large and slot in spec.kernels.in_place and Trait.VIEW not in spec.traits


def read(tensor: Tensor) -> Op:
    """An op that reads it, as a vector; what it makes is an output, for which it has to copy."""
    made = build.act(f"{tensor.name}/read", tensor.size, dtype=tensor.dtype)
    return build.op("RESHAPE", [tensor, build.const(f"{made.name}/shape", [-1])], made, options="ReshapeOptions")


def viewed(tensor: Tensor, kind: str) -> list[Op]:
    """The same numbers in other shapes, and at last in the shape that they had."""
    shape, name = tensor.shape, f"{tensor.name}/{kind}"
    wide, again = build.act(f"{name}/wide", 1, *shape), build.act(f"{name}/again", *shape)
    widened, back = build.const(f"{name}/0", [1, *shape]), build.const(f"{name}/1", [*shape])
    first = build.op("RESHAPE", [tensor, widened], wide, options="ReshapeOptions")
    match kind:
        case "EXPAND_DIMS":
            first = build.op(kind, [tensor, build.const(f"{name}/axis", 0)], wide, options=VIEW_OPTIONS[kind])
        case "SQUEEZE":
            return [first, build.op(kind, [wide], again, options=VIEW_OPTIONS[kind], squeezeDims=(0,))]
    return [first, build.op("RESHAPE", [wide, back], again, options="ReshapeOptions")]


def in_between(model: Model, slot: int, view: str = "RESHAPE") -> Model:
    """The model of one op that reads a sum in another shape at `slot`; the first output is the sum, read at the end.

    To the sum nothing is added, so that it is what the model is fed with.
    """
    main = model.main
    (op,) = main.ops
    fed = op.inputs[slot]
    assert fed is not None
    first, total = build.act("first", *fed.shape), build.act("total", *fed.shape)
    copied = build.op("CONCATENATION", [fed], first, options="ConcatenationOptions", axis=0)
    added = build.op("ADD", [first, build.const("nothing", 0.0)], total, options="AddOptions")
    views = viewed(total, view)
    op.inputs[slot] = views[-1].outputs[0]
    ends = [*(read(t) for t in op.outputs), read(total)]
    ops = [copied, added, *views, op, *ends]
    return Model([build.graph("main", main.inputs, [end.outputs[0] for end in reversed(ends)], *ops)])


def mended(model: Model) -> Model:
    made = copy_model(model)
    copy_overwritten(made.main, OPS)
    return made


def is_kept(model: Model, slot: int, inputs: Sequence[Array], kernels: Kernels) -> bool:
    """Whether the first output is still what the model is fed with at `slot`."""
    fed = [k for k, t in enumerate(model.main.inputs) if t.name == f"in{slot}"]
    return bool(np.array_equal(Session(model, kernels=kernels).run(list(inputs))[0], inputs[fed[0]].ravel()))


@pytest.mark.parametrize(("sample", "slot"), places(), ids=str)
def test_ops_overwrite_what_the_table_says_and_nothing_else(sample: Sample, slot: int) -> None:
    model = in_between(sample.model(), slot)
    assert is_kept(model, slot, sample.draw(1)[0], "optimized") is not is_overwritten(sample, slot)
    assert (len(mended(model).main.ops) > len(model.main.ops)) is is_overwritten(sample, slot)


@pytest.mark.parametrize("kernels", ["delegate", *PLAIN])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("sample", "slot"), [place for place in places() if is_overwritten(*place)], ids=str)
def test_what_would_be_overwritten_is_copied(sample: Sample, slot: int, view: str, kernels: Kernels) -> None:
    model, inputs = in_between(sample.model(), slot, view), sample.draw(1)[0]
    assert is_kept(model, slot, inputs, kernels) is (kernels == "delegate")
    assert is_kept(mended(model), slot, inputs, kernels)
    results = zip(Session(mended(model), kernels=kernels).run(list(inputs))[1:], model.main.outputs[1:], strict=True)
    wanted = Session(sample.model(), kernels=kernels).run(list(inputs))
    for (found, tensor), exact in zip(results, wanted, strict=True):
        assert tensor.size == exact.size
        np.testing.assert_array_equal(found, exact.ravel())


def through_conditions(is_late: bool) -> Model:
    """Integers, for which the delegate has no kernels, with one float op among them that it takes.

    A sum is read in another shape, and as it is by an op that has to wait for the float op; unless `is_late`, that
    stands before the op which overwrites the sum.
    """
    numbers = build.act("numbers", 8, dtype=DType.INT32)
    x = build.act("x", 8)
    first, total, view, other, result, rounded, late = (
        build.act(name, 8, dtype=DType.INT32) for name in ("first", "total", "view", "other", "end", "rounded", "late")
    )
    grown = build.act("grown", 8)
    view.shape = (2, 4)
    other.shape = result.shape = (2, 4)
    start = [
        build.op("CONCATENATION", [numbers], first, options="ConcatenationOptions", axis=0),
        build.op("ADD", [first, build.const("one", [1])], total, options="AddOptions"),
        build.op("EXP", [x], grown),
        build.op("CAST", [grown], rounded, options="CastOptions", inDataType=0, outDataType=2),
    ]
    reader = build.op("MAXIMUM", [total, rounded], late, options="MaximumMinimumOptions")
    writers = [
        build.op("RESHAPE", [total, build.const("shape", [2, 4])], view, options="ReshapeOptions"),
        build.op("ADD", [view, build.const("many", [100])], other, options="AddOptions"),
        build.op("MAXIMUM", [other, build.const("zero", [0])], result, options="MaximumMinimumOptions"),
    ]
    ops = [*start, *writers, reader] if is_late else [*start, reader, *writers]
    return Model([build.graph("main", [numbers, x], [late, result], *ops)])


@pytest.mark.parametrize("kernels", ["delegate", *PLAIN])
@pytest.mark.parametrize("is_late", [False, True])
def test_the_order_of_ops_is_not_relied_on(is_late: bool, kernels: Kernels) -> None:
    """With a delegate, LiteRT runs ops in another order than the file's."""
    model = through_conditions(is_late)
    inputs = [np.arange(8, dtype=np.int32), np.zeros(8, np.float32)]
    late = np.maximum(np.arange(8) + 1, 1)
    is_wrong = is_late or kernels == "delegate"
    assert np.array_equal(Session(model, kernels=kernels).run(inputs)[0], late) is not is_wrong
    found = Session(mended(model), kernels=kernels).run(inputs)
    np.testing.assert_array_equal(found[0], late)
    np.testing.assert_array_equal(found[1].ravel(), np.arange(8) + 101)


def gate(*, is_read_late: bool = True, is_input: bool = False) -> Model:
    """A sum in another shape times something; read once more behind it, or only before."""
    x = build.act("x", 1, 12)
    start, total, view, product, end, late = (
        build.act(name, *shape)
        for name, *shape in (
            ("start", 1, 12),
            ("sum", 1, 12),
            ("view", 3, 4),
            ("product", 3, 4),
            ("end", 3, 4),
            ("late", 1, 12),
        )
    )
    factor = build.act("factor", 1, 1)
    summed = x if is_input else total
    ops = [
        build.op("TANH", [x], start),
        build.op("ADD", [start, build.const("c", build.weights(12))], total, options="AddOptions"),
        build.op("MEAN", [summed, build.const("axis", [1])], factor, options="ReducerOptions", keepDims=True),
        build.op("RESHAPE", [summed, build.const("shape", [3, 4])], view, options="ReshapeOptions"),
        build.op("MUL", [view, factor], product, options="MulOptions"),
        build.op("RELU", [product], end),
    ]
    outputs = [end]
    if is_read_late:
        ops.append(build.op("ABS", [summed], late))
        outputs.append(late)
    return Model([build.graph("main", [x], outputs, *ops)])


@pytest.mark.parametrize("kernels", ["delegate", *PLAIN])
@pytest.mark.parametrize("mode", ["int16x8", "int8", "dynamic", "float16"])
def test_quantized_models_compute_the_same_with_all_tensors_in_sight(mode: str, kernels: Kernels) -> None:
    rows = [(v.astype(np.float32),) for v in np.random.default_rng(3).normal(size=(4, 1, 12))]
    made = zeropoint.quantize(gate(), mode, rows if mode.startswith("int") else None, effort="quick").model
    outputs = made.main.outputs
    seen = Runner.exposing(made, made.main, [t for op in made.main.ops for t in op.outputs], kernels=kernels)
    for row in rows:
        values = seen.values(list(row))
        for tensor, found in zip(outputs, Runner(made, kernels=kernels).run(list(row)), strict=True):
            np.testing.assert_allclose(found, values[tensor], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kwargs", [{"is_read_late": False}, {"is_input": True}], ids=str)
def test_nothing_is_copied_that_nobody_reads_later(kwargs: dict[str, bool]) -> None:
    """The mean has to be there before the product is; and inputs are never overwritten."""
    assert len(mended(gate(**kwargs)).main.ops) == len(gate(**kwargs).main.ops)
    assert len(mended(gate()).main.ops) == len(gate().main.ops) + 1


def test_open_shapes_are_taken_for_any() -> None:
    """At the sizes that the file has, the first operand has the place; with others, only the second can be taken."""
    a, b, total, view, end, late = (build.act(name, 1, 8) for name in ("a", "b", "total", "view", "end", "late"))
    row = build.act("row", 1, 8)
    first = build.act("first", 1, 8)
    for tensor in (b, first, total, view, end, late):
        tensor.shape_signature = (-1, 8)
    ops = [
        build.op("TANH", [a], row),
        build.op("TANH", [b], first),
        build.op("ADD", [first, build.const("c", [1.0])], total, options="AddOptions"),
        build.op("RESHAPE", [total, build.const("shape", [-1, 8])], view, options="ReshapeOptions"),
        build.op("ADD", [row, view], end, options="AddOptions"),
        read(end),
        build.op("ABS", [total], late),
    ]
    model = Model([build.graph("main", [a, b], [ops[-2].outputs[0], late], *ops)])
    assert len(mended(model).main.ops) == len(ops) + 1


def test_bytes_stay_as_they_are_without_need() -> None:
    model = build.float_cnn()
    before = zeropoint.to_bytes(model)
    copy_overwritten(model.main, OPS)
    assert zeropoint.to_bytes(model) == before
