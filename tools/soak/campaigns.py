"""What is tried in numbers: damaged files through `load`, damaged files through whole jobs, random graphs."""

from __future__ import annotations

import io
import json
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

import zeropoint
from tests.difference import difference
from zeropoint.errors import InvalidModel, ZeropointError
from zeropoint.graph import Model
from zeropoint.report.inspection import inspect
from zeropoint.runtime import isolated
from zeropoint.sources.ports import entry
from zeropoint.tflite import load, to_bytes

from .corpus import corpus
from .graphs import random_graph
from .mutations import damage, rearrange
from .verdict import MODES, judge
from .workers import Limits, Outcome


class Campaign(Protocol):
    """Numbered cases. Each follows from the campaign's settings and its number, on every machine."""

    limits: Limits
    batch: int
    repeats: int

    def run(self, case: int) -> Outcome: ...

    def files(self, case: int) -> Mapping[str, bytes]:
        """What reproduces the case, by the ending of a file's name."""
        ...


def foreign(error: BaseException) -> str:
    """An exception that is not ours, and where it comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "zeropoint" in f.filename]
    where = f" at {frames[-1].filename.rpartition('zeropoint/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"


@dataclass(frozen=True)
class Mutants:
    """Files of a corpus, each damaged in one way: three in four times its bytes, else its fields."""

    seed: int
    folder: str | None = None

    def mutant(self, case: int) -> bytes | None:
        rng = np.random.default_rng((self.seed, case))
        files = corpus(self.folder)
        intact = files[int(rng.integers(len(files)))]
        if case % 4:
            return damage(intact, int(rng.integers(8)), rng)
        return rearrange(intact, rng, int(rng.integers(1, 4)))

    def files(self, case: int) -> Mapping[str, bytes]:
        return {"tflite": self.mutant(case) or b""}


@dataclass(frozen=True)
class Load(Mutants):
    """Reading gives a model or InvalidModel. What was read can be shown, and written so that it is read again."""

    limits = Limits(20)
    batch = 250
    repeats = 1

    def run(self, case: int) -> Outcome:
        content = self.mutant(case)
        if content is None:
            return Outcome(case, "unwritable")
        try:
            model = load(content)
        except InvalidModel:
            return Outcome(case, "refused")
        except Exception as error:
            return Outcome(case, "foreign exception", foreign(error))
        try:
            str(model)
            json.dumps(inspect(model, len(content)).to_json(), allow_nan=False)
            other = difference(load(to_bytes(model)), _with_axes_of_vectors(model))
        except Exception as error:
            return Outcome(case, "foreign exception", f"after loading: {foreign(error)}")
        return Outcome(case, "read") if other is None else Outcome(case, "silent loss", other)


def _with_axes_of_vectors(model: Model) -> Model:
    """Vectors have one axis, and that is written whatever the file says."""
    for tensor in (t for graph in model.graphs for t in graph.tensors if len(t.shape) == 1):
        if tensor.quantization is not None:
            tensor.quantization = replace(tensor.quantization, axis=0)
    return model


@dataclass(frozen=True)
class Jobs(Mutants):
    """What passes `load` is calibrated, quantized or compared with itself: that works, or ends in one of our errors."""

    limits = Limits(120)
    batch = 1
    repeats = 1

    def mutant(self, case: int) -> bytes | None:
        """A damaged file that can still be read: others are the subject of `Load`."""
        for attempt in range(100):
            rng = np.random.default_rng((self.seed, case, attempt))
            files = corpus(self.folder)
            intact = files[int(rng.integers(len(files)))]
            made = damage(intact, int(rng.integers(8)), rng) if case % 4 == 0 else rearrange(intact, rng)
            if made is None or made == intact:
                continue
            try:
                load(made)
            except ZeropointError:
                continue
            return made
        return None

    def run(self, case: int) -> Outcome:
        content = self.mutant(case)
        if content is None:
            return Outcome(case, "unwritable")
        try:
            self.job(content, case)
        except ZeropointError:
            return Outcome(case, "refused")
        except Exception as error:
            return Outcome(case, "foreign exception", foreign(error))
        return Outcome(case, "right")

    def job(self, content: bytes, case: int) -> None:
        model = load(content)
        ports = entry(model).ports
        rng = np.random.default_rng((self.seed, case, 1000))
        data = [tuple(_values(p.tensor, rng) for p in ports) for _ in range(3)]
        what = JOBS[case % len(JOBS)]
        with isolated(SECONDS):  # as all commands do
            if what == "compare":
                zeropoint.compare(model, model, data)
            elif what == "calibrate":
                zeropoint.calibrate(model, data)
            else:
                given = data if what in ("int8", "int16x8") else None
                zeropoint.quantize(model, what, given, effort="quick")


JOBS = ("int8", "compare", "int16x8", "dynamic", "int8", "calibrate", "float16", "compare", "weights")
SECONDS = 20.0
"""For one run of a damaged model."""


def _values(tensor: Any, rng: np.random.Generator) -> Any:
    shape = [max(1, d) for d in tensor.shape]
    if math.prod(shape) > 1 << 20 or tensor.dtype.storage is None:
        raise InvalidModel("an input as large as this, or of this type, is nothing to draw samples for")
    drawn = rng.standard_normal(shape)
    return drawn.astype(tensor.dtype.storage) if tensor.dtype.storage != np.bool_ else drawn > 0


@dataclass(frozen=True)
class Graphs:
    """Random valid graphs, each in every mode and under every set of kernels: right, or refused in words."""

    seed: int
    ops: tuple[int, int] = (5, 60)
    effort: str = "quick"

    limits = Limits(300)
    batch = len(MODES)
    repeats = len(MODES)

    def run(self, case: int) -> Outcome:
        number, mode = divmod(case, len(MODES))
        return Outcome(case, *judge(self.number(number), (*self.ops,), list(MODES)[mode], self.effort))

    def number(self, graph: int) -> int:
        return self.seed * 1_000_000 + graph

    def files(self, case: int) -> Mapping[str, bytes]:
        graph = random_graph(self.number(case // len(MODES)), (*self.ops,))
        content = io.BytesIO()
        columns = zip(*graph.samples, strict=True)
        np.savez(content, **{t.name: np.stack(c) for t, c in zip(graph.model.main.inputs, columns, strict=True)})
        return {"tflite": to_bytes(graph.model), "npz": content.getvalue()}


CAMPAIGNS: Mapping[str, Any] = {"load": Load, "jobs": Jobs, "graphs": Graphs}
