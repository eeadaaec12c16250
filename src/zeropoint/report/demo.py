"""`zeropoint demo`: the embedded digits model, from the package's own data."""

from __future__ import annotations

from importlib.resources import files

from rich.console import Console

from ..tflite import load
from .inspection import inspect
from .terminal import Detail, print_inspection


def digits_model() -> bytes:
    """The example network: float, 8x8 handwritten digits in, ten scores out."""
    return files("zeropoint").joinpath("data/digits.tflite").read_bytes()


def run_demo(console: Console) -> None:
    content = digits_model()
    print_inspection(inspect(load(content), len(content)), "digits.tflite", Detail(), console)
