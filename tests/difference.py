"""Whether two models are the same graph, and where they first differ."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from zeropoint.graph import Buffer, Model


def difference(a: Model, b: Model) -> str | None:
    """The first difference in words, or None if the models are equal: structure, names, data, sharing of buffers."""
    for left, right in zip_longest(str(a).splitlines(), str(b).splitlines()):
        if left != right:
            return f"{left!r} is not {right!r}"
    for name, left_buffer, right_buffer in _paired_buffers(a, b):
        if (left_buffer is None) != (right_buffer is None):
            return f"the data of '{name}' is in only one of them"
        if left_buffer is None or right_buffer is None:
            continue
        if not np.array_equal(left_buffer.raw, right_buffer.raw):
            return f"the data of '{name}' differs"
    for (name, left_rest), (_, right_rest) in zip(_unprinted(a), _unprinted(b), strict=True):
        if left_rest != right_rest:
            return f"{name} has {left_rest}, not {right_rest}"
    if _sharing(a) != _sharing(b):
        return "buffers are shared between other tensors"
    return None


def _paired_buffers(a: Model, b: Model) -> Iterator[tuple[str, Buffer | None, Buffer | None]]:
    for left_graph, right_graph in zip(a.graphs, b.graphs, strict=True):
        for left, right in zip(left_graph.tensors, right_graph.tensors, strict=True):
            yield left.name, left.buffer, right.buffer
    for (name, left_buffer), (_, right_buffer) in zip(a.metadata, b.metadata, strict=True):
        yield name, left_buffer, right_buffer


def _unprinted(model: Model) -> Iterator[tuple[str, str]]:
    """What the text form abridges, as text all the same: NaN is then equal to itself."""
    yield "the model", repr((model.metadata_buffers is None, model.external_buffer_groups, model.external_buffers))
    for graph in model.graphs:
        yield f"the graph '{graph.name}'", repr(graph.debug_metadata_index)
        for t in graph.tensors:
            stored = t.quantization and (t.quantization.scales, t.quantization.zero_points, t.quantization.axis)
            ranges = t.quantization and (t.quantization.min, t.quantization.max)
            yield f"'{t.name}'", repr((t.shape_signature, t.has_rank, t.variants, stored, ranges))
        for op in graph.ops:
            options = None if op.custom_options is None else op.custom_options.tobytes()
            custom = (op.custom_code, op.custom_options_format, options)
            yield repr(op), repr((custom, op.mutating_variable_inputs, op.debug_metadata_index, op.options))


def _sharing(model: Model) -> list[int]:
    """For each tensor, the first tensor that has the same buffer."""
    first: dict[int, int] = {}
    tensors = [t for g in model.graphs for t in g.tensors]
    return [first.setdefault(id(t.buffer), k) for k, t in enumerate(tensors) if t.buffer is not None]
