"""All code in the docs runs, page by page, as a reader would run it. What is not run says why, next to it."""

from __future__ import annotations

import ast
import builtins
import doctest
import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zeropoint.recipe_files import load_recipe, recipe_from

from .. import frameworks
from . import prepared
from .blocks import ROOT, Block, blocks, commands, exchanges, pages

REASONS = {
    "installs packages": 3,
    "needs PyTorch": 3,
    "needs litert-converter": 1,
    "a drawing": 3,
    "needs a zoo of models, other tools and half an hour": 1,
    "takes a minute": 1,
    "takes hours": 1,
    "needs a checkout of tflite-micro and a cross compiler": 1,
    "one line of a summary": 4,
    "the names are those of another model": 4,
    "takes a frozen graph": 2,
    "the models are no part of the project": 1,
}
"""Why a block may go unrun, and how many blocks may say so: a new one is a decision, made here."""

DIFFERING = {"times": 2, "calibration counts a sample of the values": 1}
"""Why what a command prints may be other than what the page shows."""

SHORTER = {
    "tune": ("--trials", "1", "--workers", "1", "--trusted", "--max-drop", "20"),
    "train": ("--steps", "2"),
    "doctor": ("--seconds", "1"),
    "benchmark": ("--rounds", "2", "--quick"),
}
"""Options that are added to commands which would take long; of an option given twice the last counts."""

BRINGS = {
    "tune.md": ("eval.npz", "y.npy"),
    "compare.md": ("model_int8.tflite", "eval.npz", "eval.py"),
    "front-doors.md": ("model.keras", "model.h5", "saved_model"),
    "integers.md": ("model_int8.tflite",),
    "low-bits.md": ("data.py",),
    "training.md": ("eval.py",),
}
"""Files that a page needs besides a model, samples and photos."""

USUAL = ("model.tflite", "samples.npz", "photos")

CHECKER = doctest.OutputChecker()
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Reader:
    """Someone who goes through a page from its top and does what it says, in a folder of their own."""

    page: str
    run: Any
    capsys: Any
    names: dict[str, Any] = field(default_factory=dict)
    printed: str = ""

    def do(self, block: Block) -> None:
        if block.is_directive or block.remark_of("not run") is not None:
            return
        actions = {
            "python": self.python,
            "sh": self.shell,
            "console": self.console,
            "toml": self.recipe,
            "json": self.json,
            "text": self.output,
        }
        assert block.language in actions, (
            f"{self.at(block)} is in {block.language or 'no language'}; nothing can run that"
        )
        actions[block.language](block)

    def at(self, block: Block) -> str:
        return f"{self.page}, line {block.line}:"

    def python(self, block: Block) -> None:
        if block.file_name is not None:
            self.write(block.file_name, block.code)
        tree = ast.parse(block.code)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in prepared.OBJECTS and node.id not in self.names:
                self.names[node.id] = prepared.OBJECTS[node.id]()
        self.capsys.readouterr()
        # Line numbers as in the page, so that an error leads there.
        exec(compile(ast.increment_lineno(tree, block.line), self.page, "exec"), self.names)
        self.printed = self.capsys.readouterr().out

    def write(self, name: str, content: str) -> None:
        file = Path(name).absolute()
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        self.names["__file__"] = str(file)

    def output(self, block: Block) -> None:
        """What the code above it prints."""
        assert block.follows == "python" or block.remark is not None, (
            f"{self.at(block)} a text that is no output; say `not run: a drawing`"
        )
        self.compare(block, block.code, self.printed)

    def compare(self, block: Block, shown: str, got: str) -> None:
        if block.remark_of("output differs") is None:
            assert CHECKER.check_output(f"{shown}\n", got, LENIENT), f"{self.at(block)} shown\n{shown}\n\ngot\n{got}"

    def shell(self, block: Block) -> None:
        for words in commands(block.code):
            self.command(block, words)

    def console(self, block: Block) -> None:
        for exchange in exchanges(block.code):
            got = self.command(block, exchange.words)
            if exchange.answer.strip():
                self.compare(block, exchange.answer, got)

    def command(self, block: Block, words: list[str]) -> str:
        if words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "benchmarks":
            known_benchmark(words)
            return ""
        if words[:2] == ["pip", "install"]:
            known_extra(words)
            return ""
        assert words[0] == "zeropoint", f"{self.at(block)} {words[0]} is not run; say why, with a remark"
        return self.zeropoint(block, words[1:])

    def zeropoint(self, block: Block, words: list[str]) -> str:
        words, to = (words[: words.index("|")], words[words.index("|") :]) if "|" in words else (words, [])
        expected = int(block.remark_of("exit code") or 0)
        code, out, err = self.run(*words, *SHORTER.get(words[0], ()))
        assert code == expected, f"{self.at(block)} zeropoint {' '.join(words)} ends with {code}\n{out}\n{err}"
        if to and "--json" in words:
            json.loads(out)
        return str(out + err)

    def recipe(self, block: Block) -> None:
        name = block.file_name
        assert name is not None, f"{self.at(block)} TOML has to start with the name of its file, in a comment"
        self.write(name, block.code)
        load_recipe(name)

    def json(self, block: Block) -> None:
        content = json.loads(block.code)
        if "rules" in content:
            recipe_from(content)


def known_benchmark(words: list[str]) -> None:
    """Benchmarks take hours: they exist, and take the options that the page gives them."""
    call = [sys.executable, "-m", words[2], "--help"]
    answer = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for option in (w for w in words[3:] if w.startswith("-")):
        assert option in answer, f"{words[2]} has no {option}"


def known_extra(words: list[str]) -> None:
    """Nothing is installed; but what is named exists."""
    package, _, extras = words[2].rstrip("]").partition("[")
    assert package in ("zeropoint", "."), f"{words[2]} is not ours"
    assert set(filter(None, extras.split(","))) <= extras_of_the_project(), words[2]


@cache
def extras_of_the_project() -> set[str]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])


def needs_frameworks(text: str) -> bool:
    return any(word in text for word in ("keras", "saved_model", "tensorflow", "zeropoint train"))


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_code_runs(page, run, capsys, tmp_path, monkeypatch):
    text = page.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    for name in (*USUAL, *BRINGS.get(page.name, ())):
        prepared.put(name, tmp_path)
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    reader = Reader(page.name, run, capsys, module.__dict__)
    with frameworks.unwarned() if needs_frameworks(text) else nullcontext():
        for block in blocks(text):
            reader.do(block)


def test_what_is_not_run_has_a_known_reason():
    found = [(page, b) for page in pages() for b in blocks(page.read_text("utf-8")) if b.remark is not None]
    assert {b.remark[0] for _, b in found} <= {"not run", "output differs", "exit code"}
    for kind, known in (("not run", REASONS), ("output differs", DIFFERING)):
        count = Counter(b.remark_of(kind) for _, b in found if b.remark_of(kind) is not None)
        assert set(count) <= set(known)
        assert all(count[reason] <= known[reason] for reason in count), count


def test_blocks_are_found():
    """Or else nothing would be run."""
    code = "a\n\n```python\nx = 1\n```\n\n```text\n1\n```\n"
    others = "\n<!-- not run: a drawing -->\n```text\n-->\n```\n- b\n  ```sh\n  ls\n  ```\n"
    found = list(blocks(code + others))
    assert [(b.line, b.language, b.code) for b in found] == [
        (3, "python", "x = 1"),
        (7, "text", "1"),
        (12, "text", "-->"),
        (16, "sh", "ls"),
    ]
    assert [b.follows for b in found] == [None, "python", None, None]
    assert [b.remark_of("not run") for b in found] == [None, None, "a drawing", None]


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```\nls\n```", "no language"),
        ("```ruby\nputs 1\n```", "ruby"),
        ("```sh\nrm -r x\n```", "rm is not run"),
        ("```text\nhello\n```", "no output"),
        ("```python\nprint(1)\n```\n```text\n2\n```", "shown"),
        ("```sh\nzeropoint inspect missing.tflite\n```", "ends with 2"),
        ("```python\n1 / 0\n```", "division"),
    ],
)
def test_wrong_blocks_are_caught(block, complaint, run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader("page.md", run, capsys)
    *before, last = blocks(block)
    for one in before:
        reader.do(one)
    with pytest.raises((AssertionError, ZeroDivisionError), match=complaint):
        reader.do(last)
