"""Commands about targets: targets, check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import InvalidRecipe, MissingExtra
from . import shared
from .command import CheckFailed, Screen, flag, option

if TYPE_CHECKING:
    from ..graph.model import Model
    from ..runtime.device_tools import ToolReport
    from ..targets import Target


def targets(screen: Screen) -> None:
    """List the targets that models can be made for, and where the facts about each come from.

    Examples:
      zeropoint targets
    """
    from ..report.targets import print_targets

    print_targets(screen.results)


@dataclass(frozen=True)
class TargetCheckOptions:
    """What is required of a model on a target."""

    target: str = shared.target_option("cpu")
    no_fallback: bool = flag("Exit with 1 if an op is slow, too.")
    all: bool = flag("List every op, including fast ones.")
    arena: int | None = option(None, "BYTES", "Exit with 1 if the model needs more memory to run, too.", min=1)
    as_json: bool = flag("Print JSON.", "--json")


def check(screen: Screen, model: shared.ModelArgument, options: TargetCheckOptions) -> None:
    """Show where each op of a .tflite runs on a target, whichever tool made it: fast, slow or refused, and why.

    Exit code 1 means that the target refuses an op. Otherwise, if the device's own tool is installed (extras
    tflm and ethos-u), it is run as well: for memory, cycles, and ops left to the CPU.

    Examples:
      zeropoint check model_int8.tflite
      zeropoint check model_int8.tflite --target integer --all
      zeropoint check model_int8.tflite --target cpu --json | jq .totals
      zeropoint check model_int8.tflite --target ethos-u55-128
      zeropoint check model_int8.tflite --target tflm --arena 65536
    """
    from ..json_values import json_values
    from ..report.device_tools import print_tool
    from ..report.targets import print_check
    from ..targets import check_model, target_named

    target = target_named(options.target)
    source = shared.load_model(model, screen)
    found = check_model(source, target)
    report, note = (None, "") if found.having("refused") else _ask(target, source)
    found = replace(found, notes=(*found.notes, *filter(None, [note])))
    if options.as_json:
        screen.json(found.to_json() | {"tool": json_values(report)})
    else:
        print_check(found, model.name, screen.results, every=options.all)
        if report is not None:
            print_tool(report, screen.results)
    if options.arena is not None:
        _require_arena(report, note, options.arena)
    failing = found.having("refused") + (found.having("slow") if options.no_fallback else ())
    if failing:
        kinds = ", ".join(dict.fromkeys(checked.op.label for checked in failing))
        raise CheckFailed(f"{target.name} does not run {len(failing)} of {len(found.ops)} ops as it should: {kinds}")


def _ask(target: Target, model: Model) -> tuple[ToolReport | None, str]:
    """Return the report of the target's own tool, and a remark if it is not installed."""
    from ..runtime.device_tools import ask_tool
    from ..tflite import to_bytes

    try:
        return ask_tool(target, to_bytes(model)), ""
    except MissingExtra as missing:
        return None, f"the tool of {target.name} was not run: {missing}"


def _require_arena(report: ToolReport | None, note: str, available: int) -> None:
    if report is None or report.ram is None:
        raise InvalidRecipe(f"--arena {available}: how much memory the model needs is not known; {note}".rstrip("; "))
    if report.ram > available:
        raise CheckFailed(f"the model needs {report.ram:,} bytes of memory to run, but has {available:,}")
