"""Many samples of a small model are one run; that shows in nothing but the time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from zeropoint.calibration import Settings, calibrate
from zeropoint.calibration.instrumented_graph import takes_batches
from zeropoint.dtypes import Array, DType
from zeropoint.errors import RuntimeFailure
from zeropoint.graph import Model, Op, Tensor
from zeropoint.ops import OPS

from .. import build
from .facts import exact, sums

SAMPLES = [np.random.default_rng(k).normal(0, 1 + k % 4, (1, 6, 4)).astype(np.float32) for k in range(37)]


def one_by_one(model: Model, samples: list[Array], settings: Settings) -> dict[str, object]:
    """Statistics of runs of one sample each, added up."""
    total = calibrate(model, samples[:1], settings)
    for sample in samples[1:]:
        total = total.merge(calibrate(model, [sample], settings))
    return exact(total)


@pytest.mark.parametrize("histograms", [True, False])
def test_a_batch_gives_what_its_samples_give_one_by_one(case, histograms):
    assert takes_batches(case.model.main, OPS)
    settings = Settings(histograms=histograms)
    samples = case.samples[:19]
    assert exact(calibrate(case.model, samples, settings)) == one_by_one(case.model, samples, settings)


@pytest.mark.parametrize("histograms", [True, False])
def test_a_batch_gives_what_its_samples_give_one_by_one_if_each_is_large(histograms):
    """So large that not all elements are sampled, and not always the same."""
    shape = (1, 20, 10, 48)
    x, y, z = (build.act(n, *shape) for n in "xyz")
    ops = [build.op("ABS", [x], y, options="AbsOptions"), build.op("MUL", [y, x], z, options="MulOptions")]
    model = Model([build.graph("main", [x], [z], *ops)])
    assert takes_batches(model.main, OPS)
    samples = [np.random.default_rng(k).normal(0, 1 + k, shape).astype(np.float32) for k in range(21)]
    settings = Settings(histograms=histograms)
    assert exact(calibrate(model, samples, settings)) == one_by_one(model, samples, settings)


def ends(*ops: Op) -> Model:
    """A chain of ops on SAMPLES."""
    return Model([build.graph("main", [ops[0].inputs[0]], [ops[-1].outputs[0]], *ops)])


def activations(*names: str) -> list[Tensor]:
    return [build.act(name, 1, 6, 4) for name in names]


def reversing() -> Model:
    x, y, z = activations("x", "y", "z")
    first = build.const("first", np.int32([0]))
    reverse = build.op("REVERSE_V2", [x, first], y, options="ReverseV2Options")
    return ends(reverse, build.op("MUL", [y, x], z, options="MulOptions"))


def adding_up() -> Model:
    x, y, z = activations("x", "y", "z")
    first = build.const("first", np.array(0, np.int32))
    return ends(
        build.op("ABS", [x], y, options="AbsOptions"),
        build.op("CUMSUM", [y, first], z, options="CumsumOptions", exclusive=False, reverse=True),
    )


def centering() -> Model:
    """The mean over all samples of a batch, taken off each."""
    x, mean, z = activations("x", "mean", "z")
    average = build.op("MEAN", [x, build.const("axis", np.int32([0]))], mean, options="ReducerOptions", keepDims=True)
    return ends(average, build.op("SUB", [x, mean], z, options="SubOptions"))


def flattening() -> Model:
    """A shape that leaves no room for a second sample."""
    x, y, z = build.act("x", 1, 6, 4), build.act("y", 1, 24), build.act("z", 1, 24)
    reshape = build.op("RESHAPE", [x, build.const("shape", np.int32([1, 24]))], y, options="ReshapeOptions")
    return ends(reshape, build.op("ABS", [y], z, options="AbsOptions"))


def broadcasting() -> Model:
    """A constant that is as long as a batch might be."""
    x, y = activations("x", "y")
    return ends(build.op("ADD", [x, build.const("c", build.weights(1, 6, 4))], y, options="AddOptions"))


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("build_model", [reversing, adding_up, centering, flattening, broadcasting])
def test_samples_never_touch_each_other(build_model, histograms):
    settings = Settings(histograms=histograms)
    found = calibrate(build_model(), SAMPLES, settings)
    assert exact(found) == one_by_one(build_model(), SAMPLES, settings)


@pytest.mark.parametrize("build_model", [reversing, flattening, broadcasting])
def test_any_split_adds_up_whatever_the_batches(build_model):
    model, whole = build_model(), calibrate(build_model(), SAMPLES)
    for cut, other in itertools.pairwise((0, 1, 3, 20, 37)):
        parts = [SAMPLES[:cut], SAMPLES[cut:other], SAMPLES[other:]]
        first, *rest = (calibrate(model, part) for part in parts if part)
        for part in rest:
            first = first.merge(part)
        assert exact(first) == exact(whole)
        np.testing.assert_allclose(sums(first), sums(whole), rtol=1e-6, atol=1e-4)


def test_several_inputs_are_batched_together():
    x, y, z = activations("x", "y", "z")
    model = Model([build.graph("main", [x, y], [z], build.op("MUL", [x, y], z, options="MulOptions"))])
    pairs = list(zip(SAMPLES, reversed(SAMPLES), strict=True))
    expected = np.stack([a * b for a, b in pairs])
    found = calibrate(model, pairs).tensors["z"]
    assert (found.low.value, found.high.value) == (expected.min(), expected.max())
    assert found.low.sample == np.argmin([(a * b).min() for a, b in pairs])


def test_a_failure_names_the_sample_that_fails():
    """Not the batch that it is in."""
    table, x = build.const("table", build.weights(4, 2)), build.act("x", 1, 3, dtype=DType.INT32)
    model = build.one_op("GATHER", [table, x], build.act("y", 1, 3, 2), options="GatherOptions")
    samples = [np.int32([[0, 1, 2]])] * 30
    samples[25] = np.int32([[0, 9, 2]])
    with pytest.raises(RuntimeFailure, match=r"sample 25: .*GATHER"):
        calibrate(model, samples)
