"""Biases that keep the means of a layer's outputs where they are while its weights jump from level to level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from ..calibration import Stats
from ..dtypes import Array
from ..graph.model import Tensor
from ..graph.query import Use
from ..ops import OpSpec, Weight
from ..plan.weights import bias_use
from .weight_quantizers import WeightQuantizer
from .weights import TrainableConstant


@dataclass(frozen=True)
class MeanShift:
    """How far rounding the weights at the use `weights` shifts the mean of each output channel:

        shift = sum((rounded - exact) * E[x]),   over the weights of a channel

    where E[x], `inputs`, is the mean of what each weight is multiplied by. Inputs behind a ReLU have large means: with
    few levels, a single weight that jumps moves its channel in all samples, and with it all layers behind, until the
    bias has learned to follow. Batch normalization would follow at once, but has been folded into the weights; so the
    shift is subtracted from the bias at every step.
    """

    weights: Use
    inputs: Array
    axis: int

    def __call__(self, exact: Any, rounded: Any, wide: str) -> Any:
        """Return the shift, summed in the type `wide`. It has no gradient: weights and biases keep their own."""
        error = ops.cast(rounded, wide) - ops.cast(exact, wide)
        others = tuple(k for k in range(len(error.shape)) if k != self.axis)
        total = ops.sum(error * ops.cast(ops.convert_to_tensor(self.inputs), wide), axis=others)
        return ops.stop_gradient(ops.cast(total, "float32"))


@dataclass(frozen=True)
class InputMeans:
    """The means of channels, by the keys of tensors, as recorded by calibration; `keys` are those of the model."""

    means: Mapping[str, Array]
    keys: Mapping[Tensor, str]
    specs: Mapping[str, OpSpec]

    def at(self, use: Use) -> Array | None:
        """Return the mean of what each weight is multiplied by, if it is known."""
        spec = self.specs[use.op.kind]
        source = next(spec.read_activations(use.op), None)
        means = None if source is None else self.means.get(self.keys.get(source, ""))
        found = None if means is None or spec.layout is None else spec.layout.mean_inputs(use.op, means)
        return None if found is None else found.astype(np.float32)


def channel_means(stats: Stats | None) -> Mapping[str, Array]:
    """Return the means of the channels of all tensors, where they were recorded."""
    tensors = {} if stats is None else stats.tensors
    return {key: seen.channels.mean for key, seen in tensors.items() if seen.channels is not None}


def mean_shifts(
    constants: Sequence[TrainableConstant], quantizers: Mapping[Use, WeightQuantizer], means: InputMeans
) -> dict[Use, MeanShift]:
    """Return the shifts that biases make up for, by the use of the bias: those of trained biases that one layer alone
    reads, beside weights whose scale does not move the borders between levels."""
    biases = {constant.uses[0] for constant in constants if len(constant.uses) == 1 and constant.variable.trainable}
    made = dict[Use, MeanShift]()
    for use, quantizer in quantizers.items():
        spec = means.specs[use.op.kind]
        bias, role = bias_use(use.op, spec), spec.input_role(use.slot)
        axis = role.axis_of(use.op, use.data.ndim) if isinstance(role, Weight) else None
        inputs = means.at(use) if quantizer.has_own_scale and axis is not None and bias in biases else None
        if bias is not None and inputs is not None and axis is not None:
            made[bias] = MeanShift(use, inputs, axis)
    return made
