"""Devices and runtimes that models are made for: what they run, and what they refuse.

A target is a value. The planner asks it in one place: `plan/match.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .graph.model import Op
from .recipe import Scheme


@dataclass(frozen=True)
class Refusal:
    """Ops that a target does not run as a scheme asks; `why` is what users are told."""

    why: str
    applies: Callable[[Op, Scheme], bool]


@dataclass(frozen=True)
class Target:
    """A runtime or device by its name, and what it refuses beyond what LiteRT's kernels do."""

    name: str
    refusals: tuple[Refusal, ...] = ()

    def refusal(self, op: Op, scheme: Scheme) -> str | None:
        """Why the target does not run `op` like that; None if it does."""
        return next((r.why for r in self.refusals if r.applies(op, scheme)), None)


LITERT = Target("litert")
"""LiteRT itself: everything that the op table claims."""
