"""Converts ONNX files with onnx2tf, in a separate process.

onnx2tf pins other versions of TensorFlow, NumPy and LiteRT than those used here, so it needs an environment of its own;
only its command is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from ..errors import ConversionFailed, MissingExtra
from ..graph.model import Model
from ..tflite.read import load as load_tflite
from .conversion import SHOWN_LINES, Conversion, shortened
from .onnx_file import read_onnx

COMMAND = "ZEROPOINT_ONNX2TF"
"""The environment variable that names onnx2tf's command, if it is not on the path."""

MADE = "*_float32.tflite"

PICTURES = "calibration_image_sample_data_20x128x128x3_float32.npy"
"""The test images that onnx2tf (1.29) runs image networks on; it downloads them unless its folder has them."""


def from_onnx(path: Path, conversion: Conversion) -> Model:
    """Return the float model that onnx2tf converts an ONNX file to. It moves channels last."""
    read_onnx(path)  # raises our own error for anything but a complete ONNX file
    command = _command()
    with tempfile.TemporaryDirectory(prefix="zeropoint-onnx-") as folder:
        np.save(Path(folder) / PICTURES, np.random.default_rng(0).random((20, 128, 128, 3), np.float32))
        line = [command, "-i", str(path.resolve()), "-o", folder, "--non_verbose"]
        try:
            done = subprocess.run(
                line, cwd=folder, capture_output=not conversion.verbose, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise MissingExtra(
                f"{command} cannot be run: {error.strerror}; {COMMAND} names the command of onnx2tf"
            ) from None
        found = sorted(Path(folder).glob(MADE))
        if done.returncode or not found:
            printed = [text for text in f"{done.stdout or ''}\n{done.stderr or ''}".splitlines() if text.strip()]
            raise ConversionFailed(
                f"onnx2tf did not convert {path}" + (f" (exit code {done.returncode})" if done.returncode else ""),
                "  it printed:" if printed else "  it printed nothing",
                *(f"    {shortened(text)}" for text in printed[-SHOWN_LINES:]),
            )
        return load_tflite(found[0].read_bytes())


def _command() -> str:
    named = os.environ.get(COMMAND) or shutil.which("onnx2tf")
    if named is None:
        raise MissingExtra(
            "an ONNX model needs the converter onnx2tf, in an environment of its own, because it pins other versions "
            "of TensorFlow and NumPy: python -m venv onnx2tf, onnx2tf/bin/pip install onnx2tf, and "
            f"{COMMAND}=onnx2tf/bin/onnx2tf (or the command on the path)"
        )
    return named


def layout_notes(path: Path, model: Model) -> list[str]:
    """Return notes on inputs whose axes the converter has put in another order than the ONNX file."""
    given = list(read_onnx(path).inputs.items())
    if len(given) != len(model.main.inputs):
        return []
    return [
        f"input '{tensor.name}' takes {list(tensor.shape)}, channels last; '{name}' in the ONNX file has {list(shape)}"
        for (name, shape), tensor in zip(given, model.main.inputs, strict=True)
        if len(shape) == len(tensor.shape) > 2 and shape[2:] + shape[1:2] == tensor.shape[1:] != shape[1:]
    ]
