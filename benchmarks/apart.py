"""Processes of their own: a crash of somebody's native code is an answer, and peak memory is nobody else's.

`python -m benchmarks.apart FOLDER` answers the question in a folder: that is how environments of other tools are asked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

LONGEST = 160
"""Characters of a message that are kept."""

GOODBYE = 5.0
"""Seconds for a process to leave by itself after its answer."""

FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+@-]+)+/(?=[\w.+@-])")
"""The folders of an absolute path: they belong to a machine, not to a message."""


class Failed(Exception):
    """What a child process did not manage, in one line."""


def apart(function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> Any:
    """The result of a function, run in a fresh process that prints nothing."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        spoken = Path(folder) / "stderr"
        process = context.Process(target=_child, args=(theirs, str(spoken), function, arguments))
        process.start()
        theirs.close()
        try:
            if not mine.poll(timeout):
                raise Failed(f"took longer than {timeout:.0f} s")
            good, found = mine.recv()
            process.join(GOODBYE)
        except EOFError:
            process.join()
            raise Failed(_crash(process.exitcode, spoken)) from None
        finally:
            process.kill()
            process.join()
    if not good:
        raise Failed(found)
    return found


def elsewhere(python: str, function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> Any:
    """The same in another environment, by its Python: with this source, and the packages of that environment."""
    with tempfile.TemporaryDirectory() as folder:
        question, told, spoken = (Path(folder) / name for name in ("question", "answer", "stderr"))
        question.write_bytes(pickle.dumps((function, arguments)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        with spoken.open("wb") as errors:
            try:
                command = [python, "-m", "benchmarks.apart", folder]
                done = subprocess.run(
                    command, stdout=errors, stderr=errors, env=environment, timeout=timeout, check=False
                )
            except subprocess.TimeoutExpired:
                raise Failed(f"took longer than {timeout:.0f} s") from None
        if not told.exists():
            raise Failed(_crash(done.returncode, spoken))
        good, found = pickle.loads(told.read_bytes())
    if not good:
        raise Failed(found)
    return found


def answer(folder: Path) -> None:
    """Answer the question in a folder."""
    function, arguments = pickle.loads((folder / "question").read_bytes())
    (folder / "answer").write_bytes(pickle.dumps(_result(function, arguments)))


def _result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether it went well, and what came of it."""
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, str(error) if isinstance(error, Failed) else one_line(error)


def _child(answer: Connection, spoken: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Converters and native code write about their progress, to both streams; the second one is kept for a crash."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(spoken, os.O_WRONLY | os.O_CREAT), 2)
    with contextlib.suppress(KeyboardInterrupt):  # the parent gets it as well, and tells
        answer.send(_result(function, arguments))


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _shortened(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def _shortened(text: str) -> str:
    text = FOLDERS.sub("", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _crash(code: int | None, spoken: Path) -> str:
    kind = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    lines = spoken.read_text(errors="replace").splitlines() if spoken.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return _shortened(f"its process crashed ({kind})" + (f": {said[-1]}" if said else ""))


if __name__ == "__main__":
    # This module by its own name: `Failed` of `__main__` would be another class.
    from benchmarks import apart as itself

    itself.answer(Path(sys.argv[1]))
