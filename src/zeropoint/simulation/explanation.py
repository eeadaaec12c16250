"""Explains how one number was computed: the elements that were read, and the steps of the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..affine import QuantParams, dequantize
from ..bench.alignment import align_models
from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Tensor
from ..graph.query import Uses
from ..json_values import json_values
from ..ops import CONVERSIONS, Activation
from ..ops.execution import execution_of
from ..ops.layout import pooling_windows, sliding
from ..parallel import cached_property
from ..runtime import Runner
from .call import Computed, KernelCall
from .control import is_followed
from .dynamic_range import RoundedRows, rounded_rows
from .movement import MOVING

if TYPE_CHECKING:
    from .trace import Trace

NOWHERE = 1 << 40
"""Offset of positions, so that they differ from the constants that an op inserts between them."""


@dataclass(frozen=True)
class Element:
    """An element that was read: its tensor, index, and value without the zero point. For float data that a layer
    quantizes itself, the value is the resulting integer."""

    tensor: str
    index: tuple[int, ...]
    integer: int | float
    centered: int | float


@dataclass(frozen=True)
class Product:
    """One term of an accumulator. An element in the padding is None and counts as zero."""

    data: Element | None
    weight: Element
    value: int


@dataclass(frozen=True)
class StepValue:
    """An intermediate result, as the kernel computes it."""

    name: str
    value: int | float


@dataclass(frozen=True)
class Explanation:
    """How one element of a tensor was computed. `real` is its dequantized value, `float_model` the float model's value
    there.

    `products` are the terms of a layer's accumulator, `elements` what other ops read for it, if known; `steps` are the
    intermediate results in the order in which kernels compute them.
    """

    tensor: str
    index: tuple[int, ...]
    dtype: str
    op: str
    kernels: str
    value: int | float
    scale: float | None
    zero_point: int | None
    real: float
    float_model: float | None
    elements: tuple[Element, ...]
    products: tuple[Product, ...]
    steps: tuple[StepValue, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values; docs/integers.md describes them."""
        values: dict[str, Any] = json_values(self)
        return values

    def step(self, name: str) -> int | float:
        """Return an intermediate result by name."""
        for step in self.steps:
            if step.name == name:
                return step.value
        raise KeyError(name)


def explain(trace: Trace, name: str, index: tuple[int, ...]) -> Explanation:
    tensor = trace.tensor(name)
    shape = trace.value(tensor).shape
    if len(index) != len(shape) or not all(0 <= k < n for k, n in zip(index, shape, strict=True)):
        raise InvalidModel(f"'{name}' has the shape {list(shape)}; {list(index)} is not an index into it")
    (found,) = explain_tensor(trace, tensor, [index], float_values(trace, [tensor]).get(tensor))
    return replace(found, tensor=name)


def explain_tensor(
    trace: Trace, tensor: Tensor, places: Sequence[tuple[int, ...]], in_float: Array | None = None
) -> list[Explanation]:
    """Explain several elements of one tensor, computing its op once. `in_float` holds the float model's values."""
    op = Uses(trace.entry.graph).producer(tensor)
    found = [_summary(trace, tensor, "" if op is None else op.label, index, in_float) for index in places]
    if op is None:
        note = "a constant" if tensor.is_constant else "an input of the model"
    elif op in trace.elsewhere:
        note = "computed by LiteRT: this op has no integer arithmetic to show"
    elif is_followed(op, trace.ops):
        note = "computed by the graphs that this op calls, or read from a variable"
    else:
        source = _Source(trace.call(op), trace.names, op.outputs.index(tensor))
        return [replace(explanation, **source.parts(explanation.index)) for explanation in found]
    return [replace(explanation, note=note) for explanation in found]


def _summary(trace: Trace, tensor: Tensor, label: str, index: tuple[int, ...], in_float: Array | None) -> Explanation:
    """Return the explanation of an element without how it was computed."""
    values, params = trace.value(tensor), tensor.params
    value = values[index].item()
    own = None if params is None else _at(params, index)
    return Explanation(
        trace.names[tensor],
        index,
        tensor.dtype.label,
        label,
        trace.kernels,
        value,
        None if own is None else own.scale,
        None if own is None else own.zero_point,
        float(value) if own is None else float(dequantize(np.asarray([values[index]]), own)[0]),
        None if in_float is None else float(in_float[index]),
        (),
        (),
        (),
    )


def _at(params: QuantParams, index: tuple[int, ...]) -> QuantParams:
    """Return the parameters of one element."""
    if params.axis is None:
        return params
    channel = index[params.axis]
    return QuantParams((params.scales[channel],), (params.zero_points[channel],), params.dtype)


class _Source:
    """An op whose output is explained; caches what all of its elements share."""

    def __init__(self, call: KernelCall, names: dict[Tensor, str], slot: int) -> None:
        self.call, self.names, self.slot = call, names, slot
        spec = call.spec
        self.has_products = spec is not None and spec.layout is not None and call.op.kind != "BATCH_MATMUL"

    @cached_property
    def made(self) -> Computed:
        from .trace import compute

        return compute(self.call)

    @cached_property
    def windows(self) -> tuple[Array, Array, RoundedRows | None]:
        """The positions of the data [groups, positions, k] and of the weights [groups, outputs, k] that a layer
        reads, and the quantized rows if the layer quantizes its data itself."""
        op, layout = self.call.op, self.call.layout
        data, weights = _places(self.call.value(layout.data)), _places(self.call.value(layout.weights))
        patches = layout.patches(op, data, data.size + op.outputs[0].size)
        rounded = rounded_rows(self.call) if execution_of(op, self.call.ops) == "hybrid" else None
        return patches, layout.matrix(op, weights), rounded

    def parts(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the elements that were read, and the steps, which are known for an op's first output."""
        parts: dict[str, Any] = {"elements": tuple(_elements(self.call, self.names, self.slot, index))}
        if self.has_products:
            parts["products"] = tuple(self._products(index))
        if self.slot == 0:
            shape = self.call.op.outputs[0].shape
            steps = ((step.name, np.broadcast_to(step.values, shape)) for step in self.made.steps)
            parts["steps"] = tuple(StepValue(name, values[index].item()) for name, values in steps)
            parts["note"] = self.made.note
        return parts

    def _products(self, index: tuple[int, ...]) -> Iterator[Product]:
        call, layout = self.call, self.call.layout
        patches, matrix, rounded = self.windows
        position, channel = _position(call, index)
        group, row = divmod(channel, matrix.shape[1])
        for place, weight_place in zip(patches[group, position].tolist(), matrix[group, row].tolist(), strict=True):
            weight = _element(call, self.names, layout.weights, weight_place - NOWHERE)
            element = _element(call, self.names, layout.data, place - NOWHERE) if place else None
            if element is not None and rounded is not None:
                integers = (int(values.flat[place - NOWHERE]) for values in (rounded.integers, rounded.centered))
                element = Element(element.tensor, element.index, *integers)
            yield Product(element, weight, 0 if element is None else int(element.centered * weight.centered))


def _element(call: KernelCall, names: dict[Tensor, str], slot: int, place: int) -> Element:
    tensor, values = call.tensor(slot), call.value(slot)
    index = tuple(int(k) for k in np.unravel_index(place, values.shape))
    integer = values[index].item()
    own = None if tensor.params is None else _at(tensor.params, index)
    return Element(names[tensor], index, integer, integer if own is None else integer - own.zero_point)


def _places(values: Array) -> Array:
    return np.asarray(np.arange(values.size).reshape(values.shape) + NOWHERE)


def _elements(call: KernelCall, names: dict[Tensor, str], slot: int, index: tuple[int, ...]) -> Iterator[Element]:
    """Yield the elements read by ops that move values, work element-wise, or work on windows."""
    spec, shape = call.spec, call.op.outputs[slot].shape
    is_pointwise = call.op.kind in CONVERSIONS or (spec is not None and spec.is_pointwise)
    for k in _data_slots(call):
        places = _places(call.value(k))
        if call.op.kind in MOVING:
            found = [_moved_place(call, slot, k)[index]]
        elif is_pointwise:
            found = [np.broadcast_to(places, shape)[index]]
        elif call.op.kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            position, channel = _position(call, index)
            found = list(sliding(pooling_windows(call.op), places)[position, :, channel])
        else:
            found = []
        yield from (_element(call, names, k, int(place) - NOWHERE) for place in found if place >= NOWHERE)


def _data_slots(call: KernelCall) -> list[int]:
    """Return the inputs whose values reach the output, as opposed to indices and shapes."""
    spec = call.spec
    given = [k for k in range(len(call.values)) if call.has(k)]
    return given[:1] if spec is None else [k for k in given if isinstance(spec.input_role(k), Activation)]


def _moved_place(call: KernelCall, slot: int, data: int) -> Array:
    """Return, for each output element, its position in one of the inputs; values below NOWHERE do not come from
    there."""
    slots = _data_slots(call)
    values = list(call.values)
    for k in slots:
        values[k] = _places(call.value(k)) if k == data else np.zeros_like(call.value(k))
    moved = MOVING[call.op.kind](replace(call, values=tuple(values)))[slot]
    return np.asarray(moved).reshape(call.op.outputs[slot].shape)


def _position(call: KernelCall, index: tuple[int, ...]) -> tuple[int, int]:
    """Return which window and which channel an output element belongs to."""
    shape = call.op.outputs[0].shape
    return divmod(int(np.ravel_multi_index(index, shape)), shape[-1])


def float_values(trace: Trace, tensors: Sequence[Tensor]) -> dict[Tensor, Array]:
    """Return the float model's values for these tensors, computed in one run; tensors without a counterpart are
    omitted."""
    wanted = [tensor for tensor in tensors if not tensor.is_constant]
    if trace.float_model is None or not wanted:
        return {}
    alignment = align_models(trace.float_model, trace.model, trace.entry.key)
    twins = {alignment.partner.get(t): (t, v) for t, v in zip(trace.entry.graph.inputs, trace.row, strict=True)}
    row = []
    for given in alignment.float.inputs:
        own, value = twins[given]
        row.append(value if own.params is None or given.params is not None else dequantize(value, own.params))
    partners = {tensor: alignment.partner.get(tensor) for tensor in wanted}
    known = dict(zip(alignment.float.inputs, row, strict=True))
    made = list(dict.fromkeys(p for p in partners.values() if p is not None and p not in known and not p.is_constant))
    if made:
        known |= Runner.exposing(trace.float_model, alignment.float, made, strict=False).values(row)
    pairs = ((tensor, known[partner]) for tensor, partner in partners.items() if partner in known)
    return {tensor: values for tensor, values in pairs if values.shape == trace.value(tensor).shape}
