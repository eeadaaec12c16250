"""The only place that runs models: in LiteRT, and in TensorFlow Lite Micro."""

from .child import isolated, time_limit, trusting
from .interpreter import Kernels, interpreter_class
from .runner import Runner, Runtime, Session, require_runnable, zeros_like_inputs

__all__ = [
    "Kernels",
    "Runner",
    "Runtime",
    "Session",
    "interpreter_class",
    "isolated",
    "require_runnable",
    "time_limit",
    "trusting",
    "zeros_like_inputs",
]
