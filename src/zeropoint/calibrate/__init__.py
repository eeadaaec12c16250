"""The ranges of a model's tensors on representative data: statistics, their collection, the choice of a range."""

from .collect import Settings, calibrate
from .stats import Stats, TensorStats

__all__ = ["Settings", "Stats", "TensorStats", "calibrate"]
