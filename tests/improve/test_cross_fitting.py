"""Cross-fitting: what was fitted to the samples that judge it has to hold on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from zeropoint.bench.measure import SampledError
from zeropoint.improve.rounding_steps import FEWEST_CROSSED, REFINED, _may_propose

Error = Callable[[int, bool], float]
"""(sample, whether weights were fitted to it) -> the noise of the refined model, relative to what samples vary by."""


@dataclass(frozen=True)
class Weights:
    """A candidate; its `refined` weights are the samples that they were fitted to, and how well they do."""

    refined: tuple[frozenset[int], Error] | None = None
    planned: None = None

    def model(self) -> Weights:
        return self

    def error(self, sample: int) -> float:
        if self.refined is None:
            return 1.0 + sample % 3 / 10
        own, error = self.refined
        return error(sample, sample in own)


@dataclass(frozen=True)
class Fit:
    """Fits weights to its samples."""

    error: Error
    samples: Sequence[int] = ()

    def refine(self, planned: None) -> tuple[frozenset[int], Error]:  # noqa: ARG002 - as a refiner has it
        return frozenset(self.samples), self.error


@dataclass(frozen=True)
class Samples:
    """A bench whose samples are numbers."""

    rows: Sequence[int]
    judged_rows: Sequence[int]
    in_sequence: bool = False

    def judging(self, count: int) -> Samples:
        return replace(self, judged_rows=self.rows[:count])

    def errors(self, model: Weights, places: Sequence[int]) -> SampledError:
        noise = (model.error(self.judged_rows[place]) for place in places)
        return SampledError(tuple(one / (1 + one) for one in noise))


def only_own(_: int, is_own: bool) -> float:
    return 0.0 if is_own else 1.5


def better(sample: int, is_own: bool) -> float:
    return 0.5 if is_own else 0.8 + sample % 2 / 10


def by_chance(sample: int, _: bool) -> float:
    return (0.5, 1.8)[sample // 2 % 2]


def proposed(error: Error, count: int = 20, judged: int = 20, must_gain: bool = False, **more: bool) -> bool:
    bench = Samples(range(count), range(judged), **more)
    return _may_propose(bench, Fit(error), Weights(), must_gain=must_gain)


@pytest.mark.parametrize(
    ("error", "at_all", "as_a_gain"), [(only_own, False, False), (better, True, True), (by_chance, True, False)]
)
def test_weights_fitted_to_the_samples_that_judge_have_to_hold_on_the_other_half(error, at_all, as_a_gain):
    assert proposed(error) == at_all
    assert proposed(error, must_gain=True) == as_a_gain


def test_other_samples_judge_where_there_are_enough():
    """Halves of a few samples, or of a sequence, would say nothing."""
    assert proposed(only_own, count=24 + REFINED[0], judged=24)
    assert not proposed(only_own, count=23 + REFINED[0], judged=24)
    assert proposed(only_own, count=FEWEST_CROSSED - 1, judged=FEWEST_CROSSED - 1)
    assert proposed(only_own, in_sequence=True)
