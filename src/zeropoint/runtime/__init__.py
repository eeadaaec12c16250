"""The only place that runs LiteRT."""

from .child import isolated, time_limit, trusting
from .interpreter import Kernels, interpreter_class
from .runner import Runner, Session, require_runnable, zeros_like_inputs

__all__ = [
    "Kernels",
    "Runner",
    "Session",
    "interpreter_class",
    "isolated",
    "require_runnable",
    "time_limit",
    "trusting",
    "zeros_like_inputs",
]
