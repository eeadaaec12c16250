"""zeropoint calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    NO_IMAGE_OPTIONS,
    DataOption,
    ImageOptions,
    KeepStateOption,
    LimitOption,
    ModelArgument,
    NonfiniteOption,
    OverwriteOption,
    SignatureOption,
    WorkersOption,
    load_model,
    samples_of,
)
from .reports import Reports
from .screen import Screen


def calibrate(
    screen: Screen,
    model: ModelArgument,
    data: DataOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="STATS", help="Where to write the statistics.")],
    limit: LimitOption = None,
    workers: WorkersOption = None,
    signature: SignatureOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only minima and maxima, no histograms.")] = False,
    keep_state: KeepStateOption = False,
    allow_nonfinite: NonfiniteOption = False,
    images: ImageOptions = NO_IMAGE_OPTIONS,
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
    from ..calibration import Settings
    from ..report.progress import calibrate_with_progress
    from ..report.stats import print_stats

    Reports(overwrite=overwrite).require(output, inputs=(model, data))
    source = samples_of(load_model(model, screen), data, images, signature)
    settings = Settings(limit, workers, not quick, keep_state, allow_nonfinite)
    stats = calibrate_with_progress(source, settings, screen.remarks)
    stats.save(output, overwrite=overwrite)
    print_stats(stats, output.name, screen.remarks, brief=True)
