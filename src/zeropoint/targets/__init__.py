"""Devices and runtimes that models are made for: what they run, and what they refuse."""

from .target import LITERT, Refusal, Target

__all__ = ["LITERT", "Refusal", "Target"]
