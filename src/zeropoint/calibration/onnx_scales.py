"""Reads the scales of ONNX models with QuantizeLinear and DequantizeLinear, by tensor name, and their network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from ..errors import InvalidStats
from ..files import PathLike
from ..ops.onnx_names import KINDS, WEIGHTED
from ..sources.onnx_file import OnnxFile, OnnxNode, read_onnx
from .encodings import Encoding
from .skeleton import Node, Skeleton

QUANTIZED = {np.dtype(np.int8): 8, np.dtype(np.uint8): 8, np.dtype(np.int16): 16, np.dtype(np.uint16): 16}
SUFFIXES = ("_quantized", "_QuantizeLinear_Input")
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
Encodings = Mapping[str, tuple[Encoding, ...]]


@dataclass(frozen=True)
class QdqModel:
    """The encodings of tensors, and the network that they belong to."""

    activations: Encodings
    weights: Encodings
    skeleton: Skeleton


def read_qdq(path: PathLike) -> QdqModel:
    """Read encodings from QuantizeLinear for activations, and from DequantizeLinear, or both, for constants."""
    file = read_onnx(path)
    activations: dict[str, tuple[Encoding, ...]] = {}
    weights: dict[str, tuple[Encoding, ...]] = {}
    for node in file.nodes:
        if node.kind not in CONVERSIONS or len(node.inputs) < 2 or _is_bias(node, file):
            continue
        source = node.inputs[0]
        if source in file.constants:
            weights.setdefault(_plain(source), _encodings(node, file, str(path)))
        elif node.kind == "QuantizeLinear":
            activations.setdefault(_plain(source), _encodings(node, file, str(path)))
    if not activations and not weights:
        raise InvalidStats(f"{path} has no QuantizeLinear or DequantizeLinear; give a model quantized in QDQ format")
    return QdqModel(activations, weights, _skeleton(file))


def _is_bias(node: OnnxNode, file: OnnxFile) -> bool:
    """Whether a node dequantizes a 32-bit constant: its scale follows from those of the data and the weights."""
    held = file.constants.get(node.inputs[0])
    return held is not None and held.dtype == np.int32


def _plain(name: str) -> str:
    """Return the name that a tensor had before it was quantized."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _encodings(node: OnnxNode, file: OnnxFile, origin: str) -> tuple[Encoding, ...]:
    """Return the encodings of a node: real = scale * (q - zero point), with q counted from the lowest integer of its
    type."""
    scales, zero_points = _parameters(node, file)
    if scales is None or zero_points is None:
        raise InvalidStats(f"{origin}: the scale of '{node.inputs[0]}' is no constant")
    if (
        zero_points.dtype not in QUANTIZED
        or zero_points.size != scales.size
        or not (np.isfinite(scales) & (scales > 0)).all()
    ):
        raise InvalidStats(f"{origin}: '{node.inputs[0]}' has {scales.size} scales and {zero_points.dtype} zero points")
    least, bits = int(np.iinfo(zero_points.dtype).min), QUANTIZED[zero_points.dtype]
    pairs = zip(scales.reshape(-1).tolist(), zero_points.reshape(-1).tolist(), strict=True)
    return tuple(Encoding(float(scale), least - int(zero), bits) for scale, zero in pairs)


def _parameters(node: OnnxNode, file: OnnxFile) -> tuple[Array | None, Array | None]:
    """Return scales and zero points; without zero points in the file, zeros of the quantized type."""
    scales = file.constants.get(node.inputs[1])
    if len(node.inputs) > 2 and node.inputs[2]:
        return scales, file.constants.get(node.inputs[2])
    held = file.constants.get(node.inputs[0])
    dtype = held.dtype if held is not None and node.kind == "DequantizeLinear" else np.dtype(np.uint8)
    return scales, None if scales is None else np.zeros(scales.shape, dtype)


# The network.


def _skeleton(file: OnnxFile) -> Skeleton:
    makers = {name: node for node in file.nodes for name in node.outputs}
    values: dict[str, Array] = {}
    nodes = []
    for node in file.nodes:
        constants = [_constant(name, makers, file) for name in node.inputs]
        reads = [name for name, known in zip(node.inputs, constants, strict=True) if known is None and name]
        weights = next(iter(constants[1:2]), None) if node.kind in WEIGHTED else None
        name, held = weights or (None, None)
        if name is not None and held is not None:
            values[name] = held
        if reads and constants[0] is None:
            nodes.append(Node(KINDS.get(node.kind, (node.kind,)), tuple(reads), node.outputs, name))
    names = (name for node in nodes for name in (*node.reads, *node.makes))
    return Skeleton(tuple(file.inputs), nodes, values, {name: _plain(name) for name in names})


def _constant(name: str, makers: Mapping[str, OnnxNode], file: OnnxFile) -> tuple[str, Array] | None:
    """Return the name and real values of a constant, looking through conversions; None if it is not constant."""
    chain = list(_behind(name, makers))
    held = file.constants.get(chain[-1].inputs[0] if chain else name)
    if held is None:
        return None
    origin = _plain(chain[-1].inputs[0] if chain else name)
    if held.dtype.kind == "f" or not chain:
        return origin, held.astype(np.float32)
    scales, zeros = _parameters(chain[-1], file)
    if scales is None or zeros is None:
        return origin, held.astype(np.float32)
    axis = chain[-1].numbers.get("axis", 1) if scales.size > 1 else 0
    shape = [-1 if k == axis % held.ndim else 1 for k in range(held.ndim)] if scales.size > 1 else []
    real = (held.astype(np.float32) - zeros.astype(np.float32).reshape(shape)) * scales.reshape(shape)
    return origin, np.asarray(real, np.float32)


def _behind(name: str, makers: Mapping[str, OnnxNode]) -> Iterator[OnnxNode]:
    """Yield the conversions that produce a tensor, last one first."""
    while (node := makers.get(name)) is not None and node.kind in CONVERSIONS and node.inputs:
        yield node
        name = node.inputs[0]
