"""TFLite Metadata: a flatbuffer within a model's metadata that describes its inputs and outputs.

It is preserved as it is, except for the value ranges of inputs and outputs ("stats"). Those are in units of the stored
type (0 to 255 for a uint8 image), so they change with the type. Normalization parameters always refer to the float
model, as the metadata schema demands.
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
"""Schema slots: subgraphs of a model, inputs and outputs of a subgraph, value ranges of a tensor and their two ends."""

PROCESS_UNITS, OPTIONS_TYPE, OPTIONS, NORMALIZATION, MEAN, STD = 4, 0, 1, 1, 0, 1
"""Schema slots: process units of a tensor, type and table of their options; the normalization type and its fields."""

PIXELS = 0.0, 255.0
"""The value range that a normalization is applied to."""


def stated_input_range(model: Model) -> tuple[float, float] | None:
    """Return the range of the first graph's only input, from its normalization or else from its stored value range.

    None if the metadata has neither. A mean of 0 with a standard deviation of 1 is a tool's default, and ignored.
    """
    for name, buffer in model.metadata:
        if name == NAME and buffer is not None and buffer.raw[4:8].tobytes() == IDENTIFIER:
            try:
                return _stated(File(buffer.raw.tobytes()))
            except InvalidModel:  # damaged metadata is no reason to refuse the model
                return None
    return None


def _normalizations(described: Table) -> Iterator[tuple[Array, Array]]:
    """Yield the means and standard deviations that an input is normalized with."""
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
    """Return vectors of a table; None unless all are present and finite."""
    found = [v for k in slots if (v := table.vector(k, np.float32)) is not None and v.size and np.isfinite(v).all()]
    return found if len(found) == len(slots) else None


def restated(before: Model, after: Model) -> list[tuple[str, Buffer | None]]:
    """Return the metadata of `before`, with value ranges in integers for inputs and outputs that are integers in
    `after`."""
    return [(name, _restated(b, before, after) if name == NAME and b else b) for name, b in before.metadata]


def _restated(buffer: Buffer, before: Model, after: Model) -> Buffer:
    content = bytearray(buffer.raw.tobytes())
    if content[4:8] != IDENTIFIER:
        return buffer
    changes: dict[int, tuple[Array, QuantParams]] = {}  # by address
    try:
        for values, params in _ranges(File(memoryview(content)), before, after):
            if changes.setdefault(values.ctypes.data, (values, params))[1] != params:
                return buffer  # shared by two tensors whose integers differ
    except InvalidModel:  # damaged, which is no reason to refuse the model
        return buffer
    for values, params in changes.values():
        values[:] = quantize(values.copy(), params)
    return Buffer(np.frombuffer(bytes(content), np.uint8)) if changes else buffer


def _ranges(file: File, before: Model, after: Model) -> Iterator[tuple[Array, QuantParams]]:
    """Yield minima and maxima, as views of the file, with the parameters of the integers that replace them."""
    for table, old, new in zip(file.root().tables(SUBGRAPHS) or (), before.graphs, after.graphs, strict=False):
        for slot, olds, news in ((INPUTS, old.inputs, new.inputs), (OUTPUTS, old.outputs, new.outputs)):
            for tensor, was, becomes in zip(table.tables(slot) or (), olds, news, strict=False):
                stats, params = tensor.table(STATS), becomes.params
                if stats is None or params is None or was.is_quantized:
                    continue
                ends = (stats.vector(end, np.float32) for end in (MAXIMUM, MINIMUM))
                yield from ((v, params) for v in ends if v is not None and v.size and np.isfinite(v).all())
