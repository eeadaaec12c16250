"""Coordinate descent on roundings, and the best scales for integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.improve.coordinate_descent import best_scales, descended
from zeropoint.improve.gptq import compensated, output_error

from ..nets import normal


def layer(groups: int, rows: int, inputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights, and the second moments of inputs that depend on each other."""
    x = normal(groups, 3 * inputs, inputs, seed=seed).astype(np.float64) @ normal(groups, inputs, inputs, seed=seed + 1)
    return normal(groups, rows, inputs, seed=seed + 2).astype(np.float64), x.transpose(0, 2, 1) @ x / x.shape[1]


@given(st.integers(1, 2), st.integers(1, 4), st.integers(1, 70), st.integers(1, 7), st.integers(0, 9))
def test_the_error_of_no_row_rises(groups, rows, inputs, limit, seed):
    weights, moments = layer(groups, rows, inputs, seed)
    steps = np.abs(weights).max(axis=2, keepdims=True) / limit
    before = compensated(weights, moments, steps, limit)
    after = descended(weights, before, moments, steps, limit)
    assert np.abs(after).max() <= limit
    assert np.array_equal(after, np.rint(after))
    old, new = (output_error(q * steps - weights, moments) for q in (before, after))
    assert (new <= old * (1 + 1e-9) + 1e-12).all()
    scales = best_scales(weights, after, moments, steps[:, :, 0])[:, :, None]
    assert (output_error(after * scales - weights, moments) <= new * (1 + 1e-9) + 1e-12).all()


def test_it_gains_on_what_compensation_leaves():
    weights, moments = layer(1, 16, 100)
    steps = np.full((1, 16, 1), 1.2)
    rounded = compensated(weights, moments, steps, 1)
    better = descended(weights, rounded, moments, steps, 1)
    errors = [output_error(q * steps - weights, moments).sum() for q in (rounded, better)]
    assert errors[1] < 0.95 * errors[0]


def test_parts_of_a_row_have_one_scale():
    weights, moments = layer(2, 3, 8)
    integers = np.rint(2 * weights)
    (found,) = best_scales(weights, integers, moments, np.ones((1, 3)))
    for row, scale in enumerate(found):
        errors = [
            output_error(s * integers - weights, moments)[:, row].sum() for s in (scale, 0.99 * scale, 1.01 * scale)
        ]
        assert errors[0] == min(errors)


def test_rows_of_zeros_keep_their_scale():
    weights, moments = layer(1, 2, 4)
    integers = np.zeros_like(weights)
    assert best_scales(weights, integers, moments, np.full((1, 2), 0.25)) == pytest.approx(0.25)
