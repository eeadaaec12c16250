"""A model in a child process gives what it gives in this one; what it does to that process is an error here."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.errors import RuntimeFailure
from zeropoint.graph import Graph, Model
from zeropoint.parallel import in_parallel
from zeropoint.runtime import Runner, Session, blame, child, isolated, time_limit
from zeropoint.tflite import load, save

from .. import build
from ..calibration.test_state import counter
from .test_runner import ROW, two_inputs


def crashing() -> Model:
    """Ops of which the second makes LiteRT read outside of its memory: nothing checks the size of a window."""
    x, size, pool, y = (build.act(n, 1, 4, 4, 1) for n in ("x", "size", "pool", "y"))
    window = {"strideW": 1, "strideH": 1, "filterWidth": 2, "filterHeight": -2147483647}
    ops = [
        build.op("ABS", [x], size, options="AbsOptions"),
        build.op("MAX_POOL_2D", [size], pool, options="Pool2DOptions", **window),
        build.op("ABS", [pool], y, options="AbsOptions"),
    ]
    return Model([build.graph("main", [x], [y], *ops)])


def endless() -> Model:
    """A loop whose condition is its input."""
    x, y = (build.act(name, dtype=DType.BOOL) for name in ("x", "y"))
    ends = [[build.act(f"{name}/{end}", dtype=DType.BOOL) for end in ("in", "out")] for name in ("go", "same")]
    same = [build.op("LOGICAL_OR", [a, a], b, options="LogicalOrOptions") for a, b in ends]
    cond, body = (build.graph(n, [a], [b], o) for n, (a, b), o in zip(("cond", "body"), ends, same, strict=True))
    loop = build.op("WHILE", [x], y, options="WhileOptions", condSubgraphIndex=cond, bodySubgraphIndex=body)
    return Model([build.graph("main", [x], [y], loop), cond, body])


SAMPLE = [np.ones((1, 4, 4, 1), np.float32)]


def test_it_gives_the_same_values():
    model = two_inputs()
    here = Runner(model).values(ROW)
    with isolated():
        runner = Runner(model)
        there = runner.values(ROW)
        views = [np.array(view) for view in runner.views(runner.outputs)]
    for tensor, view in zip(model.main.outputs, views, strict=True):
        np.testing.assert_array_equal(there[tensor], here[tensor])
        np.testing.assert_array_equal(view, here[tensor])
    assert there.keys() == here.keys()


@pytest.mark.parametrize("make", [counter, build.stateful])
def test_states_go_on_and_start_again(make):
    model = make()
    row = [np.ones(model.main.inputs[0].shape, np.float32)]
    with isolated():
        runner = Runner(model)
        first = runner.run(row)[0]
        np.testing.assert_array_equal(runner.run(row)[0], first)
        runner.invoke(row)
        assert not np.array_equal(runner.read(runner.outputs)[0], first)


def test_shapes_vary_delegates_are_told_and_time_is_measured(digits):
    with isolated():
        runner = Runner(build.dynamic())
        assert [runner.run([np.ones((rows, 3), np.float32)])[0].shape[0] for rows in (1, 5, 2)] == [1, 5, 2]
        session = Session(digits)
        session.invoke([np.zeros(d["shape"], d["dtype"]) for d in session.inputs])
        assert session.seconds(3) > 0
        there = session.delegated()
    assert there == Session(digits).delegated()


def test_a_refusal_has_the_same_words():
    model, wide = two_inputs(), [np.ones((3, 4), np.float32)] * 2
    with pytest.raises(RuntimeFailure) as here:
        Runner(model).run(wide)
    with isolated(), pytest.raises(RuntimeFailure) as there:
        Runner(model).run(wide)
    assert str(here.value) in str(there.value)


def test_a_crash_names_the_op():
    with isolated():
        runner = Runner(crashing())
        with pytest.raises(RuntimeFailure, match=r"LiteRT crashed \(SIG\w+\) at MAX_POOL_2D 'pool'"):
            runner.run(SAMPLE)
        with pytest.raises(RuntimeFailure):  # it stays dead
            runner.run(SAMPLE)
        assert Runner(two_inputs()).run(ROW)  # and others are not affected


def test_a_loop_without_end_is_ended_and_named(monkeypatch):
    monkeypatch.setattr(blame, "PATIENCE", 1.0)
    with isolated(seconds=0.5):
        runner = Runner(endless())
        assert runner.run([np.array(False)])
        with pytest.raises(RuntimeFailure, match=r"a run at WHILE 'y' did not finish within 0.5 s"):
            runner.run([np.array(True)])


def test_doors_and_commands_run_strangers_in_a_child(run, tmp_path):
    model = crashing()
    with pytest.raises(RuntimeFailure):
        zeropoint.quantize(model, data=[SAMPLE[0]], trusted=False)
    with pytest.raises(RuntimeFailure):
        zeropoint.compare(model, model, [SAMPLE[0]], trusted=False)
    save(model, tmp_path / "bad.tflite")
    np.save(tmp_path / "x.npy", SAMPLE[0])
    line = (tmp_path / "bad.tflite", "--data", tmp_path / "x.npy", "-o", tmp_path / "out")
    code, out, err = run("calibrate", *line)
    assert (code, out) == (2, "")
    assert "MAX_POOL_2D 'pool'" in err
    assert not (tmp_path / "out").exists()


def test_trusted_files_run_in_this_process(run, tmp_path, monkeypatch, digits):
    (tmp_path / "m.tflite").write_bytes(digits)
    monkeypatch.setattr(child, "Worker", None)
    monkeypatch.setattr(child, "_idle", [])
    code, _, err = run("benchmark", tmp_path / "m.tflite", "--rounds", 2, "--quick", "--trusted")
    assert (code, err) == (0, "")


def test_threads_know_whom_to_trust():
    assert time_limit() is None
    with isolated(7):
        assert in_parallel(lambda _: time_limit(), [0, 1]) == [7, 7]
    assert time_limit() is None


def test_children_are_used_again_and_end_with_what_used_them():
    with isolated():
        for _ in range(6):
            Session(two_inputs())
        assert len(child._idle) <= child.MOST_IDLE
        worker = child._idle[-1]
        assert worker.is_alive
        worker._process.kill()
        worker._process.wait()
        assert Session(two_inputs()).run(ROW)  # one that died while nobody used it is replaced


def test_what_litert_printed_is_part_of_the_error():
    assert child.error_lines("INFO: fine\n\nERROR: tensor 7 is odd\n") == ["ERROR: tensor 7 is odd"]


def test_an_interrupt_ends_the_child():
    with isolated():
        runner = Runner(endless())
        worker = runner.session._interpreter._worker
        timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                runner.run([np.array(True)])
        finally:
            timer.join()
            signal.signal(signal.SIGINT, before)
        assert not worker.is_alive


def test_text_travels_too():
    from io import BytesIO

    from zeropoint.runtime.messages import receive, send

    sent = [np.array([b"a", b"\xff\0"], object), np.zeros((0, 3), np.int8), np.array(2.5, np.float32)]
    stream = BytesIO()
    send(stream, {"n": 1}, sent)
    stream.seek(0)
    message, arrays = receive(stream)
    assert message == {"n": 1}
    for a, b in zip(arrays, sent, strict=True):
        assert a.shape == b.shape
        assert a.tolist() == b.tolist()
    with pytest.raises(EOFError):
        receive(BytesIO(stream.getvalue()[:-1]))


def test_a_model_of_nothing_has_no_culprit():
    x = build.act("x", 1)
    assert child._accused(zeropoint.to_bytes(Model([Graph("main", [x], [], [x], [x])])), "delegate", []) == ""
    assert load(zeropoint.to_bytes(crashing()))
