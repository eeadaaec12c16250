"""The command `edit`, which changes scales in a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidRecipe
from . import shared
from .command import Screen, flag, option

if TYPE_CHECKING:
    from ..calibration import Ranges


@dataclass(frozen=True)
class EditOptions:
    """What is changed, and where the result goes."""

    output: Path = option(..., "OUT", "Where to write the edited .tflite.", "--output", "-o")
    set: list[str] | None = option(
        None, "'TENSOR: min=A, max=B'", "A new range; or scale=S, zero_point=Z (repeatable)."
    )
    ranges: Path | None = option(None, "JSON", "Ranges of several tensors: {tensor: {min, max}}.")
    as_json: bool = flag("Print what changed as JSON.", "--json")
    overwrite: bool = flag(shared.OVERWRITE_HELP)

    def given(self) -> Ranges:
        from ..calibration import Ranges, ranges_from, ranges_from_json

        listed = Ranges({}) if self.ranges is None else ranges_from_json(self.ranges)
        found = listed.merge(ranges_from(dict(map(_setting, self.set or ())), "--set"))
        if not found.entries:
            raise InvalidRecipe("say what to change with --set 'tensor: min=-1, max=1', or with --ranges")
        return found


def _setting(text: str) -> tuple[str, dict[str, float | str]]:
    """Parse `name: key=value, key=value`; the name may contain colons."""
    name, colon, values = text.rpartition(":")
    pairs = [part.partition("=") for part in values.split(",")]
    if not colon or not name.strip() or any(not (key.strip() and value.strip()) for key, _, value in pairs):
        raise InvalidRecipe(f"--set {text!r} is not of the form 'tensor: min=-1, max=1'")
    return name.strip(), {key.strip(): _number(value.strip()) for key, _, value in pairs}


def _number(text: str) -> float | str:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def edit(screen: Screen, model: shared.ModelArgument, options: EditOptions) -> None:
    """Change the ranges of tensors in a quantized .tflite.

    Weights are dequantized and quantized again, tensors that share their scale through an op change together, and
    biases follow their data and weights. All changes are listed.

    Examples:
      zeropoint edit model_int8.tflite -o wider.tflite --set '*/Mean: min=0, max=6'
      zeropoint edit model_int8.tflite -o clipped.tflite \\
        --set '*logits_1/MatMul: min=-0.9, max=0.8'
    """
    from ..errors import printable
    from ..json_values import json_values
    from ..rescaling import rescale
    from ..tflite import save

    shared.PageOptions(overwrite=options.overwrite).require(options.output, inputs=(model, options.ranges))
    made = rescale(shared.load_model(model, screen), options.given())
    shared.require_runnable(made.model)
    save(made.model, options.output, overwrite=options.overwrite)
    if options.as_json:
        screen.json({"schema": 1, "changes": json_values(made.changes)})
        return
    count = len(made.changes)
    total = f"{options.output}: {count} {'tensor' if count == 1 else 'tensors'} changed"
    for line in (*map(str, made.changes), total):
        screen.remarks.print(printable(line), markup=False, highlight=False, soft_wrap=True)
