"""Devices on the command line: their tools have the last word, and what they refuse leaves files as they were."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from zeropoint.dtypes import DType
from zeropoint.errors import RuntimeFailure
from zeropoint.runtime import vela
from zeropoint.tflite import save, to_bytes

from .. import build
from .probes import dense


@pytest.fixture
def folder(tmp_path, digits, monkeypatch) -> Path:
    (tmp_path / "model.tflite").write_bytes(digits)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "samples.npy", rng.uniform(0, 1, (8, 1, 8, 8, 1)).astype(np.float32))
    save(dense(DType.INT8, per_channel=True), tmp_path / "layer.tflite")
    save(dense(DType.INT4, per_channel=True), tmp_path / "narrow.tflite")
    monkeypatch.chdir(tmp_path)
    return tmp_path


QUANTIZE = ("quantize", "model.tflite", "--data", "samples.npy", "--effort", "quick", "-o", "out.tflite")


def test_check_asks_the_compiler(run, folder):
    code, out, err = run("check", "layer.tflite", "--target", "ethos-u55-64")
    assert (code, err) == (0, "")
    assert "ethos-u-vela" in out
    assert "cycles, about" in out
    code, out, _ = run("check", "layer.tflite", "--target", "ethos-u55-64", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["totals"]["fast"]["ops"] == 1
    assert shown["tool"]["cycles"] > 0
    assert shown["tool"]["left_to_cpu"] == []


def test_what_the_table_refuses_never_reaches_the_compiler(run, folder):
    """Vela would die of it."""
    code, out, err = run("check", "narrow.tflite", "--target", "ethos-u55-64")
    assert code == 1
    assert "has weights of fewer than 8 bits, on which Vela crashes" in out
    assert "does not run 1 of 1 ops" in err


def test_memory_is_checked(run, folder):
    code, out, _ = run("check", "layer.tflite", "--target", "tflm", "--arena", 100_000)
    assert code == 0
    assert "of RAM" in out
    code, _, err = run("check", "layer.tflite", "--target", "tflm", "--arena", 100)
    assert code == 1
    assert "bytes of memory to run, but has 100" in err
    code, _, err = run("check", "layer.tflite", "--target", "cpu", "--arena", 100)
    assert code == 2
    assert "how much memory the model needs is not known" in err


def test_a_missing_tool_is_a_remark(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    code, out, _ = run("check", "layer.tflite", "--target", "tflm")
    assert code == 0
    assert "the tool of tflm was not run" in out
    assert "pip install 'zeropoint[tflm]'" in out
    code, out, _ = run(*QUANTIZE, "--target", "tflm")
    assert code == 0
    assert "the tool of tflm was not run" in out


def test_the_summary_has_what_the_tool_says(run, folder):
    code, out, err = run(*QUANTIZE, "--target", "ethos-u55-128", "--input-type", "int8", "--output-type", "int8")
    assert (code, err) == (0, "")
    assert "on the NPU" in out
    assert "ethos-u-vela" in out
    assert "left to the CPU" not in out
    code, out, _ = run(*QUANTIZE, "--target", "ethos-u55-128", "--overwrite")
    assert code == 0
    assert "2 ops are left to the CPU" in out
    assert "QUANTIZE" in out


@pytest.mark.parametrize("error", [RuntimeFailure("it crashed with SIGFPE")])
def test_a_compiler_that_fails_leaves_files_as_they_were(run, folder, monkeypatch, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(vela, "compile_model", fail)
    (folder / "out.tflite").write_bytes(b"before")
    code, _, err = run(*QUANTIZE, "--target", "ethos-u55-128", "--overwrite")
    assert code == 2
    assert err == "error: it crashed with SIGFPE\n"
    assert (folder / "out.tflite").read_bytes() == b"before"
    before = (folder / "layer.tflite").read_bytes()
    code, _, err = run("check", "layer.tflite", "--target", "ethos-u55-128")
    assert (code, err) == (2, "error: it crashed with SIGFPE\n")
    assert (folder / "layer.tflite").read_bytes() == before


@pytest.mark.parametrize(("name", "hint"), [("ethos-u55", "did you mean ethos-u55-"), ("tlfm", "did you mean tflm")])
def test_unknown_targets_have_a_neighbour(run, folder, name, hint):
    code, out, err = run("check", "layer.tflite", "--target", name)
    assert (code, out) == (2, "")
    assert hint in err


def test_a_model_that_no_device_runs_is_refused_with_the_reason(run, folder):
    x, y = build.act("x", 1, 4), build.act("y", 1, 4)
    save(build.one_op("GELU", [x], y, options="GeluOptions"), folder / "gelu.tflite")
    np.save(folder / "four.npy", np.ones((4, 1, 4), np.float32))
    line = ("quantize", "gelu.tflite", "--data", "four.npy", "-o", "none.tflite", "--target", "tflm")
    code, _, err = run(*line)
    assert code == 2
    assert "tflm refuses" in err
    assert "GELU 'y'" in err
    assert not (folder / "none.tflite").exists()


def test_a_rule_that_names_weights_which_the_target_lacks_is_refused(run, folder):
    """Both are named. What is asked for all ops is widened instead, and the summary says so."""
    named = {"rules": [{"scheme": "int8"}, {"ops": "CONV_2D", "scheme": "int8", "weights": "int4"}]}
    (folder / "named.json").write_text(json.dumps(named))
    line = (*QUANTIZE, "--target", "ethos-u55-64")
    code, _, err = run(*line, "--recipe", "named.json")
    assert code == 2
    assert "the rule 'ops 'CONV_2D' -> " in err
    assert "the target ethos-u55-64 does not take" in err
    assert not (folder / "out.tflite").exists()
    (folder / "all.json").write_text(json.dumps({"rules": [{"scheme": "int8", "weights": "int4"}]}))
    code, out, _ = run(*line, "--recipe", "all.json")
    assert code == 0
    assert "ethos-u55-64 has no int4 kernel for it" in out


def test_python_gives_the_report_too(digits):
    import zeropoint

    data = [(np.random.default_rng(k).uniform(0, 1, (1, 8, 8, 1)).astype(np.float32),) for k in range(4)]
    result = zeropoint.quantize(digits, "int8", data=data, effort="quick", target="tflm")
    assert result.tool is not None
    assert result.tool.flash == len(to_bytes(result.model))
