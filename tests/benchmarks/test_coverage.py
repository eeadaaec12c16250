"""Coverage of a folder of models: what runs, what is refused, what is told of failures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import coverage
from zeropoint.demo import digits_model
from zeropoint.tflite import save

from .. import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    (models / "digits.tflite").write_bytes(digits_model())
    (models / "damaged.tflite").write_bytes(b"no model")
    save(build.open_sides(), models / "open.tflite")
    return models


def test_every_model_has_an_outcome(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, page = tmp_path / "found.json", tmp_path / "found.md"
    assert coverage.main([str(folder), "--modes", "int8", "-o", str(written), "--page", str(page)]) == 0
    found = {one["model"]: one for one in json.loads(written.read_text())["outcomes"]}
    assert {name: one["kind"] for name, one in found.items()} == {
        "damaged": "refused",
        "digits": "runs",
        "open": "runs",
    }
    assert found["digits"]["snr"] > 15
    assert found["digits"]["integer"] == 1
    assert "damaged.tflite" in found["damaged"]["note"]
    assert "| digits |" in page.read_text()
    assert "- damaged (all modes): refused: " in page.read_text()
    assert "- zeropoint at commit" in page.read_text()
    assert str(folder) not in page.read_text()  # whose machine it was is nobody's business
    assert "2 runs" in capsys.readouterr().out


def test_a_rerun_does_what_is_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, done = tmp_path / "found.json", []

    def outcome(path: Path, mode: str, _: object) -> coverage.Outcome:
        done.append((path.stem, mode))
        return coverage.Outcome(path.stem, mode, "runs", 30.0, 1.0)

    monkeypatch.setattr(coverage, "outcome", outcome)
    arguments = [str(folder), "-o", str(written), "--modes"]
    assert coverage.main([*arguments, "int8"]) == 0
    assert coverage.main([*arguments, "int8,dynamic"]) == 0
    assert len(done) == len(set(done)) == 6
    coverage.main([*arguments, "int8", "--low", "20"])
    assert len(done) == 9  # other settings: all of it again
    failed = coverage.Outcome("digits", "int8", "failed", note="took longer than 1 s")
    monkeypatch.setattr(
        coverage, "outcome", lambda path, *_: failed if path.stem == "digits" else outcome(path, "int8", 0)
    )
    assert coverage.main([*arguments, "int8"]) == 1
    monkeypatch.setattr(coverage, "outcome", outcome)
    before = len(done)
    assert coverage.main([*arguments, "int8", "--timeout", "2000"]) == 0
    assert done[before:] == [("digits", "int8")]  # what failed may go well with more time


def test_modes_without_data_need_no_samples_to_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "LARGEST", 0)
    model = folder / "digits.tflite"
    assert coverage.attempt(model, "int8", None, 2, None)[0] == "refused"
    kind, _, _, note = coverage.attempt(model, "dynamic", None, 2, None)
    assert kind == "cannot be judged"
    assert "there are no samples for the input" in note


def die(*_: object) -> None:
    os.abort()


def test_a_crash_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "attempt", die)
    for other in ("damaged", "open"):
        (folder / f"{other}.tflite").unlink()
    assert coverage.main([str(folder), "--modes", "float16"]) == 1
    assert "SIGABRT" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--modes", "int9"], []], ids=["unknown mode", "empty folder"])
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage.main([str(tmp_path), *arguments]) == 2
    assert "there is no" in capsys.readouterr().err
