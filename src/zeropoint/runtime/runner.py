"""Running one graph over and over, whatever shapes and states it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..dtypes import Array, DType
from ..graph.edit import copy_model, cut_model
from ..graph.model import Graph, Model, Tensor
from ..tflite.write import to_bytes
from .session import Kernels, Session


def loadable(model: Model) -> bytes:
    """The model as a file. LiteRT's Python API fails on output names that are not valid text, so those are replaced."""
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
    """The first graph of a model, loaded once and run sample by sample. Used by one thread at a time.

    A sample is a row of arrays, one for each input; results are read by tensor of `model`. Inputs may have another
    shape in each run; with `strict`, only in dimensions that the model leaves open.
    """

    def __init__(
        self,
        model: Model,
        content: bytes | None = None,
        *,
        kernels: Kernels = "delegate",
        threads: int = 1,
        strict: bool = True,
    ) -> None:
        """`content`: the model as a file, where that exists already."""
        self.model, self.outputs = model, tuple(model.main.outputs)
        self._content = content or loadable(model)
        self._kernels, self._threads, self._strict = kernels, threads, strict
        self._slots: tuple[int, ...] | None = None
        tensors = [t for g in model.graphs for t in g.tensors]
        self._has_variables = any(t.is_variable for t in tensors)
        self._has_resources = any(t.dtype is DType.RESOURCE for t in tensors)
        self.reload()

    @classmethod
    def exposing(
        cls,
        model: Model,
        graph: Graph,
        tensors: Sequence[Tensor],
        *,
        kernels: Kernels = "delegate",
        strict: bool = True,
    ) -> Runner:
        """A runner that computes `tensors` of `graph` and nothing else. Rows still hold all of the graph's inputs."""
        cut, needed = cut_model(model, graph, list(dict.fromkeys(tensors)))
        runner = cls(cut, kernels=kernels, strict=strict)
        runner._slots = tuple(k for k, t in enumerate(graph.inputs) if t in needed)
        return runner

    def another(self) -> Runner:
        """The same model loaded once more, for another thread."""
        runner = Runner(self.model, self._content, kernels=self._kernels, threads=self._threads, strict=self._strict)
        runner._slots = self._slots
        return runner

    def reload(self) -> None:
        """Load the file again: the state that a failed run leaves behind is unknown."""
        self.session = Session(self._content, kernels=self._kernels, threads=self._threads, checked=True)
        self._shapes = [tuple(d["shape"]) for d in self.session.inputs]
        self._index = {t: d["index"] for t, d in zip(self.outputs, self.session.outputs, strict=True)}
        self._is_used = False

    def restart(self) -> None:
        """Reset the state that earlier runs left behind."""
        if self._has_resources and self._is_used:
            self.reload()  # LiteRT resets variable tensors, but not what VAR_HANDLE refers to (ai-edge-litert 2.3)
        elif self._has_variables:
            self.session.reset()

    def invoke(self, row: Sequence[Array], *, strict: bool | None = None) -> None:
        """Run the graph from its present state; `views` and `read` then give the outputs."""
        given = row if self._slots is None else [row[k] for k in self._slots]
        shapes = [a.shape for a in given]
        if shapes != self._shapes:
            self.session.resize(shapes, strict=self._strict if strict is None else strict)
            self._shapes = shapes
        self._is_used = True
        self.session.invoke(given)

    def run(self, row: Sequence[Array]) -> list[Array]:
        """All outputs of a run from the initial state, as copies."""
        self.restart()
        self.invoke(row)
        return self.read(self.outputs)

    def values(self, row: Sequence[Array]) -> dict[Tensor, Array]:
        """The same by tensor."""
        return dict(zip(self.outputs, self.run(row), strict=True))

    def read(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Outputs of the last run, as copies."""
        return self.session.read([self._index[t] for t in tensors])

    def views(self, tensors: Sequence[Tensor]) -> Iterator[Array]:
        """Outputs of the last run in the runtime's own memory: release them before the next run."""
        return self.session.views([self._index[t] for t in tensors])
