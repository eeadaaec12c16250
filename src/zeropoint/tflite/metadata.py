"""TFLite Metadata: a flatbuffer of its own among a model's metadata, which tells what its inputs and outputs mean.

It is carried as it is, except for the value ranges of inputs and outputs ("stats"). Those are in the tensor's own
numbers (0 to 255 for a uint8 image), so they change with its type. Normalization is that of the float model in any
case, as the metadata's schema demands.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..affine import QuantParams, quantize
from ..dtypes import Array
from ..errors import InvalidModel
from ..graph.model import Buffer, Model
from .flatbuffer import File, Table

NAME, IDENTIFIER = "TFLITE_METADATA", b"M001"
SUBGRAPHS, INPUTS, OUTPUTS, STATS, MAXIMUM, MINIMUM = 3, 2, 3, 5, 0, 1
"""Slots: of subgraphs in a model, inputs and outputs in a subgraph, value ranges in a tensor, their two ends."""

PROCESS_UNITS, OPTIONS_TYPE, OPTIONS, NORMALIZATION, MEAN, STD = 4, 0, 1, 1, 0, 1
"""Slots: process units in a tensor, the type and table of their options; the type of a normalization, and its slots."""

PIXELS = 0.0, 255.0
"""What a normalization is applied to."""


def stated_input_range(model: Model) -> tuple[float, float] | None:
    """The range of the first graph's only input by its normalization, or else by its stored value range.

    None if neither is stated. A mean of 0 with a deviation of 1 is what tools fill in, and states nothing.
    """
    for name, buffer in model.metadata:
        if name == NAME and buffer is not None and buffer.raw[4:8].tobytes() == IDENTIFIER:
            try:
                return _stated(File(buffer.raw.tobytes()))
            except InvalidModel:  # damaged, which is no reason to refuse the model
                return None
    return None


def _normalizations(described: Table) -> Iterator[tuple[Array, Array]]:
    """Means and standard deviations that an input is to be normalized with."""
    for unit in described.tables(PROCESS_UNITS) or ():
        options = unit.table(OPTIONS) if unit.number(OPTIONS_TYPE, "B") == NORMALIZATION else None
        ends = None if options is None else _floats(options, MEAN, STD)
        if ends is not None and ends[1].all():
            yield ends[0], ends[1]


def _stated(file: File) -> tuple[float, float] | None:
    inputs = next(iter(t.tables(INPUTS) for t in file.root().tables(SUBGRAPHS) or ()), None) or []
    if len(inputs) != 1:
        return None
    for mean, std in _normalizations(inputs[0]):
        low, high = (float(((pixel - mean) / std).mean()) for pixel in PIXELS)
        return None if (low, high) == PIXELS else (low, high)
    stats = inputs[0].table(STATS)
    ends = None if stats is None else _floats(stats, MINIMUM, MAXIMUM)
    if ends is None:
        return None
    low, high = (float(v.mean()) for v in ends)
    return (low, high) if low < high else None


def _floats(table: Table, *slots: int) -> list[Array] | None:
    """Vectors of a table; None unless each is there and holds finite numbers."""
    found = [v for k in slots if (v := table.vector(k, np.float32)) is not None and v.size and np.isfinite(v).all()]
    return found if len(found) == len(slots) else None


def restated(before: Model, after: Model) -> list[tuple[str, Buffer | None]]:
    """The metadata of `before`, with the value ranges of inputs and outputs that are integers in `after`."""
    return [(name, _restated(b, before, after) if name == NAME and b else b) for name, b in before.metadata]


def _restated(buffer: Buffer, before: Model, after: Model) -> Buffer:
    content = bytearray(buffer.raw.tobytes())
    if content[4:8] != IDENTIFIER:
        return buffer
    changes: dict[int, tuple[Array, QuantParams]] = {}  # by address
    try:
        for values, params in _ranges(File(memoryview(content)), before, after):
            if changes.setdefault(values.ctypes.data, (values, params))[1] != params:
                return buffer  # stored once for two tensors, whose integers differ
    except InvalidModel:  # damaged, which is no reason to refuse the model
        return buffer
    for values, params in changes.values():
        values[:] = quantize(values.copy(), params)
    return Buffer(np.frombuffer(bytes(content), np.uint8)) if changes else buffer


def _ranges(file: File, before: Model, after: Model) -> Iterator[tuple[Array, QuantParams]]:
    """Least and greatest values, as views of the file, and the parameters of the integers that these become."""
    for table, old, new in zip(file.root().tables(SUBGRAPHS) or (), before.graphs, after.graphs, strict=False):
        for slot, olds, news in ((INPUTS, old.inputs, new.inputs), (OUTPUTS, old.outputs, new.outputs)):
            for tensor, was, becomes in zip(table.tables(slot) or (), olds, news, strict=False):
                stats, params = tensor.table(STATS), becomes.params
                if stats is None or params is None or was.is_quantized:
                    continue
                ends = (stats.vector(end, np.float32) for end in (MAXIMUM, MINIMUM))
                yield from ((v, params) for v in ends if v is not None and v.size and np.isfinite(v).all())
