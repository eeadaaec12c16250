"""Changes scales in a model that is already quantized, along with everything that depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .affine import QuantParams, dequantize, quantize
from .calibration import Range, Ranges
from .dtypes import Array, DType
from .errors import InvalidModel, InvalidStats, shown_name
from .graph.edit import copy_model, retype, set_constant
from .graph.model import Graph, Model, Tensor
from .graph.query import Uses, tensor_keys
from .ops import OPS, Bias, OpSpec, Weight, spec_of
from .plan.derive import biases
from .plan.tensor_ranges import given_weights
from .sources.models import ModelSource, load


@dataclass(frozen=True)
class RescaledTensor:
    """A tensor with its parameters before and after, and why they changed."""

    name: str
    before: QuantParams
    after: QuantParams
    why: str

    def __str__(self) -> str:
        return f"{shown_name(self.name)}: {self.before} -> {self.after} ({self.why})"


@dataclass(frozen=True)
class Rescaled:
    """The rescaled model, and all tensors that changed, in file order."""

    model: Model
    changes: tuple[RescaledTensor, ...]


def rescale(model: ModelSource, ranges: Ranges, *, ops: Mapping[str, OpSpec] = OPS) -> Rescaled:
    """Change the ranges of tensors in a model that is already quantized.

    Weights and other constants are dequantized and quantized again. Tensors that share their scale through an op change
    together, and biases follow their data and weights.

    Args:
        model: The quantized model; it is not modified.
        ranges: The new ranges, by tensor name.
        ops: The op table, if not the package's own.

    Returns:
        The rescaled model, and every tensor that changed, with the reason.
    """
    copy = copy_model(load(model))
    given, keys = ranges.resolved(copy, ops).entries, tensor_keys(copy)
    before = {t: t.params for graph in copy.graphs for t in graph.tensors}
    reasons: dict[Tensor, str] = {}
    for graph in copy.graphs:
        work = _Rescaling(graph, Uses(graph), ops, reasons)
        for tensor in graph.tensors:
            if keys[tensor] in given:
                work.change(tensor, given[keys[tensor]])
        work.follow_with_biases()
    changes = (
        RescaledTensor(keys[t], old, t.params, reasons[t])
        for t, old in before.items()
        if old is not None and t.params is not None and old != t.params
    )
    return Rescaled(copy, tuple(changes))


@dataclass(frozen=True)
class _Rescaling:
    """Rescales one graph in place."""

    graph: Graph
    uses: Uses
    ops: Mapping[str, OpSpec]
    reasons: dict[Tensor, str]

    def change(self, tensor: Tensor, asked: Range) -> None:
        held = tensor.params
        if held is None:
            raise InvalidStats(f"'{tensor.name}' is {tensor.dtype.label} and has no scale to change")
        weight = next((u for u in self.uses.readers(tensor) if isinstance(self._role(u.op.kind, u.slot), Weight)), None)
        if any(isinstance(self._role(u.op.kind, u.slot), Bias) for u in self.uses.readers(tensor)):
            raise InvalidStats(f"'{tensor.name}' is a bias: its scale follows from its data and weights")
        if weight is not None and held.is_symmetric:
            self._set(tensor, given_weights(tensor, asked, held.axis, held.levels), "given", asked)
            return
        if len(held.scales) > 1:
            raise InvalidStats(f"'{tensor.name}' has {len(held.scales)} scales; only weights can be given several")
        symmetric = held.dtype is DType.INT16
        params = asked.params or QuantParams.from_range(asked.low, asked.high, held.dtype, symmetric, name=tensor.name)
        if params.dtype is not held.dtype:
            raise InvalidStats(
                f"'{tensor.name}' is {held.dtype.label}, and is given parameters of {params.dtype.label}"
            )
        for tied in self._tied(tensor, held):
            self._require_free(tied, params)
            self._set(tied, params, "given" if tied is tensor else f"tied to '{tensor.name}'")

    def _role(self, kind: str, slot: int) -> object:
        spec = self.ops.get(kind)
        return None if spec is None else spec.input_role(slot)

    def _tied(self, tensor: Tensor, held: QuantParams) -> Iterator[Tensor]:
        """Yield the tensors that share their scale with this one through ops that require equal scales."""
        found, queue = {tensor}, [tensor]
        while queue:
            current = queue.pop()
            yield current
            producer = self.uses.producer(current)
            for op in [use.op for use in self.uses.readers(current)] + ([] if producer is None else [producer]):
                spec = spec_of(op, self.ops)
                if not spec.tied:
                    continue
                for other in (*spec.read_activations(op), *spec.made_activations(op)):
                    if other not in found and other.params == held:
                        found.add(other)
                        queue.append(other)

    def _require_free(self, tensor: Tensor, params: QuantParams) -> None:
        producer = self.uses.producer(tensor)
        fixed = None if producer is None else spec_of(producer, self.ops).fixed.get(params.dtype)
        if producer is not None and fixed is not None and fixed.params(params.dtype) != params:
            raise InvalidStats(
                f"'{tensor.name}' is the output of {producer.label}, whose kernel has "
                f"{fixed.params(params.dtype)} built in; omit it"
            )

    def _set(self, tensor: Tensor, params: QuantParams, why: str, clip: Range | None = None) -> None:
        held, data = tensor.params, tensor.data
        assert held is not None
        self.reasons[tensor] = why
        if data is None:
            retype(tensor, params.dtype, params)
            return
        real = dequantize(data, held)
        if clip is not None and not clip.channels:
            real = np.clip(real, clip.low, clip.high)
        set_constant(tensor, quantize(real, params, narrow=params.is_symmetric), params.dtype, params)

    def follow_with_biases(self) -> None:
        """Rescale biases whose data or weights have a new scale."""
        for op in self.graph.ops:
            for use, data, weights in biases(op, self.ops[op.kind]) if op.kind in self.ops else ():
                tensor, beside = use.tensor, [op.inputs[data.slot], op.inputs[weights.slot]]
                if tensor.params is None or tensor.data is None or not any(t in self.reasons for t in beside):
                    continue
                first, second = (None if t is None else t.params for t in beside)
                if first is None or second is None:
                    raise InvalidModel(f"'{tensor.name}' is a bias, but its data or weights have no scale")
                self._set_bias(tensor, (np.array(first.scales) * np.array(second.scales)).astype(np.float32))

    def _set_bias(self, tensor: Tensor, scales: Array) -> None:
        assert tensor.params is not None
        assert tensor.data is not None
        granularity = tensor.params.granularity
        params = QuantParams((*scales.tolist(),), (0,) * scales.size, tensor.dtype, granularity)
        real = dequantize(tensor.data, tensor.params).astype(np.float64)
        if np.abs(real / scales).max(initial=0.0) > tensor.dtype.max:
            raise InvalidStats(f"the bias '{tensor.name}' would not fit {tensor.dtype.label}; give a wider range")
        self._set(tensor, params, "follows from data and weights")
