"""Models for images of any size are trained at the size of the samples, and take others afterwards."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import zeropoint
from zeropoint.errors import InvalidSample
from zeropoint.train import Schedule, distill, fix_shapes, parity, quantize_model, trainable

from .. import build


def images(count: int, *size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, *size, 3)).astype(np.float32) for _ in range(count)]


def test_trained_at_one_size_and_run_at_another():
    model, samples = build.open_sides(), images(8, 9, 12)
    taught = distill(model, samples, schedule=Schedule(4, 4, checks=2))
    assert all(found.equal > 0.99 for found in parity(taught.trained, taught.result, samples))
    assert taught.result.model.main.inputs[0].shape_signature == (1, -1, -1, 3)
    assert zeropoint.compare(model, taught.result.model, images(2, 20, 7)).snr > 28


def test_samples_of_one_size_are_asked_for():
    with pytest.raises(InvalidSample, match=r"sample 2.*\[1, 9, 8, 3\].*first sample's \[1, 9, 9, 3\].*crop or resize"):
        distill(build.open_sides(), [*images(2, 9, 9), *images(1, 9, 8)], steps=1)


def test_a_graph_for_fit_has_one_size():
    samples = images(2, 9, 9)
    fixed = fix_shapes(build.open_sides(), samples[0])
    assert [t.shape for t in fixed.main.outputs] == [(1, 5, 5, 4)]
    net = trainable(fixed, stats=zeropoint.calibrate(fixed, samples))
    assert tuple(net(samples[0]).shape) == (1, 5, 5, 4)
    stats = zeropoint.calibrate(build.open_sides(), samples)
    with pytest.raises(Exception, match=r"fix_shapes\(model, sample\)"):
        trainable(build.open_sides(), stats=stats)(samples[0])


def test_keras_models_of_any_size_take_that_of_the_samples():
    net = keras.Sequential([keras.Input((None, None, 3), batch_size=1), keras.layers.Conv2D(4, 3)])
    made = quantize_model(net, images(2, 9, 9))
    assert tuple(made(images(1, 9, 9)[0]).shape) == (1, 7, 7, 4)
