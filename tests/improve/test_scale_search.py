"""The scales of low-bit weights: searched from several starts, and coarser where a bias needs it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint import calibrate
from zeropoint.graph.query import Use
from zeropoint.improve import gptq, layer_rounding
from zeropoint.improve.candidate import no_progress
from zeropoint.improve.gptq import compensated, output_error
from zeropoint.improve.layer_inputs import Pair
from zeropoint.improve.layer_rounding import ROUNDING_DAMPINGS, WHOLE_DAMPING, RoundingData, RoundingTarget
from zeropoint.improve.refiner import Refiner
from zeropoint.plan.planner import plan_model
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Request
from zeropoint.plan.rewrite import Encoder, build
from zeropoint.recipe import preset
from zeropoint.runtime import Session

from ..nets import Net, normal
from .test_coordinate_descent import layer


@given(st.integers(1, 2), st.integers(2, 40), st.integers(0, 9))
def test_the_order_of_the_inputs_makes_no_difference(groups, inputs, seed):
    weights, moments = layer(groups, 3, inputs, seed)
    steps = np.abs(weights).max(axis=2, keepdims=True) / 7
    order = np.random.default_rng(seed).permutation(inputs)
    found = compensated(weights, moments, steps, 7)
    other = compensated(weights[:, :, order], moments[:, order][:, :, order], steps, 7)
    np.testing.assert_array_equal(found[:, :, order], other)


def test_strong_inputs_are_rounded_first():
    """Their errors are the costly ones, and many others are left to make up for them."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(32, 64)) @ np.diag(np.geomspace(0.1, 10, 64))  # all inputs follow from 32 numbers
    moments = (mixed.T @ mixed / 32)[None]
    weights = rng.normal(size=(1, 50, 64))
    steps = np.full((1, 50, 1), 0.5)
    found = compensated(weights, moments, steps, 7)
    factor = gptq.inverse_factor(moments, gptq.FEW_BITS_DAMPING)
    as_they_come = gptq._sweep(weights.copy(), factor, np.broadcast_to(steps, (1, 50, 1)), 7)
    errors = [output_error(q * steps - weights, moments).sum() for q in (found, as_they_come)]
    assert errors[0] < 0.8 * errors[1]


def test_moments_of_few_vectors_are_damped_until_others_confirm_them():
    """Rounding for a few vectors alone is worse for others than rounding that does not trust them entirely."""
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(64, 64)) * np.geomspace(3, 0.3, 64)  # inputs depend on each other
    weights, steps = rng.normal(size=(1, 60, 64)), np.full((1, 60, 1), 0.4)

    def moments(count):
        x = rng.normal(size=(count, 64)) @ spread.T
        return (x.T @ x / count)[None]

    def known(count):
        halves = [moments(count), moments(count)]
        pairs = [Pair(half, half) for half in (sum(halves) / 2, *halves)]
        return RoundingData(pairs[0], pairs[1:], has_enough=False)

    few, many, others = known(8), known(4096), moments(4096)
    target = RoundingTarget(weights, steps[:, :, 0], np.ones((1, 60), bool), 7)
    damping, searches = few.trust(target)
    assert damping > many.trust(target).damping == gptq.FEW_BITS_DAMPING
    certain = gptq.damped(few.whole.second, damping)
    plain, damped, searched = (
        output_error(found - weights, others).sum()
        for found in (
            target.compensated(few.whole.second),
            target.compensated(certain),
            target.searched(certain, layer_rounding.SCALE_STARTS),
        )
    )
    assert damped < 0.9 * plain
    assert searches == (searched < damped)
    assert many.trust(target).searches
    assert replace(few, has_enough=True).trust(target) == (gptq.FEW_BITS_DAMPING, True)
    assert replace(few, halves=[]).trust(target) == (0.0, False)


def test_integers_are_searched_only_where_the_other_half_of_the_samples_confirms_it():
    """A search fits integers to the few vectors at hand, which need not be good for others."""

    def decided(seed):
        rng = np.random.default_rng(seed)
        weights, spread = rng.normal(size=(1, 30, 32)), rng.normal(size=(32, 32))
        target = RoundingTarget(weights, np.full((1, 30), 0.33), np.ones((1, 30), bool), 7)
        loud = np.exp(rng.normal(size=(2, 6, 1)))  # some vectors are far larger than others
        vectors = loud * np.maximum(rng.normal(size=(2, 6, 32)) @ spread, 0)
        one, other = ((x.T @ x / 6)[None] for x in vectors)
        known = RoundingData(Pair((one + other) / 2, one), [Pair(one, one), Pair(other, other)], has_enough=False)

        def error(rounded, damping):
            pairs = (gptq.damped(one, damping), other), (gptq.damped(other, damping), one)
            return sum(output_error(rounded(own) - weights, judge).sum() for own, judge in pairs)

        trust = known.trust(target)
        of_all = {max(gptq.FEW_BITS_DAMPING, WHOLE_DAMPING * d): d for d in ROUNDING_DAMPINGS}
        damping = of_all[trust.damping]
        searched = error(lambda own: target.searched(own, (1.0,)), damping)
        assert trust.searches == (searched < error(target.compensated, damping))
        return trust.searches

    assert {decided(seed) for seed in range(8)} == {True, False}


@given(st.integers(1, 2), st.integers(1, 2), st.integers(3, 30), st.integers(1, 7), st.integers(0, 9))
def test_several_starts_are_no_worse_than_one(groups, parts, inputs, limit, seed):
    weights, moments = layer(groups * parts, 3, inputs, seed)
    scales = np.abs(weights).max(axis=2).reshape(groups, parts, 3).max(axis=1) / limit
    free = np.ones(scales.shape, bool)

    def errors(starts):
        found, best = layer_rounding.best_start(RoundingTarget(weights, scales, free, limit), moments, starts)
        made = found * np.repeat(best, parts, axis=0)[:, :, None]
        return output_error(made - weights, moments).reshape(groups, parts, 3).sum(axis=1)

    assert (errors((1.0, 0.9, 1.1)) <= errors((1.0,)) * (1 + 1e-9)).all()


def test_scales_that_are_not_free_stay():
    weights, moments = layer(1, 4, 12)
    scales, free = np.full((1, 4), 0.4), np.array([[True, False, True, False]])
    _, found = layer_rounding.best_start(RoundingTarget(weights, scales, free, 7), moments)
    assert ((found == scales) == ~free).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_one_channel_whose_bias_needs_a_coarser_scale_does_not_keep_a_layer_from_being_refined(bits):
    """Training often leaves channels of almost zero with a bias: at their own fine scale, that would not fit."""
    rng = np.random.default_rng(bits)
    weights = rng.normal(size=(8, 3, 3, 4)).astype(np.float32)
    weights[2], weights[5] = 1e-24 * weights[2], 1e-7 * weights[5]
    net = Net()
    x = net.input(1, 8, 8, 4)
    y = net.conv(x, weights, rng.normal(size=8).astype(np.float32) + 2)
    model = net.model(net.conv(y, normal(4, 1, 1, 8)))
    samples = [(rng.normal(size=(1, 8, 8, 4)).astype(np.float32),) for _ in range(16)]
    request = Request(preset("int8", bits), calibrate(model, samples), method="minmax", effort="high")
    planned = plan_model(prepare_model(model, request), request)
    refined = Refiner(planned.model, request, samples, no_progress, vectors=2048).refine(planned)
    first = planned.plans[0].graph.ops[0]
    before, after = (p.plans[0].constants.at(Use(first, 1)) for p in (planned, refined))
    assert not np.array_equal(before, after)
    wanted = [Session(model).run(row)[0] for row in samples]

    def error(made):
        found = (Session(build(made.with_float_ends(), request.ops, Encoder())).run(row)[0] for row in samples)
        return float(sum(np.square(one - other).sum() for one, other in zip(found, wanted, strict=True)))

    assert error(refined) < error(planned)
