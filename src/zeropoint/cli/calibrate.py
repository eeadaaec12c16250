"""zeropoint calibrate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import shared
from .command import Screen, flag, option


@dataclass(frozen=True)
class CalibrateOptions:
    """What is measured, and where it goes."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    output: Path = option(..., "STATS", "Where to write the statistics.", "--output", "-o")
    quick: bool = flag("Only minima and maxima, no histograms.")
    overwrite: bool = flag(shared.OVERWRITE_HELP)


def calibrate(
    screen: Screen, model: shared.ModelArgument, options: CalibrateOptions, samples: shared.CalibrationOptions
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

    shared.PageOptions(overwrite=options.overwrite).require(options.output, inputs=(model, options.data))
    source = samples.sampled(shared.load_model(model, screen), options.data, samples.signature)
    stats = source.calibrate(samples.settings(histograms=not options.quick), screen.remarks)
    stats.save(options.output, overwrite=options.overwrite)
    print_stats(stats, options.output.name, screen.remarks, brief=True)
