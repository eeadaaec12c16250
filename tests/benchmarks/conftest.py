"""A zoo of one's own: the embedded digits model, and tasks that go wrong in their own ways."""

from __future__ import annotations

from pathlib import Path

import pytest

ZOO = """
import os
from pathlib import Path

from zeropoint.demo import accuracy, digits, digits_model
from zeropoint.tflite import load

MODEL = Path(__file__).with_name("digits.tflite")
MODEL.write_bytes(digits_model())


class Digits:
    model = MODEL
    metric = "top-1"

    def calibration(self, limit=None):
        return [(image[None],) for image in digits()["calibration"][:limit]]

    def evaluate(self, model, limit=None):
        data = digits()
        part = {"test_images": data["test_images"][:limit], "test_labels": data["test_labels"][:limit]}
        return accuracy(load(model), part)


class NoData(Digits):
    def calibration(self, limit=None):
        if limit != 1:  # one sample is for latency
            raise ValueError("the samples are\\nlost")
        return super().calibration(limit)


class Crashing(Digits):
    def evaluate(self, model, limit=None):
        if str(model) != str(MODEL):
            os.write(2, b"something about memory\\n")
            os.abort()
        return super().evaluate(model, limit)


TASKS = {"digits": Digits(), "no_data": NoData(), "crashing": Crashing()}
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_tasks.py").write_text(ZOO)
    return folder
