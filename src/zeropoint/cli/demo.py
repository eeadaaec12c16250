"""zeropoint demo."""

from __future__ import annotations

from .command import Screen

ROUNDS = 15
"""How often each model is timed."""


def demo(screen: Screen) -> None:
    """Run the main job on the example that comes with the package: handwritten digits, offline.

    Examples:
      zeropoint demo
    """
    from ..bench.latency import TimingOptions, benchmark
    from ..calibration import Settings
    from ..demo import accuracy, digits, digits_model
    from ..quantization import quantize
    from ..recipe import MODES
    from ..report.inspection import inspect
    from ..report.terminal import Printer, size_text
    from ..sources.data import Data
    from ..tflite import load, to_bytes
    from .sampled import SampledModel

    printer = Printer(screen.results)
    model, data = load(digits_model()), digits()
    samples = [image[None] for image in data["calibration"]]
    printer.line(f"A small network for handwritten digits, calibrated on {len(samples)} of them:")
    stats = SampledModel(model, Data(samples, len(samples))).calibrate(Settings(), screen.results)
    models = {"float32": model, **{mode: quantize(model, mode, stats=stats, min_elements=0).model for mode in MODES}}
    timed = benchmark(models, TimingOptions(rounds=ROUNDS, inside=False))
    seconds = {timing.name: timing.latencies[0].fastest for timing in timed.models}
    printer.line(("  mode       size       correct   speed   integer arithmetic", "bold"))
    for mode, made in models.items():
        size, speed = size_text(len(to_bytes(made))), seconds["float32"] / seconds[mode]
        share = inspect(made).integer_share or 0.0
        printer.line(f"  {mode:9}  {size:>8}  {accuracy(made, data):8.2%}  {speed:5.2f}x  {share:8.0%}")
    printer.line("Yours: zeropoint quantize MODEL -o OUT --mode int8 --data SAMPLES")
