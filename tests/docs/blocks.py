"""Fenced blocks of a Markdown page, each with the remark in front of it."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"

FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,})(?P<language>[^`]*)$")
REMARK = re.compile(r"^\s*<!-- (?P<kind>[a-z ]+): (?P<text>.+) -->\s*$")

# Remarks: "not run: REASON", "output differs: REASON", "exit code: NUMBER".


@dataclass(frozen=True)
class Block:
    """`follows` is the language of the block before, if nothing but blank lines lies between."""

    line: int
    language: str
    code: str
    remark: tuple[str, str] | None
    follows: str | None

    def remark_of(self, kind: str) -> str | None:
        return self.remark[1] if self.remark is not None and self.remark[0] == kind else None

    @property
    def is_directive(self) -> bool:
        """Sphinx's, such as a table of contents: nothing that a reader would run."""
        return self.language.startswith("{")

    @property
    def file_name(self) -> str | None:
        """A block that starts with the name of a file, in a comment, is that file."""
        first = self.code.partition("\n")[0]
        found = re.match(r"# ([\w./-]+\.(?:toml|json|py))(?:\W|$)", first)
        return None if found is None else found[1]


def pages() -> list[Path]:
    """Everything that people read, apart from what is made when the site is built."""
    made = (DOCS / "reference", DOCS / "_build")
    found = sorted(p for p in DOCS.rglob("*.md") if not any(folder in p.parents for folder in made))
    return [ROOT / "README.md", *found]


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    k, previous, ended = 0, None, 0
    while k < len(lines):
        opening = FENCE.match(lines[k])
        if opening is None:
            k += 1
            continue
        start = k
        while k + 1 < len(lines) and lines[k + 1].strip() != opening["ticks"]:
            k += 1
        assert k + 1 < len(lines), f"the block in line {start + 1} does not end"
        code = textwrap.dedent("\n".join(lines[start + 1 : k + 1]))
        before = [line for line in lines[ended:start] if line.strip()]
        found = REMARK.match(before[-1]) if before else None
        remark = None if found is None else (found["kind"], found["text"])
        language = opening["language"].strip()
        yield Block(start + 1, language, code, remark, previous if not before else None)
        previous, ended = language, k + 2
        k += 2


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a block for a shell, as words; comments are left out, lines that end with a backslash joined."""
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


@dataclass(frozen=True)
class Exchange:
    """A line behind a prompt, and what is shown to be the answer."""

    words: list[str]
    answer: str


def exchanges(code: str) -> Iterator[Exchange]:
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, answer = part.partition("\n")
        yield Exchange(shlex.split(command, comments=True), answer)
