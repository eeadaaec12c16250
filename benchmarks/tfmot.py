"""TensorFlow's model-optimization toolkit (tfmot) trains the same network, in an environment of its own.

tfmot takes Keras 2 models, so the `.tflite` is rebuilt of Keras 2 layers: images through convolutions, sums and a dense
layer, which is what `resnet8` consists of.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeropoint.dtypes import Array
from zeropoint.graph.model import Op, Tensor
from zeropoint.ops import fused_activation
from zeropoint.tflite import load

from .apart import Failed

RATES = (1e-3, 3e-4, 1e-4)
"""Peaks of the learning rate: the best one on held-back samples counts."""


@dataclass(frozen=True)
class Training:
    """Steps of so many images, half of them mirrored; a share of the images selects the learning rate."""

    steps: int
    batch: int
    held_back: float
    seed: int


def trained(path: Path, images: Array, labels: Array, training: Training) -> bytes:
    """The int8 model that tfmot gives after training with labels and with the float model as the teacher, in equal
    parts, at the best of `RATES`."""
    count = int(len(images) * (1 - training.held_back))
    order = np.random.default_rng(training.seed).permutation(len(images))
    used, kept = order[:count], order[count:]
    found = [_run(path, images[used], labels[used], training, rate) for rate in RATES]
    scores = [float(np.mean(net.predict(images[kept], verbose=0).argmax(axis=1) == labels[kept])) for net in found]
    return _converted(found[int(np.argmax(scores))])


def _run(path: Path, images: Array, labels: Array, training: Training, peak: float) -> Any:
    import tensorflow_model_optimization as tfmot  # first: it decides which Keras is tf.keras
    import tensorflow as tf  # isort: skip

    tf.keras.utils.set_random_seed(training.seed)
    teacher = keras_model(path, tf.keras)
    net = tfmot.quantization.keras.quantize_model(keras_model(path, tf.keras))
    classes = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(wanted: Any, logits: Any) -> Any:
        label, target = wanted[:, 0], tf.nn.log_softmax(wanted[:, 1:])
        divergence = tf.reduce_sum(tf.exp(target) * (target - tf.nn.log_softmax(logits)), axis=-1)
        return 0.5 * classes(label, logits) + 0.5 * tf.reduce_mean(divergence)

    warmup = max(1, training.steps // 20)
    rate = tf.keras.optimizers.schedules.CosineDecay(
        peak / 10, max(1, training.steps - warmup), alpha=0.01, warmup_target=peak, warmup_steps=warmup
    )
    net.compile(optimizer=tf.keras.optimizers.Adam(rate), loss=loss)
    rng = np.random.default_rng(training.seed)
    for _ in range(training.steps):
        chosen = rng.choice(len(images), training.batch, replace=False)
        batch, is_flipped = images[chosen], rng.random(training.batch) < 0.5
        batch = np.where(is_flipped[:, None, None, None], batch[:, :, ::-1], batch)
        wanted = np.concatenate([labels[chosen][:, None], teacher(batch).numpy()], axis=1).astype(np.float32)
        net.train_on_batch(batch, wanted)
    return net


def _converted(net: Any) -> bytes:
    import tensorflow as tf

    logits = tf.keras.Model(net.inputs, tf.keras.layers.Softmax()(net.outputs[0]))
    converter = tf.lite.TFLiteConverter.from_keras_model(logits)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return bytes(converter.convert())


def keras_model(path: Path, keras: Any) -> Any:
    """The network of a `.tflite` up to its logits, as a Keras 2 model with the same weights."""
    graph = load(path).main
    (source,) = graph.inputs
    start = keras.Input(shape=source.shape[1:])
    made: dict[Tensor, Any] = {source: start}
    weights: list[tuple[Any, list[Array]]] = []
    for op in graph.ops:
        if op.kind == "SOFTMAX":
            made[op.outputs[0]] = made[_first(op)]
            continue
        layer, values = _layer(op, keras)
        inputs = [made[t] for t in op.inputs if t in made]
        result = layer(inputs if len(inputs) > 1 else inputs[0])
        weights.append((layer, values))
        fused = fused_activation(op).name.lower()
        made[op.outputs[0]] = result if fused == "none" else keras.layers.Activation(fused)(result)
    model = keras.Model(start, made[graph.outputs[0]])
    for layer, values in weights:
        layer.set_weights(values)
    return model


def _layer(op: Op, keras: Any) -> tuple[Any, list[Array]]:
    """The layer that an op becomes, without its activation, and its weights."""
    constants = [np.array(t.data) for t in op.inputs if t is not None and t.data is not None]
    padding, strides = _padding(op), (op.option("strideH"), op.option("strideW"))
    if op.kind == "CONV_2D":
        kernel = constants[0].transpose(1, 2, 3, 0)
        layer = keras.layers.Conv2D(kernel.shape[-1], kernel.shape[:2], strides=strides, padding=padding)
        return layer, [kernel, *constants[1:]]
    if op.kind == "FULLY_CONNECTED":
        return keras.layers.Dense(len(constants[0])), [constants[0].T, *constants[1:]]
    if op.kind == "AVERAGE_POOL_2D":
        window = (op.option("filterHeight"), op.option("filterWidth"))
        return keras.layers.AveragePooling2D(window, strides=strides, padding=padding), []
    if op.kind == "ADD":
        return keras.layers.Add(), []
    if op.kind == "RESHAPE":
        return keras.layers.Reshape(op.outputs[0].shape[1:]), []
    raise Failed(f"{op.kind} is not rebuilt for tfmot")


def _padding(op: Op) -> str:
    return {0: "same", 1: "valid"}.get(op.option("padding"), "valid")


def _first(op: Op) -> Tensor:
    first = op.inputs[0]
    assert first is not None
    return first
