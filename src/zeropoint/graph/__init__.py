"""The graph: objects that point at each other, with queries, edits, invariants and a text form."""

from .check import check, problems
from .model import BlockScales, Buffer, Graph, Model, Op, Quantization, Signature, Tensor
from .query import Uses

__all__ = ["BlockScales", "Buffer", "Graph", "Model", "Op", "Quantization", "Signature", "Tensor"]
__all__ += ["Uses", "check", "problems"]
