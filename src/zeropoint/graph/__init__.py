"""The graph: objects that point at each other, questions, edits, invariants, and a text form."""

from .check import check, problems
from .model import BlockScales, Buffer, Graph, Model, Op, Quantization, Record, Signature, Tensor
from .query import Use, Uses

__all__ = [
    "BlockScales",
    "Buffer",
    "Graph",
    "Model",
    "Op",
    "Quantization",
    "Record",
    "Signature",
    "Tensor",
    "Use",
    "Uses",
    "check",
    "problems",
]
