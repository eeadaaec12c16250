"""Node data for Model Explorer, held against the documented format; tests/report/test_browser.py uses the package."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from zeropoint.comparison.values import Comparison, Deviation, OpRow
from zeropoint.errors import InvalidSample
from zeropoint.report.model_explorer import node_data, save_node_data
from zeropoint.report.page_build import Evidence

from .. import build


def row(position: int, own: float | None, accumulated: float | None) -> OpRow:
    deviations = [None if value is None else Deviation(value, 1.0) for value in (accumulated, own)]
    return OpRow("OP", "n", position, position, "n", "int8", "integer", 0, *deviations, None)


def compared(model, *rows: OpRow) -> Evidence:
    return Evidence("m.tflite", model, 1, comparison=Comparison(1, rows, ()))


def test_results_go_by_the_names_of_outputs_in_each_graph():
    model = build.quantized_cnn()
    rows = [row(k, 20.0 + k, 10.0) for k in range(len(model.main.ops))]
    (graph,) = node_data(compared(model, *rows)).items()
    name, data = graph
    assert name == model.main.name
    assert data["results"] == {op.outputs[0].name: {"value": 20.0 + k} for k, op in enumerate(model.main.ops)}


def test_own_errors_come_before_accumulated_ones():
    model = build.quantized_cnn()
    data = node_data(compared(model, row(0, 33.0, 11.0), row(1, None, 12.0)))["main"]
    assert [entry["value"] for entry in data["results"].values()] == [33.0, 12.0]


def test_of_equal_names_the_worst_counts():
    model = build.names()
    rows = [row(k, 30.0 - k, None) for k in range(len(model.main.ops))]
    results = node_data(compared(model, *rows))[""]["results"]
    values: dict[str, float] = {}
    for k, op in enumerate(model.main.ops):
        values[op.name] = min(values.get(op.name, math.inf), 30.0 - k)
    assert {name: entry["value"] for name, entry in results.items()} == values


def test_thresholds_rise_have_colours_and_cover_every_value():
    data = node_data(compared(build.quantized_cnn(), row(0, 200.0, None), row(1, -3.0, None)))["main"]
    limits = [threshold["value"] for threshold in data["thresholds"]]
    assert limits == sorted(set(limits))
    assert limits[-1] >= max(entry["value"] for entry in data["results"].values())
    assert all(re.fullmatch(r"#[0-9a-f]{6}", threshold["bgColor"]) for threshold in data["thresholds"])


KNOWN = {
    "name": str,
    "results": dict,
    "thresholds": list,
    "hideAggregatedStats": list,
    "hideInChildrenStatsTable": bool,
}
"""Of GraphNodeData in ai-edge-model-explorer 0.1; all but `results` are optional there."""


def test_only_documented_fields_are_written(tmp_path):
    path = tmp_path / "data.json"
    evidence = compared(build.quantized_cnn(), row(0, 1 / 3, None))
    assert save_node_data(evidence, path) == path.stat().st_size
    for data in json.loads(path.read_text("ascii")).values():
        assert {key: type(value) for key, value in data.items()} == KNOWN
        assert all(set(entry) == {"value"} for entry in data["results"].values())
        assert all(set(entry) == {"value", "bgColor"} for entry in data["thresholds"])


def test_nothing_to_show_is_said():
    evidence = compared(build.quantized_cnn())
    with pytest.raises(InvalidSample, match=r"\(data=\)"):
        node_data(evidence)
    with pytest.raises(InvalidSample, match=r"\(data=\)"):
        node_data(dataclasses.replace(evidence, comparison=None))
