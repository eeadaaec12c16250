"""Fitting layers to what is left of their outputs behind a clamp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zeropoint import calibrate
from zeropoint.graph.query import Use
from zeropoint.improve import clamped_fit
from zeropoint.improve.candidate import no_progress
from zeropoint.improve.clamped_fit import Affine, ClampedFit, ClampedOutputs
from zeropoint.improve.layer_inputs import Pair
from zeropoint.improve.refiner import Refiner
from zeropoint.plan.planner import plan_model
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Request
from zeropoint.plan.rewrite import Encoder, build
from zeropoint.recipe import preset
from zeropoint.runtime import Session

from ..nets import Net

BOUNDS = [(0.0, np.inf), (0.0, 2.0), (-1.0, 1.0), (-np.inf, np.inf)]


def layer_and_inputs(bounds, groups=2, rows=5, inputs=6, vectors=500, seed=0):
    """A layer, and inputs that are less exact than those it was made for."""
    rng = np.random.default_rng(seed)
    exact = Affine(rng.normal(size=(groups, rows, inputs)), rng.normal(size=(groups, rows)) - 0.5)
    f = rng.normal(size=(groups, vectors, inputs)).astype(np.float32) + 0.3
    x = (f + 0.5 * rng.normal(size=f.shape) + 0.2 * f[:, :, ::-1]).astype(np.float32)
    return exact, ClampedOutputs(x, np.clip(exact.outputs(f), *bounds), bounds)


def central(x) -> Pair:
    gaps = x - x.mean(axis=1, keepdims=True)
    return Pair(gaps.transpose(0, 2, 1) @ gaps / x.shape[1], np.empty(0))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_residuals_pull_only_where_the_clamp_leaves_a_difference(bounds, monkeypatch):
    monkeypatch.setattr(clamped_fit, "AT_ONCE", 1000)  # two rows at a time
    layer, outputs = layer_and_inputs(bounds)
    low, high = bounds
    found = layer.outputs(outputs.x)
    same_end = ((found <= low) & (outputs.wanted <= low)) | ((found >= high) & (outputs.wanted >= high))
    left = np.where(same_end, 0.0, outputs.wanted - found)
    gaps = outputs.x - outputs.x.mean(axis=1, keepdims=True)
    pull, mean = outputs.pull(layer)
    np.testing.assert_allclose(mean, left.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(pull, np.einsum("gvi,gvo->gio", gaps, left) / gaps.shape[1], atol=1e-5)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", range(3))
def test_no_output_is_further_off_behind_the_clamp(bounds, seed):
    layer, outputs = layer_and_inputs(bounds, seed=seed)
    fit = ClampedFit(outputs, layer, central(outputs.x), 1e-3)
    before, after = outputs.error(layer), outputs.error(Affine(fit.target, fit.biases(fit.target)))
    assert (after <= before).all()
    assert after.sum() < 0.9 * before.sum()


def test_a_fit_behind_a_clamp_is_closer_than_one_before_it():
    layer, outputs = layer_and_inputs((0.0, np.inf))
    before = replace(outputs, bounds=(-np.inf, np.inf))
    fits = [ClampedFit(kind, layer, central(outputs.x), 1e-3) for kind in (before, outputs)]
    linear, clamped = (outputs.error(Affine(fit.target, fit.biases(fit.target))).sum() for fit in fits)
    assert clamped < 0.95 * linear


def test_other_weights_keep_the_mean_outputs():
    layer, outputs = layer_and_inputs((0.0, np.inf))
    means = outputs.x.mean(axis=1, dtype=np.float64)
    other = layer.with_weights(layer.weights * 1.1 + 0.05, means)
    both = [one.outputs(outputs.x).mean(axis=1) for one in (layer, other)]
    np.testing.assert_allclose(*both, atol=1e-5)


@pytest.mark.parametrize("activation", [1, 3])
def test_refined_layers_are_closer_behind_their_activation(activation):
    rng = np.random.default_rng(activation)
    net = Net()
    x = net.input(1, 8, 8, 4)
    y = net.conv(x, rng.normal(size=(8, 3, 3, 4)).astype(np.float32), activation=activation)
    y = net.conv(y, rng.normal(size=(8, 3, 3, 8)).astype(np.float32) / 6, activation=activation)
    model = net.model(net.conv(y, rng.normal(size=(6, 1, 1, 8)).astype(np.float32), activation=activation))
    samples = [(rng.normal(size=(1, 8, 8, 4)).astype(np.float32),) for _ in range(32)]
    recipe = preset("int8", 4)
    request = Request(recipe, calibrate(model, samples), method="minmax", effort="high")
    planned = plan_model(prepare_model(model, request), request)
    refiner = Refiner(planned.model, request, samples, no_progress, vectors=4096)
    wanted = [Session(model).run(row)[0] for row in samples]

    def error(heeds: bool) -> float:
        made = build(replace(refiner, heeds_clamps=heeds).refine(planned).with_float_ends(), request.ops, Encoder())
        found = (Session(made).run(row)[0] for row in samples)
        return float(sum(np.square(one - other).sum() for one, other in zip(found, wanted, strict=True)))

    assert error(True) < error(False)


def test_layers_without_a_clamp_or_a_bias_are_fitted_as_they_are():
    rng = np.random.default_rng(5)
    net = Net()
    x = net.input(1, 6, 6, 4)
    model = net.model(net.conv(x, rng.normal(size=(4, 3, 3, 4)).astype(np.float32)))
    samples = [(rng.normal(size=(1, 6, 6, 4)).astype(np.float32),) for _ in range(16)]
    request = Request(preset("int8"), calibrate(model, samples), method="minmax", effort="high")
    planned = plan_model(prepare_model(model, request), request)
    refiner = Refiner(planned.model, request, samples, no_progress, vectors=1024)
    plain, heeding = (replace(refiner, heeds_clamps=heeds).refine(planned).plans[0] for heeds in (False, True))
    (op,) = plain.graph.ops
    np.testing.assert_array_equal(*(plan.constants.at(Use(op, 1)) for plan in (plain, heeding)))
