"""The only place that runs models: in LiteRT, and in TensorFlow Lite Micro."""

from .child import isolated, time_limit, trusting, within
from .interpreter import Kernels, interpreter_class
from .runner import Runner, Runtime, Session, require_runnable, run_on_zeros

__all__ = [
    "Kernels",
    "Runner",
    "Runtime",
    "Session",
    "interpreter_class",
    "isolated",
    "require_runnable",
    "run_on_zeros",
    "time_limit",
    "trusting",
    "within",
]
