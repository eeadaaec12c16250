"""A way to quantize a model, and what came of it. Carrying one out depends on nothing but the model, the samples and
the recipe, so it can be done in this process, in another one or on another machine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from ..bench.bench import Bench
from ..calibration import Settings
from ..errors import ZeropointError
from ..graph.model import Model
from ..improve.pipeline import Result, accepted, ask_target, judged_for, quantize_with
from ..plan.request import Request
from ..recipe import FLOAT, Effort, Recipe
from ..recipe_files import plain_rules, recipe_content
from ..runtime import within
from ..runtime.device_tools import ToolReport
from ..sources.ports import Row
from ..targets import target_named
from ..tflite import load, to_bytes
from .evaluation import Drop
from .metric import Outputs


@dataclass(frozen=True)
class Configuration:
    """A way to quantize a model. `label` is what people call it, `note` what it consists of. On a path from careful to
    bold, `step` counts; others are no part of one. It is then trained for so many `steps`."""

    label: str
    recipe: Recipe
    effort: Effort = "standard"
    note: str = ""
    path: str = ""
    step: int = 0
    steps: int = 0

    @property
    def is_float(self) -> bool:
        """Whether it leaves the model as it is."""
        return all(rule.scheme == FLOAT for rule in self.recipe.rules)

    @property
    def rules(self) -> dict[str, Any]:
        """The recipe as files hold it."""
        return recipe_content(plain_rules(self.recipe), self.recipe.target)


@dataclass(frozen=True)
class Workpiece:
    """What all trials have in common: the model, the samples that calibrate, the rows that score, and the target.

    `time_limit` are seconds that one run of the model may take in a child process; None runs it in this one.
    """

    model: bytes
    calibration: Sequence[Any]
    rows: tuple[Row, ...]
    target: str
    settings: Settings
    time_limit: float | None = None

    @cached_property
    def loaded(self) -> Model:
        return load(self.model)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was measured here: other processes are sent what it follows from."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _benches(self) -> dict[int, Bench]:
        return {}

    def calibrated(self, judged: int) -> Bench:
        """The model with the samples that calibrate, as `zeropoint quantize` measures them; once for all trials that
        hold the same of them back and compare candidates on as many."""
        known = self._benches
        if judged not in known:
            others = [bench for count, bench in known.items() if count and judged]
            new = Bench(self.loaded, list(self.calibration), self.settings, judged=judged, holds_back=judged > 0)
            known[judged] = others[0].judging(judged) if others else new
        return known[judged]

    def bench(self, rows: Sequence[Row]) -> Bench:
        """The model with rows to run it on."""
        return Bench(self.loaded, (), self.settings).on(rows)

    def isolation(self) -> contextlib.AbstractContextManager[None]:
        return within(self.time_limit)

    def outputs(self, content: bytes, rows: Sequence[Row]) -> Outputs:
        """What a version of the model gives for rows."""
        with self.isolation():
            return self.bench(rows).outputs(load(content))

    def carry_out(self, candidate: Configuration) -> Outcome:
        """Quantize, and run the result on the rows that score."""
        start = time.perf_counter()
        try:
            with self.isolation():
                made = self._trained(candidate) if candidate.steps else self._quantized(candidate)
                content = to_bytes(made.model)
                outputs = self.bench(self.rows).outputs(made.model)
        except ZeropointError as error:
            return Outcome(refusal=str(error), seconds=time.perf_counter() - start)
        return Outcome(content, outputs, made.tool, time.perf_counter() - start)

    def _quantized(self, candidate: Configuration) -> Result:
        request = Request(candidate.recipe, effort=candidate.effort, target=target_named(self.target))
        request = accepted(self.loaded, request)
        return ask_target(quantize_with(self.calibrated(judged_for(request)), request))

    def _trained(self, candidate: Configuration) -> Result:
        """As `zeropoint train` does it, on the samples that calibrate."""
        from ..train import distill, start_keras

        start_keras()  # without what that prints, in whatever process this is
        done = distill(
            self.loaded,
            list(self.calibration),
            steps=candidate.steps,
            recipe=candidate.recipe,
            limit=self.settings.limit,
            effort=candidate.effort,
            target=self.target,
            progress=_silent,
        )
        if done.training.interrupted:  # a model of half the steps could not be made again
            raise KeyboardInterrupt
        return done.result


def _silent(step: int, loss: float) -> None:
    """Trials are told of when they are over."""


@dataclass(frozen=True)
class Outcome:
    """A quantized model with its outputs for the rows that score; or why there is none."""

    content: bytes = b""
    outputs: Outputs = ()
    tool: ToolReport | None = None
    seconds: float = 0.0
    refusal: str = ""


@dataclass(frozen=True)
class Trial:
    """A candidate that was carried out: its size, its score on the samples that steer, and the model itself.

    `latency` is in seconds, None if it was not measured. `refusal` says why there is no model.
    """

    candidate: Configuration
    size: int = 0
    drop: Drop | None = None
    content: bytes = b""
    tool: ToolReport | None = None
    seconds: float = 0.0
    refusal: str = ""
    latency: float | None = None
    within: bool = False
    """Whether it keeps the budget on the samples that steer."""
    used: float = math.inf
    """The share of the allowed drop that it uses there, standard error included; at most 1 if it keeps that."""

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def model(self) -> Model:
        return load(self.content)
