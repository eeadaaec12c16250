"""The report's own script, in V8: what it computes with plain values. tests/report/test_browser.py sees it at work."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py_mini_racer import MiniRacer

INK = {"text": "#111", "line": "#ccc", "accent": "#00f", "range": "#f00", "third": "#888"}


@pytest.fixture(scope="module")
def call() -> Callable[..., Any]:
    """Call a function of the script: arguments and result go as JSON."""
    engine = MiniRacer()
    for name in ("view.js", "table.js", "figures.js", "charts.js", "numbers.js"):
        engine.eval(files("zeropoint").joinpath("report/assets").joinpath(name).read_text("utf-8"))

    def call(function: str, *arguments: object) -> Any:
        return json.loads(engine.eval(f"JSON.stringify({function}(...{json.dumps(arguments)}))"))

    return call


def test_all_of_it_is_valid_script():
    engine = MiniRacer()
    source = files("zeropoint").joinpath("report/assets/page.js").read_text("utf-8")
    engine.eval(f"new Function({json.dumps(source)})")


# The view of the picture.

LENGTH = st.floats(50, 20_000)
SIZE = st.fixed_dictionaries({"width": LENGTH, "height": LENGTH})
ROOM = st.fixed_dictionaries({"width": st.floats(200, 2000), "height": st.floats(200, 1200)})


@given(SIZE, ROOM, st.floats(0.2, 5), st.floats(0, 1), st.floats(0, 1))
def test_zooming_keeps_the_point_under_the_pointer(call, picture, room, factor, right, down):
    view = call("wholeView", picture, room)
    x, y = view["x"] + right * view["width"], view["y"] + down * view["height"]
    seen = call("zoomed", view, factor, x, y, picture)
    assert (x - seen["x"]) / seen["width"] == pytest.approx(right, abs=1e-6)
    assert (y - seen["y"]) / seen["height"] == pytest.approx(down, abs=1e-6)
    assert seen["width"] / seen["height"] == pytest.approx(room["width"] / room["height"])


@given(SIZE, ROOM, st.floats(-1e5, 1e5), st.floats(-1e5, 1e5))
def test_the_picture_cannot_be_lost(call, picture, room, dx, dy):
    view = call("moved", call("firstView", picture, room, 0), dx, dy, picture)
    assert view["x"] < picture["width"]
    assert view["x"] + view["width"] > 0
    assert view["y"] < picture["height"]
    assert view["y"] + view["height"] > 0


@given(SIZE, ROOM)
def test_the_whole_view_holds_the_whole_picture(call, picture, room):
    view = call("wholeView", picture, room)
    slack = 1e-6 * (picture["width"] + picture["height"])
    assert view["x"] <= slack
    assert view["y"] <= slack
    assert view["x"] + view["width"] >= picture["width"] - slack
    assert view["y"] + view["height"] >= picture["height"] - slack


# The table.


@given(st.lists(st.none() | st.integers(-50, 50)) | st.lists(st.none() | st.text("abc", max_size=3)), st.booleans())
def test_rows_are_put_in_order(call, cells, descending):
    order = call("ordered", cells, descending)
    assert sorted(order) == list(range(len(cells)))
    known = [cells[k] for k in order if cells[k] is not None]
    assert known == sorted(known, reverse=descending)
    assert all(cells[k] is None for k in order[len(known) :])
    for a, b in itertools.pairwise(order):
        assert cells[a] != cells[b] or a < b  # equals keep their order


def test_a_search_finds_every_word_in_any_case(call):
    assert call("matches", "CONV_2D head/angle", "conv ANGLE")
    assert call("matches", "CONV_2D head/angle", "")
    assert not call("matches", "CONV_2D head/angle", "conv tail")


# The charts.


@pytest.mark.parametrize("limits", [[-1.0, 2.5], [-100.0, 100.0], None])
def test_a_histogram_shows_all_bins_and_the_range(call, limits):
    tensor = {"bins": {"low": -2.0, "width": 0.5, "counts": [1, 0, 5, 9, 2]}, "limits": limits}
    figure = call("histogramFigure", tensor, INK)
    (bars,) = figure["data"]
    assert bars["y"] == [1, 0, 5, 9, 2]
    assert bars["x"] == [-1.75, -1.25, -0.75, -0.25, 0.25]
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < min(-2.0, *(limits or [0]))
    assert max(0.5, *(limits or [0])) < high
    drawn = [shape["x0"] for shape in figure["layout"]["shapes"] if shape["type"] == "line"]
    assert drawn == (limits or [])


@pytest.mark.parametrize("limits", [[-1.0, 2.5], None])
def test_charts_stay_in_their_room(call, limits):
    tensor = {"bins": {"low": -2.0, "width": 0.5, "counts": [1, 0, 5, 9000, 2]}, "limits": limits}
    weights = {"each": 2, "lows": [-1.0, -0.5], "highs": [0.5, 2.0], "limits": [1.0, 2.0]}
    bars = [
        {"label": "a", "value": 2.0, "low": 1.5, "high": 4.0},
        {"label": "b", "value": 1.0, "low": 0.9, "high": 1.1},
    ]
    ops = [{"id": "op0", "kind": "ADD", "name": "n", "errors": {"own": 40.0}}]
    measures = [{"key": "own", "title": "own", "unit": "dB"}]
    figures = {
        "histogramFigure": [tensor, INK],
        "channelFigure": [weights, INK],
        "latencyFigure": [bars, INK],
        "courseFigure": [ops, measures, INK],
    }
    for function, arguments in figures.items():
        parts = call("chartParts", call(function, *arguments), {"width": 400, "height": 200})
        shapes = [part["set"] for part in parts if part["tag"] == "rect"]
        assert function == "courseFigure" or shapes
        for shape in shapes:
            assert 0 <= shape["x"] <= shape["x"] + shape["width"] <= 400.5
            assert 0 <= shape["y"] <= shape["y"] + shape["height"] <= 200.5
        assert not any("NaN" in str(part) or "None" in str(part["set"]) for part in parts)
        assert any("hint" in part for part in parts)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 8))
def test_ticks_are_round_and_inside(call, low, width, count):
    found = call("ticks", low, low + width, count)
    assert found == sorted(found)
    assert all(low - 1e-6 * width <= mark <= low + width + 1e-6 * width for mark in found)
    assert 1 <= len(found) <= 2 * count + 1


def test_weights_are_drawn_from_least_to_greatest(call):
    weights = {"each": 2, "lows": [-1.0, -0.5], "highs": [0.5, 2.0], "limits": [1.0, 2.0]}
    bars, upper, lower = call("channelFigure", weights, INK)["data"]
    assert (bars["base"], bars["y"], bars["x"]) == ([-1.0, -0.5], [1.5, 2.5], [0, 2])
    assert (upper["y"], lower["y"]) == ([1.0, 2.0], [-1.0, -2.0])


def test_the_course_leaves_out_what_was_not_measured(call):
    ops = [{"id": f"op{k}", "kind": "ADD", "name": "n", "errors": {"own": v, "accumulated": None}}
           for k, v in enumerate([40.0, None, 200.0])]  # fmt: skip
    measures = [{"key": key, "title": key, "unit": "dB"} for key in ("own", "accumulated")]
    (line,) = call("courseFigure", ops, measures, INK)["data"]
    assert (line["x"], line["customdata"]) == ([0, 2], ["op0", "op2"])
    assert line["y"] == [40.0, 90]  # exact values do not press the others flat


def test_latencies_are_drawn_with_their_spread(call):
    (bars,) = call("latencyFigure", [{"label": "a", "value": 2.0, "low": 1.5, "high": 4.0}], INK)["data"]
    assert (bars["error_x"]["array"], bars["error_x"]["arrayminus"]) == ([2.0], [0.5])


# Commands.


@given(st.text(min_size=1))
def test_a_command_is_read_back_by_a_shell_as_it_was_meant(call, name):
    words = shlex.split(call("traceCommand", "zeropoint trace m.tflite --data x.npz", name, "[0, 1, 2]"))
    assert words == ["zeropoint", "trace", "m.tflite", "--data", "x.npz", "--tensor", name, "--at", "0,1,2"]


def test_a_tensor_is_called_by_a_part_of_its_name_that_is_its_own(call):
    names = ["stem/Relu;stem/bias", "head/Relu;stem/bias", "stem/bias;x"]
    assert [call("distinctPart", name, names) for name in names] == ["stem/Relu", "head/Relu", "x"]
    assert call("distinctPart", "a;b", ["a", "b", "a;b"]) == "a;b"
