"""Bias correction: rounding the weights shifts the mean of every output channel; the bias takes the shift back.

With weights W rounded to W + dW, an output channel's mean moves by sum(dW * E[x]) over the weights of that channel,
E[x] being the mean of the input channel that each weight meets, which calibration recorded (`Layout.mean_shift`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..dtypes import Array, DType
from ..graph.edit import add_constant_input
from ..graph.model import Graph, Op, Tensor
from ..ops import OpSpec
from ..plan.encode import Form, rounded


def give_biases(graph: Graph, layers: Iterable[Op], ops: Mapping[str, OpSpec]) -> None:
    """Add a bias of zeros to layers that lack one and whose kernel takes one, so that there is something to correct."""
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


def rounding_error(data: Array, form: Form) -> Array:
    """dW: the rounded weights minus the exact ones.

    The difference is exact in float32 where both are within a factor of two of each other, or one of them is zero.
    """
    error = rounded(data, form)
    error -= data
    return error
