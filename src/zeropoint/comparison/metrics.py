"""Scores of models by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..dtypes import Array
from ..errors import InvalidRecipe
from ..sources.data import function_in

Outputs = Sequence[Sequence[Array]]
"""The outputs of each sample, as real numbers, in the model's order."""

Metric = Callable[[Outputs], float]
"""A user-defined score of a model; higher is better."""

NamedMetric = tuple[str, Metric]


def named(metric: Metric | None) -> NamedMetric | None:
    """Return a metric function with its display name."""
    return None if metric is None else (getattr(metric, "__name__", "metric"), metric)


def load_metric(spec: str) -> NamedMetric:
    """Load the function that `file.py:function` names: it takes the outputs of all samples and returns a number."""
    script, colon, function = spec.rpartition(":")
    if not colon or not script.endswith(".py") or not Path(script).is_file():
        raise InvalidRecipe(f"--metric {spec}: give file.py:function, a function of the outputs of all samples")
    return function, function_in(Path(script), function, InvalidRecipe)


def apply_metric(metric: NamedMetric, outputs: Outputs) -> float:
    """Return the score of the user's function; exceptions that it raises are reported as the user's own."""
    try:
        return float(metric[1](outputs))
    except Exception as error:
        raise InvalidRecipe(f"your metric raised {type(error).__name__}: {error}") from error
