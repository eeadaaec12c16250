"""Ops that replace others in a float graph, and the ranges of the tensors between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..calibration import Range
from ..calibration.range_methods import Bounds
from ..dtypes import Array, DType
from ..graph.edit import unused_name
from ..graph.model import Graph, Op, Record, Tensor


@dataclass
class NewOps:
    """Adds ops to a graph. `made` are the ranges of new tensors, or other tensors with the same range; `constants` are
    new constants with the values of others, in another order or combined."""

    graph: Graph
    made: dict[Tensor, Range | Tensor] = field(default_factory=dict)
    constants: dict[Tensor, Tensor] = field(default_factory=dict)

    def tensor(self, beside: Tensor, what: str, shape: tuple[int, ...], spans: Bounds | Tensor) -> Tensor:
        """Return a new float tensor with a unique name."""
        tensor = Tensor(unused_name(self.graph, f"{beside.name}/{what}"), shape, DType.FLOAT32)
        self.graph.tensors.append(tensor)
        self.made[tensor] = spans if isinstance(spans, Tensor) else Range(*spans)
        return tensor

    def like(self, beside: Tensor, what: str, spans: Bounds | Tensor) -> Tensor:
        """Return a new float tensor in the shape of another tensor, including dynamic dimensions."""
        tensor = self.tensor(beside, what, beside.shape, spans)
        tensor.shape_signature = beside.shape_signature
        return tensor

    def integers(self, name: str, values: object) -> Tensor:
        """Return a constant that holds a shape, axes or indices."""
        return self._listed(name, np.asarray(values, np.int32), DType.INT32)

    def constant(self, name: str, values: object) -> Tensor:
        return self._listed(name, np.asarray(values, np.float32), DType.FLOAT32)

    def constant_from(self, origin: Tensor | None, name: str, values: object) -> Tensor:
        """Return a constant with values that `origin` had, if there is one."""
        made = self.constant(name, values)
        if origin is not None:
            self.constants[made] = origin
        return made

    def _listed(self, name: str, data: Array, dtype: DType) -> Tensor:
        tensor = Tensor.constant(unused_name(self.graph, name), data, dtype)
        self.graph.tensors.append(tensor)
        return tensor

    def insert(self, before: Op, kind: str, inputs: list[Tensor], made: Tensor, options: Record | None = None) -> None:
        self.graph.ops.insert(self.graph.ops.index(before), Op(kind, [*inputs], [made], options))
