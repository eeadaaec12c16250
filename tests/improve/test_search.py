"""The search over steps: what is kept, and that more effort never ends worse on samples that took no part in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

import zeropoint
from zeropoint.bench.errors import ErrorSum, JudgedError
from zeropoint.improve import search as search_module
from zeropoint.improve.candidate import Step
from zeropoint.improve.search import StepSearch

from ..nets import Net, normal, samples_for


@dataclass(frozen=True)
class Version:
    """A candidate that is known by its errors: on samples that judge, and on those that are held back."""

    judged: float
    unseen: float

    @property
    def request(self) -> SimpleNamespace:
        return SimpleNamespace(chooses_ranges=False)

    def model(self) -> Version:
        return self

    def unrefined(self) -> Version:
        return self


@dataclass(frozen=True)
class Samples:
    """A bench of eight samples, all alike, and others that are held back."""

    unseen_rows: tuple[int, ...] = (0,)
    is_unseen: bool = False

    def judged(self, version: Version) -> JudgedError:
        error = version.unseen if self.is_unseen else version.judged
        return JudgedError.of([[ErrorSum(error, 1.0)]] * 8)

    def error(self, version: Version) -> float:
        return self.judged(version).value

    def judging(self, count: int) -> Samples:  # noqa: ARG002 - as a bench has it
        return self

    def on(self, rows: tuple[int, ...]) -> Samples:  # noqa: ARG002 - as a bench has it
        return replace(self, is_unseen=True)


def proposing(**versions: Version) -> list[Step]:
    def step(effort, version):
        return Step(effort, (effort,), lambda *_: (v for v in [version]), ranges=False)

    return [step(*one) for one in versions.items()]


FIRST = Version(1.0, 1.0)


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        ({"standard": Version(0.5, 0.5), "high": Version(0.4, 0.4)}, "high"),
        ({"standard": Version(0.5, 0.5), "high": Version(0.4, 0.6)}, "standard"),  # better where it was fitted only
        ({"standard": Version(0.5, 0.5), "high": Version(0.6, 0.4)}, "standard"),
        ({"standard": Version(0.5, 0.5), "high": Version(0.4, 0.4), "max": Version(0.1, 0.5)}, "high"),
        ({"standard": Version(0.5, 0.5), "high": Version(0.4, 0.4), "max": Version(0.9, 0.3)}, "max"),
    ],
)
def test_more_effort_never_ends_worse_on_held_back_samples(monkeypatch, versions, wanted):
    monkeypatch.setattr(search_module, "STEPS", proposing(**versions))
    search = StepSearch(Samples(), list(versions)[-1])
    assert search.best(FIRST).candidate is versions[wanted]
    names = [trial.what for trial in search.trials]
    assert names == ["standard", *(f"{effort}, {effort} effort" for effort in list(versions)[1:])]


def test_without_held_back_samples_those_that_judge_decide(monkeypatch):
    versions = {"standard": Version(0.5, 0.5), "high": Version(0.4, 0.6)}
    monkeypatch.setattr(search_module, "STEPS", proposing(**versions))
    assert StepSearch(Samples(unseen_rows=()), "high").best(FIRST).candidate is versions["high"]


def test_high_effort_goes_on_from_what_standard_effort_finds():
    """Held-back samples find its model at least as good."""
    net = Net()
    y = net.conv(net.input(1, 6, 6, 3), normal(8, 3, 3, 3, seed=1))
    model = net.model(net.conv(y, normal(4, 3, 3, 8, seed=2)))
    data = samples_for(model, 72)
    standard, high = (zeropoint.quantize(model, data=data, weight_bits=4, effort=e) for e in ("standard", "high"))
    first = [trial.what for trial in standard.steps]
    assert [trial.what for trial in high.steps if "nearest" not in trial.what][: len(first)] == first
    assert standard.verdict.held_back
    assert high.verdict.snr >= standard.verdict.snr
