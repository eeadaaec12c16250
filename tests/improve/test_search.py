"""The search over steps: what is kept, and that more effort never ends worse on samples that took no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

import zeropoint
from zeropoint.bench.bench import FEWEST_IN_ALL, HELD_BACK_FIRST, HELD_BACK_LATER, Bench
from zeropoint.bench.measure import SampledError
from zeropoint.improve import search as search_module
from zeropoint.improve.candidate import Step
from zeropoint.improve.refiner import Refiner
from zeropoint.improve.rounding_steps import learning_split, rounded_for_all_samples
from zeropoint.improve.search import StepSearch, Trials, judged_samples
from zeropoint.recipe import Effort
from zeropoint.report.quantization import step_text

from ..nets import Net, normal, samples_for


@dataclass(frozen=True)
class Version:
    """A candidate that is known by its errors: on samples that judge, and on those that are held back."""

    judged: float
    unseen: float
    wide: Version | None = None
    asked: Version | None = None
    refiner: None = None

    @property
    def request(self) -> SimpleNamespace:
        return SimpleNamespace(chooses_ranges=False)

    def in_8_bits(self) -> Version:
        return self.wide or self

    def in_asked_bits(self) -> Version:
        return self.asked or self

    def model(self) -> Version:
        return self

    def unrefined(self) -> Version:
        return self


class Measured(SampledError):
    """An error on all samples."""

    @property
    def on_enough(self) -> float:
        return self.value

    @property
    def count(self) -> int:
        return len(self.parts)

    def value_on(self, count: int) -> float:  # noqa: ARG002 - as on all
        return self.value


def noisy(errors: Sequence[float]) -> Measured:
    """The error of samples whose noise is this large, relative to what they vary by."""
    return Measured(tuple(error / (1 + error) for error in errors))


@dataclass(frozen=True)
class Samples:
    """A bench of eight samples, all alike, and others that are held back."""

    unseen_rows: tuple[int, ...] = (0,)
    is_unseen: bool = False
    judged_count: int = 24
    rows: tuple[int, ...] = ()
    judged_rows: tuple[int, ...] = ()
    in_sequence: bool = False
    macs: int = 0

    def judged(self, version: Version, at_once: bool = False) -> Measured:  # noqa: ARG002 - as a bench has it
        error = version.unseen if self.is_unseen else version.judged
        return noisy([error] * 8)

    def error(self, version: Version) -> float:
        return self.judged(version).value

    def judging(self, count: int) -> Samples:  # noqa: ARG002 - as a bench has it
        return self

    def in_given_order(self) -> Samples:
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


def test_efforts_are_compared_as_they_would_be_returned(monkeypatch):
    """Standard effort rounds its weights for all samples in the end, and so may be the better one."""
    versions = {"standard": Version(0.5, 0.5), "high": Version(0.4, 0.45)}
    in_the_end = {versions["standard"]: Version(0.5, 0.41), versions["high"]: Version(0.4, 0.42)}
    monkeypatch.setattr(search_module, "STEPS", proposing(**versions))
    monkeypatch.setattr(search_module, "rounded_for_all_samples", lambda _, one, effort: in_the_end[one])  # noqa: ARG005
    assert StepSearch(Samples(), "high").best(FIRST).candidate is versions["standard"]
    in_the_end[versions["high"]] = Version(0.4, 0.40)
    found = StepSearch(Samples(), "high").best(FIRST)
    assert found.candidate is versions["high"]
    assert found.finished is in_the_end[versions["high"]]


def test_what_is_learned_is_compared_with_what_high_effort_would_return(monkeypatch):
    versions = {"standard": Version(0.5, 0.5), "high": Version(0.4, 0.45), "max": Version(0.3, 0.42)}
    in_the_end = {one: one for one in versions.values()} | {versions["high"]: Version(0.4, 0.40)}
    monkeypatch.setattr(search_module, "STEPS", proposing(**versions))
    monkeypatch.setattr(search_module, "rounded_for_all_samples", lambda _, one, effort: in_the_end[one])  # noqa: ARG005
    found = StepSearch(Samples(), "max").best(FIRST)
    assert found.finished is in_the_end[versions["high"]]
    in_the_end[versions["high"]] = Version(0.4, 0.43)
    assert StepSearch(Samples(), "max").best(FIRST).finished is versions["max"]


@dataclass(frozen=True)
class NumberedSamples(Samples):
    """A bench of samples by number; every version has an error for each."""

    unseen_rows: tuple[int, ...] = (0, 1, 2, 3)
    rows: tuple[int, ...] = tuple(range(4, 36))
    judged_rows: tuple[int, ...] = tuple(range(4, 20))

    def judged(self, version, at_once=False):  # noqa: ARG002 - as a bench has it
        return noisy([version(row) for row in self.judged_rows])

    def on(self, rows):
        return replace(self, judged_rows=tuple(rows))


def errors_of(held_back: Sequence[float], checked: float, others: float = 1.0) -> SimpleNamespace:
    """A candidate with these errors on samples that are held back, one in eight others, and all others."""
    samples = NumberedSamples()
    by_row = dict.fromkeys(samples.rows, others) | dict.fromkeys(learning_split(samples).checked, checked)
    by_row |= dict(zip(samples.unseen_rows, held_back, strict=True))
    request = SimpleNamespace(chooses_ranges=False)
    made = SimpleNamespace(model=lambda: by_row.__getitem__, request=request, refiner=None)
    made.in_8_bits = made.unrefined = made.in_asked_bits = lambda: made
    return made


@pytest.mark.parametrize(
    ("held_back", "checked", "kept"),
    [
        ([0.7, 0.7, 1.3, 1.2], 1.0, False),  # those held back alone do not tell this gain from chance
        ([0.7, 0.7, 1.3, 1.2], 0.8, True),  # with the others that were not learned from, they do
        ([1.3, 0.7, 1.2, 1.0], 0.5, True),  # the same if those held back find it worse, as chance has it
        ([1.1, 1.1, 1.1, 1.1], 0.5, False),  # but they must not find it clearly worse
        ([1.0, 1.0, 1.0, 1.0], 1.0, False),  # what it learned from does not count, however good it is
    ],
)
def test_what_was_learned_is_judged_by_all_samples_that_it_was_not_learned_from(monkeypatch, held_back, checked, kept):
    high, learned = errors_of([1.0, 1.0, 1.0, 1.001], 1.0), errors_of(held_back, checked, others=0.001)
    monkeypatch.setattr(search_module, "STEPS", proposing(high=high, max=learned))
    search = StepSearch(NumberedSamples(), "max")
    assert search.best(errors_of([9.0] * 4, 9.0, 9.0)).candidate is (learned if kept else high)


@pytest.mark.parametrize(
    ("count", "held_back", "checked"), [(175, 25, 21), (175, 0, 43), (40, 0, 10), (9, 1, 9), (7, 0, 7)]
)
def test_what_is_learned_is_checked_on_samples_that_weights_are_not_rounded_for(count, held_back, checked):
    """Unless there are too few for that."""
    samples = Samples(tuple(range(held_back)), rows=tuple(range(100, 100 + count)))
    samples = replace(samples, judged_rows=samples.rows[: max(24, min(64, 4 * count // 10))])
    split = learning_split(samples)
    assert len(split.checked) == checked
    if checked < count:
        assert sorted([*split.learned, *split.checked]) == list(samples.rows)
        assert set(split.checked) <= set(samples.judged_rows)
    else:
        assert split.learned == split.checked == samples.rows
    assert learning_split(replace(samples, in_sequence=True)).learned == samples.rows


@pytest.mark.parametrize(
    ("errors", "kept", "presumed"),
    [
        ([0.5, 0.5, 0.5, 0.5], True, True),
        ([0.9, 1.2, 0.8, 1.0], False, True),  # a little better, as chance has it
        ([1.3, 0.9, 1.1, 0.8], False, True),  # a little worse
        ([1.5, 1.5, 1.6, 1.5], False, False),
    ],
)
def test_what_is_presumed_to_be_better_only_must_not_be_clearly_worse(errors, kept, presumed):
    made = SimpleNamespace(model=lambda: None)
    judge = SimpleNamespace(judged=lambda _, at_once: noisy(errors))  # noqa: ARG005 - as a bench has it
    for is_presumed, wanted in ((False, kept), (True, presumed)):
        trials = Trials(judge, FIRST, noisy([1.0, 1.0, 1.0, 1.01]), is_presumed)
        trials.run(v for v in [made])
        assert (trials.best is made) == wanted


def test_what_is_not_kept_is_shown_next_to_what_it_had_to_beat_on_the_same_samples():
    """Few samples decide that; what is kept is shown on as many as the result, or the figures would contradict."""

    class Looked(Measured):
        count = 8
        on_enough = 0.25

        def value_on(self, count: int) -> float:
            return {8: 0.1}[count]

    worse, first = (Looked(noisy([error] * 8).parts) for error in (0.3, 0.1))
    made = SimpleNamespace(model=lambda: None)
    judge = SimpleNamespace(judged=lambda _, at_once: worse)  # noqa: ARG005 - as a bench has it
    trials = Trials(judge, FIRST, first)
    trials.run(v for v in [made])
    refused = trials.record("ranges", 1.0, kept=False)
    assert (refused.before, refused.samples) == (0.1, 8)
    assert "SNR of the outputs 5.2 dB instead of 10.0 dB on 8 samples, not kept" in step_text(refused)
    trials = Trials(judge, FIRST, None)
    trials.run(v for v in [made])
    accepted = trials.record("ranges", 1.0, kept=True)
    assert (accepted.error, accepted.before) == (0.25, None)
    assert step_text(accepted) == "ranges, SNR of the outputs 6.0 dB (1.0 s)"


@pytest.mark.parametrize(("in_8_bits", "in_few", "kept"), [(0.05, 0.99, True), (0.2, 0.5, False), (0.05, 1.5, False)])
def test_what_is_about_activations_is_judged_with_weights_in_8_bits(monkeypatch, in_8_bits, in_few, kept):
    """The noise of few bits does not decide, unless it is clearly more."""
    asked = Version(in_few, in_few)
    proposed = Version(in_8_bits, in_8_bits, asked=asked)
    first = Version(1.0, 1.0, wide=Version(0.1, 0.1))
    step = Step("ranges", ("standard",), lambda *_: (v for v in [proposed]), ranges=False, activations=True)
    start = Step("first", ("standard",), lambda *_: (v for v in [first]), ranges=False)
    monkeypatch.setattr(search_module, "STEPS", [start, step])
    search = StepSearch(Samples(), "standard")
    assert search.best(FIRST).candidate is (asked if kept else first)
    assert [trial.what for trial in search.trials] == ["first", "ranges, on weights of 8 bits"]


def test_samples_are_left_to_fit_weights_to(monkeypatch):
    """The more of them the smaller the model, and at high effort, up to a share of what there is."""

    def judged(samples: int, effort: Effort = "standard") -> int:
        net = Net()
        model = net.model(net.dense(net.input(1, 8), normal(4, 8)))
        return judged_samples(Bench(model, samples_for(model, samples)), effort)

    assert [judged(count) for count in (40, 100, 200)] == [24, 40, 64]
    monkeypatch.setattr(search_module, "JUDGING_MACS", 30 * 32)
    assert [judged(200, effort) for effort in ("standard", "high")] == [30, 64]
    monkeypatch.setattr(search_module, "JUDGING_MACS", 32)
    assert [judged(200, effort) for effort in ("standard", "high")] == [16, 64]


def test_without_held_back_samples_those_that_judge_decide(monkeypatch):
    versions = {"standard": Version(0.5, 0.5), "high": Version(0.4, 0.6)}
    monkeypatch.setattr(search_module, "STEPS", proposing(**versions))
    assert StepSearch(Samples(unseen_rows=()), "high").best(FIRST).candidate is versions["high"]


def test_high_effort_goes_on_from_what_standard_effort_finds():
    """On the way it finds exactly the same, so held-back samples find its model at least as good."""
    net = Net()
    y = net.conv(net.input(1, 6, 6, 3), normal(8, 3, 3, 3, seed=1))
    model = net.model(net.conv(y, normal(4, 3, 3, 8, seed=2)))
    data = samples_for(model, 72)
    standard, high = (zeropoint.quantize(model, data=data, weight_bits=4, effort=e) for e in ("standard", "high"))
    first = [(trial.what, trial.error) for trial in standard.steps]
    assert [(trial.what, trial.error) for trial in high.steps if "nearest" not in trial.what][: len(first)] == first
    assert standard.verdict.held_back
    assert high.verdict.snr >= standard.verdict.snr


def test_weights_are_rounded_for_all_samples_in_the_end(monkeypatch):
    """Not only for those that did not judge."""
    used, refine = [], Refiner.refine

    def watched(self, planned):
        used.append(len(self.samples))
        return refine(self, planned)

    net = Net()
    y = net.conv(net.input(1, 6, 6, 3), normal(8, 3, 3, 3, seed=1))
    model = net.model(net.conv(y, normal(4, 3, 3, 8, seed=2)))
    monkeypatch.setattr(Refiner, "refine", watched)
    zeropoint.quantize(model, data=samples_for(model, 128), weight_bits=4)
    held_back = FEWEST_IN_ALL // HELD_BACK_FIRST + (128 - FEWEST_IN_ALL) // HELD_BACK_LATER
    assert used[-1] == 128 - held_back
    assert all(count < used[-1] for count in used[:-1])


@dataclass(frozen=True)
class Rounded:
    """A candidate that is known by its errors on held-back samples: before and after it is rounded for all others."""

    before: float
    after: Sequence[float]
    refined: str | None = "for some"
    learned: int = 0
    planned: None = None
    refiner: SimpleNamespace | None = field(default_factory=lambda: SimpleNamespace(refine=lambda _: "for all"))

    def model(self):
        return (lambda _: self.before) if self.refined == "for some" else self.after.__getitem__


@pytest.mark.parametrize(
    ("after", "standard", "high"),
    [
        ([0.9, 0.9, 1.0, 1.0], "for all", "for all"),
        ([0.7, 1.6, 0.8, 1.2], "for all", "for some"),  # a little worse, as chance has it
        ([1.4, 1.5, 1.4, 1.5], "for some", "for some"),
    ],
)
def test_weights_are_not_rounded_for_all_samples_if_held_back_ones_find_that_worse(after, standard, high):
    """At standard effort clearly worse: more samples are presumed to be better."""
    for effort, wanted in (("standard", standard), ("high", high), ("max", high)):
        assert rounded_for_all_samples(NumberedSamples(), Rounded(1.0, after), effort).refined == wanted
    assert (
        rounded_for_all_samples(NumberedSamples(unseen_rows=()), Rounded(1.0, after), "standard").refined == "for some"
    )
