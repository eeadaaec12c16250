"""Slices with steps, written without them: the same values, and the delegate takes all of it."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import zeropoint
from zeropoint.calibration import Settings
from zeropoint.calibration.instrumented_graph import MeasureMode, instrument
from zeropoint.calibration.task import CalibrationTask
from zeropoint.dtypes import DType
from zeropoint.graph import Graph, Model, Op, problems
from zeropoint.graph.edit import copy_model
from zeropoint.ops import OPS
from zeropoint.plan.target_rewrites import fit_to_target
from zeropoint.runtime import Runner, Session
from zeropoint.runtime.unit_steps import with_unit_steps
from zeropoint.targets import CPU, INTEGER
from zeropoint.tflite import load, to_bytes

from .. import build

SHAPE = (2, 6, 9, 4)

CUTS = (
    np.s_[:, ::2],
    np.s_[:, 1::2, 2::3],
    np.s_[:, :, :, 3::4],
    np.s_[1:, 1:4:2, :7, ::2],
    np.s_[::2, -5:-1:3, 1:, 1:2:4],
    np.s_[:, 4::2, 3:9:3],
)


def taken(cut: tuple[slice, ...], **options) -> Model:
    """x[cut], with masks where the cut leaves an end open."""
    cut += (slice(None),) * (len(SHAPE) - len(cut))
    ends = [(0 if part.start is None else part.start, 0 if part.stop is None else part.stop) for part in cut]
    lists = [[a for a, _ in ends], [b for _, b in ends], [part.step or 1 for part in cut]]
    constants = [build.const(f"c{k}", np.array(values, np.int32)) for k, values in enumerate(lists)]
    begin_mask, end_mask = (sum((getattr(p, end) is None) << k for k, p in enumerate(cut)) for end in ("start", "stop"))
    masks = {"beginMask": begin_mask, "endMask": end_mask} | options
    x, y = build.act("x", *SHAPE), build.act("y", *np.empty(SHAPE)[cut].shape)
    op = build.op("STRIDED_SLICE", [x, *constants], y, options="StridedSliceOptions", **masks)
    return Model([build.graph("main", [x], [y], op)])


def drawn(count: int = 4) -> list:
    rng = np.random.default_rng(0)
    return [(rng.uniform(-1, 1, SHAPE).astype(np.float32),) for _ in range(count)]


def steps_of(op: Op) -> list[int]:
    return op.inputs[3].data.tolist()


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_slices_skip_nothing_and_give_the_same(cut):
    model = taken(cut)
    fitted = copy_model(model)
    made = fit_to_target(fitted, CPU, OPS)
    assert not list(problems(fitted))
    assert set(made.values()) == {fitted.main.inputs[0]}
    assert all(set(steps_of(op)) == {1} for op in fitted.main.ops if op.kind == "STRIDED_SLICE")
    assert fitted.main.ops[-1].kind == "RESHAPE"
    (row,) = drawn(1)
    np.testing.assert_array_equal(Session(fitted).run(row)[0], row[0][cut])


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_delegate_takes_them_in_integers(cut):
    data = drawn()
    result = zeropoint.quantize(taken(cut), "int8", data=data, effort="quick")
    assert dict(result.check.counts) == {"fast": len(result.check.ops)}
    assert Session(result.model).delegated() == set(range(len(result.model.main.ops)))
    unit = 2 / 255
    np.testing.assert_allclose(Session(result.model).run(data[0])[0], data[0][0][cut], atol=0.51 * unit)


@pytest.mark.parametrize(
    "model",
    [
        taken(np.s_[:, 1:3]),  # has no steps
        taken(np.s_[:, :, ::2]),  # 9 is no multiple of 2
        taken(np.s_[:, ::2], shrinkAxisMask=1),
    ],
    ids=["no steps", "does not fit", "other axes"],
)
def test_others_stay_as_they_are(model):
    fitted = copy_model(model)
    assert fit_to_target(fitted, CPU, OPS) == {}
    assert [op.kind for op in fitted.main.ops] == ["STRIDED_SLICE"]


def opened(model: Model, axis: int) -> Model:
    for tensor in (*model.main.inputs, *model.main.outputs):
        tensor.shape_signature = tuple(-1 if k == axis else size for k, size in enumerate(tensor.shape))
    return model


def test_so_do_indices_open_shapes_and_models_for_others():
    indices, other = taken(CUTS[0]), taken(CUTS[0])
    for tensor in (*indices.main.inputs, *indices.main.outputs):
        tensor.dtype = DType.INT32
    open_images, cut_batch = opened(taken(CUTS[0]), 2), opened(taken(CUTS[4]), 0)
    for model, target in ((indices, CPU), (open_images, CPU), (cut_batch, CPU), (other, INTEGER)):
        assert fit_to_target(model, target, OPS) == {}
        assert [op.kind for op in model.main.ops] == ["STRIDED_SLICE"]


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut[0] == slice(None)], ids=str)
@pytest.mark.parametrize("is_float", [True, False])
def test_a_batch_may_have_any_size(cut, is_float):
    model = opened(taken(cut), 0)
    if is_float:
        fit_to_target(model, CPU, OPS)
    else:
        model = zeropoint.quantize(model, "int8", data=drawn(), effort="quick").model
    made = to_bytes(model)
    assert all(set(steps_of(op)) == {1} for op in load(made).main.ops if op.kind == "STRIDED_SLICE")
    for count in (1, 2, 5):
        batch = np.random.default_rng(count).uniform(-1, 1, (count, *SHAPE[1:])).astype(np.float32)
        interpreter = Interpreter(model_content=made, num_threads=1)
        index = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(index, batch.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(index, batch)
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_allclose(found, batch[cut], atol=0 if is_float else 0.51 * 2 / 255)


def has_steps(graph: Graph) -> bool:
    return any(max(steps_of(op)) > 1 for op in graph.ops if op.kind == "STRIDED_SLICE")


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_runs_for_our_own_use_have_no_steps_either(cut):
    model = taken(cut)
    runner = Runner.exposing(model, model.main, model.main.outputs)
    assert not has_steps(runner.model.main)
    assert runner.session.delegated() == set(range(len(runner.model.main.ops)))
    (row,) = drawn(1)
    np.testing.assert_array_equal(runner.run(row)[0], row[0][cut])
    assert [op.kind for op in model.main.ops] == ["STRIDED_SLICE"]  # the model itself stays as it is
    assert has_steps(model.main)


def test_nor_has_calibration():
    model = taken(CUTS[1])
    task = CalibrationTask(model, model.main, Settings(), OPS)
    assert not has_steps(instrument(task, MeasureMode.SINGLE).model.main)
    assert has_steps(instrument(task, MeasureMode.BATCHED).model.main)  # whose runs have other shapes
    data = drawn()
    seen = zeropoint.calibrate(model, data).tensors["y"]
    slices = np.stack([row[0][CUTS[1]] for row in data])
    assert (seen.low.value, seen.high.value, seen.count) == (slices.min(), slices.max(), slices.size)


def test_shapes_that_are_not_known_are_left_alone():
    """Those of a graph with an open input, and those that follow from computed numbers."""
    assert has_steps(with_unit_steps(opened(taken(CUTS[0]), 0).main))
    model = taken(CUTS[0])
    (op,), (x,), (y,) = model.main.ops, model.main.inputs, model.main.outputs
    sizes, same = build.act("sizes", 4), build.act("same", *SHAPE)
    sizes.dtype = DType.INT32
    op.inputs[0] = same
    reshape = build.op("RESHAPE", [x, sizes], same, options="ReshapeOptions")
    assert has_steps(with_unit_steps(build.graph("main", [x, sizes], [y], reshape, op)))
