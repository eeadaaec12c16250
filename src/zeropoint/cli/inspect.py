"""zeropoint inspect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import shared
from .command import Screen, flag, option


@dataclass(frozen=True)
class InspectOptions:
    """What to show."""

    ops: bool = flag("List the ops with their fixed-point multipliers.")
    summary: bool = flag("Only the summary.")
    channels: bool = flag("Every channel's parameters.")
    filter: str | None = option(None, "GLOB", "Only tensors and ops whose name or kind matches.")
    as_json: bool = flag("Print JSON (docs/inspect-json.md).", "--json")


def inspect(screen: Screen, model: shared.ModelArgument, options: InspectOptions) -> None:
    """Show a model's quantization: the line people know from Netron, and the numbers the kernels use.

    A statistics file of `zeropoint calibrate` is shown as a table of ranges with small histograms.

    Examples:
      zeropoint inspect model.tflite
      zeropoint inspect model.tflite --ops --filter '*conv*'
      zeropoint inspect model.tflite --json | jq .summary
    """
    from ..report.inspection import inspect as describe
    from ..report.terminal import Detail, print_inspection, print_stats
    from ..sources.models import size_of

    if is_stats(model):
        from ..calibration.stats import Stats

        print_stats(Stats.load(model), model.name, screen.results)
        return
    source = shared.load_model(model, screen)
    shown = describe(source, size_of(model, source))
    if options.filter is not None:
        shown = shown.filtered(options.filter)
    if options.as_json:
        screen.json(shown.to_json())
    else:
        detail = Detail(not options.summary, options.ops, options.channels)
        print_inspection(shown, model.name, detail, screen.results)


def is_stats(path: Path) -> bool:
    """Whether a file looks like statistics, which are a zip archive, rather than a model. Keras files are zips too."""
    from ..sources.tensorflow import KERAS_SUFFIXES

    if path.suffix.lower() in KERAS_SUFFIXES or not path.is_file():  # opening a pipe would wait for its writer
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False
