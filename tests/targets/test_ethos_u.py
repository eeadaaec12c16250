"""The tables of Ethos-U against Vela: what they say runs on the NPU does, what they refuse does not compile."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from zeropoint.dtypes import DType
from zeropoint.errors import MissingExtra, RuntimeFailure
from zeropoint.graph import Model
from zeropoint.ops import OPS
from zeropoint.plan.target_rewrites import fit_to_target
from zeropoint.runtime import vela
from zeropoint.runtime.device_tools import ask_tool
from zeropoint.targets import ETHOS_U, TFLM, TypedOp, target_named
from zeropoint.tflite import to_bytes

from .. import build
from ..conformance.samples import SAMPLES
from .probes import dense, scaled, tensor
from .test_tflm import integer_ops
from .tools import ask_all, left_by_vela


def others() -> list[Model]:
    """Floats, truth values, weights of 4 bits; and what only the CPU takes."""
    several = {sample.kind: sample.model() for sample in SAMPLES}
    for model in several.values():
        fit_to_target(model, target_named("ethos-u55-128"), OPS)
    pair = [tensor("x", DType.BOOL, 2, 3), tensor("z", DType.BOOL, 2, 3)]
    logical = build.one_op("LOGICAL_AND", pair, tensor("y", DType.BOOL, 2, 3), options="LogicalAndOptions")
    return [*several.values(), logical, dense(DType.INT4, False), dense(DType.INT8, True)]


def surprise(model: Model, name: str, answer: list[str] | str) -> str | None:
    """Where the table of a target and Vela disagree."""
    target = target_named(name)
    verdicts = {op: target.verdict(TypedOp.of_file(op)) for op in model.main.ops}
    refused = {op for op, verdict in verdicts.items() if verdict.speed == "refused"}
    if isinstance(answer, str):
        return None if refused else f"Vela fails: {answer}"
    for op, verdict in verdicts.items():
        left = op.outputs[0].name in answer
        if op in refused:
            on_cpu = left and TFLM.verdict(TypedOp.of_file(op)).speed == "refused"
            if not on_cpu:
                return f"{op.kind} is refused ({verdict}), and Vela takes it"
        elif left is (verdict.speed == "fast"):
            return f"{op.kind}: {verdict}, {'left to the CPU' if left else 'on the NPU'}"
    return None


@pytest.mark.parametrize("name", ["ethos-u55-128", "ethos-u85-256"])
def test_no_surprises(name):
    # Rules claim int8 and int16. Vela moves some data in uint8 as well.
    asked = {one.name: one.model for one in integer_ops() if "uint8" not in one.name}
    asked |= {f"{model.main.ops[0].kind}-other-{k}": model for k, model in enumerate(others())}
    answers = ask_all(left_by_vela, [(name, to_bytes(model)) for model in asked.values()])
    found = {n: surprise(m, name, answer) for (n, m), answer in zip(asked.items(), answers, strict=True)}
    assert {n: text for n, text in found.items() if text is not None} == {}
    assert len(asked) > 400


@pytest.mark.parametrize("target", ETHOS_U, ids=lambda t: t.name)
def test_every_size_is_known_to_vela(target):
    report = ask_tool(target, to_bytes(small_layer(DType.INT8)))
    assert report is not None
    assert report.left_to_cpu == ()
    assert report.cycles > 0
    assert report.seconds > 0
    assert report.ram > 0


def small_layer(weights: DType) -> Model:
    return dense(weights, per_channel=False)


def test_a_compiler_that_dies_is_an_error_of_ours():
    """Vela 5.2 divides by zero at weights of 4 bits."""
    with pytest.raises(RuntimeFailure, match="for ethos-u55-128: it crashed with SIGFPE"):
        vela.compile_model(to_bytes(small_layer(DType.INT4)), "ethos-u55-128")


def test_a_compiler_that_fails_is_quoted():
    y = tensor("y", DType.FLOAT32, 1, 4)
    model = build.one_op("HARD_SWISH", [tensor("x", DType.FLOAT32, 1, 4)], y, options="HardSwishOptions")
    with pytest.raises(RuntimeFailure, match=r"cannot compile this model for ethos-u55-128: .*Error"):
        vela.compile_model(to_bytes(model), "ethos-u55-128")


def test_a_compiler_that_never_ends_is_stopped(monkeypatch):
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("vela", 7)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(RuntimeFailure, match="did not finish within 7 s"):
        vela.compile_model(b"", "ethos-u55-128")


def test_without_the_extra_users_are_told_how_to_get_it(monkeypatch):
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vela, "version", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'zeropoint\[ethos-u\]'"):
        vela.compile_model(b"", "ethos-u55-128")


def test_ops_left_to_the_cpu_are_named_with_the_reason():
    model = build.one_op(
        "QUANTIZE", [tensor("x", DType.FLOAT32, 4)], scaled("y", DType.INT8, 4), options="QuantizeOptions"
    )
    (left,) = ask_tool(target_named("ethos-u65-256"), to_bytes(model)).left_to_cpu
    assert (left.kind, left.output) == ("QUANTIZE", "y")
    assert "Float32" in left.reason


NOT_MADE = {
    "ethos-u55-128": {"NEG", "REVERSE_V2"},
    "ethos-u85-256": {
        "ASSIGN_VARIABLE",
        "CAST",
        "DIV",
        "NEG",
        "READ_VARIABLE",
        "REDUCE_ALL",
        "REDUCE_ANY",
    },
}
"""Ops of Vela's report that our tables leave to the CPU: we make none of them in scaled integers."""


def test_the_tables_have_the_ops_of_velas_own_report(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "ethosu.vela", "--supported-ops-report"], cwd=tmp_path, check=True, capture_output=True
    )
    report = (tmp_path / "SUPPORTED_OPS.md").read_text()
    for name, title in (("ethos-u55-128", "Ethos-U55 and Ethos-U65"), ("ethos-u85-256", "Ethos-U85")):
        table = report.split(f"## {title} TFLite Summary Table")[1].split("\n## ")[0]
        listed = set(re.findall(r"^\| ([A-Z0-9_]+) \|", table, re.MULTILINE))
        assert len(listed) > 40
        ours = {kind for rule in target_named(name).rules if rule.speed == "fast" for kind in rule.kinds}
        assert ours <= listed
        assert listed - ours == NOT_MADE[name]
