"""Files that are no models are recognized by what is in them, and the message says what to do."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from zeropoint.demo import digits_model
from zeropoint.errors import InvalidModel
from zeropoint.sources.models import load
from zeropoint.tflite.other_files import other_file

from .. import build


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return file.getvalue()


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protocol buffer, with lengths up to 127."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    return file.getvalue()


def saved_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
graph = field(1, field(1, b"input") + field(2, b"Placeholder"))
FILES = {
    "onnx": (field(1, 8) + field(2, b"pytorch") + field(3, b"2.1") + field(7, graph), "ONNX model; .*onnx2tf"),
    "onnx without a producer": (field(1, 8) + field(7, graph) + field(8, field(2, 17)), "an ONNX model"),
    "saved_model.pb": (field(1, 1) + field(2, field(1, b"tags") + graph), "SavedModel; give the folder"),
    "frozen graph": (
        graph + field(1, field(1, b"out") + field(2, b"Relu")),
        "frozen TensorFlow graph; .*from_frozen_graph",
    ),
    "pt": (zipped("net/data.pkl", "net/data/0"), "PyTorch file: weights, or a network as Python code; .*sample_inputs"),
    "old pt": (bytes.fromhex("80028a0a6cfc9c46f9206aa850192e") + bytes(50), "a PyTorch file"),
    "pickle": (pickle.dumps([1, 2]), "a Python pickle"),
    "safetensors": (struct.pack("<Q", len(header)) + header + bytes(8), "safetensors"),
    "keras": (zipped("metadata.json", "config.json", "model.weights.h5"), r"Keras model; .* end in \.keras"),
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(50), r"HDF5 file; .* end in \.h5"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS.*git lfs pull"),
    "html": (
        b"\xef\xbb\xbf\n <!DOCTYPE html><html><body>Sign in</body></html>",
        "a web page; download the file itself",
    ),
    "zip": (zipped("readme.txt"), "a zip archive; unpack it"),
    "zip with a model": (zipped("a/net.tflite"), r"a zip archive with 'a/net\.tflite' in it"),
    "damaged zip": (b"PK\x03\x04 and nothing else", "a damaged zip archive"),
    "gzip": (gzip.compress(b"x" * 100), "a compressed file; unpack it"),
    "tar": (tarred(), "a compressed file"),
    "npz": (zipped("x.npy", "y.npy"), "NumPy arrays; give the model first"),
    "npy": (saved_array(), "NumPy arrays"),
    "stats": (zipped("header.npy", "counts.npy"), "statistics of `zeropoint calibrate`"),
    "gguf": (b"GGUF" + bytes(30), "a GGUF file"),
    "metadata": (b"\x10\0\0\0M001" + bytes(30), "TFLite Metadata without a model"),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_a_file_is_comes_from_its_content(kind, tmp_path):
    content, says = FILES[kind]
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=rf"model\.tflite is .*{says}"):
        load(path)
    with pytest.raises(InvalidModel, match=f"the given content is .*{says}"):
        load(content)


@pytest.mark.parametrize("kind", ["lfs", "html", "onnx", "gzip"])
def test_keras_files_that_are_none_say_what_they_are(kind, tmp_path):
    content, says = FILES[kind]
    for name in ("model.keras", "model.h5"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidModel, match=says):
            load(tmp_path / name)


def test_models_and_noise_are_nothing_else():
    assert other_file(digits_model()) is None
    assert other_file(b"") is None
    rng = np.random.default_rng(0)
    named = [other_file(rng.bytes(size)) for size in (1, 3, 9, 50, 300, 5000) for _ in range(50)]
    assert sum(kind is not None for kind in named) < 3
    assert load(build.float_cnn()) is not None


@pytest.mark.parametrize("kind", FILES)
def test_beginnings_of_files_do_no_harm(kind):
    content, _ = FILES[kind]
    for size in range(0, len(content), max(1, len(content) // 40)):
        other_file(content[:size])
        other_file(memoryview(content)[:size])
