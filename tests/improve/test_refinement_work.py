"""What makes refining cheap gives the same as what it stands for."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.improve import layer_rounding, rounding_steps
from zeropoint.improve.gptq import FACTORED, REFIT_DAMPINGS, _inverse_factor, lowest
from zeropoint.improve.refiner import Refiner

from ..nets import Net, normal


@pytest.mark.parametrize("inputs", [1, FACTORED, FACTORED + 1, 3 * FACTORED + 5])
def test_factors_by_halves_are_those_of_the_inverse(inputs: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3 * inputs, inputs))
    moments = x.transpose(0, 2, 1) @ x / inputs
    factor = _inverse_factor(moments)
    assert not np.tril(factor, -1).any()
    np.testing.assert_allclose(factor.transpose(0, 2, 1) @ factor @ moments, np.stack([np.eye(inputs)] * 2), atol=1e-9)


def test_what_is_not_positive_has_no_factors() -> None:
    moments = np.eye(2 * FACTORED)[None].copy()
    moments[0, 0, 0] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        _inverse_factor(moments)


@pytest.mark.parametrize("place", range(len(REFIT_DAMPINGS)))
def test_the_lowest_of_a_valley_is_found_without_looking_everywhere(place: int) -> None:
    asked = []

    def error(damping: float) -> float:
        asked.append(damping)
        return abs(REFIT_DAMPINGS.index(damping) - place) - 1.5

    assert lowest(REFIT_DAMPINGS, error) == (REFIT_DAMPINGS[place], -1.5)
    assert len(asked) == len(set(asked)) < len(REFIT_DAMPINGS) or place == 0


@pytest.mark.parametrize(("count", "is_enough"), [(40, False), (600, True)])
def test_nothing_is_refitted_where_vectors_are_too_few(
    count: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dense layer of 32 inputs sees one vector for each sample, and 128 are needed."""
    seen, refine = [], Refiner.refine

    def counting(self: Refiner, planned: object) -> object:
        seen.append(self.refits)
        return refine(self, planned)

    monkeypatch.setattr(Refiner, "refine", counting)
    net = Net()
    x = net.dense(net.input(1, 32), normal(32, 32, seed=1), normal(32, seed=2), activation=1)
    model = net.model(net.dense(x, normal(8, 32, seed=3), normal(8, seed=4)))
    samples = [normal(1, 32, seed=k) for k in range(count)]
    zeropoint.quantize(model, "dynamic", data=samples, effort="high", min_elements=0)
    assert seen
    assert (True in seen) == is_enough


def refined_layers(monkeypatch: pytest.MonkeyPatch, **limits: float) -> set[str]:
    """The layers whose integers are searched, if standard effort rounds with compensation at all."""
    for name, value in limits.items():
        known = getattr(rounding_steps, name)
        monkeypatch.setattr(rounding_steps, name, {**known, "standard": value})
    searched, real = set[str](), layer_rounding.best_start

    def noted(target, moments, *starts):
        searched.add(f"{target.weights.shape[1]}x{target.weights.shape[2]}")
        return real(target, moments, *starts)

    monkeypatch.setattr(layer_rounding, "best_start", noted)
    net = Net()
    hidden = net.conv(net.input(1, 4, 4, 8), normal(32, 3, 3, 8), activation=1)
    model = net.model(net.conv(hidden, normal(64, 1, 1, 32)))
    result = zeropoint.quantize(model, data=[(normal(1, 4, 4, 8, seed=k),) for k in range(40)], weight_bits=4)
    is_rounded = any("compensated" in step.what for step in result.steps)
    return {*searched, "compensated"} if is_rounded else searched


def test_small_layers_are_searched_and_large_ones_compensated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refined_layers(monkeypatch) == {"32x72", "64x32", "compensated"}
    assert refined_layers(monkeypatch, SEARCHED_MACS=100_000) == {"64x32", "compensated"}  # 32 * 72 * 72 > 100,000


def test_models_that_need_more_work_are_not_refined_at_standard_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refined_layers(monkeypatch, REFINING_MACS=1e6) == set()
