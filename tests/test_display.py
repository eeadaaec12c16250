"""Values at a prompt fit on a screen; in a notebook they have pictures, and work shows how far it is."""

from __future__ import annotations

import dataclasses
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.latency import TimingOptions
from zeropoint.calibration import Ranges
from zeropoint.comparison.values import Diagnosis, Finding
from zeropoint.demo import digits as digits_data
from zeropoint.recipe import FLOAT, Rule, keep_float, preset
from zeropoint.report.notebook import WRITERS

from . import build
from .nets import Net

SCREEN = 24 * 80


@pytest.fixture(scope="module")
def values(digits) -> dict[str, Any]:
    model, images = zeropoint.load(digits), digits_data()["calibration"][:8]
    result = zeropoint.quantize(model, data=images)
    comparison = zeropoint.compare(model, result.model, images, limit=2)
    finding = Finding("clipping", "title", ("evidence " * 40,) * 9, "effect", "advice", 1.0, ops=("name",) * 400)
    return {
        "model": model,
        "graph": model.main,
        "op": model.main.ops[0],
        "signature": model.signatures[0],
        "result": result,
        "plan": result.plan,
        "planned": result.planned,
        "stats": result.stats,
        "tensor stats": next(iter(result.stats.tensors.values())),
        "verdict": result.verdict,
        "check": result.check,
        "target": result.target,
        "comparison": comparison,
        "diagnosis": Diagnosis((finding,) * 5, comparison),
        "finding": finding,
        "recipe": preset("int8").then(*(Rule(FLOAT, name=f"layer_{k}") for k in range(200))),
        "inspection": zeropoint.inspect(result.model),
        "benchmark": zeropoint.benchmark({"float": model}, TimingOptions(rounds=2, inside=False)),
        "ranges": Ranges({}),
        "parameters": max((t.params for t in result.model.main.tensors if t.params), key=lambda p: len(p.scales)),
    }


def test_every_value_fits_on_a_screen(values):
    for name, value in values.items():
        assert len(repr(value)) < SCREEN, name


def test_it_does_not_grow_with_what_it_holds(values):
    stats = values["stats"]
    larger = dataclasses.replace(stats, tensors={f"t{k}": t for k, t in enumerate([*stats.tensors.values()] * 100)})
    assert len(repr(larger)) < len(repr(stats)) + 10


def test_notebooks_are_shown_html(values):
    shown = {type(value): value._repr_html_() for value in values.values() if hasattr(value, "_repr_html_")}
    assert set(shown) == set(WRITERS)
    for kind, html in shown.items():
        assert len(html) < 60_000, kind
        assert html.count("<div") == html.count("</div>")
        assert not re.search(r"<script|src=|href=", html)
    assert "<svg" in shown[zeropoint.Model]
    assert shown[zeropoint.Stats].count("<svg") == len(values["stats"].tensors)
    assert "Verdict" in shown[zeropoint.Result]
    assert "Ops by their own SNR" in shown[type(values["comparison"])]


def test_names_from_files_are_escaped():
    net = Net()
    model = net.model(net("ABS", [net.input(1, 4)], name="<script>alert(1)</script>"))
    recipe = preset("int8").then(keep_float("<b>"))
    for value in (model, recipe, zeropoint.quantize(model, data=[np.ones((1, 4), np.float32)])):
        assert "<script>" not in value._repr_html_()
        assert "<b>" not in value._repr_html_()


def test_large_graphs_are_not_drawn():
    net = Net()
    x = net.input(1, 4)
    for _ in range(60):
        x = net("ABS", [x])
    assert "<svg" not in net.model(x)._repr_html_()


class Line:
    """What IPython gives for a display that can be changed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, content: dict[str, str], raw: bool) -> None:
        assert raw
        self.texts.append(content["text/plain"])


@pytest.mark.parametrize("kernel", [True, False], ids=["notebook", "terminal"])
def test_work_in_a_notebook_shows_how_far_it_is(monkeypatch, kernel):
    line, python, display = Line(), ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(kernel=object()) if kernel else SimpleNamespace()
    python.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = lambda *_, **__: line  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    zeropoint.calibrate(build.float_cnn(), [np.zeros((1, 4, 4, 1), np.float32)] * 3)
    assert bool(line.texts) is kernel
    assert all(text.startswith("calibrating, samples: ") for text in line.texts)
