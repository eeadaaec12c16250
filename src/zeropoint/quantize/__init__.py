"""A float model -> an integer model: prepare, match, solve, plan, rewrite.

To users `zeropoint.quantize` is a function as well: calling this package calls `quantize` below.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ..calibrate import Ranges, Settings, Stats
from ..calibrate.collect import Progress
from ..files import PathLike
from ..graph.model import Model
from ..recipe import Recipe, keep_float
from ..sources.samples import Samples
from ..tflite.read import load
from .pipeline import Effort, RangeChoice, Request, Result, interface_of, resolve_recipe, run
from .plan import Plan, Skipped
from .search import quantize_on

__all__ = ["Plan", "Request", "Result", "Skipped", "quantize"]


def quantize(
    model: Model | PathLike | bytes,
    mode: str | None = None,
    data: Samples | Mapping[str, Samples] | None = None,
    *,
    stats: Stats | None = None,
    ranges: Ranges | None = None,
    recipe: Recipe | None = None,
    range: RangeChoice = "auto",
    effort: Effort = "standard",
    weight_bits: int = 8,
    input_type: str = "float32",
    output_type: str = "float32",
    strict: bool = False,
    keep: Sequence[str] = (),
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Result:
    """Quantize a float model.

    `mode` is "int8" (the default) or "int16x8", `weight_bits` 8 or 4; `recipe` says it op by op instead. Ranges come
    from running `data`, or from `stats` of an earlier calibration, or from `ranges` given outright. `range` is the
    method that picks them; "auto" tries several on the data. `effort` is "quick", "standard" or "high" (minutes).
    `keep` are patterns of op kinds or names that stay float; `strict` refuses if anything has to.
    """
    source = model if isinstance(model, Model) else load(model)
    request = Request(
        resolve_recipe(mode, recipe, weight_bits).then(*map(keep_float, keep)),
        stats,
        ranges or Ranges({}),
        range,
        interface_of(input_type, output_type),
        strict,
        effort,
    )
    if data is None or stats is not None:
        return run(source, request)
    return quantize_on(source, request, data, settings, progress)


class _Package(ModuleType):
    """A package that can be called: importing a submodule binds the package's name, and users know a function by it."""

    def __call__(self, *args: Any, **options: Any) -> Result:
        return quantize(*args, **options)


sys.modules[__name__].__class__ = _Package
