"""A model's entry points: which inputs a caller provides, under which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dtypes import Array, DType
from ..errors import InvalidSample
from ..graph.model import Graph, Model, Tensor
from ..graph.query import unique_names

Row = tuple[Array, ...]
"""One run's inputs, in the graph's order, ready for LiteRT."""


@dataclass(frozen=True)
class Port:
    """One input: the tensor, and the names that a caller may use for it, preferred one first."""

    tensor: Tensor
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with -1 for dynamic dimensions."""
        return self.tensor.shape_signature or self.tensor.shape

    @property
    def batch(self) -> int:
        """The number of rows of data that one run takes; one if the batch size is dynamic."""
        return max(1, self.shape[0]) if self.shape else 1

    def __str__(self) -> str:
        dims = ",".join("?" if d < 0 else str(d) for d in self.shape)
        return f"'{self.name}' ({self.dtype.label}[{dims}])"


@dataclass(frozen=True)
class Entry:
    """A graph that can be run from outside: by a signature's key, or the first graph if there are no signatures."""

    key: str | None
    graph: Graph
    ports: tuple[Port, ...]
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # under the signature's names

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names by which callers know the outputs, in graph order."""
        unique, aliases = unique_names(self.graph), {tensor: name for name, tensor in self.outputs.items()}
        return tuple(aliases.get(tensor, unique[tensor]) for tensor in self.graph.outputs)


def entries(model: Model) -> list[Entry]:
    """Return an entry for every signature; without signatures, the first graph."""
    found = [Entry(s.key, s.graph, _ports(s.graph, s.inputs), s.outputs) for s in model.signatures]
    return found or [Entry(None, model.main, _ports(model.main, {}))]


def entry(model: Model, key: str | None = None) -> Entry:
    """Return the entry called `key`, or the only one."""
    choices = entries(model)
    keys = ", ".join(repr(e.key) for e in choices if e.key is not None) or "none at all"
    if key is None and len({e.graph for e in choices}) > 1:
        raise InvalidSample(f"the model has several signatures ({keys}); give samples as {{signature: samples}}")
    for choice in choices:
        if key in (None, choice.key):
            return choice
    raise InvalidSample(f"the model has no signature {key!r}; it has {keys}")


def entry_graphs(model: Model) -> list[Graph]:
    """Return the graphs that can be run from outside, each once."""
    return list(dict.fromkeys(e.graph for e in entries(model)))


def _ports(graph: Graph, named: dict[str, Tensor]) -> tuple[Port, ...]:
    aliases = {tensor: name for name, tensor in named.items()}
    names = [t.name for t in graph.tensors]
    is_plain = all(t.name and names.count(t.name) == 1 for t in graph.inputs)  # naming all tensors takes longer
    unique = {t: t.name for t in graph.inputs} if is_plain else unique_names(graph)
    choices = ((t, (aliases.get(t), unique[t], t.name)) for t in graph.inputs)
    return tuple(Port(t, tuple(dict.fromkeys(n for n in names if n))) for t, names in choices)
