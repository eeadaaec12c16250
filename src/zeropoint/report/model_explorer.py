"""Node data for Google's Model Explorer: a number for each op, which it lays over its picture of the model.

The format is that of `GraphNodeData` in the package ai-edge-model-explorer: results by the name of an output tensor,
for each graph by its name.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidSample, argument
from ..files import PathLike, write_whole
from .page_build import DECIBELS, Evidence, op_details

COLOURS = ("#c43c33", "#ec8a58", "#f8c377", "#f3e8a8", "#cfe3c8", "#e3f1ec")
"""As in the report, from the worst level on."""


def save_node_data(evidence: Evidence, path: PathLike, *, overwrite: bool = False) -> int:
    """Write the signal-to-noise of each op in dB; return the file's size."""
    content = json.dumps(node_data(evidence), indent=1, allow_nan=False)
    return write_whole(path, [content.encode()], overwrite=overwrite)


def node_data(evidence: Evidence) -> dict[str, Any]:
    """Each graph's ops by the names of their outputs. Among equal names, the worst value counts."""
    results: dict[str, dict[str, float]] = {}
    for op, detail in zip(evidence.ops, op_details(evidence), strict=True):
        errors = detail.errors
        known = [snr for snr in (errors.own, errors.accumulated, errors.expected) if snr is not None]
        if op.outputs and known:
            name, value = op.outputs[0].name, round(known[0], 2)  # the first is the most local
            of_graph = results.setdefault(detail.graph, {})
            of_graph[name] = min(value, of_graph.get(name, value))
    if not results:
        raise InvalidSample(
            "nothing is known of any op's error, which is what Model Explorer would show; give representative data "
            f"({argument('data')})"
        )
    return {graph: _graph_data(values) for graph, values in results.items()}


def _graph_data(results: dict[str, float]) -> dict[str, Any]:
    """Model Explorer colours a value like the first threshold that is not below it."""
    most = max(*results.values(), DECIBELS[0] + 1)
    borders = (*reversed(DECIBELS), most)
    return {
        "name": "zeropoint: SNR, dB",
        "results": {name: {"value": value} for name, value in results.items()},
        "thresholds": [{"value": v, "bgColor": c} for v, c in zip(borders, COLOURS, strict=True)],
        "hideAggregatedStats": ["sum"],  # decibels do not add up
        "hideInChildrenStatsTable": True,  # it shows shares of the sum
    }
