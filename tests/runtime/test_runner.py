"""A runner gives what LiteRT computes: by tensor, from the initial state, for any shape."""

from __future__ import annotations

import numpy as np
import pytest

from zeropoint.dtypes import DType
from zeropoint.errors import RuntimeFailure
from zeropoint.graph import Model
from zeropoint.runtime import Runner, Session, require_runnable, run_on_zeros
from zeropoint.tflite import load

from .. import build
from ..calibration.test_state import counter


def two_inputs() -> Model:
    """sum = x + y, |x| and its square."""
    x, y, total, size, square = (build.act(n, 1, 4) for n in ("x", "y", "sum", "abs", "square"))
    ops = [
        build.op("ADD", [x, y], total, options="AddOptions"),
        build.op("ABS", [x], size, options="AbsOptions"),
        build.op("MUL", [size, size], square, options="MulOptions"),
    ]
    return Model([build.graph("main", [x, y], [total, square], *ops)])


ROW = (np.float32([[1, -2, 3, -4]]), np.float32([[5, 6, 7, 8]]))


@pytest.mark.parametrize("kernels", ["delegate", "optimized", "reference"])
def test_outputs_are_read_by_tensor(kernels):
    model = two_inputs()
    total, square = model.main.outputs
    found = Runner(model, kernels=kernels).values(ROW)
    np.testing.assert_array_equal(found[total], ROW[0] + ROW[1])
    np.testing.assert_array_equal(found[square], ROW[0] ** 2)


def test_inner_tensors_are_exposed_and_rows_stay_whole():
    model = two_inputs()
    size, total = (model.main.tensor(n) for n in ("abs", "sum"))
    alone = Runner.exposing(model, model.main, [size, size])
    assert len(alone.session.inputs) == 1  # y is not needed
    np.testing.assert_array_equal(alone.run(ROW)[0], np.abs(ROW[0]))
    found = Runner.exposing(model, model.main, [total, size]).another().values(ROW)
    np.testing.assert_array_equal(found[total], ROW[0] + ROW[1])
    np.testing.assert_array_equal(found[size], np.abs(ROW[0]))
    assert [t.name for t in model.main.outputs] == ["sum", "square"]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("make", [counter, build.stateful])
def test_every_run_starts_from_the_initial_state(make, is_open):
    model = make()
    shape = model.main.inputs[0].shape
    if is_open:
        model.main.inputs[0].shape_signature = (-1, *shape[1:])
    runner, row = Runner(model, strict=not is_open), [np.ones(shape, np.float32)]
    first = runner.run(row)[0]
    np.testing.assert_array_equal(runner.run(row)[0], first)
    runner.invoke(row)  # without a restart it goes on
    assert not np.array_equal(runner.read(runner.outputs)[0], first)


def test_shapes_vary_where_the_model_allows_it():
    runner = Runner(build.dynamic())
    for rows in (1, 5, 2):
        x = np.ones((rows, 3), np.float32)
        assert runner.run([x])[0].shape[0] == rows


def test_other_shapes_need_permission():
    model, wide = two_inputs(), [np.ones((3, 4), np.float32)] * 2
    with pytest.raises(RuntimeFailure):
        Runner(model).run(wide)
    runner = Runner(model, strict=False)
    assert runner.run(wide)[0].shape == (3, 4)
    other = runner.another()
    other.invoke(wide)
    (view, _) = other.views(other.outputs)
    assert view.shape == (3, 4)


def test_open_sides_wait_for_a_sample():
    model = build.open_sides()
    runner = Runner(model)
    for height, width in ((9, 9), (5, 20)):
        image = np.ones((1, height, width, 3), np.float32)
        assert runner.run([image])[0].shape == (1, height - 4, width - 4, 4)
        assert Session(model).run([image])[0].shape == (1, height - 4, width - 4, 4)


def test_without_a_sample_a_size_is_found_that_runs():
    model = build.open_sides()
    require_runnable(model)
    assert run_on_zeros(Session(model)) == [(1, 8, 8, 3)]
    assert run_on_zeros(Session(build.dynamic())) == [(1, 3)]  # as recorded, where that runs
    with pytest.raises(RuntimeFailure):
        run_on_zeros(Session(two_inputs_of_different_sizes()))


def two_inputs_of_different_sizes() -> Model:
    """A sum of what cannot be summed, whatever the open dimension is."""
    x, y, total = build.act("x", 1, 3), build.act("y", 1, 4), build.act("sum", 1, 4)
    x.shape_signature, y.shape_signature = (-1, 3), (-1, 4)
    return Model([build.graph("main", [x, y], [total], build.op("ADD", [x, y], total, options="AddOptions"))])


def test_empty_results_are_read():
    """LiteRT's Python API refuses to give them."""
    x, start, size = (
        build.act("x", 4),
        build.act("start", 1, dtype=DType.INT32),
        build.act("size", 1, dtype=DType.INT32),
    )
    y = build.act("y", 4)
    y.shape_signature = (-1,)
    model = build.one_op("SLICE", [x, start, size], y, options="SliceOptions")
    row = [np.ones(4, np.float32), np.int32([1]), np.int32([0])]
    runner = Runner(model)
    assert runner.run(row)[0].shape == (0,)
    assert next(runner.views(runner.outputs)).shape == (0,)


def test_it_agrees_with_a_session(digits):
    model = load(digits)
    image = np.random.default_rng(0).uniform(0, 1, model.main.inputs[0].shape).astype(np.float32)
    np.testing.assert_array_equal(Runner(model, threads=2).run([image])[0], Session(digits).run([image])[0])


def test_a_variable_that_nothing_assigned_is_explained():
    x, kept, y = (build.act(name, 1, 2) for name in ("x", "kept", "y"))
    handle = build.act("handle", 1, dtype=DType.RESOURCE)
    make = build.op("VAR_HANDLE", [], handle, options="VarHandleOptions", sharedName="kept")
    read = build.op("READ_VARIABLE", [handle], kept)
    model = Model([build.graph("main", [x], [y], make, read, build.op("ADD", [x, kept], y, options="AddOptions"))])
    with pytest.raises(
        RuntimeFailure, match="nothing in the file has assigned: convert the model with its weights frozen"
    ):
        Session(model, kernels="reference").run([np.zeros((1, 2), np.float32)])
