"""Node data for Google's Model Explorer: a number for each op, shown on top of the graph.

The format is that of `GraphNodeData` in the package ai-edge-model-explorer: for each graph by name, results by the name
of an output tensor.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidSample, argument
from ..files import PathLike, write_whole
from .page_build import Evidence, op_details
from .page_measures import DECIBELS

COLOURS = ("#c43c33", "#ec8a58", "#f8c377", "#f3e8a8", "#cfe3c8", "#e3f1ec")
"""Colours as in the report, worst level first."""


def save_node_data(evidence: Evidence, path: PathLike, *, overwrite: bool = False) -> int:
    """Write the SNR of each op in dB; return the file's size."""
    content = json.dumps(node_data(evidence), indent=1, allow_nan=False)
    return write_whole(path, [content.encode()], overwrite=overwrite)


def node_data(evidence: Evidence) -> dict[str, Any]:
    """Return each graph's ops by the names of their outputs. Among equal names, the worst value is used."""
    results: dict[str, dict[str, float]] = {}
    for op, detail in zip(evidence.ops, op_details(evidence), strict=True):
        errors = detail.errors
        known = [snr for snr in (errors.own, errors.accumulated, errors.expected) if snr is not None]
        if op.outputs and known:
            name, value = op.outputs[0].name, round(known[0], 2)  # the first one is the most local
            of_graph = results.setdefault(detail.graph, {})
            of_graph[name] = min(value, of_graph.get(name, value))
    if not results:
        raise InvalidSample(
            "Model Explorer shows the error of each op, and none is known; give representative data "
            f"({argument('data')})"
        )
    return {graph: _graph_data(values) for graph, values in results.items()}


def _graph_data(results: dict[str, float]) -> dict[str, Any]:
    """Return the data of one graph. Model Explorer colours a value like the first threshold that is not below it."""
    most = max(*results.values(), DECIBELS[0] + 1)
    borders = (*reversed(DECIBELS), most)
    return {
        "name": "zeropoint: SNR, dB",
        "results": {name: {"value": value} for name, value in results.items()},
        "thresholds": [{"value": v, "bgColor": c} for v, c in zip(borders, COLOURS, strict=True)],
        "hideAggregatedStats": ["sum"],  # decibels do not add up
        "hideInChildrenStatsTable": True,  # otherwise it shows shares of the sum
    }
