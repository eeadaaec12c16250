"""The ranges of a model's tensors on representative data: statistics, their collection, the choice of a range."""

from __future__ import annotations

from collections.abc import Mapping

from ..sources.models import ModelSource, load
from ..sources.samples import Samples
from .collect import Progress
from .collect import calibrate as _collect
from .expected_error import Grid
from .given_ranges import Range, Ranges, ranges_from_json
from .range_methods import METHODS, Method, choose_range, choose_ranges
from .settings import Settings
from .stats import Stats, TensorStats

__all__ = [
    "METHODS",
    "Grid",
    "Method",
    "Range",
    "Ranges",
    "Settings",
    "Stats",
    "TensorStats",
    "calibrate",
    "choose_range",
    "choose_ranges",
    "ranges_from_json",
]


def calibrate(
    model: ModelSource,
    samples: Samples | Mapping[str, Samples],
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
) -> Stats:
    """The statistics of every float tensor of `model` on `samples`.

    `samples`: an iterable (list, generator, data loader), or a function that returns one, of samples; each an array,
    a tuple in input order, or a dict by input name. For a model with several signatures: `{signature: samples}`.
    `progress` is called with the number of runs done so far.
    """
    return _collect(load(model), samples, settings, progress)
