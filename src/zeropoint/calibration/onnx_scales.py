"""Scales of ONNX models with QuantizeLinear and DequantizeLinear, as encodings by the name of a tensor."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidStats
from ..files import PathLike
from ..sources.onnx_file import OnnxFile, OnnxNode, read_onnx
from .encodings import Encoding

QUANTIZED = {np.dtype(np.int8): 8, np.dtype(np.uint8): 8, np.dtype(np.int16): 16, np.dtype(np.uint16): 16}
SUFFIXES = ("_quantized", "_QuantizeLinear_Input")


def qdq_encodings(path: PathLike) -> dict[str, tuple[Encoding, ...]]:
    """What tensors are quantized with: activations before QuantizeLinear, constants before DequantizeLinear."""
    file = read_onnx(path)
    found: dict[str, tuple[Encoding, ...]] = {}
    for node in file.nodes:
        is_weights = node.kind == "DequantizeLinear" and node.inputs[:1] and node.inputs[0] in file.constants
        if (node.kind == "QuantizeLinear" or is_weights) and len(node.inputs) >= 2:
            found.setdefault(_plain(node.inputs[0]), _encodings(node, file, str(path)))
    if not found:
        raise InvalidStats(
            f"{path} has no QuantizeLinear or DequantizeLinear; give a model that is quantized in that form"
        )
    return found


def _plain(name: str) -> str:
    """The name that a tensor had before it was quantized."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _encodings(node: OnnxNode, file: OnnxFile, origin: str) -> tuple[Encoding, ...]:
    """real = scale * (q - zero point), with q from the least integer of its type."""
    scales = file.constants.get(node.inputs[1])
    zeros = file.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    if scales is None or (len(node.inputs) > 2 and zeros is None):
        raise InvalidStats(f"{origin}: the scale of '{node.inputs[0]}' is no constant")
    zero_points = np.zeros(scales.shape, np.uint8) if zeros is None else zeros
    if (
        zero_points.dtype not in QUANTIZED
        or zero_points.size != scales.size
        or not (np.isfinite(scales) & (scales > 0)).all()
    ):
        raise InvalidStats(f"{origin}: '{node.inputs[0]}' has {scales.size} scales and {zero_points.dtype} zero points")
    least, bits = int(np.iinfo(zero_points.dtype).min), QUANTIZED[zero_points.dtype]
    pairs = zip(scales.reshape(-1).tolist(), zero_points.reshape(-1).tolist(), strict=True)
    return tuple(Encoding(float(scale), least - int(zero), bits) for scale, zero in pairs)
