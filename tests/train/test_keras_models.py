"""A Keras model becomes a trainable quantized graph in one call. Batch normalization is folded, training goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zeropoint.errors import InvalidModel
from zeropoint.runtime import Session
from zeropoint.train import QuantSettings, Schedule, copy_to_keras, distill, export, quantize_model

from ..frameworks import IMAGE, images, keras, small_network, unwarned


@pytest.fixture(scope="module")
def network() -> Any:
    """With batch normalization, which the converter folds."""
    with unwarned():
        library = keras()
        library.utils.set_random_seed(0)
        layers = library.layers
        image = library.Input(IMAGE, name="image")
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3)(image)))
        made = library.Model(image, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x)))
        for _ in range(20):
            made(np.concatenate(images()), training=True)  # statistics of the data, as training in float leaves them
        return made


def outputs(network: Any) -> np.ndarray:
    with unwarned():
        return np.concatenate([np.asarray(network(x, training=False)) for x in images()])


def exported(trained: Any) -> np.ndarray:
    session = Session(export(trained).model)
    return np.concatenate([session.run((x,))[0] for x in images()])


def test_with_samples_it_is_ready_at_once(network):
    trained = quantize_model(network, images())
    assert "BatchNorm" not in " ".join(op.kind for op in trained.blueprint.plan.graph.ops)
    np.testing.assert_allclose(exported(trained), outputs(network), atol=0.02)


def test_without_samples_ranges_come_from_training(network):
    """Inputs ten times as large as noise would be: the ranges of the first guess are forgotten."""
    trained = quantize_model(network)
    large = np.concatenate([10 * x for x in images()])
    with unwarned():
        wanted = np.asarray(network(large, training=False))
        trained.compile(optimizer=keras().optimizers.SGD(0.0), loss="mse")
        trained.fit(large, wanted, epochs=3, batch_size=4, verbose=0)
    session = Session(export(trained).model)
    found = np.concatenate([session.run((x[None],))[0] for x in large])
    assert np.abs(found - wanted).mean() < 0.02  # averages of batches cut off the largest sample


def test_training_teaches_few_bits(network):
    before = quantize_model(network, images(), weight_bits=4, settings=QuantSettings(weight_bits=2))
    x, wanted = np.concatenate(images()), outputs(network)
    with unwarned():
        before.compile(optimizer=keras().optimizers.Adam(3e-3), loss="mse")
        first = before.evaluate(x, wanted, verbose=0)
        before.fit(x, wanted, epochs=80, batch_size=12, verbose=0)
        assert before.evaluate(x, wanted, verbose=0) < 0.8 * first


def test_batch_normalization_without_statistics_is_refused(network):
    """Folded before training, it would leave nothing to train from."""
    with unwarned():
        untrained = keras().models.clone_model(network)
    with pytest.raises(InvalidModel, match=r"has seen no data.*train the model in float first"):
        quantize_model(untrained, images())


def test_trained_weights_go_back_to_the_keras_model(network):
    """The Keras model then computes what the trained graph does without rounding, normalization included."""
    trained, x = quantize_model(network, images()), np.concatenate(images())
    with unwarned():
        copy = keras().models.clone_model(network)
        copy.set_weights(network.get_weights())
        for constant in trained.graph.constants:
            constant.variable.assign(np.asarray(constant.variable.value) * 0.6)  # within the ranges
        names = copy_to_keras(trained, copy)
        found, before = np.asarray(copy(x, training=False)), np.asarray(network(x, training=False))
        assert len(names) == 2
        assert np.abs(np.asarray(trained(x)) - before).max() > 0.02
        np.testing.assert_allclose(found, np.asarray(trained(x)), atol=0.03)
        copy.set_weights([np.square(values) + 1 for values in network.get_weights()])
        with pytest.raises(InvalidModel, match="no layer of the Keras model"):
            copy_to_keras(trained, copy)


def test_mirrored_images_train_as_well():
    from zeropoint.sources.models import load

    found = distill(load(small_network()), images(), schedule=Schedule(4, 4, mirror=True, shift=1))
    assert found.training.steps == 4
