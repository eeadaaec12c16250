"""zeropoint compare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..errors import InvalidModel, InvalidRecipe
from . import shared
from .command import CheckFailed, Screen, argument, flag, option

if TYPE_CHECKING:
    from ..comparison.values import Comparison
    from ..graph.model import Model


@dataclass(frozen=True)
class CheckOptions:
    """What the quantized model is required to reach."""

    min_snr: float | None = option(None, "DB", "Exit with 1 if the outputs are below this.")
    min_agreement: float | None = option(None, "SHARE", "Exit with 1 if top-1 is the same less often.", min=0, max=1)
    min_metric: float | None = option(None, "SCORE", "Exit with 1 if QUANTIZED scores less in --metric.")

    def require(self, comparison: Comparison) -> None:
        """Raise if the quantized model is worse than was asked for."""
        failed = []
        if self.min_snr is not None and comparison.snr < self.min_snr:
            failed.append(f"outputs are at {comparison.snr:.2f} dB, --min-snr asks for {self.min_snr:g}")
        if self.min_agreement is not None:
            measured = [o.agreement for o in comparison.outputs if o.agreement is not None]
            if not measured:
                raise InvalidRecipe(
                    "--min-agreement: no output looks like scores of classes; use --min-snr or --metric"
                )
            if min(measured) < self.min_agreement:
                least = f"--min-agreement asks for {self.min_agreement:.2%}"
                failed.append(f"top-1 is the same in {min(measured):.2%}, {least}")
        score = comparison.metric
        if self.min_metric is not None and score is not None and not score.after >= self.min_metric:
            failed.append(f"{score.name} is {score.after:.6g}, --min-metric asks for {self.min_metric:g}")
        if failed:
            raise CheckFailed("; ".join(failed))


@dataclass(frozen=True)
class CompareOptions:
    """What to compare, and how much of it to show."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    top: int = option(10, "N", "Show the N worst ops; 0 for all.", min=0)
    as_json: bool = flag(shared.JSON_HELP, "--json")
    metric: str | None = option(None, "FILE.py:FUNCTION", shared.METRIC_HELP)
    signature: str | None = option(None, "KEY", shared.SIGNATURE_HELP)


def compare(
    screen: Screen,
    model: shared.ModelArgument,
    quantized: Annotated[Path, argument("QUANTIZED", "A quantized .tflite of it, by any tool.")],
    options: CompareOptions,
    samples: shared.SampleOptions,
    checks: CheckOptions,
    reports: shared.ReportOptions,
) -> None:
    """See where a quantized model departs from the float MODEL it was made of, op by op.

    Both run on the same samples. "own" feeds each op with the float model's values, so that only its own rounding and
    clipping is left; "accum." compares the models as they run.

    Examples:
      zeropoint compare model.tflite model_int8.tflite --data samples.npz
      zeropoint compare model.tflite other.tflite --data photos/ --scale 0.00392 \\
        --limit 100 --top 20
      zeropoint compare model.tflite model_int8.tflite --data eval.py:samples \\
        --metric eval.py:accuracy --json
      zeropoint compare model.tflite model_int8.tflite --data samples.npz \\
        --min-snr 25 --min-agreement 0.98
    """
    from ..calibration import Settings
    from ..comparison.outputs import load_metric
    from ..report.comparison import print_comparison
    from ..sources.models import size_of

    if checks.min_metric is not None and options.metric is None:
        raise InvalidRecipe("--min-metric needs a score to look at; give one with --metric FILE.py:FUNCTION")
    reports.require(inputs=(model, quantized, options.data))
    metric = None if options.metric is None else load_metric(options.metric)
    source = samples.sampled(shared.load_model(model, screen), options.data, options.signature)
    made = shared.load_model(quantized, screen)
    if _in_integers(source.model) and not _in_integers(made):
        raise InvalidModel(f"{model} computes in integers and {quantized} does not; give the float model first")
    before, size = size_of(model, source.model), size_of(quantized, made)
    comparison = source.compare(made, screen.remarks, samples.limit, metric)
    comparison = replace(comparison, float_bytes=before, quantized_bytes=size)
    screen.show(comparison, options.as_json, partial(print_comparison, top=options.top or None))
    if reports.wanted:
        known = {"size_before": before, "comparison": comparison, "data": options.data}
        if reports.report is not None:  # it shows histograms
            known["stats"] = source.calibrate(Settings(samples.limit, allow_nonfinite=True), screen.remarks)
        reports.write(screen.beside(options.as_json), quantized.name, made, size, **known)
    checks.require(comparison)


def _in_integers(model: Model) -> bool:
    return any(t.is_quantized for graph in model.graphs for op in graph.ops for t in op.outputs)
