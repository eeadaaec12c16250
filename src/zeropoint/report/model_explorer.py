"""Node data for Google's Model Explorer: a number for each op, which it lays over its picture of the model.

The format is that of `GraphNodeData` in the package ai-edge-model-explorer: results by the name of an output tensor,
for each graph by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidSample
from ..files import PathLike, write_whole
from ..graph.model import Model
from .page_build import Evidence, op_details
from .page_measures import DECIBELS
from .page_values import OpErrors

COLOURS = ("#c43c33", "#ec8a58", "#f8c377", "#f3e8a8", "#cfe3c8", "#e3f1ec")
"""As in the report, from the worst level on."""


def save_node_data(evidence: Evidence, path: PathLike, *, overwrite: bool = False) -> int:
    """Write the signal-to-noise of each op in dB; return the file's size."""
    content = json.dumps(node_data(evidence), indent=1, allow_nan=False)
    return write_whole(path, [content.encode()], overwrite=overwrite)


def node_data(evidence: Evidence) -> dict[str, Any]:
    """Each graph's ops by the names of their outputs. Of equal names the worst value counts."""
    found: dict[str, dict[str, float]] = {}
    for graph, name, value in _values(evidence):
        results = found.setdefault(graph, {})
        results[name] = min(value, results.get(name, value))
    if not found:
        raise InvalidSample(
            "nothing is known of any op's error, which is what Model Explorer would show; give representative data "
            "(--data)"
        )
    return {graph: _graph_data(results) for graph, results in found.items()}


def _values(evidence: Evidence) -> Iterator[tuple[str, str, float]]:
    for (graph, tensor), op in zip(_first_outputs(evidence.model), op_details(evidence), strict=True):
        value = _decibels(op.errors)
        if tensor is not None and value is not None:
            yield graph, tensor, value


def _first_outputs(model: Model) -> Iterator[tuple[str, str | None]]:
    for graph in model.graphs:
        for op in graph.ops:
            yield graph.name, op.outputs[0].name if op.outputs else None


def _decibels(errors: OpErrors) -> float | None:
    """The most local figure there is."""
    known = (errors.own, errors.accumulated, errors.expected)
    return next((round(value, 2) for value in known if value is not None), None)


def _graph_data(results: dict[str, float]) -> dict[str, Any]:
    """Model Explorer colours a value like the first threshold that is not below it."""
    most = max(*results.values(), DECIBELS[0] + 1)
    borders = (*reversed(DECIBELS), most)
    return {
        "name": "zeropoint: signal to noise, dB",
        "results": {name: {"value": value} for name, value in results.items()},
        "thresholds": [{"value": v, "bgColor": c} for v, c in zip(borders, COLOURS, strict=True)],
        "hideAggregatedStats": ["sum"],  # decibels do not add up
        "hideInChildrenStatsTable": True,  # it shows shares of the sum
    }
