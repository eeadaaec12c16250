"""A layer whose weights are refined, and the model as far as it is refined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..affine import QuantParams
from ..dtypes import Array
from ..graph.edit import copy_model
from ..graph.model import Graph, Model, Op
from ..graph.query import Use, Uses
from ..ops import OpSpec, fused_activation
from ..ops.layout import Layout
from ..parallel import cached_property
from ..plan.plan import Plan
from ..plan.rewrite import Encoder, rewrite
from ..plan.weights import with_scales
from .clamped_fit import Affine
from .layer_inputs import ColumnBlocks

ROOM = 1.02
"""How much coarser than its bias needs a scale becomes: the bias changes a little when weights are rounded again."""


@dataclass(frozen=True)
class RefinedLayer:
    """An op with its own weights, their planned parameters, and its bias. Rows of weights in `dictated` keep the scales
    of these parameters: finer ones could not represent their biases."""

    op: Op
    layout: Layout
    form: QuantParams
    bias: Use | None
    dictated: frozenset[int] = frozenset()

    @property
    def weights(self) -> Use:
        return Use(self.op, self.layout.weights)

    @property
    def source(self) -> Use:
        return Use(self.op, self.layout.data)

    @cached_property
    def blocks(self) -> ColumnBlocks:
        return ColumnBlocks(self.layout.matrix(self.op, self.weights.data).shape[2])

    @property
    def clamp(self) -> tuple[float, float] | None:
        """The bounds of a fused activation that only clamps, if there is a bias, which the clamp depends on."""
        return None if self.bias is None or self.blocks.count > 1 else fused_activation(self.op).bounds

    @property
    def has_free_scale(self) -> Array:
        """Whether the scale of each row [groups, rows] may be chosen."""
        free = np.ones(self.exact.biases.size, bool)
        free[sorted(self.dictated)] = False
        return free.reshape(self.exact.biases.shape)

    @cached_property
    def exact(self) -> Affine:
        """The float weights and biases; biases of zero if there are none."""
        weights = self.layout.matrix(self.op, self.weights.data.astype(np.float64))
        biases = np.zeros(weights.shape[:2]) if self.bias is None else self.bias.data.reshape(weights.shape[:2])
        return Affine(weights, biases.astype(np.float64))

    def with_scales_of(self, given: QuantParams) -> RefinedLayer | None:
        """Return the layer with the coarser scales that some biases need, and a little more; None if they are not
        coarser."""
        own, needed = np.array(self.form.scales), np.array(given.scales)
        raised = needed > own if own.shape == needed.shape else np.zeros(own.shape, bool)
        if not raised.any() or np.any(needed < own):
            return None
        form = with_scales(self.form, np.where(raised, ROOM * needed, own))
        return replace(self, form=form, dictated=self.dictated.union(np.flatnonzero(raised).tolist()))

    @property
    def positions(self) -> int:
        """The number of vectors in each run."""
        return self.layout.macs(self.op) // max(1, self.weights.tensor.size)

    def vectors(self, values: Array, most: int) -> Array:
        """Return at most `most` input vectors that the weights are multiplied by, in blocks."""
        return self.blocks.split(self.layout.patches(self.op, values, most))


@dataclass(frozen=True)
class CarriedOut:
    """The model that a plan for the graph `source` gives, and what each op of that became in `graph`."""

    source: Graph
    model: Model
    graph: Graph
    twins: Mapping[Op, Op]

    @classmethod
    def of(cls, model: Model, plan: Plan, ops: Mapping[str, OpSpec]) -> CarriedOut:
        """Build the planned model; `model` is not changed."""
        copied = copy_model(model)
        graph = copied.graphs[plan.index]
        twins = dict(zip(plan.graph.ops, graph.ops, strict=True))
        rewrite(plan.with_float_ends().with_float_calls().on(graph), ops)
        return cls(plan.graph, copied, graph, twins)

    @cached_property
    def _uses(self) -> Uses:
        return Uses(self.graph)

    def exchange(self, plan: Plan, layer: RefinedLayer) -> bool:
        """Replace the layer's constants by those of `plan`; False if that requires more than other values."""
        places = []
        for use in (layer.weights, *([] if layer.bias is None else [layer.bias])):
            tensor, form = self.twins[use.op].inputs[use.slot], plan.form(use)
            is_plain = isinstance(form, QuantParams) and form.block is None and use not in plan.packed
            if tensor is None or form is None or not is_plain or len(self._uses.readers(tensor)) != 1:
                return False
            places.append((tensor, form, plan.constants.at(use), plan.key(use)))
        for place in places:
            Encoder().encode(*place)
        return True
