"""Copies trained weights back to the Keras model that a graph came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from ..affine import broadcast_shape
from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.query import Use
from ..plan.weights import bias_use
from .backend import array_of
from .network import Trainable
from .weights import TrainableConstant

CLOSE = 1e-4
"""Tolerance between a layer's weights and the file's, relative to the largest, once normalization is divided out."""


class Arrangement(NamedTuple):
    """The layouts of weights in a `.tflite` and in Keras, and the axis of output channels in the file."""

    to_file: Callable[[Array], Array]
    to_keras: Callable[[Array, tuple[int, ...]], Array]
    axis: int


ARRANGEMENTS = {
    "Dense": Arrangement(lambda w: w.T, lambda w, _: w.T, 0),
    "Conv2D": Arrangement(lambda w: w.transpose(3, 0, 1, 2), lambda w, _: w.transpose(1, 2, 3, 0), 0),
    "Conv1D": Arrangement(lambda w: w.transpose(2, 0, 1)[:, None], lambda w, _: w[:, 0].transpose(1, 2, 0), 0),
    "DepthwiseConv2D": Arrangement(lambda w: w.reshape(1, *w.shape[:2], -1), lambda w, shape: w.reshape(shape), 3),
}


def copy_to_keras(trained: Trainable, keras_model: Any) -> list[str]:
    """Give the layers of `keras_model` the weights that `trained`, made from it, has learned; return their names.

    Batch normalization, which has been folded into the file's weights, is divided out again; what a bias has learned
    goes to the layer's own bias, or to that of the normalization after it. Weights stay real numbers: the Keras model
    computes what the trained graph does without rounding. Raises if a layer with trained weights is not found in the
    model.
    """
    layers = [layer for layer in keras_model._flatten_layers() if type(layer).__name__ in ARRANGEMENTS and layer.built]
    found: dict[Use, tuple[Any, Array]] = {}
    for constant in trained.graph.constants:
        for use in constant.uses:
            if constant.variable.trainable and use in trained.graph.quantizers:
                match = next(
                    _matches(constant, [x for x in layers if all(x is not y for y, _ in found.values())]), None
                )
                if match is None:
                    raise InvalidModel(f"no layer of the Keras model has the weights of '{use.op.name}'")
                found[use] = match
    for use, (layer, gains) in found.items():
        arrangement, value = ARRANGEMENTS[type(layer).__name__], trained.graph.by_use[use].value
        divided = value / gains.reshape(broadcast_shape(arrangement.axis, value.ndim))
        layer.kernel.assign(arrangement.to_keras(divided, tuple(layer.kernel.shape)))
        _copy_bias(trained, use, layer, gains, keras_model)
    return [layer.name for layer, _ in found.values()]


def _matches(constant: TrainableConstant, layers: list[Any]) -> Iterator[tuple[Any, Array]]:
    """Yield layers whose weights equal the file's up to a factor for each output channel, with these factors."""
    wanted = np.asarray(constant.tensor.data, np.float64)
    for layer in layers:
        arrangement = ARRANGEMENTS[type(layer).__name__]
        own = arrangement.to_file(array_of(layer.kernel).astype(np.float64))
        if own.shape != wanted.shape:
            continue
        others = tuple(k for k in range(own.ndim) if k != arrangement.axis)
        power = np.square(own).sum(axis=others)
        gains = (own * wanted).sum(axis=others) / np.where(power > 0, power, 1.0)
        gains = np.where(gains != 0, gains, 1.0)
        scaled = own * gains.reshape(broadcast_shape(arrangement.axis, own.ndim))
        if np.abs(wanted - scaled).max() <= CLOSE * np.abs(wanted).max():
            yield layer, gains


def _copy_bias(trained: Trainable, use: Use, layer: Any, gains: Array, keras_model: Any) -> None:
    place = bias_use(use.op, trained.blueprint.specs[use.op.kind])
    constant = None if place is None else trained.graph.by_use.get(place)
    if constant is None or not constant.variable.trainable:
        return
    change = constant.value.reshape(-1) - np.asarray(constant.tensor.data).reshape(-1)
    if layer.use_bias:
        layer.bias.assign(array_of(layer.bias) + change / gains)
        return
    for other in keras_model._flatten_layers():
        if isinstance(other, keras.layers.BatchNormalization) and other.center and _has_gains(other, gains):
            other.beta.assign(array_of(other.beta) + change)
            return
    if np.abs(change).max(initial=0.0) > 0:
        raise InvalidModel(f"the layer '{layer.name}' has no bias of its own to hold what was learned")


def _has_gains(layer: Any, wanted: Array) -> bool:
    """Whether batch normalization multiplies by these factors."""
    spread = np.sqrt(array_of(layer.moving_variance) + layer.epsilon)
    gains = (array_of(layer.gamma) if layer.scale else 1.0) / spread
    return gains.shape == wanted.shape and bool(np.allclose(gains, wanted, rtol=1e-3))
