"""A zoo: a Python file that lists tasks as `TASKS`. docs/benchmarks.md describes what a task has."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from zeropoint.errors import ZeropointError

MODULE = "zoo"


class Task(Protocol):
    """What every task has. It may have more: see `source_of`, `eval_count` and `metric_of`."""

    model: str | os.PathLike[str]
    """The float `.tflite`."""

    def calibration(self, limit: int | None = None) -> list[Any]:
        """Samples, each a tuple of arrays in the order of the model's inputs."""

    def evaluate(self, model: str | os.PathLike[str] | bytes, limit: int | None = None) -> float:
        """The score of a `.tflite` on the task, or on its first `limit` samples; higher is better."""


class InvalidZoo(ZeropointError):
    """A folder or file that holds no tasks."""


def zoo_file(path: str | os.PathLike[str]) -> Path:
    """The Python file meant by `path`: itself, or in a folder `zoo.py`, or else the only Python file there is."""
    given = Path(path).resolve()
    if given.is_file():
        return given
    if not given.is_dir():
        raise InvalidZoo(f"there is no zoo at {path}; give a folder with a Python file that lists TASKS, or that file")
    if (given / "zoo.py").is_file():
        return given / "zoo.py"
    found = sorted(given.glob("*.py"))
    if len(found) != 1:
        raise InvalidZoo(f"{path} has {len(found)} Python files and none is zoo.py; give the one that lists TASKS")
    return found[0]


def load_zoo(path: str | os.PathLike[str]) -> Mapping[str, Task]:
    """The tasks by name."""
    file = zoo_file(path)
    known = sys.modules.get(MODULE)
    if known is None or known.__file__ != str(file):
        spec = importlib.util.spec_from_file_location(MODULE, file)
        assert spec is not None
        assert spec.loader is not None
        known = importlib.util.module_from_spec(spec)
        sys.modules[MODULE] = known
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        spec.loader.exec_module(known)
    tasks = getattr(known, "TASKS", None)
    if not isinstance(tasks, Mapping) or not tasks:
        raise InvalidZoo(f"{file.name} lists no tasks; it needs a mapping TASKS from names to tasks")
    for name, task in tasks.items():
        missing = [part for part in ("model", "calibration", "evaluate") if not hasattr(task, part)]
        if missing:
            raise InvalidZoo(f"the task {name!r} in {file.name} has no {', no '.join(missing)}")
        if not Path(task.model).is_file():
            raise InvalidZoo(f"the model of the task {name!r} in {file.name} is no file: {Path(task.model).name}")
    return cast(Mapping[str, Task], tasks)


def source_of(task: Task) -> Path | None:
    """The Keras model or SavedModel that the task's model was made from, if it is there."""
    found = getattr(task, "source", None)
    return None if found is None else Path(found)


def metric_of(task: Task) -> str:
    return str(getattr(task, "metric", "score"))


def eval_count(task: Task) -> int | None:
    """How many inferences a score takes, for tasks that can tell: those with `samples(split)`."""
    samples = getattr(task, "samples", None)
    return None if samples is None else len(samples("eval")[0])


@dataclass(frozen=True)
class Place:
    """A task by its address: what a process of its own needs to find it."""

    zoo: str
    name: str

    @property
    def task(self) -> Task:
        return load_zoo(self.zoo)[self.name]

    @property
    def digest(self) -> str:
        """Which model it is, whatever its name."""
        return hashlib.sha256(Path(self.task.model).read_bytes()).hexdigest()[:16]
