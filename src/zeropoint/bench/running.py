"""Models that show their inner tensors, run sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..affine import quantize
from ..dtypes import Array
from ..graph.edit import cut_model
from ..graph.model import Graph, Model, Tensor
from ..runtime import Session

Values = Mapping[Tensor, Array]
"""What tensors hold in one run, as stored."""


class Bench:
    """A loaded model whose inputs are filled, and outputs read, by tensors of the model it was made from."""

    def __init__(self, model: Model, fed: Sequence[Tensor], read: Sequence[Tensor]) -> None:
        self.fed, self.tensors = tuple(fed), tuple(read)
        self.session = Session(model)
        self.shapes = [tuple(d["shape"]) for d in self.session.inputs]

    def run(self, values: Values) -> dict[Tensor, Array]:
        """What comes out. States start at zero."""
        given = [values[t] for t in self.fed]
        shapes = [a.shape for a in given]
        if shapes != self.shapes:
            self.session.resize(shapes, strict=False)
            self.shapes = shapes
        self.session.reset()
        self.session.invoke(given)
        found = self.session.read([d["index"] for d in self.session.outputs])
        return dict(zip(self.tensors, found, strict=True))


def exposing(model: Model, graph: Graph, tensors: Sequence[Tensor]) -> Bench:
    """`model` with `tensors` as its outputs."""
    shown = list(dict.fromkeys(tensors))
    cut, needed = cut_model(model, graph, shown)
    return Bench(cut, [t for t in graph.inputs if t in needed], shown)


def encoded(real: Array, tensor: Tensor) -> Array:
    """Real numbers, or indices, as `tensor` stores them."""
    if tensor.params is not None:
        return quantize(real, tensor.params)
    assert tensor.dtype.storage is not None
    return real.astype(tensor.dtype.storage, copy=False)
