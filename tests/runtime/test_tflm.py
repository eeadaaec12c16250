"""TensorFlow Lite Micro as a second runtime: what it computes, what it needs, what it says of models it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.latency import TimingOptions, benchmark
from zeropoint.errors import MissingExtra, RuntimeFailure
from zeropoint.runtime import Runner, Session
from zeropoint.runtime.tflm import MicroSession, measure_arena, version
from zeropoint.tflite import load, save, to_bytes

from .. import build
from .test_runner import ROW, two_inputs


@pytest.fixture
def int8(digits) -> zeropoint.Model:
    """The digits model in int8."""
    data = [(image(load(digits), seed),) for seed in range(16)]
    return zeropoint.quantize(digits, "int8", data=data, effort="quick", target="integer").model


def image(model: zeropoint.Model, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, model.main.inputs[0].shape).astype(np.float32)


def test_it_computes_what_litert_does(int8):
    micro, litert = MicroSession(to_bytes(int8)), Session(int8, kernels="reference")
    (scale,) = {op.inputs[0].params.scale for op in int8.main.ops if op.kind == "DEQUANTIZE"}
    for seed in range(5):
        sample = [image(int8, seed)]
        for found, wanted in zip(micro.run(sample), litert.run(sample), strict=True):
            np.testing.assert_allclose(found, wanted, atol=2.5 * scale)  # rounding differs a little from op to op


def test_runs_repeat_although_inputs_share_memory_with_what_is_computed(int8):
    session = MicroSession(to_bytes(int8))
    first = session.run([image(int8)])[0]
    assert session.seconds(2) > 0
    np.testing.assert_array_equal(session.read([0])[0], first)
    assert version().startswith("tflite-micro 0.")


def test_runners_read_by_tensor():
    model = two_inputs()
    runner = Runner.exposing(model, model.main, [model.main.tensor("abs"), model.main.outputs[0]], kernels="tflm")
    found = runner.values(ROW)
    np.testing.assert_array_equal(found[model.main.tensor("abs")], np.abs(ROW[0]))
    np.testing.assert_array_equal(found[model.main.outputs[0]], ROW[0] + ROW[1])
    with pytest.raises(RuntimeFailure, match=r"cannot change shapes: this model takes \[\(1, 4\)"):
        runner.invoke([np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)])


def test_the_arena_is_what_a_device_needs(int8):
    """With so much, and no less by far, the model runs."""
    needed = measure_arena(to_bytes(int8))
    assert needed == MicroSession(to_bytes(int8)).arena_bytes
    MicroSession(to_bytes(int8), arena=needed + 64)
    with pytest.raises(RuntimeFailure, match="cannot run this model"):
        MicroSession(to_bytes(int8), arena=needed // 2)


def test_a_missing_op_is_named():
    model = build.one_op("GELU", [build.act("x", 1, 4)], build.act("y", 1, 4), options="GeluOptions")
    with pytest.raises(RuntimeFailure, match="opcode 'GELU'"):
        measure_arena(to_bytes(model))


def test_its_death_is_an_error_of_ours(monkeypatch, int8):
    died = subprocess.CompletedProcess([], -8, b"", b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: died)
    with pytest.raises(RuntimeFailure, match=r"crashed on this model \(signal 8\)"):
        measure_arena(to_bytes(int8))


def test_without_the_extra_users_are_told_how_to_get_it(monkeypatch, int8):
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    with pytest.raises(MissingExtra, match=r"pip install 'zeropoint\[tflm\]'"):
        MicroSession(to_bytes(int8))


def test_models_are_compared_and_timed_in_it(run, tmp_path, digits, int8):
    (tmp_path / "float.tflite").write_bytes(digits)
    save(int8, tmp_path / "int8.tflite")
    np.save(tmp_path / "samples.npy", np.stack([image(int8, seed) for seed in range(3)]))
    models = (tmp_path / "float.tflite", tmp_path / "int8.tflite")
    shown = {}
    for runtime in ("litert", "tflm"):
        code, out, err = run("compare", *models, "--data", tmp_path / "samples.npy", "--runtime", runtime, "--json")
        assert (code, err) == (0, "")
        shown[runtime] = json.loads(out)
    ops = {runtime: [op["own"]["snr"] for op in found["ops"]] for runtime, found in shown.items()}
    np.testing.assert_allclose(ops["tflm"], ops["litert"], atol=3)
    code, out, _ = run("benchmark", models[1], "--runtime", "tflm", "--rounds", 2, "--json")
    assert code == 0
    assert json.loads(out)["models"][0]["peak_memory"] == measure_arena(to_bytes(int8))


def test_timing_can_stay_outside(int8):
    timed = benchmark({"m": int8}, TimingOptions(rounds=2, inside=False, runtime="tflm"))
    assert timed.models[0].peak_memory is None
    assert "portable kernels" in timed.notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--runtime", "tflite"), "unknown runtime 'tflite'; choose from litert, tflm"),
        (("--runtime", "tflm", "--threads", "2"), "--threads 2: TensorFlow Lite Micro has one thread"),
    ],
)
def test_bad_use_is_refused(run, tmp_path, options, message):
    save(two_inputs(), tmp_path / "m.tflite")
    code, out, err = run("benchmark", tmp_path / "m.tflite", *options)
    assert (code, out) == (2, "")
    assert message in err
