"""The report in a real browser, and node data in Model Explorer's own package.

These need more than a fresh clone has, so they run on request: pip install 'zeropoint[browser]', a Chromium
(`playwright install chromium`, or the path of one in ZEROPOINT_CHROMIUM), and pytest -m browser.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint.comparison.compare import compare_models
from zeropoint.comparison.values import Diagnosis, Finding
from zeropoint.demo import digits as digits_data
from zeropoint.report.model_explorer import save_node_data
from zeropoint.report.page import save_report
from zeropoint.report.page_build import Evidence

from .. import build
from .test_page import large_model

pytestmark = pytest.mark.browser

SIZES = {"laptop": (1366, 768), "phone": (390, 844)}


@pytest.fixture(scope="session")
def evidence(digits) -> Evidence:
    images = [image[None] for image in digits_data()["calibration"][:40]]
    result = zeropoint.quantize(digits, data=images, effort="quick")
    comparison = compare_models(zeropoint.load(digits), result.model, images[:8])
    size = len(zeropoint.to_bytes(result.model))
    long = "/".join(["a_name_without_an_end"] * 40)
    op = comparison.ops[0].name
    finding = Finding("clipping", long, (long,), long, long, 1.0, rules=({"name": long, "scheme": "float"},), ops=(op,))
    diagnosis = Diagnosis((finding,), comparison)
    trace = zeropoint.simulate(result.model, images[0], float_model=digits)
    known = {"diagnosis": diagnosis, "trace": trace, "trace_command": "zeropoint trace m.tflite --data x.npz"}
    return Evidence("digits_int8.tflite", result.model, size, len(digits), result, **known)


@pytest.fixture(scope="session")
def report(evidence, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    save_report(evidence, path)
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = os.environ.get("ZEROPOINT_CHROMIUM")
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser) -> Iterator[Any]:
    """Open a file; in the end nothing may have been complained of or asked of the network."""
    complaints: list[str] = []
    contexts = []

    def open_page(path: Path, size: str = "laptop", scheme: str = "light") -> Any:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "blob:")) or complaints.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_opens_without_complaint_and_fits_the_screen(open_page, report, size, scheme):
    page = open_page(report, size, scheme)
    page.wait_for_selector("#course-chart svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_an_element_is_picked_and_its_arithmetic_followed(open_page, report, evidence):
    page = open_page(report)
    kinds = [op.kind for op in evidence.model.main.ops]
    position = kinds.index("DEPTHWISE_CONV_2D")
    page.click(f'tr[data-op="op{position}"] .show')
    for choice in (0, 1):
        page.select_option("#number select", str(choice))
        (index, _) = page.locator("#number option").nth(choice).inner_text()[1:].split("] ")
        found = evidence.trace.explain(
            evidence.trace.names[evidence.model.main.ops[position].outputs[0]], tuple(map(int, index.split(",")))
        )
        shown = page.inner_text("#number table")
        assert f"{found.value} int8" in shown
        assert str(found.step("multiplier")) in shown
    page.fill("#number input", "[0, 1, 2, 3]")
    assert page.inner_text("#number code").startswith("zeropoint trace m.tflite --data x.npz --tensor ")
    assert page.inner_text("#number code").endswith(" --at 0,1,2,3")
    page.click("#number .link")  # the data that it read
    assert page.inner_text("#detail h2") == kinds[position - 1]


def test_a_click_on_an_op_shows_its_charts(open_page, report, evidence):
    page = open_page(report)
    position = next(k for k, op in enumerate(evidence.model.main.ops) if op.kind == "CONV_2D")
    page.click(f'.box[data-op="op{position}"]')
    page.wait_for_selector("#detail .histogram svg")
    page.wait_for_selector("#detail .channels svg")
    assert page.inner_text("#detail h2") == "CONV_2D"
    name = evidence.model.main.ops[position].name
    assert page.inner_text("#detail p >> nth=0") == evidence.short_names[name] != name
    assert page.inner_text("#detail p >> nth=1") == f"in the file: {name}"
    assert page.locator("tr.chosen").get_attribute("data-op") == f"op{position}"
    assert page.locator("#detail .histogram .range").count() >= 3  # the range and its two ends


def test_rows_are_filtered_and_sorted(open_page, report, evidence):
    page = open_page(report)
    ops = len(evidence.model.main.ops)
    assert page.inner_text("#count") == f"{ops} of {ops} ops"
    page.fill("#search", "conv relu")
    shown = page.locator("#ops tbody tr:visible")
    assert 0 < shown.count() < ops
    assert page.inner_text("#count") == f"{shown.count()} of {ops} ops"
    page.fill("#search", "")
    page.select_option("#execution", "conversion")
    assert shown.count() == sum(op.kind in ("QUANTIZE", "DEQUANTIZE") for op in evidence.model.main.ops)
    page.select_option("#execution", "")
    for sign, order in ((1, "ascending"), (-1, "descending")):
        page.click("#ops th:has-text('Own dB') button")
        assert page.locator("#ops th[aria-sort]:has-text('Own dB')").get_attribute("aria-sort") == order
        column = page.eval_on_selector_all("#ops th", "heads => heads.findIndex(h => h.innerText.startsWith('Own dB'))")
        cells = page.eval_on_selector_all(
            "#ops tbody tr", "(rows, k) => rows.map(r => r.cells[k].dataset.value ?? null)", column
        )
        values = [float(cell) for cell in cells if cell is not None]
        assert values == sorted(values, key=lambda v: sign * v)
        assert None not in cells[: len(values)]


def test_the_picture_moves_zooms_and_changes_colours(open_page, report, evidence):
    page = open_page(report)
    view = "({x: view.x, y: view.y, width: view.width})"
    before = page.evaluate(view)
    page.locator(".stage").scroll_into_view_if_needed()
    box = page.locator(".stage").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 150, steps=5)
    page.mouse.up()
    dragged = page.evaluate(view)
    assert dragged["x"] < before["x"]
    assert dragged["y"] > before["y"]
    page.click("#closer")
    assert page.evaluate(view)["width"] < dragged["width"]
    page.click("#fit")
    stage = page.locator(".stage").bounding_box()
    for place in page.eval_on_selector_all(".box", "boxes => boxes.map(b => b.getBoundingClientRect().toJSON())"):
        assert stage["y"] - 1 <= place["top"]
        assert place["bottom"] <= stage["y"] + stage["height"] + 1
    page.select_option("#measure", "execution")
    integer = [op for op in zeropoint.inspect(evidence.model).ops if op.execution == "integer"]
    assert page.locator(".box.integer").count() == len(integer) > 5
    assert page.locator(".legend:visible").get_attribute("data-measure") == "execution"


def test_several_graphs_can_be_chosen(open_page, tmp_path):
    save_report(Evidence("branches.tflite", build.branches(), 1), tmp_path / "r.html")
    page = open_page(tmp_path / "r.html")
    for index in range(3):
        page.select_option("#picture", str(index))
        assert page.locator(".picture:visible").count() == 1
    page.click("#ops tbody tr:first-child .show")
    assert page.input_value("#picture") == "0"


@pytest.mark.parametrize("make", [build.names, build.every_type, build.loop], ids=lambda make: make.__name__)
def test_odd_models_open_too(open_page, tmp_path, make):
    save_report(Evidence("odd.tflite", make(), 1), tmp_path / "r.html")
    page = open_page(tmp_path / "r.html")
    for button in page.locator("#ops .show").all():
        button.click()
        assert page.locator("#detail h2").count() == 1


def test_many_ops_stay_fluid(open_page, tmp_path):
    """Moving the picture of 600 ops takes the script next to no time: nothing is laid out anew."""
    tensors = [build.act("x", 1, 8), *(build.act(f"block_{k // 10}/y_{k}", 1, 8) for k in range(600))]
    ops = [
        build.op("ADD", [tensors[k], tensors[max(0, k - 5)]], tensors[k + 1], options="AddOptions") for k in range(600)
    ]
    model = zeropoint.Model([build.graph("main", tensors[:1], tensors[-1:], *ops)])
    save_report(Evidence("large.tflite", model, 1), tmp_path / "r.html")
    page = open_page(tmp_path / "r.html")
    moving, anew = page.evaluate("""async () => {
        let spent = 0;
        for (let k = 0; k < 30; k++) {
            const start = performance.now();
            show(moved(view, 3, 9, size));
            document.body.offsetHeight;
            spent += performance.now() - start;
            await new Promise(requestAnimationFrame);
        }
        const start = performance.now();
        svg.setAttribute("viewBox", `0 0 ${size.width - 1} ${size.height - 1}`);
        document.body.offsetHeight;
        return [spent / 30, performance.now() - start];
    }""")
    assert moving < anew  # what a change of the viewBox costs, in the same browser at the same time


def test_every_op_is_reached_by_keys(open_page, report, evidence):
    page = open_page(report)
    page.locator('.box[tabindex="0"]').focus()
    for op in range(len(evidence.model.main.ops)):
        assert page.evaluate("document.activeElement.dataset.op") == f"op{op}"
        page.keyboard.press("Enter")
        assert page.locator("tr.chosen").get_attribute("data-op") == f"op{op}"
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.op") == "op0"


def test_a_click_in_the_table_shows_the_op_in_view(open_page, report):
    page = open_page(report)
    page.click("#fit")
    page.locator("#ops tbody tr:last-child .show").click()
    chosen = page.locator(".box.chosen rect")
    assert chosen.evaluate("""rect => {
        const box = rect.getBoundingClientRect(), stage = document.querySelector(".stage").getBoundingClientRect();
        return box.top >= Math.max(stage.top, 0) &&
            box.bottom <= Math.min(stage.bottom, innerHeight) && box.width > 150;
    }""")


def test_the_wheel_scrolls_the_page_unless_ctrl_is_held(open_page, report):
    page = open_page(report)
    page.locator(".stage").scroll_into_view_if_needed()
    box = page.locator(".stage").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    before, top = page.evaluate("({...view})"), page.evaluate("scrollY")
    page.mouse.wheel(0, -80)
    page.wait_for_function("top => scrollY < top", arg=top)
    assert page.evaluate("({...view})") == before
    page.keyboard.down("Control")
    page.mouse.wheel(0, -80)
    page.wait_for_function("width => view.width < width", arg=before["width"])


def test_large_graphs_open_as_groups(open_page, tmp_path):
    save_report(Evidence("large.tflite", large_model(), 1), tmp_path / "r.html")
    page = open_page(tmp_path / "r.html")
    assert page.locator(".picture:visible .box.group").count() == 12
    page.locator(".picture:visible .box.group").nth(3).click()
    assert page.locator(".picture:visible .box[data-op]").count() == 10
    page.click("#overview")
    assert page.locator(".picture:visible .box.group").count() == 12
    page.locator("#ops tbody tr:last-child .show").click()
    assert page.locator(".picture:visible .box.chosen").get_attribute("data-op") == "op119"
    frame = page.evaluate("document.querySelector('#map rect').getAttribute('x')")
    page.locator("#map").click(position={"x": 5, "y": 5})
    assert page.evaluate("document.querySelector('#map rect').getAttribute('x')") != frame


def test_it_prints_on_few_pages(open_page, report):
    page = open_page(report)
    page.wait_for_selector("#course-chart svg")
    assert 1 <= page.pdf().count(b"/Type /Page\n") <= 8


def test_model_explorer_finds_every_node(evidence, tmp_path):
    """Its own adapter reads the model; every key of the node data is a tensor of a node that it shows."""
    from model_explorer.builtin_tflite_flatbuffer_adapter import BuiltinTfliteFlatbufferAdapter
    from model_explorer.config import ModelExplorerConfig
    from model_explorer.node_data_builder import GraphNodeData, NodeDataResult, ThresholdItem

    model, data = tmp_path / "m.tflite", tmp_path / "m.json"
    evidence.result.save(model)
    save_node_data(evidence, data)
    (collection,) = BuiltinTfliteFlatbufferAdapter().convert(str(model), {})["graphCollections"]
    graphs = dataclasses.asdict(collection)["graphs"]
    shown = {
        graph["id"]: {
            attribute["value"]
            for node in graph["nodes"]
            for output in node["outputsMetadata"]
            for attribute in output["attrs"]
            if attribute["key"] == "tensor_name"
        }
        for graph in graphs
    }
    content = json.loads(data.read_text("utf-8"))
    for name, graph in content.items():
        assert set(graph["results"]) <= shown[name]
        results = {key: NodeDataResult(**entry) for key, entry in graph["results"].items()}
        thresholds = [ThresholdItem(**entry) for entry in graph["thresholds"]]
        loaded = GraphNodeData(**(graph | {"results": results, "thresholds": thresholds}))
        assert json.loads(loaded.to_json_string()).items() >= graph.items()
        assert np.isfinite([entry.value for entry in results.values()]).all()
    config = ModelExplorerConfig().add_model_from_path(str(model)).add_node_data_from_path(str(data))
    assert config.node_data_sources == [str(data)]
