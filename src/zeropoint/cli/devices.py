"""Commands about what models are made for: targets, check."""

from __future__ import annotations

from dataclasses import dataclass

from . import shared
from .command import CheckFailed, Screen, flag


def targets(screen: Screen) -> None:
    """List what models can be made for, and where the facts about each come from.

    Examples:
      zeropoint targets
    """
    from ..report.targets import print_targets

    print_targets(screen.results)


@dataclass(frozen=True)
class TargetCheckOptions:
    """What is asked of a target."""

    target: str = shared.target_option("cpu")
    no_fallback: bool = flag("Exit with 1 also if an op is slow.")
    all: bool = flag("List every op, also those that are fast.")
    as_json: bool = flag("Print JSON.", "--json")


def check(screen: Screen, model: shared.ModelArgument, options: TargetCheckOptions) -> None:
    """See where each op of a .tflite runs on a target, whoever made the file: fast, slow or refused, and why.

    Exit code 1 says that the target refuses an op.

    Examples:
      zeropoint check model_int8.tflite
      zeropoint check model_int8.tflite --target integer --no-fallback
      zeropoint check model_int8.tflite --target cpu --json | jq .totals
    """
    from ..report.targets import print_check
    from ..targets import check_model, target_named

    target = target_named(options.target)
    found = check_model(shared.load_model(model, screen), target)
    if options.as_json:
        screen.json(found.to_json())
    else:
        print_check(found, model.name, screen.results, every=options.all)
    failing = found.having("refused") + (found.having("slow") if options.no_fallback else ())
    if failing:
        kinds = ", ".join(dict.fromkeys(checked.op.label for checked in failing))
        raise CheckFailed(f"{target.name} does not run {len(failing)} of {len(found.ops)} ops as it should: {kinds}")
