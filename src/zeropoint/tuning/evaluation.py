"""Evaluation samples: one part guides the search, the other is evaluated once, at the end."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import InvalidSample
from ..sources.ports import Row
from .metric import SNR, Answers, Metric, Outputs, Score, pick

FEWEST = 4
"""Minimum number of samples of each part."""


@dataclass(frozen=True)
class EvaluationSet:
    """Rows of a model's inputs, `runs` of them for each sample, and the ground truth of each sample, if known."""

    rows: tuple[Row, ...]
    truth: Any = None
    runs: int = 1

    def __len__(self) -> int:
        return len(self.rows) // self.runs

    def picked(self, samples: Array) -> EvaluationSet:
        rows = [self.rows[k * self.runs + j] for k in samples for j in range(self.runs)]
        return EvaluationSet(tuple(rows), pick(self.truth, samples), self.runs)

    def split(self, in_sequence: bool) -> tuple[EvaluationSet, EvaluationSet]:
        """Return the part that guides the search and the one that does not: a random split, or the two halves of a
        sequence."""
        count = len(self)
        if count < 2 * FEWEST:
            raise InvalidSample(
                f"{count} samples are too few to score models on: half of them guide the search, half judge its result;"
                f" give at least {2 * FEWEST}, better some thousands"
            )
        order = np.arange(count) if in_sequence else np.random.default_rng(0).permutation(count)
        half = -(-count // 2)
        return self.picked(np.sort(order[:half])), self.picked(np.sort(order[half:]))

    def digest(self) -> str:
        return digest(self.rows, self.truth, self.runs)


def evaluation_set(rows: Sequence[Row], truth: Any) -> EvaluationSet:
    """Return rows with their ground truth; several rows may belong to one entry."""
    if truth is None:
        return EvaluationSet(tuple(rows))
    if not hasattr(truth, "__len__") or not hasattr(truth, "__getitem__"):
        raise InvalidSample("labels must be a sequence or an array, with one entry for each sample")
    if not len(truth) or len(rows) % len(truth):
        raise InvalidSample(f"there are {len(truth)} labels for {len(rows)} samples; give one for each sample")
    return EvaluationSet(tuple(rows), truth, len(rows) // len(truth))


@dataclass(frozen=True)
class Drop:
    """By how much a score is worse than the float model's on the same samples, with its standard error."""

    score: float
    value: float
    error: float
    samples: int
    snr: float | None = None  # of the outputs in dB, if there are outputs

    def worst(self, margin: float) -> float:
        """Return the drop if it were worse by `margin` standard errors; as measured if the error is not known."""
        return self.value + (0.0 if math.isnan(self.error) else margin * self.error)

    def within(self, allowed: float, margin: float = 0.0) -> bool:
        """Whether the drop is allowed, even if it were worse by `margin` standard errors."""
        return self.worst(margin) <= allowed * (1 + 1e-9)


@dataclass
class Judge:
    """Scores models on one part of the samples, relative to the float model, whose scores are computed once."""

    metric: Metric
    part: EvaluationSet
    exact: Outputs
    content: bytes

    def __post_init__(self) -> None:
        self._float = self._scorer(self.exact, self.content)
        self._known: dict[bytes, float] = {}

    def _scorer(self, outputs: Outputs, content: bytes) -> Score:
        return self.metric.scorer(Answers(outputs, self.exact, self.part.truth, content, self.part.runs))

    def _float_score(self, picks: Array | None = None) -> float:
        key = b"" if picks is None else picks.tobytes()
        if key not in self._known:
            self._known[key] = self._float(picks)
        return self._known[key]

    @property
    def float_score(self) -> float:
        return self._float_score()

    def require(self) -> None:
        """Raise if the metric is unreliable, before any model is made."""
        self.metric.require(Answers(self.exact, self.exact, self.part.truth, self.content, self.part.runs))
        first, second = self._float(None), self._float(None)
        if first != second:
            raise InvalidSample(
                f"the metric {self.metric.name} gives {first:.6g} and then {second:.6g} for the same outputs of the "
                "float model; it must give the same score each time: fix its seed, or remove the randomness"
            )

    def drop(self, outputs: Outputs, content: bytes) -> Drop:
        score = self._scorer(outputs, content)
        found, count = score(None), len(self.part)
        error = self.metric.standard_error(self._float_score, score, count)
        return Drop(found, self.metric.drop(self.float_score, found), error, count, self._snr(outputs, content, found))

    def _snr(self, outputs: Outputs, content: bytes, score: float) -> float | None:
        """Return the SNR of the outputs by the measure of error, which the metric decides instead of."""
        if self.metric is SNR:
            return score
        return SNR.scorer(Answers(outputs, self.exact, None, content))(None) if len(outputs) else None


def digest(*values: Any) -> str:
    """Return a fingerprint of arrays, strings, bytes and numbers, and of anything that contains them."""
    state = hashlib.sha256()
    for value in values:
        _feed(state, value)
    return state.hexdigest()[:32]


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, bytes):
        state.update(f"bytes {len(value)};".encode() + value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        state.update(f"array {value.dtype} {value.shape};".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        _feed(state, sorted(value.items()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        state.update(b"[")
        for part in value:
            _feed(state, part)
        state.update(b"]")
    else:
        state.update(f"{type(value).__name__} {json.dumps(str(value))};".encode())
