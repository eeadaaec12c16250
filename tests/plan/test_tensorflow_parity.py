"""The same float model and samples, range by range: our numbers are those of TensorFlow's converter.

Where they are not, a function below says what they have to be instead, and why.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.calibration import Stats, calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Op, Tensor, Uses
from zeropoint.ops import OPS
from zeropoint.plan.saturation import curves
from zeropoint.tflite import load

SAMPLES = 12

# Keras models. `layers` is keras.layers; batches of one, so that nothing is dynamic.


def plain(keras: Any, layers: Any) -> Any:
    """Convolutions with batch normalization, ReLU and ReLU6, pooling, dense."""
    x = image = keras.Input((16, 16, 3), batch_size=1)
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
    x = layers.MaxPooling2D()(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(12, 3)(x)))
    return keras.Model(image, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


def residual(keras: Any, layers: Any) -> Any:
    """A depthwise block with a shortcut, and a transposed convolution."""
    image = keras.Input((12, 12, 4), batch_size=1)
    x = layers.Conv2D(8, 1)(image)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(x)))
    x = layers.ReLU()(layers.Add()([x, layers.Conv2D(8, 1)(y)]))
    return keras.Model(image, layers.Conv2DTranspose(4, 3, strides=2)(x))


def dense(keras: Any, layers: Any) -> Any:
    """Every activation, and arithmetic with constants."""
    x = row = keras.Input((20,), batch_size=1)
    for activation in ("relu", "tanh", "sigmoid", None):
        x = layers.Dense(12, activation=activation)(x)
    x = layers.LeakyReLU(negative_slope=0.1)(x)
    return keras.Model(row, x * x - 0.5)


def branches(keras: Any, layers: Any) -> Any:
    """Concatenation, both poolings, both resizings, padding."""
    image = keras.Input((8, 8, 4), batch_size=1)
    average, greatest = layers.AveragePooling2D(2)(image), layers.MaxPooling2D(2)(image)
    x = layers.UpSampling2D(2, interpolation="bilinear")(layers.Concatenate()([average, greatest]))
    y = layers.UpSampling2D(2)(layers.Conv2D(8, 1)(average))
    x = layers.ZeroPadding2D(1)(layers.Concatenate()([x, y, image]))
    return keras.Model(image, layers.Conv2D(4, 3)(x))


def head(keras: Any, layers: Any) -> Any:
    """Flatten, dense, softmax."""
    image = keras.Input((8, 8, 2), batch_size=1)
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(image))
    return keras.Model(image, layers.Softmax()(layers.Dense(10)(x)))


def attention(keras: Any, layers: Any) -> Any:
    """Attention with two heads, a shortcut and layer normalization."""
    x = words = keras.Input((6, 8), batch_size=1)
    x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, x) + x)
    return keras.Model(words, layers.Dense(8)(x))


def masked(keras: Any, layers: Any) -> Any:
    """Attention that does not look ahead: -1e9 is added to what is hidden."""
    words = keras.Input((6, 8), batch_size=1)
    return keras.Model(words, layers.MultiHeadAttention(2, 4)(words, words, use_causal_mask=True))


def pooled(keras: Any, layers: Any) -> Any:
    """An average over all of an image, by a window as large."""
    image = keras.Input((8, 8, 3), batch_size=1)
    x = layers.AveragePooling2D(8)(layers.Conv2D(6, 3, padding="same")(image))
    return keras.Model(image, layers.Dense(4)(layers.Flatten()(x)))


# Conversion.


@dataclass(frozen=True)
class Pair:
    """What TensorFlow and we made of one model, and what was measured of it."""

    source: Model
    theirs: Model
    ours: Model
    stats: Stats

    def measured(self, tensor: Tensor) -> tuple[float, float]:
        """The range of one of our tensors, by the name it had in the float model."""
        seen = self.stats.tensors[tensor.name.removesuffix("/int8")]
        return seen.low.value, seen.high.value


@cache
def convert(make: Callable[[Any, Any], Any]) -> tuple[bytes, bytes, list[Array]]:
    """The float model, TensorFlow's int8 model, and the samples."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow has many for itself
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        model = make(keras, keras.layers)
        rng = np.random.default_rng(0)
        # Fresh weights would leave every bias zero and every normalization without effect.
        model.set_weights([w + rng.uniform(0, 0.3, w.shape).astype(np.float32) for w in model.get_weights()])
        samples = [rng.standard_normal(model.inputs[0].shape).astype(np.float32) for _ in range(SAMPLES)]
        plain_converter, converter = (tf.lite.TFLiteConverter.from_keras_model(model) for _ in range(2))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        return plain_converter.convert(), converter.convert(), samples


def pair_of(make: Callable[[Any, Any], Any]) -> Pair:
    source, theirs, samples = convert(make)
    stats = calibrate(source, samples)
    # Quick: without the correction of biases, which TensorFlow does not have. Nor has it integers for NEG.
    settings = {"range": "minmax", "effort": "quick", "target": "integer"}
    ours = zeropoint.quantize(source, stats=stats, keep_float="NEG", allow_unmatched=True, **settings).model
    return Pair(load(source), load(theirs), ours, stats)


# Differences that are meant. Each says whether it explains one, for the tensor that TensorFlow made and for ours.


def saturated(pair: Pair, theirs: Tensor, ours: Tensor) -> bool:
    """Beyond its ends TANH gives what it gives there; range is better spent on what lies between them."""
    (reader,) = (use.op for use in Uses(pair.ours.main).readers(ours))
    ends = OPS[reader.kind].saturates.get(DType.INT8)
    if ends is None:
        return False
    low, high = pair.measured(ours)
    return is_range(theirs, low, high) and is_range(ours, max(low, ends[0]), min(high, ends[1]))


def flattened(pair: Pair, theirs: Tensor, ours: Tensor) -> bool:
    """Nor does a square of what is small tell numbers apart: the range ends where the function becomes flat."""
    limits: dict[str, tuple[float, float]] = {}
    for curve in curves(pair.source.main, OPS):
        seen = {t: pair.measured(t) for t in (curve.tensor, *curve.results)}
        limits |= {t.name: bounds for t, bounds in curve.limits(seen, bits=8).items()}
    low, high = pair.measured(ours)
    least, greatest = limits.get(ours.name, (low, high))
    return is_range(theirs, low, high) and is_range(ours, max(low, least), min(high, greatest))


def overwritten(pair: Pair, theirs: Tensor, ours: Tensor) -> bool:
    """TensorFlow's calibration reads an op's inputs after it ran: one that ran in place has put its output there."""
    (reader,) = (use.op for use in Uses(pair.ours.main).readers(ours))
    if reader.kind != "ADD":
        return False
    (low, high), (least, greatest) = pair.measured(ours), pair.measured(reader.outputs[0])
    return is_range(ours, low, high) and is_range(theirs, min(low, least), max(high, greatest))


def hidden(pair: Pair, theirs: Tensor, ours: Tensor) -> bool:
    """What stands for infinity widens no range of ours: to a softmax it is the same as a little below all else."""
    (select,) = (op for op in pair.ours.main.ops if op.kind == "SELECT_V2")
    low, high = pair.measured(select.inputs[1])
    return theirs.params.scale > 1e30 and is_range(ours, low - OPS["SOFTMAX"].negligible, high)


def averaged(pair: Pair, theirs: Tensor, ours: Tensor) -> bool:
    """An average over all of an image is a mean, which need not keep the scale of its input: it takes up less of it."""
    before, after = (Uses(m.main).producer(t) for m, t in ((pair.theirs, theirs), (pair.ours, ours)))
    if before is None or after is None or (before.kind, after.kind) != ("AVERAGE_POOL_2D", "MEAN"):
        return False
    return theirs.params == before.inputs[0].params and is_range(ours, *pair.measured(ours))


def follows(pair: Pair, theirs: Tensor, ours: Tensor) -> bool:
    """A bias beside an input whose scale is another."""
    for model, bias in ((pair.ours, ours), (pair.theirs, theirs)):
        ((op, slot),) = Uses(model.main).readers(bias)
        scales = op.inputs[0].params.scale * np.array(op.inputs[1].params.scales)
        if slot != 2 or bias.params.scales != pytest.approx(scales, rel=1e-6):
            return False
    return True


def is_range(tensor: Tensor, low: float, high: float) -> bool:
    return agree(tensor.params, QuantParams.from_range(low, high, DType.INT8))


MEANT: dict[Callable[[Any, Any], Any], dict[Callable[..., bool], int]] = {
    plain: {},
    residual: {overwritten: 1},
    dense: {flattened: 2, saturated: 1},
    branches: {},
    head: {},
    attention: {overwritten: 3},
    masked: {hidden: 3},
    pooled: {averaged: 1, follows: 1},
}
"""Which of these explain how many differences in a model: no more and no fewer."""

REPLACED = {pooled: {"AVERAGE_POOL_2D": "MEAN"}}
"""Ops that we exchange for others."""


# Comparison.


def arithmetic(model: Model) -> list[Op]:
    return [op for op in model.main.ops if op.kind not in ("QUANTIZE", "DEQUANTIZE")]


def agree(a: QuantParams, b: QuantParams) -> bool:
    same = (a.dtype, a.axis, a.zero_points) == (b.dtype, b.axis, b.zero_points)
    return same and np.allclose(a.scales, b.scales, rtol=1e-6, atol=0)


def counterparts(pair: Pair) -> Iterator[tuple[Tensor, Tensor]]:
    """Operands of the same place in the same op, each pair once."""
    found: dict[tuple[Tensor, Tensor], None] = {}
    for theirs, ours in zip(arithmetic(pair.theirs), arithmetic(pair.ours), strict=True):
        for side in ("inputs", "outputs"):
            for a, b in zip(getattr(theirs, side), getattr(ours, side), strict=theirs.kind == ours.kind):
                assert (a is None) == (b is None)
                if a is not None:
                    found[(a, b)] = None
        assert theirs.option("fusedActivationFunction", 0) == ours.option("fusedActivationFunction", 0)
    return iter(found)


@pytest.mark.parametrize("make", MEANT, ids=lambda make: make.__name__)
def test_numbers_agree(make):
    pair = pair_of(make)
    replaced = REPLACED.get(make, {})
    assert [replaced.get(op.kind, op.kind) for op in pair.theirs.main.ops] == [op.kind for op in pair.ours.main.ops]
    explained: Counter[Callable[..., bool]] = Counter()
    for theirs, ours in counterparts(pair):
        assert theirs.is_quantized == ours.is_quantized
        if theirs.params is None:
            continue
        if not agree(theirs.params, ours.params):
            why = next((reason for reason in MEANT[make] if reason(pair, theirs, ours)), None)
            assert why is not None, f"'{ours.name}' is {ours.params}, but {theirs.params} in TensorFlow"
            explained[why] += 1
        elif theirs.data is not None:
            apart = np.abs(theirs.data.astype(np.int64) - ours.data)
            assert apart.max() <= (1 if theirs.dtype is DType.INT32 else 0)  # biases: halves, in another precision
    assert explained == Counter(MEANT[make])
