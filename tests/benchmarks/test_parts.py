"""Parts of the benchmarks: processes of their own, zoos, ratios."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.apart import Failed, apart, one_line
from benchmarks.measure import Times
from benchmarks.zoo import InvalidZoo, load_zoo, zoo_file


def shout(word: str) -> str:
    print(word)
    return word.upper()


def fail() -> None:
    raise LookupError("cannot find /some/where/model.tflite\nand more")


def crash() -> None:
    os.kill(os.getpid(), 11)


def test_a_function_runs_apart_and_prints_nothing(capfd):
    assert apart(shout, "word") == "WORD"
    assert capfd.readouterr() == ("", "")


def test_a_crash_and_an_error_are_one_line():
    with pytest.raises(Failed, match=r"^its process crashed \(SIGSEGV\)"):
        apart(crash)
    with pytest.raises(Failed, match=r"^LookupError: cannot find model\.tflite$"):
        apart(fail)


def test_who_takes_too_long_is_stopped():
    start = time.monotonic()
    with pytest.raises(Failed, match="took longer than 1 s"):
        apart(time.sleep, 600, timeout=1)
    assert time.monotonic() - start < 300


def test_messages_are_short_and_without_folders():
    assert one_line(ValueError()) == "ValueError"
    assert one_line(OSError("no /usr/lib/x.so here, 3/4 of it")) == "OSError: no x.so here, 3/4 of it"
    assert len(one_line(ValueError("long " * 100))) <= 160


def test_ratios_are_of_the_same_round():
    times = Times({"ours": (1.0, 10.0, 3.0), "theirs": (2.0, 20.0, 6.0)})
    assert times.ratio("ours", "theirs") == 0.5


def test_a_zoo_is_a_file_or_a_folder_with_one(zoo):
    assert zoo_file(zoo).name == "my_tasks.py"
    assert zoo_file(zoo / "my_tasks.py").name == "my_tasks.py"
    assert list(load_zoo(zoo)) == ["digits", "no_data", "crashing"]
    (zoo / "other.py").write_text("")
    with pytest.raises(InvalidZoo, match=r"has 2 Python files and none is zoo\.py"):
        zoo_file(zoo)
    (zoo / "zoo.py").write_text("TASKS = {}")
    with pytest.raises(InvalidZoo, match=r"zoo\.py lists no tasks"):
        load_zoo(zoo)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class T:\n  model = 'x'\nTASKS = {'a': T()}", "'a' in zoo.py has no calibration, no evaluate"),
        ("class T:\n  model = 'x'\n  calibration = evaluate = print\nTASKS = {'a': T()}", "is no file: x"),
    ],
)
def test_an_incomplete_task_is_refused(tmp_path: Path, text: str, said: str):
    (tmp_path / "zoo.py").write_text(text)
    with pytest.raises(InvalidZoo, match=said):
        load_zoo(tmp_path)
    with pytest.raises(InvalidZoo, match="there is no zoo at"):
        load_zoo(tmp_path / "nowhere")
