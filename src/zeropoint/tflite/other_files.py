"""Recognizes files that users pass instead of a `.tflite`, by content, and says what to do with them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

from .flatbuffer import Content

HEAD = 4096
"""Number of leading bytes by which most file types are recognized."""

MOST_FIELDS = 64
"""Number of protocol buffer fields that are examined."""

TORCH_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
"""The magic number that `torch.save` wrote before it switched to zip archives."""


@dataclass(frozen=True)
class OtherFile:
    """A file type: what it is, and what the user should do instead."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


CONVERT_TORCH = (
    "load it in PyTorch and give the module to zeropoint.load(module, sample_inputs=...), or convert it first"
)

LFS = OtherFile("a Git LFS pointer, not the file itself", "fetch the file with `git lfs pull`")
PAGE = OtherFile("a web page", "download the file itself; login and preview links return web pages")
ONNX = OtherFile("an ONNX model", "rename it to end in .onnx, and onnx2tf will convert it")
SAVED_MODEL = OtherFile("the graph of a SavedModel", "give the folder that contains it, with its variables")
FROZEN = OtherFile(
    "a frozen TensorFlow graph",
    "zeropoint.lite.TFLiteConverter.from_frozen_graph takes it, with its inputs and outputs",
)
TORCH = OtherFile("a PyTorch file: weights, or a network as Python code", CONVERT_TORCH)
SAFETENSORS = OtherFile("weights in safetensors, without a network", CONVERT_TORCH)
GGUF = OtherFile("a GGUF file of weights", "convert the original model to .tflite first")
KERAS = OtherFile("a Keras model", "rename it to end in .keras")
HDF5 = OtherFile("an HDF5 file", "if it is a Keras model, rename it to end in .h5")
PICKLE = OtherFile("a Python pickle", "if you trust it, load it in Python and pass the model to zeropoint.load")
STATS = OtherFile("statistics of `zeropoint calibrate`", "give the model that they belong to")
ARRAYS = OtherFile("a file of NumPy arrays", "give the model first, and arrays as data")
DAMAGED = OtherFile("a damaged zip archive", "write or download it again")
ARCHIVE = OtherFile("a zip archive", "unpack it, and give the .tflite")
COMPRESSED = OtherFile("a compressed file", "unpack it, and give the .tflite")
EXECUTORCH = OtherFile("a program for ExecuTorch", "convert the original model to .tflite")
LITERT_LM = OtherFile("a bundle of LiteRT-LM", "give one of the .tflite files that it was built from")
METADATA = OtherFile("TFLite Metadata without a model", "give the .tflite that it belongs to")

BEGINNINGS = {
    b"version https://git-lfs": LFS,
    TORCH_MAGIC: TORCH,
    b"\x89HDF\r\n\x1a\n": HDF5,
    b"GGUF": GGUF,
    b"\x93NUMPY": ARRAYS,
    b"LITERTLM": LITERT_LM,
    b"\x1f\x8b": COMPRESSED,
    b"\xfd7zXZ\0": COMPRESSED,
    b"7z\xbc\xaf\x27\x1c": COMPRESSED,
    b"\x28\xb5\x2f\xfd": COMPRESSED,
    b"BZh": COMPRESSED,
    b"\x80\x02": PICKLE,
    b"\x80\x03": PICKLE,
    b"\x80\x04": PICKLE,
    b"\x80\x05": PICKLE,
}

IDENTIFIERS = {b"ET12": EXECUTORCH, b"M001": METADATA}
"""Identifiers of other flatbuffers, at bytes 4 to 8."""

PAGES = (b"<!doctype html", b"<html", b"<?xml", b"<!--")


def other_file(content: Content) -> OtherFile | None:
    """Identify a file that is not a `.tflite`; None if its type is not recognized."""
    head = bytes(content[:HEAD])
    for beginning, kind in BEGINNINGS.items():
        if head.startswith(beginning):
            return kind
    if head[4:8] in IDENTIFIERS:
        return IDENTIFIERS[head[4:8]]
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(PAGES):
        return PAGE
    if head.startswith(b"PK\x03\x04"):
        return _archive(content)
    if head[257:262] == b"ustar":
        return COMPRESSED
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30 and b'"' in head[9:12]:
        return SAFETENSORS
    return _protocol_buffer(content)


def _archive(content: Content) -> OtherFile:
    """Identify a zip archive by the names of its members; nothing is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError):
        return DAMAGED
    last = {name.rpartition("/")[2] for name in names}
    if {"config.json", "model.weights.h5"} <= last:
        return KERAS
    if last & {"data.pkl", "serialized_exported_program.json", "archive_format"}:
        return TORCH
    if {"header.npy", "counts.npy"} <= last:
        return STATS
    if all(name.endswith(".npy") for name in last):
        return ARRAYS
    models = [name for name in names if name.endswith(".tflite")]
    return OtherFile(f"a zip archive with {models[0]!r} in it", "unpack it, and give that") if models else ARCHIVE


def _protocol_buffer(content: Content) -> OtherFile | None:
    """Identify a protocol buffer by the numbers and types of its first fields."""
    fields = list(_fields(content))
    kinds = [(number, wire) for number, wire, _ in fields]
    if kinds[:1] == [(1, 0)]:
        if (7, 2) in kinds:  # version, ..., graph
            return ONNX
        if set(kinds) == {(1, 0), (2, 2)} and len(content) == _end(fields[-1]):  # version, graphs
            return SAVED_MODEL
    if kinds[:1] == [(1, 2)]:  # nodes, each with a name and an op
        start, size = fields[0][2]
        inner = [(number, wire) for number, wire, _ in _fields(content[start : start + size])]
        if inner[:2] == [(1, 2), (2, 2)]:
            return FROZEN
    return None


Field = tuple[int, int, tuple[int, int]]
"""Field number and wire type; for bytes (type 2), their position and length."""


def _end(field: Field) -> int:
    return sum(field[2])


def _fields(content: Content) -> Iterator[Field]:
    """Yield the first fields of a protocol buffer, stopping where it no longer looks like one."""
    at, sizes = 0, {1: 8, 5: 4}
    for _ in range(MOST_FIELDS):
        tag, at = varint(content, at)
        if at < 0 or not 0 < tag >> 3 < 1 << 12:
            return
        wire, size = tag & 7, 0
        if wire in (0, 2):
            size, at = varint(content, at)
            size = size if wire == 2 else 0
        elif wire in sizes:
            size = sizes[wire]
        else:
            return
        if at < 0 or at + size > len(content):
            return
        yield tag >> 3, wire, (at, size)
        at += size


def varint(content: Content, at: int) -> tuple[int, int]:
    """Return a variable-length integer and the position after it, which is -1 if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            return 0, -1
        byte = content[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    return 0, -1
