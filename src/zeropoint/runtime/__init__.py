"""The only place that runs LiteRT."""

from .session import Kernels, Session, interpreter_class, require_runnable, zeros_like_inputs

__all__ = ["Kernels", "Session", "interpreter_class", "require_runnable", "zeros_like_inputs"]
