"""Vendor tools for devices, which have the last word on a model: whether it runs, what it needs, how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRecipe, argument
from ..targets import TARGETS, Target


@dataclass(frozen=True)
class LeftToCpu:
    """An op that a compiler left to the CPU, by kind and output; `reason` is in the compiler's words."""

    kind: str
    output: str
    reason: str


@dataclass(frozen=True)
class ToolReport:
    """What a tool reports about a model that it accepts. Sizes are in bytes of device memory; None means not known.

    `ram` holds data that changes at run time, `flash` data that does not. `cycles` and `seconds` of one run are the
    compiler's estimate.
    """

    tool: str
    ram: int | None = None
    flash: int | None = None
    cycles: int | None = None
    seconds: float | None = None
    left_to_cpu: tuple[LeftToCpu, ...] = ()
    notes: tuple[str, ...] = ()


def ask_tool(target: Target, content: bytes) -> ToolReport | None:
    """Return what the target's tool reports about a model; None if there is no tool. Raises if the tool is missing or
    refuses the model."""
    if target.tool == "vela":
        from .vela import compile_model

        return compile_model(content, target.name)
    if target.tool == "tflm":
        from .tflm import measure_arena, version

        return ToolReport(version(), measure_arena(content), len(content))
    return None


REPORTED_BY = {"ram": ("tflm", "vela"), "cycles": ("vela",)}
"""Which tools report which figure."""


def require_reported(target: Target, what: Literal["ram", "cycles"]) -> None:
    """Raise if no tool reports this figure for the target."""
    if target.tool not in REPORTED_BY[what]:
        able = [name for name, other in TARGETS.items() if other.tool in REPORTED_BY[what]]
        unit = "the RAM" if what == "ram" else "the cycles"
        raise InvalidRecipe(
            f"no tool reports {unit} of a model on the target {target.name}; this is known for {', '.join(able)} "
            f"({argument('target')})"
        )
    if target.tool == "vela":
        from .vela import require_vela

        require_vela()
    else:
        from .tflm import require_tflm

        require_tflm()
