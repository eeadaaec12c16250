"""What is asked of a tool, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .zoo import Place, Task


@dataclass(frozen=True)
class Order:
    """A model to make: by which tool and variant, of which task, in which mode, from how many samples."""

    place: Place
    mode: str
    tool: str
    variant: str | None
    samples: int
    python: str | None = None
    """Of the tool's own environment, where it needs one."""


@dataclass(frozen=True)
class Made:
    """What an order took. Seconds are those of processors, without imports and without loading samples."""

    whole: float
    calibration: float | None
    peak: int
    """Bytes added to the peak memory of the process."""
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    content: bytes
    calibration: float | None = None
    note: str = ""


Job = Callable[[], Outcome]
Prepare = Callable[[Order, Task, list[Any]], Job]
"""Imports what is needed and returns the job, so that imports are not measured."""
