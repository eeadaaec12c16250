"""The report: complete, self-contained, safe with names from strangers. tests/report/test_browser.py opens it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zeropoint
from zeropoint.affine import QuantParams, dequantize
from zeropoint.affine import quantize as to_integers
from zeropoint.bench.latency import Benchmark, Latency, Timing
from zeropoint.calibration.stats import stats_of
from zeropoint.comparison.compare import compare_models
from zeropoint.comparison.values import Diagnosis, Finding
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.report.page import embedded_json, page_of, render, save_report
from zeropoint.report.page_build import Evidence, Page, latency_bars, op_details
from zeropoint.report.page_measures import MEASURES
from zeropoint.report.page_picture import layered
from zeropoint.report.page_tensors import DRAWN_BINS, drawn, expected_errors, weight_ranges

from .. import build
from ..test_cli import refused


@pytest.fixture(scope="session")
def evidence(digits) -> Evidence:
    """The digits model in int8, compared on a few samples."""
    images = [image[None] for image in digits_data()["calibration"][:40]]
    result = zeropoint.quantize(digits, data=images, effort="quick")
    comparison = compare_models(zeropoint.load(digits), result.model, images[:8])
    size = len(zeropoint.to_bytes(result.model))
    trace = zeropoint.simulate(result.model, images[0], float_model=digits)
    known = {"comparison": comparison, "trace": trace, "trace_command": "zeropoint trace digits_int8.tflite"}
    return Evidence("digits_int8.tflite", result.model, size, len(digits), result, **known)


@pytest.fixture(scope="session")
def page(evidence) -> Page:
    return page_of(evidence)


class Document(HTMLParser):
    """Start tags with their attributes, and the text of scripts and styles by id or tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, str] = {}
        self.text = ""
        self._inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = (dict(attrs).get("id") or tag) if tag in ("script", "style") else None

    def handle_endtag(self, _tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data
        else:
            self.raw[self._inside] = self.raw.get(self._inside, "") + data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        wanted = {k.rstrip("_"): v for k, v in attributes.items()}
        return [a for t, a in self.tags if t == tag and all(v in (a.get(k) or "").split() for k, v in wanted.items())]


@pytest.fixture(scope="session")
def document(page) -> Document:
    return Document(render(page))


# What is on the page.


def test_every_op_has_a_box_a_row_and_details(document, page, evidence):
    ids = [op.id for op in page.ops]
    assert len(set(ids)) == len(ids) == len(evidence.model.main.ops)
    boxes = [a["data-op"] for a in document.all("g", class_="box") if "data-op" in a]
    rows = [a["data-op"] for a in document.all("tr") if "data-op" in a]
    data = json.loads(document.raw["data"])
    assert sorted(boxes) == sorted(rows) == sorted(ids) == sorted(op["id"] for op in data["ops"])
    for op in data["ops"]:
        assert all(name in data["tensors"] for name in (*op["inputs"], *op["outputs"]) if name is not None)


def test_a_compared_model_shows_its_errors(page, evidence):
    measured = {row.quantized_name: row for row in evidence.comparison.ops}
    shown = {op.name: op.errors for op in page.ops if op.errors.own is not None}
    assert set(shown) == set(measured)
    assert all(
        shown[name].own == row.own.snr and shown[name].accumulated == row.accumulated.snr
        for name, row in measured.items()
    )


def test_cards_tell_size_accuracy_and_integer_share(page, evidence):
    cards = {card.label: card for card in page.cards}
    assert list(cards) == ["Size", "Same class", "SNR", "Integer arithmetic"]
    assert cards["Integer arithmetic"].value == "99.9%"  # the softmax stays float
    assert cards["SNR"].value == f"{evidence.comparison.snr:.1f} dB"


def test_latency_is_shown_where_it_was_measured(evidence):
    def timing(name: str, *medians: float) -> Timing:
        latencies = tuple(Latency(k, m, 0.9 * m, 1.2 * m, 0.8 * m, 5) for k, m in enumerate(medians, 1))
        return Timing(name, 1, latencies, None, (), {})

    bars = latency_bars(Benchmark((timing("float", 0.004, 0.003), timing("int8", 0.001, 0.0008)), 2))
    assert [bar.label for bar in bars] == [
        f"{name}, {t}" for name in ("float", "int8") for t in ("1 thread", "2 threads")
    ]
    page = page_of(dataclasses.replace(evidence, bars=bars))
    (card,) = [card for card in page.cards if card.label == "Latency"]
    assert (card.value, card.note) == ("1 ms", "4.00 × as fast as float, 1 thread")
    assert 'id="latency-chart"' in render(page)


def test_findings_come_with_evidence_advice_and_recipe(evidence):
    op = evidence.comparison.ops[2]
    rules = ({"name": op.name, "scheme": "int16x8"},)
    finding = Finding("clipping", "It clips <a lot>", ("12 % beyond",), "It hurts.", "Widen it.", 3.25, True, rules)
    finding = dataclasses.replace(finding, ops=(op.quantized_name,))
    sick = dataclasses.replace(evidence, diagnosis=Diagnosis((finding,), evidence.comparison))
    document = Document(render(page_of(sick)))
    for text in (
        "It clips <a lot>",
        "12 % beyond",
        "It hurts.",
        "Widen it.",
        "+3.2 dB measured",
        '"scheme": "int16x8"',
    ):
        assert text in document.text
    assert document.all("button", class_="show", **{"data-op": f"op{op.position}"})
    healthy = dataclasses.replace(evidence, diagnosis=Diagnosis((), evidence.comparison))
    assert "Nothing to fix." in Document(render(page_of(healthy))).text
    assert "Findings" not in Document(render(page_of(evidence))).text


def test_what_stayed_float_is_told_with_the_reason(digits, evidence):
    result = zeropoint.quantize(digits, stats=evidence.result.stats, effort="quick", keep_float=["SOFTMAX"])
    page = page_of(Evidence("m", result.model, 1, result=result))
    assert "1 SOFTMAX stayed float: the recipe keeps it in float" in page.remarks
    (op,) = [op for op in page.ops if op.kind == "SOFTMAX"]
    assert op.notes == ("the recipe keeps it in float", "runs fast, XNNPACK")


MODELS = [
    *(build.float_cnn, build.quantized_cnn, build.branches, build.loop, build.composite, build.custom, build.stateful),
    *(build.sparse, build.dynamic, build.blockwise, build.int4, build.shared, build.names, build.empty),
    *(build.outside, build.every_type),
]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_any_model_can_be_shown(make, tmp_path):
    model = make()
    path = tmp_path / "report.html"
    size = save_report(Evidence("some.tflite", model, 1), path)
    content = path.read_bytes()
    assert len(content) == size
    document = Document(content.decode())
    assert len(document.all("svg", class_="picture")) == sum(bool(graph.ops) for graph in model.graphs)
    assert len(json.loads(document.raw["data"])["ops"]) == sum(len(graph.ops) for graph in model.graphs)


# Self-contained, and safe.


def test_nothing_is_fetched(document):
    (policy,) = [a["content"] for a in document.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?:|'self'|\*", policy)
    assert not [a for _, a in document.tags if {"src", "href", "action"} & set(a)]
    ours = document.raw["style"] + document.raw["script"]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://|innerHTML|eval\(", ours)


HOSTILE = "</script><img src=x onerror=alert(1)>\"'<!--"


def test_names_from_strangers_stay_text():
    x, y = build.act(HOSTILE, 2), build.act(f"y{HOSTILE}", 2)
    evidence = Evidence(HOSTILE, build.one_op("ABS", [x], y, options="AbsOptions"), 1)
    document = Document(render(page_of(evidence)))
    assert not document.all("img")
    assert set(json.loads(document.raw["data"])["tensors"]) == {HOSTILE, f"y{HOSTILE}"}
    assert evidence.short_names[y.name] in document.text


@given(st.recursive(st.text() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_embedded_json_closes_no_tag_and_loses_nothing(value):
    text = embedded_json(value)
    assert "<" not in text
    assert json.loads(text) == value


def test_the_same_evidence_gives_the_same_bytes(evidence, page):
    assert render(page_of(evidence)) == render(page)


# Layout.


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    vertices = draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1))
    edges = [(min(p), max(p)) for p in draw(st.lists(pairs, max_size=60, unique=True)) if p[0] != p[1]]
    return vertices, list(dict.fromkeys(edges))


@given(graphs())
def test_edges_point_down_and_nothing_shares_a_place(graph):
    vertices, edges = graph
    places, bends = layered(vertices, edges)
    assert len(places) == vertices
    for (start, end), passed in zip(edges, bends, strict=True):
        layers = [places[start][1], *(y for _, y in passed), places[end][1]]
        assert layers == list(np.arange(layers[0], layers[0] + len(layers)))  # downwards, a bend in each layer
    everything = [*places, *(bend for passed in bends for bend in passed)]
    assert len({(round(x, 3), y) for x, y in everything}) == len(everything)


# Figures.


VALUES = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=300)


@given(VALUES)
def test_a_drawn_histogram_keeps_every_count(values):
    stats = stats_of(np.array(values, np.float32), 0)
    bins = drawn(stats.histogram)
    assert bins is not None
    assert sum(bins.counts) == len(values)
    assert len(bins.counts) <= DRAWN_BINS
    assert bins.low <= min(values)
    assert max(values) <= bins.low + bins.width * len(bins.counts)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=lambda d: d.label)
@pytest.mark.parametrize("reach", [0.3, 1.0, 3.0])
def test_expected_errors_are_those_that_rounding_makes(dtype, reach):
    values = np.random.default_rng(7).normal(size=40_000).astype(np.float32)
    seen, params = stats_of(values, 0), QuantParams.from_range(-reach, reach, dtype)
    found = dequantize(to_integers(values, params), params).astype(np.float64)
    measured = 10 * np.log10(np.sum(values.astype(np.float64) ** 2) / np.sum((found - values) ** 2))
    snr, clipped = expected_errors(seen, params)
    assert snr == pytest.approx(measured, abs=0.2)
    low, high = params.range()
    beyond = np.mean((values < low - params.scale / 2) | (values > high + params.scale / 2))
    assert clipped == pytest.approx(beyond, abs=2e-3)


def test_weights_by_channel_lie_within_what_their_scale_allows(evidence):
    drawn_ones = [(op, weights) for op in evidence.model.main.ops for weights in weight_ranges(op)]
    assert {op.kind for op, _ in drawn_ones} == {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"}
    for op, weights in drawn_ones:
        tensor = next(t for t in op.inputs if t is not None and t.name == weights.name)
        values = np.moveaxis(dequantize(tensor.data, tensor.params), weights.axis, 0).reshape(len(weights.lows), -1)
        np.testing.assert_array_equal(values.min(axis=1), np.float32(weights.lows))
        np.testing.assert_array_equal(values.max(axis=1), np.float32(weights.highs))
        for low, high, limit in zip(weights.lows, weights.highs, weights.limits, strict=True):
            assert -limit * (1 + 1e-6) <= low <= high <= limit * (1 + 1e-6)


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.key)
@given(values=st.lists(st.floats(0, 100), min_size=2, max_size=2))
def test_levels_follow_the_values(measure, values):
    worse, better = (min(values), max(values)) if measure.unit == "dB" else (max(values), min(values))
    assert 0 <= measure.level(better) <= measure.level(worse) < len(measure.legend()) == 6


# The command.


@pytest.fixture
def home(tmp_path, digits):
    (tmp_path / "model.tflite").write_bytes(digits)
    np.savez(tmp_path / "data.npz", digits_data()["calibration"][:20])
    return tmp_path


def test_quantize_writes_both(run, home):
    arguments = [home / "model.tflite", "-o", home / "out.tflite", "--data", home / "data.npz", "--effort", "quick"]
    reports = ["--report", home / "out.html", "--model-explorer", home / "out.json"]
    code, out, err = run("quantize", *arguments, *reports)
    assert (code, err) == (0, "")
    assert str(home / "out.html") in out
    document = Document((home / "out.html").read_text("utf-8"))
    assert "Own SNR" in document.text
    assert f"--data {home / 'data.npz'}" in document.text
    assert "Compared on" in document.text
    assert json.loads((home / "out.json").read_text("utf-8"))["main"]["results"]


WRONG: dict[str, list[str]] = {
    "out.html exists already": ["--data", "data.npz", "--report", "out.html"],
    "two different outputs": ["--data", "data.npz", "--report", "out.tflite"],
    "omit --dry-run": ["--data", "data.npz", "--report", "new.html", "--dry-run"],
    "no folder": ["--data", "data.npz", "--report", "none/new.html"],
    "give --data": ["--mode", "dynamic", "--model-explorer", "new.json"],
}


@pytest.mark.parametrize(("words", "options"), WRONG.items(), ids=WRONG)
def test_wrong_wishes_are_refused_before_anything_is_written(run, home, monkeypatch, words, options):
    monkeypatch.chdir(home)
    (home / "out.html").write_text("precious", "utf-8")
    before = {p.name: p.read_bytes() for p in home.iterdir()}
    assert words in refused(run("quantize", "model.tflite", "-o", "out.tflite", *options))
    assert {p.name: p.read_bytes() for p in home.iterdir()} == before


@pytest.mark.parametrize("missing", ["igraph", "jinja2"])
def test_a_missing_extra_is_named_before_any_work(run, home, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    told = refused(run("quantize", home / "model.tflite", "-o", home / "o.tflite", "--report", home / "o.html"))
    assert "pip install 'zeropoint[report]'" in told
    assert not (home / "o.tflite").exists()


def test_details_are_the_same_without_a_picture(evidence, page):
    assert op_details(evidence) == page.ops


def large_model() -> zeropoint.Model:
    """A chain of 120 ops in 12 scopes."""
    tensors = [build.act("x", 1, 8), *(build.act(f"net/block_{k // 10}/y_{k}", 1, 8) for k in range(120))]
    ops = [build.op("ABS", tensors[k : k + 1], tensors[k + 1], options="AbsOptions") for k in range(120)]
    return zeropoint.Model([build.graph("main", tensors[:1], tensors[-1:], *ops)])


def test_large_graphs_are_grouped_by_scope():
    model = large_model()
    page = page_of(Evidence("large.tflite", model, 1))
    whole, *parts = page.pictures
    assert [box.title for box in whole.boxes if box.ops] == [f"net/block_{k}" for k in range(12)]
    assert [page.pictures[box.opens] for box in whole.boxes if box.ops] == parts
    assert all(part.parent == 0 for part in parts)
    drawn = [box.op for part in parts for box in part.boxes if box.op]
    assert drawn == [op.id for op in page.ops]
    assert len(whole.lines) == 13
    assert [box.title for box in parts[4].boxes if not box.op] == ["input", "output"]


def test_names_without_scopes_are_grouped_by_number():
    model = large_model()
    for k, tensor in enumerate(model.main.tensors):
        tensor.name = f"t{k}"
    whole, *parts = page_of(Evidence("large.tflite", model, 1)).pictures
    assert whole.boxes[1].title == "ops 0 to 2"
    assert len(parts) == 40


def test_a_page_of_a_small_model_is_small(evidence):
    assert len(render(page_of(evidence)).encode()) < 200_000


def test_kinds_and_counts(page):
    """The picture has a box for each op and each end."""
    (picture,) = page.pictures
    titles = Counter(box.title for box in picture.boxes)
    assert titles["input"] == titles["output"] == 1
    assert sum(titles.values()) == len(page.ops) + 2
    assert all(0 <= x <= picture.width and 0 <= y <= picture.height for line in picture.lines for x, y in line)
    names: dict[str, Any] = page.to_json()
    json.dumps(names, allow_nan=False)


def test_compare_doctor_and_benchmark_write_reports(run, home, evidence):
    evidence.result.save(home / "int8.tflite")
    both, data = [home / "model.tflite", home / "int8.tflite"], ["--data", home / "data.npz"]
    commands = {
        "compare": [*both, *data, "--limit", "4", "--model-explorer", home / "compare.json"],
        "doctor": [*both, *data, "--limit", "8", "--effort", "quick", "--seconds", "1"],
        "benchmark": [*both, "--rounds", "2", "--threads", "1", "--quick"],
    }
    texts = {}
    for command, arguments in commands.items():
        code, out, err = run(command, *arguments, "--report", home / f"{command}.html")
        assert (code, err) == (0, ""), command
        assert str(home / f"{command}.html") in out
        document = Document((home / f"{command}.html").read_text("utf-8"))
        texts[command] = document.text
        tensors = json.loads(document.raw["data"])["tensors"].values()
        assert any(tensor["bins"] for tensor in tensors) is (command != "benchmark")
    assert "Own SNR" in texts["compare"]
    assert "Findings" in texts["doctor"]
    assert "Latency" in texts["benchmark"]
    assert json.loads((home / "compare.json").read_text("utf-8"))["main"]["results"]


def test_any_model_has_a_report(run, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("report", home / "model.tflite")
    assert (code, err) == (0, "")
    assert "model.html" in out
    assert "digits_1/residual_1/Add" in (tmp_path / "model.html").read_text("utf-8")
    assert "exists already" in refused(run("report", home / "model.tflite"))


# Numbers.


def test_numbers_of_every_integer_op_are_explained(evidence, page):
    for op, detail in zip(evidence.model.main.ops, page.ops, strict=True):
        assert bool(detail.numbers) == (op not in evidence.trace.elsewhere)
        assert len({number.index for number in detail.numbers}) == len(detail.numbers) <= 3
        for number in detail.numbers:
            place = tuple(map(int, number.index.split(",")))
            found = evidence.trace.explain(detail.outputs[0], place)
            texts = {row.label: row.text for row in number.rows}
            assert float(texts["Value"].split()[0]) == pytest.approx(found.value)
            assert all(row.tensor is None or row.tensor in page.tensors for row in number.rows)
            if found.products:
                assert texts["sum of products"] == str(sum(product.value for product in found.products))


def test_the_number_that_is_farthest_from_the_float_model_comes_first(evidence, page):
    for detail in page.ops:
        for number in detail.numbers[:1]:
            errors = [
                abs(found.real - found.float_model)
                for other in detail.numbers
                if (found := evidence.trace.explain(detail.outputs[0], tuple(map(int, other.index.split(",")))))
            ]
            assert number.why != "farthest from the float model" or errors[0] == max(errors)


def test_a_model_that_takes_images_of_any_size_has_numbers_too(evidence):
    model = zeropoint.load(zeropoint.to_bytes(evidence.model))
    for tensor in (*model.main.inputs, *(t for op in model.main.ops for t in op.outputs)):
        tensor.shape_signature = (-1, *tensor.shape[1:])
    trace = zeropoint.simulate(model, evidence.trace.row[0])
    opened = dataclasses.replace(evidence, model=model, result=None, comparison=None, trace=trace)
    assert any(op.numbers for op in op_details(opened))
