"""A way to quantize a model, and its outcome. Running one depends only on the model, the samples and the recipe, so it
can be done in this process, in another one or on another machine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..bench.bench import Bench
from ..calibration import Settings
from ..errors import ZeropointError
from ..graph.model import Model
from ..improve.pipeline import Result, accepted, ask_target, judged_for, quantize_with
from ..ops import OPS, OpSpec
from ..parallel import cached_property
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
    """A way to quantize a model. `label` is its display name, `note` describes it. On a path from careful to bold,
    `step` is its position. It is then trained for `steps` steps."""

    label: str
    recipe: Recipe
    effort: Effort = "standard"
    note: str = ""
    path: str = ""
    step: int = 0
    steps: int = 0

    @property
    def is_float(self) -> bool:
        """Whether it leaves the model unchanged."""
        return all(rule.scheme == FLOAT for rule in self.recipe.rules)

    @property
    def rules(self) -> dict[str, Any]:
        """The recipe as plain values, as in a file."""
        return recipe_content(plain_rules(self.recipe), self.recipe.target)


@dataclass(frozen=True)
class Workpiece:
    """What all trials share: the model, the calibration samples, the evaluation rows, and the target.

    `time_limit` is the time limit in seconds for one run in a child process; None runs the model in this process.
    """

    model: bytes = field(repr=False)
    calibration: Sequence[Any] = field(repr=False)
    rows: tuple[Row, ...] = field(repr=False)
    target: str
    settings: Settings
    time_limit: float | None = None
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS, repr=False)

    @cached_property
    def loaded(self) -> Model:
        return load(self.model)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached measurements: other processes compute them again, with their own op table."""
        return {own.name: getattr(self, own.name) for own in fields(self) if own.name != "ops"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, ops=OPS)

    @cached_property
    def _benches(self) -> dict[int, Bench]:
        return {}

    def calibrated(self, judged: int) -> Bench:
        """Return the model with the calibration samples, as `zeropoint quantize` measures them; shared by all trials
        that hold back the same samples and compare candidates on as many."""
        known = self._benches
        if judged not in known:
            others = [bench for count, bench in known.items() if count and judged]
            known[judged] = others[0].judging(judged) if others else self._new_bench(judged)
        return known[judged]

    def _new_bench(self, judged: int) -> Bench:
        samples, holds_back = list(self.calibration), judged > 0
        return Bench(self.loaded, samples, self.settings, judged=judged, holds_back=holds_back, ops=self.ops)

    def bench(self, rows: Sequence[Row]) -> Bench:
        """Return the model with rows to run it on."""
        return Bench(self.loaded, (), self.settings, ops=self.ops).on(rows)

    def isolation(self) -> contextlib.AbstractContextManager[None]:
        return within(self.time_limit)

    def outputs(self, content: bytes, rows: Sequence[Row]) -> Outputs:
        """Return the outputs of a version of the model for these rows."""
        with self.isolation():
            return self.bench(rows).outputs(load(content))

    def carry_out(self, candidate: Configuration) -> Outcome:
        """Quantize, and run the result on the evaluation rows."""
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
        request = Request(candidate.recipe, effort=candidate.effort, ops=self.ops, target=target_named(self.target))
        request = accepted(self.loaded, request)
        return ask_target(quantize_with(self.calibrated(judged_for(request)), request))

    def _trained(self, candidate: Configuration) -> Result:
        """Train on the calibration samples, as `zeropoint train` does."""
        from ..train import distill, start_keras

        start_keras()  # suppress its output, in whatever process this is
        done = distill(
            self.loaded,
            list(self.calibration),
            steps=candidate.steps,
            recipe=candidate.recipe,
            limit=self.settings.limit,
            effort=candidate.effort,
            target=self.target,
            progress=_silent,
            ops=self.ops,
        )
        if done.training.interrupted:  # a model trained for half of the steps could not be reproduced
            raise KeyboardInterrupt
        return done.result


def _silent(step: int, loss: float) -> None:
    """Report no progress: trials are reported when they are done."""


@dataclass(frozen=True)
class Outcome:
    """A quantized model with its outputs for the evaluation rows; or why there is none."""

    content: bytes = field(default=b"", repr=False)
    outputs: Outputs = field(default=(), repr=False)
    tool: ToolReport | None = None
    seconds: float = 0.0
    refusal: str = ""


@dataclass(frozen=True)
class Trial:
    """A candidate that was run: its size, its score on the samples that guide the search, and the model itself.

    `latency` is in seconds, None if not measured. `refusal` says why there is no model.
    """

    candidate: Configuration
    size: int = 0
    drop: Drop | None = None
    content: bytes = field(default=b"", repr=False)
    tool: ToolReport | None = None
    seconds: float = 0.0
    refusal: str = ""
    latency: float | None = None
    within: bool = False
    """Whether it meets the budget on the samples that guide the search."""
    used: float = math.inf
    """The share of the allowed drop that it uses there, including the standard error; at most 1 if within the limit."""

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def model(self) -> Model:
        return load(self.content)
