"""zeropoint compare."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .options import (
    DataOption,
    LimitOption,
    MeanOption,
    ModelArgument,
    OffsetOption,
    OverwriteOption,
    ScaleOption,
    SignatureOption,
    StdOption,
    VerboseOption,
    console,
    load_model,
    normalization_of,
    samples_of,
)
from .reports import ModelExplorerOption, ReportOption, Reports, command_line, seen

MetricOption = Annotated[
    str | None,
    typer.Option("--metric", metavar="FILE.py:FUNCTION", help="A score: a function of the outputs of all samples."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (docs/compare.md).")]


def compare(
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
    scale: ScaleOption = None,
    offset: OffsetOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    report: ReportOption = None,
    model_explorer: ModelExplorerOption = None,
    overwrite: OverwriteOption = False,
    verbose: VerboseOption = False,
) -> None:
    """See where a quantized model departs from the float MODEL it was made of, op by op.

    Both run on the same samples. "own" feeds each op with the float model's values, so that only its own rounding and
    clipping is left; "accum." compares the models as they run.

    Examples:

      zeropoint compare model.tflite model_int8.tflite --data samples.npz

      zeropoint compare model.tflite other.tflite --data photos/ --scale 0.00392 --limit 100 --top 20

      zeropoint compare model.tflite model_int8.tflite --data eval.py:samples --metric eval.py:accuracy --json
    """
    from ..report.comparison import print_comparison
    from ..report.progress import progress_bar
    from ..sources.models import size_of
    from ..verify.compare import Asked, compare_models
    from ..verify.outputs import load_metric

    reports = Reports(report, model_explorer, overwrite)
    reports.require()
    score = None if metric is None else load_metric(metric)
    source = samples_of(load_model(model, verbose), data, signature, normalization_of(scale, offset, mean, std))
    made = load_model(quantized, verbose)
    shown_on = console()
    total = source.data.count if limit is None else min(limit, source.data.count or limit)
    with progress_bar("comparing", total, "samples", shown_on) as tell:
        asked = Asked(limit, score, tell, signature)
        found = compare_models(source.model, made, source.data.samples, asked)
    sizes = size_of(model, source.model), size_of(quantized, made)
    found = replace(found, float_bytes=sizes[0], quantized_bytes=sizes[1])
    if as_json:
        json.dump(found.to_json(), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_comparison(found, shown_on, top or None)
    if reports.wanted:
        from ..report.page_build import Evidence

        evidence = Evidence(
            quantized.name, made, sizes[1], sizes[0], comparison=found, command=command_line(), data=data
        )
        if report is not None:
            evidence = replace(evidence, stats=seen(source, limit, shown_on))
        reports.write(evidence, console(stderr=as_json))
