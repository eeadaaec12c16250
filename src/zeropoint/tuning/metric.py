"""How a model is scored: shares of correct or equal classes, SNR, or a user-defined function."""

from __future__ import annotations

import inspect
import math
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.errors import decibels
from ..bench.measure import ErrorTable, SampledError
from ..dtypes import Array
from ..errors import InvalidRecipe, InvalidSample, argument
from ..sources.data import function_in

Outputs = Sequence[Sequence[Array]]
"""The outputs of each run, as real numbers, in the model's order."""

SHARE_POINT = 0.01
"""One point of a share, such as top-1: a percentage point."""

DRAWS, FUNCTION_DRAWS, SLOW_DRAWS = 400, 50, 16
"""Bootstrap resamples; fewer for a user's own function, which may be slow, fewest if it is. With 16, a standard error
is known to within a fifth."""

SLOW = 0.1
"""Seconds from which a user's function counts as slow."""


@dataclass(frozen=True)
class Answers:
    """A model's outputs for samples, with the ground truth (`truth`) and the float model's outputs (`exact`).

    `runs` of the model belong to each sample. `content` is the model itself.
    """

    outputs: Outputs
    exact: Outputs
    truth: Any
    content: bytes
    runs: int = 1

    def __len__(self) -> int:
        return len(self.outputs) // self.runs

    def picked(self, samples: Array) -> Answers:
        """Return the answers for some samples, in this order; a sample may occur several times."""
        rows = (samples[:, None] * self.runs + np.arange(self.runs)).reshape(-1)
        outputs, exact = [self.outputs[int(k)] for k in rows], [self.exact[int(k)] for k in rows]
        return Answers(outputs, exact, pick(self.truth, samples), self.content, self.runs)


def pick(truth: Any, samples: Array) -> Any:
    """Return the ground truth of some samples."""
    return truth[samples] if isinstance(truth, np.ndarray) else None if truth is None else [truth[k] for k in samples]


Score = Callable[[Array | None], float]
"""Returns the score on the samples with these numbers, or on all of them."""


class Metric(ABC):
    """A score of a model. `point` is the size of one point in its own unit."""

    name: str
    higher_is_better: bool = True
    point: float = 1.0
    draws: int = DRAWS
    splits: bool = True

    @abstractmethod
    def scorer(self, answers: Answers) -> Score:
        """Return a function that scores these answers."""

    def require(self, answers: Answers) -> None:  # noqa: B027  # most take any answers
        """Raise if the metric cannot be applied to a model with such answers."""

    def source(self) -> object:
        """Return what distinguishes metrics of the same name."""
        return ""

    @property
    def sign(self) -> int:
        return 1 if self.higher_is_better else -1

    def drop(self, before: float, after: float) -> float:
        """Return by how much a score is worse than another one."""
        return self.sign * (before - after)

    def standard_error(self, before: Score, after: Score, count: int) -> float:
        """Return the standard error of the drop between two models on the same samples, by paired bootstrap; NaN if
        that is not possible."""
        draws = np.random.default_rng(0).integers(count, size=(self.draws, count))
        try:
            start = time.process_time()
            first = after(draws[0])
            draws = draws[: SLOW_DRAWS if time.process_time() - start > SLOW else None]
            scores = (first, *(after(picks) for picks in draws[1:]))
            drops = [self.drop(before(picks), score) for picks, score in zip(draws, scores, strict=True)]
        except InvalidRecipe:  # a user's function that does not accept arbitrary subsets of samples
            return math.nan
        return float(np.std(drops, ddof=1))


@dataclass(frozen=True)
class SummedMetric(Metric):
    """A score computed from sums of per-sample numbers."""

    name: str
    parts: Callable[[Answers, int], tuple[float, float]]
    combine: Callable[[float, float], float]
    point: float = 1.0
    check: Callable[[Answers], None] | None = None

    def require(self, answers: Answers) -> None:
        if self.check is not None:
            self.check(answers)

    def scorer(self, answers: Answers) -> Score:
        table = np.array([self.parts(answers, k) for k in range(len(answers))], np.float64)

        def score(picks: Array | None = None) -> float:
            return float(self.combine(*(table if picks is None else table[picks]).sum(axis=0)))

        return score


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""

    def ranks(values: Sequence[float]) -> Array:
        _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])

    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


@dataclass(frozen=True)
class OutputErrorMetric(Metric):
    """The SNR of the outputs in dB, by the measure that steers all searches."""

    name: str = "SNR"

    def scorer(self, answers: Answers) -> Score:
        columns = list(zip(answers.exact, answers.outputs, strict=True))
        if not columns:
            return lambda picks: 0.0  # noqa: ARG005
        floats = [k for k, values in enumerate(columns[0][0]) if np.asarray(values).dtype.kind == "f"]
        tables = [ErrorTable() for _ in floats]
        for exact, found in columns:
            for table, place in zip(tables, floats, strict=True):
                table.add(np.asarray(exact[place]), np.asarray(found[place]))
        runs = np.mean([table.error.parts for table in tables], axis=0) if tables else np.zeros(len(columns))
        parts = runs.reshape(len(answers), -1).mean(axis=1)

        def score(picks: Array | None = None) -> float:
            return decibels(SampledError(tuple(parts if picks is None else parts[picks])).value)

        return score


def _share(hits: float, count: float) -> float:
    return hits / count


def _classes(outputs: Sequence[Array]) -> Array:
    """Return the output that is a classification: the first with several values along its last axis."""
    found = next((o for o in outputs if o.ndim and o.shape[-1] > 1), None)
    if found is None:
        raise InvalidSample("no output of the model looks like class scores; give a metric of your own")
    return np.asarray(found).reshape(-1, found.shape[-1])


def _hits(answers: Answers, k: int, among: int) -> tuple[float, float]:
    found = _classes(answers.outputs[k])
    labels = np.asarray(answers.truth[k]).reshape(-1, 1)
    best = found.argmax(axis=-1)[:, None] if among == 1 else np.argsort(-found, axis=-1, kind="stable")[:, :among]
    return float((best == labels).any(axis=-1).sum()), float(len(found))


def _agreeing(answers: Answers, k: int) -> tuple[float, float]:
    found, exact = _classes(answers.outputs[k]), _classes(answers.exact[k])
    return float((found.argmax(axis=-1) == exact.argmax(axis=-1)).sum()), float(len(found))


def _require_labels(answers: Answers) -> None:
    if answers.truth is None:
        raise InvalidSample(f"top-1 and top-5 need labels, one for each sample ({argument('labels')})")
    if answers.runs != 1:
        raise InvalidSample(
            f"there are {len(answers.outputs)} samples and {len(answers)} labels; give one for each sample"
        )
    found, labels = _classes(answers.outputs[0]), np.asarray(answers.truth)
    if labels.dtype.kind not in "iu":
        raise InvalidSample(
            f"labels must be class numbers, not {labels.dtype}; for other ground truth give your own metric"
        )
    if labels.size != len(answers) * len(found):
        raise InvalidSample(f"labels of shape {list(labels.shape)} are not one for each of {len(answers)} samples")
    low, high, classes = int(labels.min()), int(labels.max()), found.shape[-1]
    if low < 0 or high >= classes:
        raise InvalidSample(f"labels go from {low} to {high}, and the model has {classes} classes, counted from 0")


def most_frequent(labels: Any) -> float:
    """Return the share of the most frequent class: the top-1 of guessing it every time."""
    counts = np.unique(np.asarray(labels), return_counts=True)[1]
    return float(counts.max() / counts.sum())


def _require_classes(answers: Answers) -> None:
    _classes(answers.outputs[0])


TOP1 = SummedMetric("top-1", lambda a, k: _hits(a, k, 1), _share, SHARE_POINT, _require_labels)
TOP5 = SummedMetric("top-5", lambda a, k: _hits(a, k, 5), _share, SHARE_POINT, _require_labels)
AGREEMENT = SummedMetric("agreement", _agreeing, _share, SHARE_POINT, _require_classes)
SNR = OutputErrorMetric()

BUILT_IN = {"top1": TOP1, "top5": TOP5, "agreement": AGREEMENT, "snr": SNR}


def function_source(function: Callable[..., Any]) -> object:
    """Return the file that defines a function, because its helpers may be there; otherwise its byte code."""
    code = getattr(function, "__code__", None)
    path = None if code is None else Path(code.co_filename)
    if path is not None and path.is_file():
        return path.read_bytes()
    return repr(function) if code is None else (code.co_code, code.co_consts, code.co_names)


@dataclass(frozen=True)
class FunctionMetric(Metric):
    """A user's function of the outputs of all runs, and of the ground truth if it takes that."""

    name: str
    function: Callable[..., Any]
    higher_is_better: bool = True
    draws: int = FUNCTION_DRAWS

    def source(self) -> object:
        return function_source(self.function)

    def scorer(self, answers: Answers) -> Score:
        def score(picks: Array | None = None) -> float:
            chosen = answers if picks is None else answers.picked(picks)
            given = (list(chosen.outputs),) if _parameters(self.function) == 1 else (list(chosen.outputs), chosen.truth)
            return called(self.name, self.function, *given)

        return score


@dataclass(frozen=True)
class ModelMetric(Metric):
    """A user's function of the path of a .tflite. It chooses its own samples."""

    name: str
    function: Callable[..., Any]
    higher_is_better: bool = True
    draws: int = 0
    splits: bool = False

    def source(self) -> object:
        return function_source(self.function)

    def scorer(self, answers: Answers) -> Score:
        def score(picks: Array | None = None) -> float:  # noqa: ARG001
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.tflite"
                path.write_bytes(answers.content)
                return called(self.name, self.function, str(path))

        return score

    def standard_error(self, before: Score, after: Score, count: int) -> float:  # noqa: ARG002
        return math.nan


def called(name: str, function: Callable[..., Any], *given: Any) -> float:
    """Return the result of the user's function; exceptions that it raises are reported as the user's own."""
    try:
        score = float(function(*given))
    except Exception as error:
        raise InvalidRecipe(f"your metric {name} raised {type(error).__name__}: {error}{_place(error)}") from error
    if not math.isfinite(score):
        raise InvalidRecipe(f"your metric {name} returned {score}; a score must be a finite number")
    return score


def _place(error: BaseException) -> str:
    """Return where an exception was raised, if that is in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""


def _parameters(function: Callable[..., Any]) -> int:
    """Return how many arguments a function requires."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 2
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in found)


def own_metric(name: str, function: Callable[..., Any], lower_is_better: bool = False) -> Metric:
    """Return the metric of a user's function: of `model`, of the outputs, or of the outputs and the ground truth."""
    count = _parameters(function)
    if count not in (1, 2):
        raise InvalidRecipe(f"the metric {name} takes {count} arguments; it is given (outputs, truth), or a model")
    kind = ModelMetric if count == 1 and "model" in inspect.signature(function).parameters else FunctionMetric
    return kind(name, function, not lower_is_better)


def chosen_metric(asked: Any, has_labels: bool, has_classes: bool, lower_is_better: bool = False) -> Metric:
    """Return the metric that a user names, gives as file.py:function or as a function; otherwise one that fits the
    data.

    `has_classes`: the model is known to be a classifier.
    """
    if isinstance(asked, Metric):
        return asked
    if callable(asked):
        return own_metric(getattr(asked, "__name__", "metric"), asked, lower_is_better)
    if isinstance(asked, str) and asked.rpartition(":")[0].endswith(".py"):
        script, _, name = asked.rpartition(":")
        return own_metric(name, function_in(Path(script), name, InvalidRecipe), lower_is_better)
    if lower_is_better:
        raise InvalidRecipe("lower_is_better applies only to a metric of your own")
    if asked is None:
        return TOP1 if has_labels else AGREEMENT if has_classes else SNR
    if str(asked).lower().replace("-", "") not in BUILT_IN:
        raise InvalidRecipe(f"unknown metric {asked!r}; choose {', '.join(BUILT_IN)}, or give file.py:function")
    return BUILT_IN[str(asked).lower().replace("-", "")]
