"""The forms in which constants are held, and how a constant takes one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams, dequantize, quantize
from ..dtypes import Array, DType
from ..graph.edit import give_buffer
from ..graph.model import BlockScales, Buffer, Quantization, Tensor, buffer_of
from ..tflite.schema import default_options

Form = QuantParams | DType
"""Integers with their parameters, or another float type."""


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
    if isinstance(form, DType):
        return numbers
    return numbers + (12 if form.block is None else 2) * len(form.scales)


def integers(data: Array, params: QuantParams) -> Array:
    """What a constant becomes. Kernels for packed weights rely on the narrow range: LiteRT's 4-bit ones add 7."""
    return quantize(data, params, narrow=params.is_symmetric and params.dtype.is_packed)


def rounded(data: Array, form: Form) -> Array:
    """What is left of `data` when held in this form, as float32."""
    if isinstance(form, DType):
        return data.astype(form.storage).astype(np.float32)
    return dequantize(integers(data, form), form)


EncodedAs = tuple[Buffer | None, Form, tuple[int, ...]]
"""The bytes of a constant, the form that it takes, and its shape."""


@dataclass
class Encoder:
    """Gives constants their forms; what shared its bytes before, and still holds the same, goes on sharing them.

    `known` are constants that have their forms already, from building another candidate of the same model.
    """

    known: dict[EncodedAs, Tensor] = field(default_factory=dict)
    _replaced: dict[tuple[EncodedAs, str], Tensor] = field(default_factory=dict)

    def encode(self, tensor: Tensor, form: Form, data: Array | None = None, key: str | None = None) -> None:
        """Hold `tensor` as `form`, with the numbers `data` of this `key` in place of its own."""
        spot = tensor.buffer, form, tensor.shape
        new = replace(tensor)  # others may edit the tensor later on
        held = self.known.setdefault(spot, new) if key is None else self._replaced.setdefault((spot, key), new)
        if held is new:
            data = tensor.data if data is None else data
            assert data is not None
            _give(held, data, form)
        give_buffer(tensor, held.buffer, held.dtype, _own_scales(held.quantization))


def _own_scales(quantization: Quantization | None) -> Quantization | None:
    """The same, with block scales that can live in another graph."""
    if quantization is None or not isinstance(quantization.details, BlockScales):
        return quantization
    details = quantization.details
    return replace(quantization, details=replace(details, scales=replace(details.scales)))


def _give(tensor: Tensor, data: Array, form: Form) -> None:
    if isinstance(form, DType):
        give_buffer(tensor, buffer_of(data, form), form, None)
        return
    quantization = _in_blocks(tensor, form) if form.block is not None else Quantization.of(form)
    give_buffer(tensor, buffer_of(integers(data, form), form.dtype), form.dtype, quantization)


def _in_blocks(tensor: Tensor, params: QuantParams) -> Quantization:
    """Files keep the scales of blocks in a float16 tensor of their own: [rows, blocks]."""
    scales = params.arrays[0].astype(np.float16).reshape(tensor.shape[0], -1)
    record = default_options("BlockwiseQuantization", blockSize=params.block).replace(scales=None, zeroPoints=None)
    held = Tensor.constant(f"{tensor.name}/scales", scales, DType.FLOAT16)
    return Quantization(details=BlockScales(record, held, None))
