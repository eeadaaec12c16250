"""Numbers that a reader of the report can select, each with how it was computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..affine import dequantize
from ..dtypes import Array
from ..graph.model import Op, Tensor
from ..simulation.explanation import Explanation, explain_tensor, float_values
from ..simulation.trace import Trace
from .simulation import element_text, number_text, place_text, product_text, real_rows

SHOWN_PRODUCTS = 6
"""Maximum number of terms of a sum that are listed."""

MANY_OPS, MOST_ELEMENTS = 64, 1 << 26
"""Beyond this many ops, each has only one number; beyond this many elements, no float values are stored."""


@dataclass(frozen=True)
class NumberRow:
    """A line of an explanation; `tensor` is where to look next."""

    label: str
    text: str
    tensor: str | None = None


@dataclass(frozen=True)
class PickedNumber:
    """An element of an op's first output: its index, why it was selected, and how it was computed."""

    index: str
    why: str
    rows: tuple[NumberRow, ...]


def picked_numbers(trace: Trace) -> list[tuple[PickedNumber, ...]]:
    """Return, for each op that was computed in integers, the element farthest from the float model's, the largest, and
    one in the middle."""
    ops = trace.entry.graph.ops
    tensors = {op: op.outputs[0] for op in ops if op not in trace.elsewhere and _has_numbers(trace, op)}
    is_small = sum(tensor.size for tensor in tensors.values()) <= MOST_ELEMENTS
    in_float = float_values(trace, [*tensors.values()]) if is_small else {}
    count = 1 if len(tensors) > MANY_OPS else 3
    return [tuple(_picked(trace, tensors[op], in_float, count)) if op in tensors else () for op in ops]


def _has_numbers(trace: Trace, op: Op) -> bool:
    return bool(op.outputs) and op.outputs[0].size > 0 and trace.value(op.outputs[0]).dtype.kind in "iuf"


def _picked(trace: Trace, tensor: Tensor, in_float: dict[Tensor, Array], count: int) -> Iterator[PickedNumber]:
    values = trace.value(tensor)
    reasons: dict[tuple[int, ...], str] = {}
    for why, place in _places(values, tensor, in_float.get(tensor)):
        reasons.setdefault(tuple(int(k) for k in np.unravel_index(place, values.shape)), why)
    places = list(reasons)[:count]
    for found in explain_tensor(trace, tensor, places, in_float.get(tensor)):
        yield PickedNumber(place_text(found.index), reasons[found.index], tuple(_rows(found)))


def _places(values: Array, tensor: Tensor, in_float: Array | None) -> Iterator[tuple[str, int]]:
    if in_float is not None:
        real = values if tensor.params is None else dequantize(values, tensor.params)
        yield "farthest from the float model", int(np.argmax(np.abs(real.astype(np.float64) - in_float)))
    yield "greatest", int(np.argmax(values))
    yield "in the middle", int(np.ravel_multi_index([size // 2 for size in values.shape], values.shape))


def _rows(found: Explanation) -> Iterator[NumberRow]:
    yield NumberRow("Value", f"{number_text(found.value)} {found.dtype}")
    yield from (NumberRow(label, text) for label, text in real_rows(found))
    if found.note:
        yield NumberRow("Note", found.note)
    for element in found.elements[:SHOWN_PRODUCTS]:
        yield NumberRow("Reads", element_text(replace(element, tensor=_short(element.tensor))), element.tensor)
    if rest := found.elements[SHOWN_PRODUCTS:]:
        yield NumberRow("", f"and {len(rest)} more")
    yield from _product_rows(found)
    yield from (NumberRow(step.name, number_text(step.value)) for step in found.steps)


def _short(name: str) -> str:
    """Return the first of the names that a converter joined when it fused ops."""
    first, *others = name.split(";")
    return f"{first}; …" if others else first


def _product_rows(found: Explanation) -> Iterator[NumberRow]:
    inside = [(product, product.data) for product in found.products if product.data is not None]
    if not inside:
        return
    padded = len(found.products) - len(inside)
    product, data = inside[0]
    yield NumberRow("Data", _short(data.tensor), data.tensor)
    yield NumberRow("Weights", _short(product.weight.tensor))
    shown = sorted(inside, key=lambda pair: -abs(pair[0].value))[:SHOWN_PRODUCTS]
    for product, data in shown:
        yield NumberRow(f"[{place_text(data.index)}]", product_text(product, data))
    if rest := len(inside) - len(shown):
        total = sum(product.value for product, _ in inside) - sum(product.value for product, _ in shown)
        yield NumberRow("", f"and {rest} smaller ones, which add up to {total}")
    if padded:
        yield NumberRow("", f"{padded} on padding count as zero")
