"""Train the digit classifiers that ship with zeropoint and write them next to their data.

    python tools/make_digits.py [--out DIR] [--only NAME]

Three files are written to DIR (by default ``src/zeropoint/data``):

``digits.tflite``
    A float model with the signature ``serving_default``: ``image`` (float32 [1, 8, 8, 1], 0..1) to ``scores``
    (float32 [1, 10], softmax).
``lenet.tflite``
    The network of ``zeropoint demo``, with the same signature: convolutions before large dense layers. Weights are
    stored in float16 by zeropoint itself; `zeropoint.demo` unpacks them.
``digits.npz``
    ``calibration`` (uint8 [200, 8, 8, 1], out of the training split), ``test_images`` (uint8 [N, 8, 8, 1]) and
    ``test_labels`` (uint8 [N]). Pixels are kept as the integers 0..16 of the original data: the model wants
    ``value / 16`` as float32.

The data are the 8x8 digits that come with scikit-learn (Optical Recognition of Handwritten Digits, E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, CC BY 4.0). Needs ``tensorflow`` and ``scikit-learn``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import zeropoint

SEED = 7
CALIBRATION_IMAGES = 200
EPOCHS = 30
BATCH = 32
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "src" / "zeropoint" / "data"

Bytes = NDArray[np.uint8]


class Split(NamedTuple):
    """Pixels are integers 0..16, labels 0..9."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    calibration: Bytes


def load_split() -> Split:
    """Three quarters to train on, a quarter to test on, every class in proportion."""
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.astype(np.uint8).reshape(-1, 8, 8, 1)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype(np.uint8), test_size=0.25, random_state=SEED, stratify=labels
    )
    # Stratified as well: calibration ranges should not miss what a rare class would have activated.
    calibration, _ = train_test_split(train_x, train_size=CALIBRATION_IMAGES, random_state=SEED, stratify=train_y)
    return Split(train_x, train_y, test_x, test_y, calibration)


def scaled(images: Bytes) -> NDArray[np.float32]:
    """What the model is fed: pixels as float32 in 0..1."""
    return images.astype(np.float32) / np.float32(16)


def build_model() -> keras.Model:
    """A CNN of some six thousand parameters with one of each operator that a quantizer has to treat differently."""
    layers = keras.layers
    image = keras.Input((8, 8, 1), name="image")

    # Every convolution goes without a bias: batch normalization supplies one when the converter folds it.
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="stem")(image)
    x = layers.BatchNormalization(name="stem_norm")(x)
    stem = layers.ReLU(name="stem_relu")(x)

    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(stem)
    x = layers.BatchNormalization(name="depthwise_norm")(x)
    x = layers.ReLU(max_value=6.0, name="depthwise_relu6")(x)
    x = layers.Conv2D(16, 1, use_bias=False, name="pointwise")(x)
    x = layers.BatchNormalization(name="pointwise_norm")(x)
    # No activation behind the sum: its two inputs and its output then have three clearly different ranges.
    x = layers.Add(name="residual")([stem, x])

    x = layers.MaxPooling2D(2, name="pool")(x)
    x = layers.Conv2D(32, 3, padding="same", use_bias=False, name="wide")(x)
    x = layers.BatchNormalization(name="wide_norm")(x)
    x = layers.ReLU(name="wide_relu")(x)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    x = layers.Dense(10, name="logits")(x)
    return keras.Model(image, layers.Softmax(name="scores")(x), name="digits")


def build_lenet() -> keras.Model:
    """After LeNet-5: nearly all of its weights are those of dense layers, which have to be fetched for every image."""
    layers = keras.layers
    image = keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(12, 3, padding="same", activation="relu", name="conv1")(image)
    x = layers.Conv2D(24, 3, strides=2, padding="same", activation="relu", name="conv2")(x)
    x = layers.Flatten(name="flat")(x)
    for k, units in enumerate((240, 120), start=1):
        x = layers.Dense(units, activation="relu", name=f"dense{k}")(x)
        x = layers.Dropout(0.4, name=f"dropout{k}")(x)
    x = layers.Dense(10, name="logits")(x)
    return keras.Model(image, layers.Softmax(name="scores")(x), name="lenet")


def train(model: keras.Model, images: Bytes, labels: Bytes) -> None:
    """A fixed schedule without a look at the test split, so that the accuracy on it stays an honest estimate."""
    steps = EPOCHS * -(-len(images) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="sparse_categorical_crossentropy")
    model.fit(scaled(images), labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)


def convert(model: keras.Model) -> bytes:
    """The float flatbuffer, with the batch fixed to one and both ends of the signature named."""

    def serve(image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scores": model(image, training=False)}

    # tf.saved_model.save on the Keras 3 model leaves its variables unfrozen, and batch normalization unfolded.
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", serve, [tf.TensorSpec([1, 8, 8, 1], tf.float32, name="image")])
    with tempfile.TemporaryDirectory() as saved:
        archive.write_out(saved, verbose=False)
        return bytes(tf.lite.TFLiteConverter.from_saved_model(saved).convert())


def accuracy(flatbuffer: bytes, images: Bytes, labels: Bytes) -> float:
    """Share of the images that the converted model, not the Keras one, classifies correctly."""
    run = tf.lite.Interpreter(model_content=flatbuffer).get_signature_runner("serving_default")
    guesses = [int(run(image=image[None])["scores"].argmax()) for image in scaled(images)]
    return float(np.mean(np.array(guesses) == labels))


def make_digits(split: Split) -> bytes:
    model = build_model()
    train(model, split.train_images, split.train_labels)
    return convert(model)


def make_lenet(split: Split) -> bytes:
    model = build_lenet()
    train(model, split.train_images, split.train_labels)
    return zeropoint.to_bytes(zeropoint.quantize(convert(model), "float16", min_elements=0, record=False).model)


MODELS = {"digits": make_digits, "lenet": make_lenet}


def main() -> None:
    """Train, convert, write the files and say how good the models are."""
    parser = argparse.ArgumentParser(description="Train and write the digits example.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="where the files go")
    parser.add_argument("--only", choices=MODELS, help="train this one and write nothing else")
    options = parser.parse_args()
    out: Path = options.out

    split = load_split()
    out.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        if options.only in (None, name):
            keras.utils.set_random_seed(SEED)
            tf.config.experimental.enable_op_determinism()
            flatbuffer = make(split)
            (out / f"{name}.tflite").write_bytes(flatbuffer)
            correct = accuracy(flatbuffer, split.test_images, split.test_labels)
            print(f"{name}: {len(flatbuffer)} bytes, float test accuracy {correct:.4f}")
    if options.only is None:
        arrays = {name: getattr(split, name) for name in ("calibration", "test_images", "test_labels")}
        np.savez_compressed(out / "digits.npz", **arrays)


if __name__ == "__main__":
    main()
