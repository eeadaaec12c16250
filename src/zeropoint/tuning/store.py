"""Stores trials on disk, so that the same search resumes where it ended. A trial is identified by a fingerprint of
everything it depends on, so results for other inputs are never mistaken for its own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidRecipe, ZeropointError, argument
from ..files import PathLike, describe_os_error, write_whole
from ..json_values import json_values
from ..runtime.device_tools import ToolReport
from .evaluation import Drop
from .trial import Configuration, Trial

SCHEMA = 1
MARK = "store.json"


@dataclass(frozen=True)
class Store:
    """A folder with two files for each trial: the measurements, and the model. Each is written atomically."""

    folder: Path

    @classmethod
    def at(cls, folder: PathLike) -> Store:
        """Return the store in `folder`, created if necessary; raises if something else is there."""
        store = cls(Path(folder))
        mark = store.folder / MARK
        try:
            if not store.folder.exists():
                store.folder.mkdir()
            if not mark.exists():
                if any(store.folder.iterdir()):
                    raise InvalidRecipe(f"{folder} is a folder with other files; choose another one for the trials")
                write_whole(mark, [json.dumps({"schema": SCHEMA, "written": {}}).encode()])
            content = json.loads(mark.read_text("utf-8"))
        except OSError as error:
            raise InvalidRecipe(f"cannot keep trials in {folder}: {describe_os_error(error)}") from None
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise InvalidRecipe(
                f"{folder} holds trials of another version of zeropoint, or is damaged; remove it, or choose another "
                f"folder ({argument('store')})"
            )
        return store

    def find(self, key: str, candidate: Configuration) -> Trial | None:
        """Return the trial with this fingerprint, if it is stored and complete."""
        try:
            kept = json.loads((self.folder / f"{key}.json").read_text("utf-8"))
            content = b"" if kept["refusal"] else (self.folder / f"{key}.tflite").read_bytes()
            if kept["sha256"] != hashlib.sha256(content).hexdigest():
                return None
            known: dict[str, Any] = kept["drop"] or {}
            known |= {"error": math.nan} if known.get("error") is None else {}  # NaN is null in JSON
            drop = Drop(**known) if kept["drop"] else None
            tool = None if kept["tool"] is None else ToolReport(**kept["tool"])
            return Trial(candidate, len(content), drop, content, tool, kept["seconds"], kept["refusal"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def add(self, key: str, trial: Trial) -> None:
        tool = None if trial.tool is None else replace(trial.tool, left_to_cpu=())
        kept = {
            "label": trial.label,
            "effort": trial.candidate.effort,
            "training_steps": trial.candidate.steps,
            "recipe": trial.candidate.rules,
            "sha256": hashlib.sha256(trial.content).hexdigest(),
            "drop": json_values(trial.drop),
            "tool": json_values(tool),
            "seconds": trial.seconds,
            "refusal": trial.refusal,
        }
        if not trial.refusal:
            write_whole(self.folder / f"{key}.tflite", [trial.content], overwrite=True)
        write_whole(self.folder / f"{key}.json", [json.dumps(kept, indent=1).encode()], overwrite=True)

    def measurements(self, key: str) -> Measurements:
        """Return what else was measured for the inputs with this fingerprint."""
        return Measurements(self.folder, key)

    def wrote(self, path: Path) -> bool:
        """Whether a file was written by an earlier run of this search."""
        try:
            known = self._written().get(str(path.resolve()))
            return known is not None and known == hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            return False

    def remember(self, *paths: Path) -> None:
        """Record that these files may be replaced by this search."""
        known = {str(p.resolve()): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
        content = {"schema": SCHEMA, "written": {**self._written(), **known}}
        write_whole(self.folder / MARK, [json.dumps(content).encode()], overwrite=True)

    def _written(self) -> Mapping[str, str]:
        try:
            found: Any = json.loads((self.folder / MARK).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ZeropointError(f"cannot read {self.folder / MARK}: {error}") from None
        return found.get("written", {})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Measurements:
    """What was measured beside trials, as JSON values by name, for the inputs with the fingerprint `key`."""

    folder: Path
    key: str

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(f'{self.key} {name}'.encode()).hexdigest()[:32]}.json"

    def find(self, name: str) -> Any:
        """Return what was measured; None if it is not there, or damaged."""
        try:
            return json.loads(self._path(name).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def add(self, name: str, content: Any) -> None:
        write_whole(self._path(name), [json.dumps(content, indent=1).encode()], overwrite=True)
