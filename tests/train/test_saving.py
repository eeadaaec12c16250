"""The trainable graph as a Keras model like any other: saved, loaded, cloned, summarized, in mixed precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits
from zeropoint.errors import InvalidModel, InvalidRecipe
from zeropoint.ops import OPS
from zeropoint.train import Trainable, distill, export, trainable
from zeropoint.train.backend import array_of

# Keras's own way to save variables is what NumPy 2 warns of (Keras 3.15).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def images():
    return digits()


@pytest.fixture(scope="module")
def net(digits, images):
    stats = zeropoint.calibrate(digits, [x[None] for x in images["calibration"][:40]])
    net = trainable(digits, "int8", stats, weight_bits=4, logits=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=keras.optimizers.Adam(2e-3), loss=loss, jit_compile=False)
    net.fit(images["test_images"][:64], images["test_labels"][:64], batch_size=32, verbose=0)
    return net


def test_a_saved_model_needs_nothing_else(net, images, tmp_path):
    file, x = tmp_path / "net.keras", images["test_images"][:9]
    net.save(file)
    loaded = keras.models.load_model(file)
    assert isinstance(loaded, Trainable)
    np.testing.assert_array_equal(array_of(loaded(x)), array_of(net(x)))
    assert zeropoint.to_bytes(export(loaded).model) == zeropoint.to_bytes(export(net).model)
    assert loaded.step == net.step
    loaded.fit(images["test_images"][:32], images["test_labels"][:32], verbose=0)  # compiled as it was


def test_a_clone_starts_from_the_file(net, images):
    clone = keras.models.clone_model(net)
    assert clone.step == 0
    assert clone.get_config() == net.get_config()
    clone.set_weights(net.get_weights())
    x = images["test_images"][:9]
    np.testing.assert_array_equal(array_of(clone(x)), array_of(net(x)))


def test_the_float_graph_is_saved_as_well(digits, images, tmp_path):
    plain = trainable(digits, quantize=False)
    plain.save(tmp_path / "float.keras")
    x = images["test_images"][:4]
    np.testing.assert_array_equal(array_of(keras.models.load_model(tmp_path / "float.keras")(x)), array_of(plain(x)))


def test_summary_lists_the_ops_and_variables_have_their_tensors_names(net):
    lines: list[str] = []
    net.summary(print_fn=lambda line, **_: lines.append(line), line_length=120)
    text = "\n".join(lines)
    kinds = [op.label.lower() for op in net.graph.ops]
    assert len(net.layers) == len(kinds)
    assert all(kind in text for kind in kinds)
    names = {variable.name for variable in net.trainable_variables}
    for constant in net.graph.constants:
        assert constant.tensor.name.split(";")[0].replace("/", "_") in names


def test_checkpoints_hold_the_student(digits, images, tmp_path):
    """In `distill` as in `fit`: a full ModelCheckpoint, and BackupAndRestore."""
    samples = [x[None] for x in images["calibration"][:20]]
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", mode="min"),
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False),
    ]
    from zeropoint.train import Schedule

    distill(digits, samples, schedule=Schedule(4, 8, checks=2), callbacks=callbacks)
    assert isinstance(keras.models.load_model(tmp_path / "best.keras"), Trainable)
    assert any((tmp_path / "backup").iterdir())


def test_mixed_precision_multiplies_in_sixteen_bits(digits, images, net):
    stats = zeropoint.calibrate(digits, [x[None] for x in images["calibration"][:40]])
    x = images["test_images"][:64]
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        half = trainable(digits, "int8", stats, logits=True)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    whole = trainable(digits, "int8", stats, logits=True)
    assert half.compute_dtype == "float16"
    assert {v.dtype for v in half.trainable_variables} == {"float32"}
    np.testing.assert_array_equal(array_of(half(x)), array_of(whole(x)))  # what is deployed does not change
    trained, wanted = (array_of(one(x, training=True)) for one in (half, whole))
    assert trained.dtype == np.float32
    assert 0 < np.abs(trained - wanted).max() < 0.1 * np.abs(wanted).max()
    half.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    assert type(half.optimizer).__name__ == "LossScaleOptimizer"
    history = half.fit(x, images["test_labels"][:64], batch_size=32, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def test_what_cannot_be_saved_is_refused(digits, images):
    stats = zeropoint.calibrate(digits, [x[None] for x in images["calibration"][:8]])
    with pytest.raises(InvalidRecipe, match="custom op table"):
        trainable(digits, "int8", stats, ops={**OPS}).get_config()
    with pytest.raises(InvalidModel, match="not a saved graph"):
        Trainable.from_config({"name": "x", "dtype": "float32", "tflite": "?"})
