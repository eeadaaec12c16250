"""Calibration: statistics of a model's tensors on representative data, their collection, and the choice of ranges."""

from .collect import Progress as Progress
from .collect import calibrate as calibrate
from .given_ranges import Range as Range
from .given_ranges import Ranges as Ranges
from .given_ranges import default_range as default_range
from .given_ranges import ranges_from as ranges_from
from .given_ranges import ranges_from_input_stats as ranges_from_input_stats
from .given_ranges import ranges_from_json as ranges_from_json
from .range_methods import METHODS as METHODS
from .range_methods import Grid as Grid
from .range_methods import Method as Method
from .range_methods import choose_range as choose_range
from .range_methods import choose_ranges as choose_ranges
from .stats import Stats as Stats
from .stats import TensorStats as TensorStats
from .task import Settings as Settings
