"""The devices' own tools, which have the last word on a model: whether it runs, what it needs, how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..targets import Target


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
