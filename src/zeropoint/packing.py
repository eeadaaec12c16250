"""Types narrower than a byte: how elements are packed into bytes. The first element is in the lowest bits."""

from __future__ import annotations

import numpy as np

from .dtypes import Array, DType


def pack(values: Array, dtype: DType) -> Array:
    """Pack elements, given one per byte; the last byte is padded with zeros."""
    per_byte = _per_byte(dtype)
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.size and (flat.min() < dtype.min or flat.max() > dtype.max):
        raise ValueError(f"a value is outside {dtype.label}'s [{dtype.min}, {dtype.max}]")
    packed = np.zeros(-(-flat.size // per_byte), np.uint8)
    for k in range(per_byte):
        part = flat[k::per_byte].astype(np.uint8)
        part &= (1 << dtype.bits) - 1
        part <<= k * dtype.bits
        packed[: part.size] |= part
    return packed


def unpack(packed: Array, dtype: DType, count: int) -> Array:
    """Unpack `count` elements, to one per byte."""
    per_byte = _per_byte(dtype)
    if packed.size * per_byte < count:
        raise ValueError(f"{packed.size} bytes cannot hold {count} elements of {dtype.label}")
    shifts = np.arange(per_byte, dtype=np.uint8) * dtype.bits
    raw = (packed.view(np.uint8)[:, None] >> shifts).reshape(-1)[:count]
    raw &= (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return raw
    sign = 1 << (dtype.bits - 1)
    signed: Array = (raw ^ sign).astype(np.int8) - np.int8(sign)
    return signed


def _per_byte(dtype: DType) -> int:
    if not dtype.is_packed:
        raise ValueError(f"{dtype.label} is not a packed type")
    return 8 // dtype.bits
