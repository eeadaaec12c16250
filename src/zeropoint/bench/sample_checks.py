"""Checks whether samples look like what a model was trained on.

A check is a row: what it examines, what a finding probably means, and how to fix it. Wrongly preprocessed samples give
wrong ranges without any error, so findings are reported as warnings. None of them is proof: a check stays silent unless
the numbers are far from those of suitable data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..graph.query import tensor_keys
from ..parallel import cached_property
from ..sources.ports import Row
from ..tflite.metadata import stated_input_range
from .bench import Bench
from .conventions import Convention, Response, convention_of
from .errors import Compared

LOOKED_AT = 16
"""Number of samples that the model is run on: first those held back, which the verdict needs too, then others, spread
over those in memory."""

MOST_VALUES = 1 << 16
"""Number of values of an output that are examined."""

FEW = 20
"""Fewer samples than this are not representative."""

ALIKE = 1e-3
"""Spread between samples, relative to that of all values, below which they are nearly equal."""

FAR, MOST_FAR = 100.0, 0.1
"""Samples are outliers if they are this many times larger than all others, and at most this many."""

SAME_CLASS, UNSURE = 0.95, 0.6
"""The share of samples in one class, and a confidence lower than that of networks on their training data."""

LEAST_CERTAINTY_GAIN, LEAST_INFORMATION, INFORMATION_RATIO = 0.25, 0.5, 2.0
"""What another convention for the same images must gain to be taken for what the model expects: in confidence, and in
the information of the outputs about the samples (in nats, and as a factor)."""

LARGE, SMALL, FITTING = 40.0, 0.04, (0.1, 10.0)
"""The first layer's response to the samples relative to its bias: for values too large, too small, and right. Training
brings both to the same order of magnitude, especially with batch normalization."""

CLEARLY = 4.0
"""Factor within these limits from which what calibration has measured decides, without another run of the layer."""

SURELY = 0.0003
"""A probability below this, or as far from 1, is a certain answer."""

KEPT_VARIATION, GAINED_VARIATION = 0.1, 1.5
"""How much the outputs must still vary between samples scaled down, and how much more between samples scaled up."""


@dataclass(frozen=True)
class Seen:
    """What a check found; `remedy` replaces the check's own if the numbers suggest a more specific one."""

    text: str
    remedy: str = ""


@dataclass(frozen=True)
class SampleFinding:
    """What was found in the samples, what it probably means, and how to fix it."""

    check: str
    seen: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.seen}: {self.meaning}; {self.remedy}"


class SampleEvidence:
    """The samples of a bench, and the model's response to them."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.ports = bench, bench.entry.ports
        self.rows = [*bench.rows, *bench.unseen_rows]
        self._unseen = range(0, len(bench.unseen_rows), -(-len(bench.unseen_rows) // LOOKED_AT) or 1)
        missing = LOOKED_AT - len(self._unseen)
        self._others = bench.rows[:: -(-len(bench.rows) // missing) or 1] if missing else []
        self.looked_at = [*(bench.unseen_rows[k] for k in self._unseen), *self._others]

    @property
    def count(self) -> int:
        """The number of all samples, as far as known."""
        runs = max(self.bench.stats.samples + len(self.bench.unseen_rows), len(self.rows))
        return runs * max(port.batch for port in self.ports)

    @cached_property
    def largest(self) -> Array:
        """The largest absolute value among the float inputs of each sample."""
        floats = [k for k, port in enumerate(self.ports) if port.dtype is DType.FLOAT32]
        return np.array([max((_largest(row[k]) for k in floats), default=0.0) for row in self.rows])

    @property
    def peak(self) -> float:
        """The largest absolute value of all samples in calibration, in memory or not."""
        keys, tensors = tensor_keys(self.bench.model), self.bench.stats.tensors
        seen = [tensors[keys[port.tensor]] for port in self.ports if keys[port.tensor] in tensors]
        return max((max(-one.low.value, one.high.value) for one in seen), default=0.0)

    @cached_property
    def convention(self) -> Convention | None:
        """The convention in which the only input represents pixels, if it takes images."""
        return convention_of(self.ports, self.looked_at)

    @cached_property
    def outputs(self) -> tuple[Compared, ...]:
        return self.bench.outputs_that_count

    @property
    def has_classes(self) -> bool:
        return self._classes is not None

    @cached_property
    def _classes(self) -> int | None:
        """The output that is a classification, one for each sample."""
        shapes = [self.bench.entry.graph.outputs[one.place].shape for one in self.outputs]
        single = (k for k, shape in enumerate(shapes) if math.prod(shape[1:-1]) == 1)
        return next((k for k in single if self.outputs[k].decides == "row"), None)

    @cached_property
    def answer(self) -> Answer:
        """The float model's answer to the samples in `looked_at`."""
        known = self.bench.unseen_values(self._plain) if self._unseen else []
        return self._answer([*(known[k] for k in self._unseen), *self._values(self._others)])

    def answer_to(self, rows: Sequence[Row]) -> Answer:
        """Return the float model's answer to other samples."""
        return self._answer(self._values(rows))

    @property
    def _plain(self) -> list[Compared]:
        return [Compared(one.place) for one in self.outputs]

    def _values(self, rows: Sequence[Row]) -> Iterator[list[Array]]:
        """Yield the float model's outputs one sample at a time, because they may be large."""
        loaded = self.bench.float_model(self._plain)
        return (values for row in rows for values in loaded.values([row]))

    def _answer(self, found: Iterable[list[Array]]) -> Answer:
        """Return the answer that these outputs give; of large outputs, some of the values are used."""
        classes, some = list[Array](), list[list[Array]]()
        for values in found:
            some.append([_some(value) for value in values])
            if self._classes is not None:
                chosen = np.asarray(values[self._classes], np.float64)
                classes.append(chosen.reshape(-1, chosen.shape[-1]))
        kinds = [kind for kind in zip(*some, strict=True) if len({value.size for value in kind}) == 1]
        variation = float(np.mean([np.nan_to_num(np.std(kind, axis=0)).mean() for kind in kinds])) if kinds else 0.0
        probabilities = np.concatenate(classes) if classes else None
        if probabilities is not None and probabilities.max() <= 0:  # log-probabilities
            probabilities = np.exp(probabilities)
        return Answer(probabilities, variation)

    @cached_property
    def response(self) -> Response | None:
        return Response.of(self.bench)


@dataclass(frozen=True)
class Answer:
    """The class probabilities, one row per choice, if the model is a classifier; and how much outputs vary between
    samples."""

    probabilities: Array | None
    variation: float

    @property
    def certainty(self) -> float | None:
        """The mean probability of the predicted class."""
        return None if self.probabilities is None else float(self.probabilities.max(axis=-1).mean())

    @property
    def information(self) -> float:
        """The information of the classes about the samples, in nats: 0 if the answer is always the same, or always
        uniform."""
        if self.probabilities is None:
            return 0.0
        return _entropy(self.probabilities.mean(axis=0)) - float(np.mean([_entropy(p) for p in self.probabilities]))


def _entropy(probabilities: Array) -> float:
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())


def _largest(values: Array) -> float:
    largest = max(-float(values.min(initial=0.0)), float(values.max(initial=0.0)))
    if math.isfinite(largest):
        return largest
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _some(values: Array) -> Array:
    """Return a limited number of the values, evenly spread."""
    flat = np.asarray(values, np.float64).reshape(-1)
    return flat[:: -(-flat.size // MOST_VALUES)] if flat.size > MOST_VALUES else flat


def constant_samples(evidence: SampleEvidence) -> Seen | None:
    """Every input of every sample is filled with a single value."""
    held = [values for row in evidence.rows for values in row if values.size]
    if max((values.size for values in held), default=0) < 2 or any(v.min() != v.max() for v in held):
        return None
    which = "zeros" if not any(v.any() for v in held) else "the same value throughout"
    return Seen(f"{'the sample holds' if evidence.count == 1 else 'all samples hold'} {which}")


def equal_samples(evidence: SampleEvidence) -> Seen | None:
    """No input differs much between samples. Steps of a sequence may be similar."""
    (first, *others), exactly = evidence.rows, True
    if not others or evidence.bench.in_sequence:
        return None
    for row in others:
        for values, wanted in zip(row, first, strict=True):
            if values.shape != wanted.shape or not _alike(values, wanted):
                return None
            exactly = exactly and np.array_equal(values, wanted)
    return Seen(f"all {len(evidence.rows)} samples are {'equal' if exactly else 'nearly equal'}")


def _alike(values: Array, wanted: Array) -> bool:
    """Whether values are nearly equal; indices must be exactly equal."""
    if values.dtype != np.float32 or not values.size:
        return np.array_equal(values, wanted)
    gap = np.abs(np.subtract(values, wanted, dtype=np.float64)).mean()
    return bool(gap <= ALIKE * wanted.std(dtype=np.float64))


def far_samples(evidence: SampleEvidence) -> Seen | None:
    """A few samples have values far beyond those of all others."""
    sizes = evidence.largest
    order = np.argsort(sizes, kind="stable")
    most = max(1, int(MOST_FAR * len(sizes)))
    if (beyond := evidence.peak) > FAR * float(sizes.max()) > 0:
        return Seen(
            f"at least one sample has values up to {beyond:.4g}, the first {len(sizes)} up to {sizes.max():.4g}"
        )
    for few in range(1, min(most, len(sizes) - 1) + 1):
        rest, least = float(sizes[order[-few - 1]]), float(sizes[order[-few]])
        if rest > 0 and least > FAR * rest:
            which = "one sample has" if few == 1 else f"{few} samples have"
            return Seen(f"{which} values up to {float(sizes.max()):.4g}, the others up to {rest:.4g}")
    return None


def other_normalization(evidence: SampleEvidence) -> Seen | None:
    """Pixels are in another range than the model was trained on."""
    given = evidence.convention
    if given is None:
        return None
    stated = stated_input_range(evidence.bench.model)
    if stated is not None:
        if given.fits(stated):
            return None
        low, high = stated
        remedies = [c.remedy(given) for c in given.others if c.fits(stated)]
        return Seen(
            f"the samples' values are {given.range}, those of the model's metadata {low:.4g} to {high:.4g}",
            " or ".join(remedies),
        )
    return _by_response(evidence, given) or _by_certainty(evidence, given)


def _by_response(evidence: SampleEvidence, given: Convention) -> Seen | None:
    """Detect it by the first layer: its response to the samples relative to its bias."""
    if evidence.response is None:
        return None
    looked_at = evidence.looked_at
    known = evidence.response.calibrated_ratio(looked_at[0])
    if known is not None and CLEARLY * SMALL < known < LARGE / CLEARLY:
        return None
    ratio = evidence.response.ratio(looked_at)
    if not (ratio > LARGE or ratio < SMALL):
        return None
    factor, before, mended = KEPT_VARIATION if ratio > LARGE else GAINED_VARIATION, evidence.answer, []
    for other in given.others:
        rows = other.instead_of(given, looked_at)
        if FITTING[0] <= evidence.response.ratio(rows) <= FITTING[1]:
            answer = evidence.answer_to(rows)
            if answer.variation >= factor * before.variation:
                mended.append((other, answer))
    if not mended:
        return None
    how = f"{ratio:.3g} times its bias, where about 1 is usual"
    return _mended(evidence, given, mended, f"the first layer's response to values of {given.range} is {how}")


def _by_certainty(evidence: SampleEvidence, given: Convention) -> Seen | None:
    """Detect it by the classes: in another range the model is far more confident, and distinguishes more samples."""
    if not evidence.has_classes or len(evidence.looked_at) < 2:
        return None
    before, mended = evidence.answer, []
    assert before.certainty is not None
    if before.certainty > UNSURE:
        return None
    for other in given.others:
        answer = evidence.answer_to(other.instead_of(given, evidence.looked_at))
        assert answer.certainty is not None
        tells = answer.information > max(LEAST_INFORMATION, INFORMATION_RATIO * before.information)
        if tells and answer.certainty > before.certainty + LEAST_CERTAINTY_GAIN:
            mended.append((other, answer))
    return _mended(evidence, given, mended, f"values are {given.range}") if mended else None


def _mended(evidence: SampleEvidence, given: Convention, mended: list[tuple[Convention, Answer]], seen: str) -> Seen:
    """Return the ranges that would fit, the one with the highest confidence first."""
    before = evidence.answer.certainty
    if before is None:
        return Seen(seen, " or ".join(other.remedy(given) for other, _ in mended))
    mended = sorted(mended, key=lambda pair: -(pair[1].certainty or 0.0))
    remedies = [f"{other.remedy(given)} (certainty {answer.certainty:.0%})" for other, answer in mended]
    return Seen(f"{seen}, and the model's certainty of a class is {before:.0%}", " or ".join(remedies))


def one_class(evidence: SampleEvidence) -> Seen | None:
    """The float model predicts the same class for all samples, with low confidence."""
    if not evidence.has_classes or len(evidence.looked_at) < LOOKED_AT // 2:
        return None
    answer = evidence.answer
    assert answer.probabilities is not None
    assert answer.certainty is not None
    share = float(np.bincount(answer.probabilities.argmax(axis=-1)).max() / len(answer.probabilities))
    if share < SAME_CLASS or answer.certainty > UNSURE:
        return None
    return Seen(
        f"the float model gives {share:.0%} of the samples the same class, its certainty is {answer.certainty:.0%}"
    )


def silent_outputs(evidence: SampleEvidence) -> Seen | None:
    """Every output is a probability that is about the same in all samples, so that any version seems exact."""
    keys, tensors = tensor_keys(evidence.bench.model), evidence.bench.stats.tensors
    known = [tensors.get(keys.get(one.tensor(evidence.bench.entry.graph), "")) for one in evidence.outputs]
    if not known or any(one.decides != "each" for one in evidence.outputs):
        return None
    ranges = [(one.low.value, one.high.value) for one in known if one is not None]
    if len(ranges) < len(known) or any(low < 1 - SURELY and high > SURELY for low, high in ranges):
        return None
    low, high = ranges[0]
    return Seen(f"the float model's answer is between {low:.2g} and {high:.2g} for all samples")


def loud_samples(evidence: SampleEvidence) -> Seen | None:
    """A few samples drive inner values or outputs far beyond where all others do."""
    return None if evidence.bench.loud is None else Seen(str(evidence.bench.loud.loud))


def few_samples(evidence: SampleEvidence) -> Seen | None:
    count = evidence.count
    if count >= FEW or evidence.bench.in_sequence:
        return None
    return Seen("there is one sample" if count == 1 else f"there are {count} samples")


@dataclass(frozen=True)
class SampleCheck:
    """One thing that may be wrong with samples; its name is that of `find`."""

    find: Callable[[SampleEvidence], Seen | None]
    meaning: str
    remedy: str

    @property
    def name(self) -> str:
        return self.find.__name__

    def __call__(self, evidence: SampleEvidence) -> SampleFinding | None:
        seen = self.find(evidence)
        if seen is None:
            return None
        return SampleFinding(self.name, seen.text, self.meaning, seen.remedy or self.remedy)


CONTENT_CHECKS = (
    SampleCheck(constant_samples, "they were probably never filled", "give real inputs of the model"),
    SampleCheck(equal_samples, "probably one input was repeated", "give different inputs, as the model will meet them"),
    SampleCheck(far_samples, "probably not prepared like the others", "prepare it like the others, or leave it out"),
    SampleCheck(other_normalization, "probably not the range of training", "prepare samples as in training"),
    SampleCheck(
        one_class, "probably not prepared as in training", "compare the steps before the model with those of training"
    ),
    SampleCheck(
        silent_outputs,
        "they do not show how well others are kept",
        "add some with another answer, such as recordings of the word to detect",
    ),
)
"""In order: what one check finds may be the cause of what later ones would find."""

SAMPLE_CAUSES = frozenset(check.name for check in CONTENT_CHECKS)
"""Names of findings that no other quantization can fix."""

NUMBER_CHECK = SampleCheck(few_samples, "too few to stand for all that the model will meet", "100 to 500 are usual")

LOUD_CHECK = SampleCheck(
    loud_samples,
    "a few such samples can leave all others few steps of each range",
    "see whether they belong in the data",
)


def check_samples(bench: Bench) -> tuple[SampleFinding, ...]:
    """Return what is suspicious about the samples of `bench`: the first finding about their content, those that are
    loud, and their number."""
    if not bench.is_single or not bench.entry.ports:
        return ()
    evidence = SampleEvidence(bench)
    if not evidence.rows:
        return ()
    content = next((found for check in CONTENT_CHECKS if (found := check(evidence)) is not None), None)
    return tuple(found for found in (content, LOUD_CHECK(evidence), NUMBER_CHECK(evidence)) if found is not None)
