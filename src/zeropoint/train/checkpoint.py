"""Stores a training run in a file, to resume it after an interruption."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe
from ..files import PathLike, write_whole
from ..graph.query import fingerprint
from .backend import array_of


@dataclass(frozen=True)
class StateCheck:
    """The evaluation of a state on held-back samples: the score it is judged by, over all and in parts, and Keras's
    logs."""

    value: float
    parts: tuple[float, ...]
    logs: Mapping[str, float] = field(default_factory=dict)
    agreements: tuple[float, ...] = ()  # how often student and teacher predict the same class, in each part


@dataclass
class Progressed:
    """The progress of training: the checks so far, and the best state."""

    step: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    best_step: int = 0
    best: StateCheck = StateCheck(0.0, ())
    state: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Restored:
    """What a file contained, besides the variables of the model."""

    progressed: Progressed
    average: list[Array]


@dataclass(frozen=True)
class TrainingCheckpoint:
    """One file, written at each check. `asked` describes how training was requested, which must be the same to
    resume."""

    path: PathLike
    asked: str

    def write(self, distiller: Any, done: Progressed, average: Sequence[Array]) -> None:
        """Write all variables, including those of the optimizer, the average and the best state."""
        known = {"run": self._identity(distiller), "step": done.step, "history": done.history}
        known |= {"best_step": done.best_step, "best": done.best.value, "parts": done.best.parts}
        arrays = {"known": np.array(json.dumps(known))}
        for name, values in (
            ("student", map(array_of, distiller.student.weights)),
            ("optimizer", map(array_of, distiller.optimizer.variables)),
            ("average", average),
            ("best", done.state),
        ):
            arrays |= {f"{name}_{k}": value for k, value in enumerate(values)}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its stubs mix up the options and the arrays
        write_whole(self.path, [buffer.getvalue()], overwrite=True)

    def read(self, distiller: Any) -> Restored | None:
        """Restore the student and the optimizer from the file; None if there is no file yet."""
        if not Path(self.path).exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                held = {name: file[name] for name in file.files}
            known = json.loads(str(held["known"]))
            history = [(int(step), float(value)) for step, value in known["history"]]
            best = StateCheck(float(known["best"]), tuple(map(float, known["parts"])))
            done = Progressed(int(known["step"]), history, int(known["best_step"]), best)
            run = known["run"]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidRecipe(f"{self.path} is not a saved training run ({error}); choose another name") from None
        if run != self._identity(distiller):
            raise InvalidRecipe(
                f"{self.path} holds a run of another model, or with other settings; repeat the original command, or "
                "choose another name"
            )
        distiller.optimizer.build(distiller.trainable_variables)
        for name, variables in (("student", distiller.student.weights), ("optimizer", distiller.optimizer.variables)):
            for k, variable in enumerate(variables):
                variable.assign(held[f"{name}_{k}"])
        count = len(distiller.student.weights)
        done.state = [held[f"best_{k}"] for k in range(count)]
        return Restored(done, [held[f"average_{k}"] for k in range(count)])

    def remove(self) -> None:
        """Remove the file when training is done."""
        Path(self.path).unlink(missing_ok=True)

    def _identity(self, distiller: Any) -> str:
        """Return an identity of the model and of how it is trained."""
        blueprint = distiller.student.blueprint
        model = fingerprint(blueprint.planned.model)
        shapes = [tuple(v.shape) for v in distiller.student.weights]
        text = f"{self.asked} {plain_text(distiller.goal)} {blueprint.settings} {model} {shapes}"
        return hashlib.sha256(text.encode()).hexdigest()


def plain_text(value: Any) -> str:
    """Return a dataclass as text that is the same in another process: Keras objects by their class."""
    if is_dataclass(value):
        return " ".join(f"{f.name}={plain_text(getattr(value, f.name))}" for f in fields(value))
    if isinstance(value, tuple | list):
        return f"[{' '.join(map(plain_text, value))}]"
    return repr(value) if value is None or isinstance(value, str | int | float) else type(value).__qualname__
