"""`python -m benchmarks` on a small zoo: rows, resuming, refusals, the page and its plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import rows as results
from benchmarks import side_by_side, tools
from benchmarks.rows import Row

QUICK = ("--samples", "20", "--limit", "40", "--rounds", "2", "--runs", "1")
Bench = Callable[..., int]


@pytest.fixture
def bench(zoo, tmp_path, monkeypatch) -> Iterator[Bench]:
    """The command on the small zoo, by itself: without other tools, and without repetitions."""
    monkeypatch.setattr(side_by_side, "REPEATS", 1)
    monkeypatch.setattr(results, "source_digest", lambda: "same")  # whoever edits files while the tests run

    def call(*arguments: str, against: str = "") -> int:
        common = ("--zoo", str(zoo), "--against", against, "-o", str(tmp_path / "results"))
        return command.main([*common, *QUICK, *arguments])

    yield call
    sys.modules.pop("zoo", None)


def stored(folder: Path) -> dict[str, Row]:
    found = [json.loads(path.read_text()) for path in sorted((folder / "results" / "rows").glob("*.json"))]
    rows = [Row(**content["row"]) for content in found]
    return {row.name: row for row in rows}


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "results" / "rows").iterdir()}


def test_a_run_leaves_rows_a_page_and_plots(bench, tmp_path, capsys):
    assert bench("--only", "digits", "--modes", "int8,dynamic", "--also", "high,all") == 0
    rows = stored(tmp_path)
    made = ["digits.dynamic.zeropoint", "digits.dynamic.zeropoint.all", "digits.int8.zeropoint"]
    assert set(rows) == {"digits.float.float", "digits.int8.zeropoint.high", *made}
    int8 = rows["digits.int8.zeropoint"]
    assert int8.error is None
    assert int8.score is not None
    assert int8.float_score is not None
    assert int8.score == pytest.approx(int8.float_score, abs=0.1)
    assert int8.size is not None
    assert int8.float_size is not None
    assert int8.size < int8.float_size
    assert int8.conversions == 2  # one at the input, one at the output
    assert {"1", "1 of float"} <= set(int8.latency)
    assert int8.whole is not None
    assert int8.calibration is not None
    assert 0 < int8.calibration <= int8.whole
    assert int8.peak is not None
    assert int8.peak >= 0
    assert rows["digits.dynamic.zeropoint"].calibration is None  # it needs no data

    page = (tmp_path / "results" / "README.md").read_text()
    assert f"| int8 | zeropoint | {int8.score:.4f} |" in page
    assert "zeropoint (high)" in page
    assert str(tmp_path) not in page
    everything = json.loads((tmp_path / "results" / "results.json").read_text())
    assert {Row(**row).name for row in everything["rows"]} == set(rows)
    assert str(tmp_path) not in json.dumps(everything)
    for plot in ("score-size.svg", "score-latency.svg"):
        assert f"]({plot})" in page
        assert ElementTree.parse(tmp_path / "results" / plot).getroot().tag.endswith("svg")
    told = capsys.readouterr()
    assert "digits.int8.zeropoint: score" in told.err
    assert told.out.strip().endswith("README.md")


def test_a_rerun_does_what_is_missing_and_the_page_stays_the_same(bench, tmp_path):
    asked = ("--only", "digits", "--modes", "dynamic", "--also", "")
    bench(*asked)
    before = times(tmp_path)
    plot = (tmp_path / "results" / "score-size.svg").read_bytes()
    bench(*asked)
    assert times(tmp_path) == before
    assert (tmp_path / "results" / "score-size.svg").read_bytes() == plot
    lost = "digits.dynamic.zeropoint.json"
    (tmp_path / "results" / "rows" / lost).unlink()
    bench(*asked)
    after = times(tmp_path)
    assert after[lost] > before[lost]
    assert {name: time for name, time in after.items() if name != lost} == {
        name: time for name, time in before.items() if name != lost
    }


def test_results_of_other_settings_do_not_mix(bench, tmp_path, capsys):
    asked = ("--only", "digits", "--modes", "float16")
    bench(*asked)
    before = times(tmp_path)
    assert bench(*asked, "--samples", "10") == 2
    said = capsys.readouterr().err
    assert "samples was 20, now it is 10" in said
    assert "--again" in said
    assert times(tmp_path) == before
    assert bench(*asked, "--samples", "10", "--again") == 0
    assert set(times(tmp_path)) == set(before)
    assert all(time > before[name] for name, time in times(tmp_path).items())


def test_an_update_makes_only_rows_of_zeropoint_again(bench, tmp_path, monkeypatch, capsys):
    rival = tools.Tool("Rival", "zeropoint", "zeropoint", tools.zeropoint_job)
    monkeypatch.setitem(tools.TOOLS, "tf", rival)
    monkeypatch.setattr(results, "commit", lambda: "aaaaaaa")
    asked = ("--only", "digits", "--modes", "float16,weights", "--also", "")
    assert bench(*asked, against="tf") == 0
    before = times(tmp_path)
    monkeypatch.setattr(results, "source_digest", lambda: "other")
    monkeypatch.setattr(results, "commit", lambda: "bbbbbbb")
    assert bench(*asked, against="tf") == 2
    assert "--update" in capsys.readouterr().err
    assert bench(*asked, "--modes", "float16", "--update", against="tf") == 0
    changed = {name for name, time in times(tmp_path).items() if time > before[name]}
    assert changed == {"digits.float16.zeropoint.json"}
    page = (tmp_path / "results" / "README.md").read_text()
    assert "- zeropoint at commit bbbbbbb, this run: digits in float16" in page
    assert "- zeropoint at commit aaaaaaa: digits in weights" in page


def test_refusals_and_crashes_are_rows(bench, tmp_path):
    assert bench("--only", "no_data", "crashing", "--modes", "int8", "--also", "") == 0
    rows = stored(tmp_path)
    assert rows["no_data.int8.zeropoint"].error == "ValueError: the samples are"
    crashed = rows["crashing.int8.zeropoint"]
    assert crashed.error == "its process crashed (SIGABRT): something about memory"
    assert crashed.whole is not None  # what was measured before stays
    page = (tmp_path / "results" / "README.md").read_text()
    assert "its process crashed (SIGABRT)" in page


def test_a_tool_that_is_not_installed_is_named(bench, tmp_path, monkeypatch, capsys):
    absent = tools.Tool("Somebody's", "no_such_package_here", "somebodys-quantizer", tools.zeropoint_job)
    limited = tools.Tool("Limited", "zeropoint", "zeropoint", tools.zeropoint_job, lambda mode: mode.tensorflow)
    # In place, since the page and the command hold the same mapping.
    monkeypatch.setitem(tools.TOOLS, "tf", limited)
    monkeypatch.setitem(tools.TOOLS, "aeq", absent)
    assert bench("--only", "digits", "--modes", "weights", "--also", "", against="tf,aeq") == 0
    rows = stored(tmp_path)
    assert rows["digits.weights.aeq"].error == "not installed: pip install somebodys-quantizer"
    assert rows["digits.weights.tf"].error == "has no such mode"
    assert rows["digits.weights.zeropoint"].error is None
    assert "Somebody's is not installed" in capsys.readouterr().err
    assert "not installed: pip install somebodys-quantizer" in (tmp_path / "results" / "README.md").read_text()


def test_ctrl_c_keeps_what_is_done(bench, tmp_path, monkeypatch):
    @contextmanager
    def impatient() -> Iterator[Callable[[side_by_side.Progress], None]]:
        def tell(state: side_by_side.Progress) -> None:
            if any(row.mode == "dynamic" for row in state.rows):
                raise KeyboardInterrupt

        yield tell

    asked = ("--only", "digits", "--modes", "dynamic,weights", "--also", "")
    with monkeypatch.context() as patch:
        patch.setattr(command, "shown", impatient)
        assert bench(*asked) == 130
    assert set(stored(tmp_path)) == {"digits.float.float", "digits.dynamic.zeropoint"}
    before = times(tmp_path)
    assert bench(*asked) == 0
    assert {name: times(tmp_path)[name] for name in before} == before
    assert "digits.weights.zeropoint" in stored(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "cats"), "no task 'cats'; choose from digits, no_data, crashing"),
        (("--modes", "int3"), "no mode 'int3'"),
        (("--also", "more"), "no variant 'more'"),
    ],
)
def test_unknown_names_are_refused(bench, capsys, arguments, said):
    assert bench(*arguments) == 2
    assert said in capsys.readouterr().err


def test_slow_models_are_scored_on_part():
    measure = side_by_side.Measure(part=7, seconds=10)
    assert measure.fitting(1000, 0.0005) is None
    assert measure.fitting(1000, 0.05) == 7
    assert measure.fitting(None, 9.0) is None  # a task that cannot tell is scored as a whole
    assert side_by_side.Measure(part=7, seconds=10, limit=20).fitting(1000, 0.05) == 20
