"""The code of two commits, each in a folder of its own with a process that quantizes by it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..children import ROOT, Child, Ended
from .cases import Case
from .outcomes import Outcome
from .subjects import Files

PATIENCE, LONG_PATIENCE = 60.0, 600.0
"""Seconds for one case, and for one that searches: ten times what the longest takes. Damaged files may run forever."""


class UnknownCommit(Exception):
    """Says which, and what to give instead."""


@dataclass
class Tree:
    """The source of one commit. What it makes of a case is left in `output`."""

    source: Path
    output: Path
    child: Child = field(init=False)

    def __post_init__(self) -> None:
        self.child = Child("tools.same_bytes.child", [str(self.output)], [self.source])

    def ask(self, question: dict[str, Any], seconds: float = PATIENCE) -> Any:
        answer = self.child.ask(json.dumps(question), seconds)
        return answer if isinstance(answer, Ended) else json.loads(answer)

    def require_own_code(self) -> None:
        """Raise if the process imports another tree's package."""
        package = self.ask({})
        if package != str(self.source / "zeropoint"):
            raise RuntimeError(f"{self.source} was to be tried, but Python imports {package}")

    def quantize(self, case: Case, files: Files) -> Outcome:
        readable = {
            "samples": str(files.samples) if case.searches and files.samples.exists() else None,
            "stats": str(files.stats) if not case.searches and files.stats.exists() else None,
        }
        question = {"model": str(files.model), "options": case.options, **readable}
        answer = self.ask(question, LONG_PATIENCE if case.searches else PATIENCE)
        return Outcome(f"the process ended: {answer}") if isinstance(answer, Ended) else Outcome.of(answer)

    def calibrate(self, files: Files) -> str:
        """Collect statistics into a file; the answer is why there are none, or nothing."""
        if not files.samples.exists():
            return "no samples can be drawn"
        return str(self.ask({"model": str(files.model), "samples": str(files.samples), "into": str(files.stats)}))


@dataclass(frozen=True)
class Trees:
    """The commit that is compared with, and the working tree as it was when the run began."""

    base: Tree
    now: Tree
    pool: ThreadPoolExecutor

    def quantize(self, case: Case, files: Files) -> tuple[Outcome, Outcome]:
        """Let both quantize at the same moment: then they have equal shares of the machine, and times compare."""
        base, now = self.pool.map(lambda tree: tree.quantize(case, files), (self.base, self.now))
        return base, now


def resolved(commit: str, repository: Path = ROOT) -> str:
    """Return the hash of a commit; raises if there is none of that name."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    shown = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    if shown.returncode:
        raise UnknownCommit(f"there is no commit {commit!r} here; `git log --oneline` and `git tag` list what there is")
    return shown.stdout.strip()


@contextmanager
def both(commit: str, folder: Path, repository: Path = ROOT) -> Iterator[Trees]:
    """The code of a commit in a Git worktree, and a copy of the working tree, which may be edited meanwhile."""
    worktree = folder / "base"
    git = ["git", "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), commit], cwd=repository, check=True)
    try:
        shutil.copytree(repository / "src", folder / "now" / "src", ignore=shutil.ignore_patterns("__pycache__"))
        base, now = (Tree(folder / name / "src", folder / f"{name}.tflite") for name in ("base", "now"))
        try:
            with ThreadPoolExecutor(2) as pool:
                for tree in (base, now):
                    tree.require_own_code()
                yield Trees(base, now, pool)
        finally:
            base.child.close()
            now.child.close()
    finally:
        subprocess.run([*git, "remove", "--force", str(worktree)], cwd=repository, check=True)
