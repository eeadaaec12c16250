"""zeropoint compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidModel, InvalidRecipe
from .options import (
    NO_IMAGE_OPTIONS,
    DataOption,
    ImageOptions,
    LimitOption,
    ModelArgument,
    OverwriteOption,
    SignatureOption,
    load_model,
    samples_of,
)
from .reports import ModelExplorerOption, ReportOption, Reports, command_line, seen
from .running import CheckFailed
from .screen import Screen

if TYPE_CHECKING:
    from ..comparison.values import Comparison
    from ..graph.model import Model

MetricOption = Annotated[
    str | None,
    typer.Option("--metric", metavar="FILE.py:FUNCTION", help="A score: a function of the outputs of all samples."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (docs/compare.md).")]


def compare(
    screen: Screen,
    model: ModelArgument,
    quantized: Annotated[
        Path, typer.Argument(metavar="QUANTIZED", help="A quantized .tflite of it, by any tool.", show_default=False)
    ],
    data: DataOption,
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="Show the N worst ops; 0 for all.")] = 10,
    as_json: JsonOption = False,
    metric: MetricOption = None,
    limit: LimitOption = None,
    signature: SignatureOption = None,
    images: ImageOptions = NO_IMAGE_OPTIONS,
    min_snr: Annotated[
        float | None, typer.Option("--min-snr", metavar="DB", help="Exit with 1 if the outputs are below this.")
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            "--min-agreement", min=0, max=1, metavar="SHARE", help="Exit with 1 if top-1 is the same less often."
        ),
    ] = None,
    min_metric: Annotated[
        float | None,
        typer.Option("--min-metric", metavar="SCORE", help="Exit with 1 if QUANTIZED scores less in --metric."),
    ] = None,
    report: ReportOption = None,
    model_explorer: ModelExplorerOption = None,
    overwrite: OverwriteOption = False,
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
    from ..comparison.compare import Asked, compare_models
    from ..comparison.outputs import load_metric
    from ..report.comparison import print_comparison
    from ..report.progress import progress_bar
    from ..sources.models import size_of

    if min_metric is not None and metric is None:
        raise InvalidRecipe("--min-metric needs a score to look at; give one with --metric FILE.py:FUNCTION")
    reports = Reports(report, model_explorer, overwrite)
    reports.require(inputs=(model, quantized, data))
    score = None if metric is None else load_metric(metric)
    source = samples_of(load_model(model, screen), data, images, signature)
    made = load_model(quantized, screen)
    if _in_integers(source.model) and not _in_integers(made):
        raise InvalidModel(f"{model} computes in integers and {quantized} does not; give the float model first")
    with progress_bar("comparing", source.total(limit), "samples", screen.remarks) as tell:
        asked = Asked(limit, score, tell, signature)
        found = compare_models(source.model, made, source.data.samples, asked)
    sizes = size_of(model, source.model), size_of(quantized, made)
    found = replace(found, float_bytes=sizes[0], quantized_bytes=sizes[1])
    if as_json:
        screen.json(found.to_json())
    else:
        print_comparison(screen.without_notes(found), screen.results, top or None)
    if reports.wanted:
        from ..report.page_build import Evidence

        evidence = Evidence(
            quantized.name, made, sizes[1], sizes[0], comparison=found, command=command_line(), data=data
        )
        if report is not None:
            evidence = replace(evidence, stats=seen(source, limit, screen.remarks))
        reports.write(evidence, screen.asides if as_json else screen.remarks)
    _require(found, min_snr, min_agreement, min_metric)


def _in_integers(model: Model) -> bool:
    return any(t.is_quantized for graph in model.graphs for op in graph.ops for t in op.outputs)


def _require(found: Comparison, snr: float | None, agreement: float | None, metric: float | None) -> None:
    """Fail if the quantized model is worse than was asked for; None asks for nothing."""
    failed = []
    if snr is not None and found.snr < snr:
        failed.append(f"outputs are at {found.snr:.2f} dB, --min-snr asks for {snr:g}")
    if agreement is not None:
        measured = [o.agreement for o in found.outputs if o.agreement is not None]
        if not measured:
            raise InvalidRecipe("--min-agreement: no output looks like scores of classes; use --min-snr or --metric")
        if min(measured) < agreement:
            failed.append(f"top-1 is the same in {min(measured):.2%}, --min-agreement asks for {agreement:.2%}")
    if metric is not None and found.metric is not None and not found.metric.after >= metric:
        failed.append(f"{found.metric.name} is {found.metric.after:.6g}, --min-metric asks for {metric:g}")
    if failed:
        raise CheckFailed("; ".join(failed))
