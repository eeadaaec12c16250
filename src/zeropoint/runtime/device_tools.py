"""The devices' own tools, which have the last word on a model: whether it runs, what it needs, how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRecipe, argument
from ..targets import TARGETS, Target


@dataclass(frozen=True)
class LeftToCpu:
    """An op that a compiler did not take, by its kind and its output; `reason` in the compiler's words."""

    kind: str
    output: str
    reason: str


@dataclass(frozen=True)
class ToolReport:
    """What a tool says of a model that it accepts. Bytes are those of the device's memories; None is not known.

    `ram` holds what changes while it runs, `flash` what does not. `cycles` and `seconds` of one run are the compiler's
    estimate.
    """

    tool: str
    ram: int | None = None
    flash: int | None = None
    cycles: int | None = None
    seconds: float | None = None
    left_to_cpu: tuple[LeftToCpu, ...] = ()
    notes: tuple[str, ...] = ()


def ask_tool(target: Target, content: bytes) -> ToolReport | None:
    """What the target's tool says of a model; None if it has none. Raises if it refuses the model, or is missing."""
    if target.tool == "vela":
        from .vela import compile_model

        return compile_model(content, target.name)
    if target.tool == "tflm":
        from .tflm import measure_arena, version

        return ToolReport(version(), measure_arena(content), len(content))
    return None


TOLD = {"ram": ("tflm", "vela"), "cycles": ("vela",)}
"""Which tools tell what."""


def require_told(target: Target, what: Literal["ram", "cycles"]) -> None:
    """Raise if nothing here tells this of models for a target."""
    if target.tool not in TOLD[what]:
        able = [name for name, other in TARGETS.items() if other.tool in TOLD[what]]
        unit = "the RAM" if what == "ram" else "the cycles"
        raise InvalidRecipe(
            f"no tool tells {unit} that a model takes on the target {target.name}; it is known for {', '.join(able)} "
            f"({argument('target')})"
        )
    if target.tool == "vela":
        from .vela import require_vela

        require_vela()
    else:
        from .tflm import require_tflm

        require_tflm()
