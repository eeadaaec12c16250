"""A repository whose working tree is edited: what the edit changes is found, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.children import ROOT
from tools.same_bytes.cases import GROUPS, chosen_cases, groups
from tools.same_bytes.comparison import Comparison, compared, table
from tools.same_bytes.trees import UnknownCommit, both, resolved

GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path) -> Iterator[Path]:
    """The package as one commit."""
    folder = tmp_path / "repository"
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "The package")
    yield folder
    assert git(folder, "worktree", "list").count("\n") == 1  # nothing is left behind


def compare(repository: Path, folder: Path, only: str, limit: int) -> list[Comparison]:
    folder.mkdir()
    with both("HEAD", folder, repository) as trees:
        return list(compared(chosen_cases((), only, limit), trees))


def extend(repository: Path, module: str, code: str) -> None:
    with (repository / "src/zeropoint" / module).open("a") as file:
        file.write(code)


CHANGED_BYTES = """
_written = to_bytes

def to_bytes(model):
    if any(op.kind == "DEQUANTIZE" for op in model.main.ops):
        model.description = "changed"
    return _written(model)
"""

DEADLY = """
_quantized = quantize

def quantize(model, mode, *arguments, **options):
    if mode == "int8":
        __import__("os").abort()
    return _quantized(model, mode, *arguments, **options)
"""


def test_a_tree_that_was_not_edited_differs_in_nothing(repository, tmp_path):
    found = [row for only in ("bundled", "nets", "random") for row in compare(repository, tmp_path / only, only, 3)]
    assert len(found) == 9
    assert [str(row) for row in found if row.differences] == []
    assert sum(row.base.is_model for row in found) > 4
    assert all(row.base.seconds > 0 for row in found)


def test_other_bytes_are_found_where_they_are(repository, tmp_path):
    extend(repository, "tflite/write.py", CHANGED_BYTES)
    rows = compare(repository, tmp_path / "run", "bundled", 12)
    made = [row for row in rows if row.base.is_model]
    different = [row for row in rows if row.differences]
    assert 0 < len(different) <= len(made)
    for row in different:
        first, second = row.differences
        assert first.startswith("model: other bytes")
        assert "changed" in second
    assert f"{len(different):>11}" in table(rows)


def test_a_process_that_dies_is_a_difference_and_not_the_end(repository, tmp_path):
    extend(repository, "quantization.py", DEADLY)
    rows = compare(repository, tmp_path / "run", "ops", 16)
    modes = {row.case.options["mode"] for row in rows}
    dead = [row for row in rows if row.differences]
    assert {row.case.options["mode"] for row in dead} == {"int8"} < modes
    assert all("+ the process ended: SIGABRT" in row.differences[0] for row in dead)
    assert len(dead) == sum(row.case.options["mode"] == "int8" for row in rows)


def test_a_commit_that_is_not_there_is_named(repository):
    assert len(resolved("HEAD", repository)) == 40
    with pytest.raises(UnknownCommit, match="there is no commit 'nowhere' here"):
        resolved("nowhere", repository)


def test_every_group_has_cases_and_a_limit_keeps_to_it(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.tflite").write_bytes(b"")
    by_group = groups([tmp_path])
    assert tuple(by_group) == GROUPS
    for name, group in by_group.items():
        everything = list(group.cases(name))
        few = chosen_cases([tmp_path], name, 5)
        assert 0 < len(few) <= 5
        assert set(map(str, few)) <= set(map(str, everything))
        assert len(set(map(str, everything))) == len(everything)


def test_every_mode_number_of_bits_and_target_is_among_the_cases():
    from zeropoint.recipe import MODES
    from zeropoint.targets import TARGETS

    options = [case.options for case in chosen_cases((), "bundled")]
    assert {o["mode"] for o in options} == set(MODES)
    assert {o["target"] for o in options if "target" in o} == set(TARGETS)
    assert {o["weight_bits"] for o in options if "weight_bits" in o} == set(range(2, 8))
    assert {case.options["effort"] for case in chosen_cases((), "efforts")} == {"quick", "standard", "high"}
