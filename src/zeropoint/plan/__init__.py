"""Decides how every tensor is stored: prepare, match, solve, derive, rewrite.

A plan is a value. `result.save_plan(path)` writes it, `load_plan(path, result.prepared)` reads it again, and `build`
makes the same model from it.
"""

from .plan import Plan, Planned
from .rewrite import build
from .saved import load_plan, save_plan

__all__ = ["Plan", "Planned", "build", "load_plan", "save_plan"]
