"""The forms in which numbers are held, and how a constant takes one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams, dequantize, quantize, round_half_away
from ..dtypes import Array, DType
from ..graph.edit import give_buffer
from ..graph.model import BlockScales, Buffer, Quantization, Tensor, buffer_of
from ..tflite.schema import default_options


@dataclass(frozen=True, eq=False)
class BlockParams:
    """One scale for each `block` consecutive weights of a row: float16 [rows, blocks], zero points 0."""

    scales: Array
    block: int
    dtype: DType

    def quantize(self, data: Array) -> Array:
        """Integers in the narrow range."""
        steps = self.scales.astype(np.float32)[:, :, None]
        q = round_half_away(data.reshape(*self.scales.shape, self.block) / steps)
        return np.clip(q, -self.dtype.max, self.dtype.max).reshape(data.shape).astype(self.dtype.storage)

    def dequantize(self, q: Array) -> Array:
        parts = q.reshape(*self.scales.shape, self.block).astype(np.float32)
        return (parts * self.scales.astype(np.float32)[:, :, None]).reshape(q.shape)

    def __str__(self) -> str:
        return f"{self.dtype.label} in blocks of {self.block}"


Form = QuantParams | BlockParams | DType
"""Affine integers; integers with a scale for each block; or another float type."""


@dataclass(frozen=True)
class Packed:
    """How a constant is held that an op reads which computes in float.

    `unpacked`: a DEQUANTIZE makes it float32 before the op reads it; else the op's kernel takes it as it is.
    """

    form: Form
    unpacked: bool

    def __str__(self) -> str:
        shown = self.form.label if isinstance(self.form, DType) else str(self.form)
        return f"{shown}{'  unpacked' if self.unpacked else ''}"


def form_type(form: Form) -> DType:
    return form if isinstance(form, DType) else form.dtype


def held_bytes(elements: int, form: Form) -> int:
    """What so many numbers take in this form, scales and zero points included."""
    numbers = -(-elements * form_type(form).bits // 8)
    if isinstance(form, BlockParams):
        return numbers + 2 * form.scales.size
    return numbers if isinstance(form, DType) else numbers + 12 * len(form.scales)


def integers(data: Array, params: QuantParams) -> Array:
    """What a constant becomes. Kernels for packed weights rely on the narrow range: LiteRT's 4-bit ones add 7."""
    return quantize(data, params, narrow=params.is_symmetric and params.dtype.is_packed)


def rounded(data: Array, form: Form) -> Array:
    """What is left of `data` when held in this form, as float32."""
    if isinstance(form, BlockParams):
        return form.dequantize(form.quantize(data))
    if isinstance(form, DType):
        return data.astype(form.storage).astype(np.float32)
    return dequantize(integers(data, form), form)


@dataclass
class Encoder:
    """Gives constants their forms; what shared its bytes before, and still holds the same, goes on sharing them."""

    _made: dict[tuple[Buffer, Form, tuple[int, ...], int], Tensor] = field(default_factory=dict)

    def encode(self, tensor: Tensor, form: Form, values: Array | None) -> None:
        """Hold `tensor`, or with `values` these numbers instead, as `form`."""
        data = tensor.data if values is None else values
        assert data is not None
        if tensor.buffer is None:
            _give(tensor, data, form)
            return
        spot = (tensor.buffer, form, tensor.shape, id(values))
        if (twin := self._made.get(spot)) is not None:
            give_buffer(tensor, twin.buffer, twin.dtype, _own_scales(twin.quantization))
        else:
            _give(tensor, data, form)
            self._made[spot] = tensor


def _own_scales(quantization: Quantization | None) -> Quantization | None:
    """The same, with block scales that can live in another graph."""
    if quantization is None or not isinstance(quantization.details, BlockScales):
        return quantization
    details = quantization.details
    return replace(quantization, details=replace(details, scales=replace(details.scales)))


def _give(tensor: Tensor, data: Array, form: Form) -> None:
    if isinstance(form, BlockParams):
        record = default_options("BlockwiseQuantization", blockSize=form.block).replace(scales=None, zeroPoints=None)
        scales = Tensor.constant(f"{tensor.name}/scales", form.scales, DType.FLOAT16)
        details = Quantization(details=BlockScales(record, scales, None))
        give_buffer(tensor, buffer_of(form.quantize(data), form.dtype), form.dtype, details)
    elif isinstance(form, DType):
        give_buffer(tensor, buffer_of(data, form), form, None)
    else:
        give_buffer(tensor, buffer_of(integers(data, form), form.dtype), form.dtype, Quantization.of(form))
