"""The ranges of a model's tensors on representative data: statistics, their collection, the choice of a range.

To users `zeropoint.calibrate` is a function as well: calling this package calls `calibrate` below.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..sources.models import ModelSource, load
from ..sources.samples import Samples
from .collect import Progress
from .collect import calibrate as _collect
from .expected import Grid
from .origin import Range, Ranges, ranges_from_json
from .ranges import METHODS, Method, choose_range, choose_ranges
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


class _Package(ModuleType):
    """A package that can be called: importing a submodule binds the package's name, and users know a function by it."""

    def __call__(self, *args: Any, **options: Any) -> Stats:
        return calibrate(*args, **options)


sys.modules[__name__].__class__ = _Package
