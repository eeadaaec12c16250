"""`zeropoint train --report`, without labels and with them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from zeropoint.demo import digits as digits_data

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

PAIRS = """
import numpy as np
from pathlib import Path

def pairs():
    return [(image[None], np.int64(k % 10)) for k, image in enumerate(np.load(Path(__file__).with_name("x.npy")))]
"""


@pytest.mark.parametrize("labels", [False, True], ids=["unlabelled", "labelled"])
def test_a_trained_model_is_reported(run, tmp_path, digits, labels):
    (tmp_path / "model.tflite").write_bytes(digits)
    np.save(tmp_path / "x.npy", digits_data()["calibration"][:40])
    (tmp_path / "data.py").write_text(PAIRS, "utf-8")
    data = ["--data", f"{tmp_path / 'data.py'}:pairs", "--loss", "sparse_categorical_crossentropy"] if labels else []
    arguments = [tmp_path / "model.tflite", "-o", tmp_path / "out.tflite", "--steps", "2", "--batch", "8"]
    report = tmp_path / "out.html"
    code, out, _ = run("train", *arguments, *(data or ["--data", tmp_path / "x.npy"]), "--report", report)
    assert code == 0
    assert str(report) in out
    text = report.read_text("utf-8")
    assert "Own SNR" in text
    assert "held-back samples" in text
