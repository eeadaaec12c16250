"""The share of arithmetic in integers, before and now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import integer_share
from zeropoint.tflite import save

from .. import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(build.float_cnn(), tmp_path / "cnn.tflite")
    (tmp_path / "damaged.tflite").write_bytes(b"no model")
    return tmp_path


def test_both_states_are_counted_in_the_same_way(folder: Path) -> None:
    """This source stands for the earlier one as well."""
    written, page = folder / "share.json", folder / "share.md"
    given = [str(folder), "--before", str(integer_share.NOW), "-o", str(written), "--page", str(page)]
    assert integer_share.main(given) == 0
    cnn, damaged = json.loads(written.read_text("utf-8"))["rows"]
    assert cnn["before"] == cnn["now"] == {"arithmetic": 1.0, "ops": 1.0, "refused": ""}
    assert damaged["now"]["refused"]
    text = page.read_text("utf-8")
    assert "| cnn | 100.0% | 100.0% | 100% | 100% |" in text
    assert str(folder) not in text


def test_without_an_earlier_state_there_is_one_column_less_to_fill(folder: Path) -> None:
    (folder / "damaged.tflite").unlink()
    written = folder / "share.json"
    assert integer_share.main([str(folder), "--only", "cn", "-o", str(written)]) == 0
    (row,) = json.loads(written.read_text("utf-8"))["rows"]
    assert row["before"] is None
    assert row["now"]["arithmetic"] == 1


def test_what_takes_too_long_is_said(folder: Path) -> None:
    path = folder / "cnn.tflite"
    made = integer_share.made_by(integer_share.NOW, path, integer_share.samples_for(path, 1), timeout=0.01)
    assert made.refused == "took longer than 0 s"
