"""The command `export`, which turns a model into source code for a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidRecipe
from . import shared
from .command import Screen, flag, option


@dataclass(frozen=True)
class ExportOptions:
    """What to write, and where."""

    c: Path | None = option(None, "DIR", "Write C++ for TensorFlow Lite Micro into this folder.", "--c")
    arena: int | None = option(None, "BYTES", "Memory that the device has for it; fail if that is too little.", min=1)
    overwrite: bool = flag("Replace files in the folder.")


def export(screen: Screen, model: shared.ModelArgument, options: ExportOptions) -> None:
    """Write a model as C++ source for a microcontroller: its bytes, ops and memory, and an example call.

    The folder gets model.h (sizes, scales, zero points, labels), model.cc (the file as an aligned array), ops.h (a
    resolver with exactly the ops it needs) and main.cc (an example). With the extra tflm the size of the arena
    is measured, otherwise estimated.

    Examples:
      zeropoint export model_int8.tflite --c firmware
      zeropoint export model_int8.tflite --c firmware --arena 65536 --overwrite
    """
    from ..c_export import export_c
    from ..report.terminal import Printer

    if options.c is None:
        raise InvalidRecipe("nothing to export: name a folder with --c DIR")
    made = export_c(shared.load_model(model, screen), options.arena)
    made.save(options.c, overwrite=options.overwrite)
    printer = Printer(screen.remarks)
    printer.entry("Files", ", ".join(str(options.c / name) for name in made.files))
    printer.entry("Ops", f"{len(made.ops)}: {', '.join(made.ops)}")
    printer.entry("Arena", f"{made.arena.size:,} bytes, {made.arena.origin}")
    if made.labels:
        printer.entry("Labels", f"{len(made.labels)}, from the file's metadata")
