"""zeropoint calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import Screen
from .options import CalibrationOptions, DataOption, ModelArgument, OverwriteOption, ReportOptions, load_model


def calibrate(
    screen: Screen,
    model: ModelArgument,
    data: DataOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="STATS", help="Where to write the statistics.")],
    samples: CalibrationOptions,
    quick: Annotated[bool, typer.Option("--quick", help="Only minima and maxima, no histograms.")] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Record the range of every tensor on representative data.

    DATA is an .npz (arrays named after the inputs, or a single one), an .npy, a folder of images, or file.py:function,
    a function that yields samples.

    Examples:
      zeropoint calibrate model.tflite --data samples.npz -o model.stats
      zeropoint calibrate model.tflite --data photos/ --scale 0.00784 --offset -1 \\
        -o model.stats
    """
    from ..report.terminal import print_stats

    ReportOptions(overwrite=overwrite).require(output, inputs=(model, data))
    source = samples.sampled(load_model(model, screen), data, samples.signature)
    stats = source.calibrate(samples.settings(histograms=not quick), screen.remarks)
    stats.save(output, overwrite=overwrite)
    print_stats(stats, output.name, screen.remarks, brief=True)
