"""The reference pages are made from the code: every op, every command, every public name, and examples that run."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import nullcontext

import pytest

import zeropoint
from zeropoint import lite, train
from zeropoint.ops import OPS

from .. import frameworks
from . import prepared
from .blocks import ROOT
from .test_code_blocks import SHORTER

sys.path.insert(0, str(ROOT / "tools"))
import make_pages

EXAMPLES = [(name, e) for name, command in make_pages.commands().items() for e in make_pages.help_of(command).examples]


def test_every_op_has_its_section():
    page = make_pages.ops_page()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == sorted(OPS)
    for row in OPS.values():
        section = page.partition(f"## {row.kind}\n")[2].partition("\n## ")[0]
        assert all(dtype.label in section for dtype in (*row.types, *row.hybrid))
        assert ("One scale and zero point for all activations" in section) == row.tied
        assert all(f"zero point {fixed.zero_point}" in section for fixed in row.fixed.values())


def test_every_command_and_option_is_listed():
    page = make_pages.cli_page()
    for name, command in make_pages.commands().items():
        section = page.partition(f"## zeropoint {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert all(option in section for option in parameter.opts)
                assert parameter.help, f"{name} {parameter.opts[0]} has no help"


def test_every_public_name_is_described():
    page = make_pages.api_page()
    for package in (zeropoint, lite, train):
        for name in package.__all__:
            if name not in ("__version__", "lite", "train", "Interpreter"):
                assert f"### {package.__name__}.{name}\n" in page


def test_pages_are_written(tmp_path):
    make_pages.write_pages(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == set(make_pages.PAGES)


def test_every_command_has_examples():
    assert {name for name, _ in EXAMPLES} == set(make_pages.commands())


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[e for _, e in EXAMPLES])
def test_examples_in_the_help_run(name, example, run, tmp_path, monkeypatch):
    words = shlex.split(example, comments=True)[1:]
    words = words[: words.index("|")] if "|" in words else words
    monkeypatch.chdir(tmp_path)
    named = {part.rstrip("/").partition(":")[0] for part in words}
    outputs = {words[k + 1] for k, word in enumerate(words) if word in ("-o", "--output", "--apply")}
    for file in (named & set(prepared.FILES)) - outputs:
        prepared.put(file, tmp_path)
    with frameworks.unwarned() if name == "train" else nullcontext():
        code, out, err = run(*words, *SHORTER.get(name, ()))
    assert code == 0, f"{out}\n{err}"
