"""Running one graph over and over, whatever shapes and states it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..dtypes import Array, DType
from ..graph.edit import copy_model
from ..graph.model import Model, Tensor
from ..tflite.write import to_bytes
from .session import Session


def loadable(model: Model) -> bytes:
    """The model as a file. LiteRT's Python stumbles over outputs whose names are no text, so these get others."""
    if any(not _is_text(t.name) for t in model.main.outputs):
        model = copy_model(model)
        for tensor in model.main.outputs:
            tensor.name = ascii(tensor.name)
    return to_bytes(model)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Runner:
    """The first graph of a model, loaded once. Used by one thread at a time; outputs are asked for by tensor."""

    def __init__(self, model: Model, content: bytes | None = None) -> None:
        """`content`: the model as a file, where that exists already."""
        self._content = content or loadable(model)
        self._outputs = model.main.outputs
        tensors = [t for g in model.graphs for t in g.tensors]
        self._has_variables = any(t.is_variable for t in tensors)
        self._has_resources = any(t.dtype is DType.RESOURCE for t in tensors)
        self.reload()

    def reload(self) -> None:
        """Start from the file again: nobody knows what a run that failed left behind."""
        self._session = Session(self._content, checked=True)
        self._shapes = [tuple(d["shape"]) for d in self._session.inputs]
        self._index = {t: d["index"] for t, d in zip(self._outputs, self._session.outputs, strict=True)}
        self._is_used = False

    def restart(self) -> None:
        """Forget what earlier runs left behind."""
        if self._has_resources and self._is_used:
            self.reload()  # LiteRT resets variable tensors, but not what VAR_HANDLE refers to (ai-edge-litert 2.3)
        elif self._has_variables:
            self._session.reset()

    def invoke(self, row: Sequence[Array], *, strict: bool = True) -> None:
        """Run the graph; without `strict` on inputs of any shape, whatever the model says."""
        shapes = [a.shape for a in row]
        if shapes != self._shapes:
            self._session.resize(shapes, strict=strict)
            self._shapes = shapes
        self._is_used = True
        self._session.invoke(row)

    def run(self, row: Sequence[Array]) -> list[Array]:
        """All outputs of a run that starts anew, as copies."""
        self.restart()
        self.invoke(row)
        return self.read(self._outputs)

    def read(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Outputs of the last run, as copies."""
        return self._session.read([self._index[t] for t in tensors])

    def views(self, tensors: Sequence[Tensor]) -> Iterator[Array]:
        """Outputs of the last run in the runtime's own memory, to be let go before the next."""
        return self._session.views([self._index[t] for t in tensors])
