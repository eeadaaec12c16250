"""zeropoint calibrate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .command import Screen, flag, option
from .options import DATA_HELP, OVERWRITE_HELP, CalibrationOptions, ModelArgument, PageOptions, load_model


@dataclass(frozen=True)
class CalibrateOptions:
    """What is measured, and where it goes."""

    data: str = option(..., "DATA", DATA_HELP)
    output: Path = option(..., "STATS", "Where to write the statistics.", "--output", "-o")
    quick: bool = flag("Only minima and maxima, no histograms.")
    overwrite: bool = flag(OVERWRITE_HELP)


def calibrate(screen: Screen, model: ModelArgument, options: CalibrateOptions, samples: CalibrationOptions) -> None:
    """Record the range of every tensor on representative data.

    DATA is an .npz (arrays named after the inputs, or a single one), an .npy, a folder of images, or file.py:function,
    a function that yields samples.

    Examples:
      zeropoint calibrate model.tflite --data samples.npz -o model.stats
      zeropoint calibrate model.tflite --data photos/ --scale 0.00784 --offset -1 \\
        -o model.stats
    """
    from ..report.terminal import print_stats

    PageOptions(overwrite=options.overwrite).require(options.output, inputs=(model, options.data))
    source = samples.sampled(load_model(model, screen), options.data, samples.signature)
    stats = source.calibrate(samples.settings(histograms=not options.quick), screen.remarks)
    stats.save(options.output, overwrite=options.overwrite)
    print_stats(stats, options.output.name, screen.remarks, brief=True)
