"""How one number came about: the elements it was made of, and the steps of the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
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
from ..ops import CONVERSIONS, OPS, Activation
from ..ops.execution import execution_of
from ..ops.layout import pooling_windows, sliding
from ..runtime import Runner
from .call import KernelCall
from .dynamic_range import rounded_rows
from .movement import MOVING
from .weighted import layout_of

if TYPE_CHECKING:
    from .trace import Trace

NOWHERE = 1 << 40
"""Added to places, so that they differ from the constants that an op puts between them."""


@dataclass(frozen=True)
class Element:
    """A number that was read: of which tensor, where, and what it is once its zero point is taken off. Of float data
    that a layer rounds to 8 bits itself, it is the integer that it makes of it."""

    tensor: str
    index: tuple[int, ...]
    integer: int | float
    centered: int | float


@dataclass(frozen=True)
class Product:
    """One term of a sum. An element that lies on padding is None: it counts as zero."""

    data: Element | None
    weight: Element
    value: int


@dataclass(frozen=True)
class StepValue:
    """A number on the way, as the kernel has it."""

    name: str
    value: int | float


@dataclass(frozen=True)
class Explanation:
    """One number of a tensor. `real` is what it stands for, `float_model` what the float model has at its place.

    `products` are the terms of a layer's sum, `elements` what other ops read for it, where that can be told; `steps`
    are the numbers in between, in the order in which kernels compute them.
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
        """Values that JSON can hold; docs/integers.md describes them."""
        values: dict[str, Any] = json_values(self)
        return values

    def step(self, name: str) -> int | float:
        """A step by its name."""
        for step in self.steps:
            if step.name == name:
                return step.value
        raise KeyError(name)


def explain(trace: Trace, name: str, index: tuple[int, ...]) -> Explanation:
    tensor = trace.tensor(name)
    values = trace.value(tensor)
    if len(index) != values.ndim or not all(0 <= k < n for k, n in zip(index, values.shape, strict=True)):
        raise InvalidModel(f"'{name}' has the shape {list(values.shape)}; {list(index)} is not an index into it")
    op = Uses(trace.entry.graph).producer(tensor)
    params = tensor.params
    value = values[index].item()
    own = None if params is None else _at(params, index)
    found = Explanation(
        name,
        index,
        tensor.dtype.label,
        "" if op is None else op.label,
        trace.kernels,
        value,
        None if own is None else own.scale,
        None if own is None else own.zero_point,
        float(value) if own is None else float(dequantize(np.asarray([values[index]]), own)[0]),
        _in_float(trace, tensor, index),
        (),
        (),
        (),
    )
    if op is None:
        return replace(found, note="a constant" if tensor.is_constant else "an input of the model")
    if op in trace.elsewhere:
        return replace(found, note="computed by LiteRT: this op has no integer arithmetic to show")
    return replace(found, **_parts(trace, trace.call(op), op.outputs.index(tensor), index))


def _at(params: QuantParams, index: tuple[int, ...]) -> QuantParams:
    """The parameters of one element."""
    if params.axis is None:
        return params
    channel = index[params.axis]
    return QuantParams((params.scales[channel],), (params.zero_points[channel],), params.dtype)


def _parts(trace: Trace, call: KernelCall, slot: int, index: tuple[int, ...]) -> dict[str, Any]:
    """What it was made of, and the steps: those are known for an op's first output."""
    from .trace import compute

    names = trace.names
    parts: dict[str, Any] = {"elements": tuple(_elements(call, names, slot, index))}
    spec = OPS.get(call.op.kind)
    if spec is not None and spec.layout is not None and call.op.kind != "BATCH_MATMUL":
        parts["products"] = tuple(_products(call, names, index))
    if slot == 0:
        shape = call.op.outputs[0].shape
        made = compute(call)
        parts["note"] = made.note
        parts["steps"] = tuple(
            StepValue(step.name, np.broadcast_to(step.values, shape)[index].item()) for step in made.steps
        )
    return parts


def _element(call: KernelCall, names: dict[Tensor, str], slot: int, place: int) -> Element:
    tensor, values = call.tensor(slot), call.value(slot)
    index = tuple(int(k) for k in np.unravel_index(place, values.shape))
    integer = values[index].item()
    own = None if tensor.params is None else _at(tensor.params, index)
    return Element(names[tensor], index, integer, integer if own is None else integer - own.zero_point)


def _places(values: Array) -> Array:
    return np.asarray(np.arange(values.size).reshape(values.shape) + NOWHERE)


def _elements(call: KernelCall, names: dict[Tensor, str], slot: int, index: tuple[int, ...]) -> Iterator[Element]:
    """What ops read that move numbers, or work element by element, or on windows."""
    spec, shape = OPS.get(call.op.kind), call.op.outputs[slot].shape
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
    """Inputs whose numbers end up in the output, rather than say where."""
    spec = OPS.get(call.op.kind)
    given = [k for k in range(len(call.values)) if call.has(k)]
    return given[:1] if spec is None else [k for k in given if isinstance(spec.input_role(k), Activation)]


def _moved_place(call: KernelCall, slot: int, data: int) -> Array:
    """For each element of an output its place in one of the inputs; below NOWHERE what is not from there."""
    slots = _data_slots(call)
    values = list(call.values)
    for k in slots:
        values[k] = _places(call.value(k)) if k == data else np.zeros_like(call.value(k))
    moved = MOVING[call.op.kind](replace(call, values=tuple(values)))[slot]
    return np.asarray(moved).reshape(call.op.outputs[slot].shape)


def _position(call: KernelCall, index: tuple[int, ...]) -> tuple[int, int]:
    """Which window, and which channel."""
    shape = call.op.outputs[0].shape
    return divmod(int(np.ravel_multi_index(index, shape)), shape[-1])


def _products(call: KernelCall, names: dict[Tensor, str], index: tuple[int, ...]) -> Iterator[Product]:
    op, layout = call.op, layout_of(call.op)
    position, channel = _position(call, index)
    data, weights = _places(call.value(layout.data)), _places(call.value(layout.weights))
    matrix = layout.matrix(op, weights)
    group, row = divmod(channel, matrix.shape[1])
    patch = layout.patches(op, data, data.size + op.outputs[0].size)[group, position]
    rounded = rounded_rows(call) if execution_of(op) == "hybrid" else None
    for place, weight_place in zip(patch.tolist(), matrix[group, row].tolist(), strict=True):
        weight = _element(call, names, layout.weights, weight_place - NOWHERE)
        element = _element(call, names, layout.data, place - NOWHERE) if place else None
        if element is not None and rounded is not None:
            integers = (int(values.flat[place - NOWHERE]) for values in (rounded.integers, rounded.centered))
            element = Element(element.tensor, element.index, *integers)
        yield Product(element, weight, 0 if element is None else int(element.centered * weight.centered))


def _in_float(trace: Trace, tensor: Tensor, index: tuple[int, ...]) -> float | None:
    """What the float model has at the same place; None without one, or where it has no such tensor."""
    if trace.float_model is None or tensor.is_constant:
        return None
    alignment = align_models(trace.float_model, trace.model, trace.entry.key)
    partner = alignment.partner.get(tensor)
    if partner is None or partner.shape != tensor.shape:
        return None
    twins = {alignment.partner.get(t): (t, v) for t, v in zip(trace.entry.graph.inputs, trace.row, strict=True)}
    row = []
    for wanted in alignment.float.inputs:
        own, value = twins[wanted]
        row.append(value if own.params is None or wanted.params is not None else dequantize(value, own.params))
    if partner in alignment.float.inputs:
        return float(row[alignment.float.inputs.index(partner)][index])
    runner = Runner.exposing(trace.float_model, alignment.float, [partner], strict=False)
    return float(runner.run(row)[0][index])
