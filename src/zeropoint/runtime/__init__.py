"""The only place that runs LiteRT."""

from .runner import Kernels, Runner, Session, interpreter_class, require_runnable, zeros_like_inputs

__all__ = ["Kernels", "Runner", "Session", "interpreter_class", "require_runnable", "zeros_like_inputs"]
