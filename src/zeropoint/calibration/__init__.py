"""The ranges of a model's tensors on representative data: statistics, their collection, the choice of a range."""

from __future__ import annotations

from .collect import Progress, calibrate
from .expected_error import Grid
from .given_ranges import Range, Ranges, ranges_from_json
from .range_methods import METHODS, Method, choose_range, choose_ranges
from .settings import Settings
from .stats import Stats, TensorStats

__all__ = [
    "METHODS",
    "Grid",
    "Method",
    "Progress",
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
