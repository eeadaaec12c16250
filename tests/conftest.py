"""Settings for the whole suite."""

from __future__ import annotations

from importlib.resources import files

import pytest
from hypothesis import HealthCheck, settings

# Derandomized: a failure on one machine is a failure on every machine. No deadline: tests do not assert times.
settings.register_profile(
    "zeropoint", derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zeropoint")


@pytest.fixture(scope="session")
def digits() -> bytes:
    """The model that comes with the package: written by TensorFlow's converter, not by us."""
    return files("zeropoint").joinpath("data/digits.tflite").read_bytes()
