"""Bias correction: rounding the weights shifts the mean of every output channel; the bias takes the shift back.

With weights W rounded to W + dW, an output channel's mean moves by sum(dW * E[x]) over the weights of that channel,
E[x] being the mean of the input channel that each weight meets. Calibration recorded these means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..affine import blocks
from ..dtypes import Array, DType
from ..graph.edit import add_constant_input
from ..graph.model import Graph, Op, Tensor
from ..ops import OpSpec
from ..ops.geometry import windows
from ..plan.forms import Form, rounded


def give_biases(graph: Graph, layers: Iterable[Op], ops: Mapping[str, OpSpec]) -> None:
    """A bias of zeros for layers that lack one and whose kernel takes one, so that there is something to correct."""
    for op in layers:
        spec = ops.get(op.kind)
        slot = None if spec is None else spec.bias_slot
        weights = op.inputs[1] if len(op.inputs) > 1 else None
        if slot is None or weights is None or weights.data is None or not op.outputs[0].shape:
            continue
        if slot < len(op.inputs) and op.inputs[slot] is not None:
            continue
        zeros = np.zeros(op.outputs[0].shape[-1], np.float32)
        add_constant_input(graph, op, slot, Tensor.constant(f"{op.name}/bias", zeros, DType.FLOAT32))


def mean_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    """How far the rounding of the weights (dW) moves each output channel; None if the layout is not known."""
    compute = _SHIFTS.get(op.kind)
    return None if compute is None else compute(op, rounding, means.astype(np.float64))


def rounding_error(data: Array, form: Form) -> Array:
    """dW: what the weights become, less what they were.

    float32 holds the difference of two float32 within a factor of two of each other, or of which one is zero, exactly.
    """
    error = rounded(data, form)
    error -= data
    return error


def _dense_shift(op: Op, rounding: Array, means: Array) -> Array | None:  # noqa: ARG001 - one signature
    inputs = rounding.shape[1]
    if inputs % means.size:
        return None
    met = np.tile(means, inputs // means.size)  # a dense layer on an image reads its channels over and over
    return np.concatenate([rounding[rows].astype(np.float64) @ met for rows in blocks(rounding)])


def _convolution_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    outputs, _, _, channels = rounding.shape
    if means.size % channels:
        return None
    groups = means.size // channels
    if outputs % groups:
        return None
    by_channel = np.einsum("ohwc,hw->oc", rounding, _coverage(op))
    of_group = np.repeat(means.reshape(groups, channels), outputs // groups, axis=0)
    return np.asarray((by_channel * of_group).sum(axis=1))


def _depthwise_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    channels = rounding.shape[3]
    if channels % means.size:
        return None
    by_channel = np.einsum("hwc,hw->c", rounding[0], _coverage(op))
    return np.asarray(by_channel * np.repeat(means, channels // means.size))


def _coverage(op: Op) -> Array:
    """For each tap of the window, the share of places where it lies on the image; all, if the image is of any size."""
    source = op.inputs[0]
    assert source is not None
    signature = source.shape_signature or source.shape
    sides = (np.ones(w.taps) if signature[k] < 0 else w.coverage() for k, w in enumerate(windows(op), 1))
    return np.outer(*sides)


def _transposed_shift(op: Op, rounding: Array, means: Array) -> Array | None:
    source, result = op.inputs[2], op.outputs[0]
    if source is None or rounding.shape[3] != means.size:
        return None
    # Every input element meets every tap once, so an output element meets this share of them.
    share = source.shape[1] * source.shape[2] / max(1, result.shape[1] * result.shape[2])
    return np.asarray(np.einsum("ohwc,c->o", rounding, means) * share)


_SHIFTS = {
    "CONV_2D": _convolution_shift,
    "DEPTHWISE_CONV_2D": _depthwise_shift,
    "FULLY_CONNECTED": _dense_shift,
    "TRANSPOSE_CONV": _transposed_shift,
}
