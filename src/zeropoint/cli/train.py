"""zeropoint train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    MeanOption,
    ModelArgument,
    OffsetOption,
    OverwriteOption,
    ScaleOption,
    StdOption,
    VerboseOption,
    console,
    load_model,
    normalization_of,
    samples_of,
)
from .reports import ReportOption, Reports, command_line, compared

if TYPE_CHECKING:
    from ..report.progress import SampledModel


def train(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the trained .tflite.")],
    data: Annotated[
        str,
        typer.Option("--data", metavar="DATA", help="Samples: .npz, .npy, a folder of images, or file.py:function."),
    ],
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="int8 or int16x8.")] = "int8",
    weight_bits: Annotated[
        int, typer.Option("--weight-bits", metavar="BITS", help="8; or 4 or 2, where LiteRT has a kernel.")
    ] = 8,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="How many batches to train on.")] = 500,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Samples in a batch.")] = 32,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", metavar="RATE", help="Relative to the size of the weights. [default: by bits]"),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option("--loss", metavar="LOSS", help="A Keras loss of labels; DATA then gives pairs (inputs, label)."),
    ] = None,
    teacher: Annotated[
        float, typer.Option("--teacher", metavar="SHARE", help="With labels: the float model's share of the loss.")
    ] = 0.5,
    inner: Annotated[
        list[str] | None,
        typer.Option("--inner", metavar="PATTERN", help="Compare outputs of these ops as well (repeatable)."),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="PATTERN", help="Do not train weights of these ops (repeatable)."),
    ] = None,
    mirror: Annotated[bool, typer.Option("--mirror", help="Images: turn half of them round, left to right.")] = False,
    input_type: Annotated[str, typer.Option("--input-type", help="float32, int8, uint8 or int16.")] = "float32",
    output_type: Annotated[str, typer.Option("--output-type", help="float32, int8, uint8 or int16.")] = "float32",
    report: ReportOption = None,
    scale: ScaleOption = None,
    offset: OffsetOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    overwrite: OverwriteOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Quantize a model and train it to compute what the float model does. No labels are needed.

    Some of the samples are held back to tell the best state. Ctrl-C ends training and writes the best so far.

    Examples:

      zeropoint train model.tflite --data photos/ --scale 0.00392 -o model_int8.tflite

      zeropoint train model.tflite --data samples.npz --weight-bits 4 --steps 1000 -o model_int4.tflite

      zeropoint train model.tflite --data data.py:pairs --loss sparse_categorical_crossentropy -o out.tflite
    """
    from ..files import refuse_existing
    from ..quantize.pipeline import interface_of
    from ..report.progress import training_bar
    from ..report.quantization import print_result
    from ..sources.models import size_of
    from ..train import start_keras

    refuse_existing(output, overwrite)
    reports = Reports(report, overwrite=overwrite)
    reports.require(output)
    interface_of(input_type, output_type)
    start_keras()
    from ..train import Goal, Schedule, distill

    shown_on = console()
    source = samples_of(load_model(model, verbose), data, None, normalization_of(scale, offset, mean, std))
    schedule = Schedule(steps, batch, learning_rate, mirror=mirror)
    goal = Goal(tuple(inner or ()), loss=loss, teacher=teacher)
    with training_bar(steps, shown_on) as told:
        distilled = distill(
            source.model,
            source.data.samples,
            mode,
            weight_bits=weight_bits,
            schedule=schedule,
            goal=goal,
            freeze=tuple(freeze or ()),
            ends=(input_type, output_type),
            progress=told,
        )
    size = distilled.save(output, overwrite=overwrite)
    print_result(distilled.result, size_of(model, source.model), size, shown_on)
    if reports.wanted:
        from ..report.page_build import Evidence

        comparison = compared(source if loss is None else _without_labels(source), distilled.result.model, shown_on)
        before = size_of(model, source.model)
        evidence = Evidence(output.name, distilled.result.model, size, before, distilled.result, comparison=comparison)
        reports.write(replace(evidence, command=command_line(), data=data), shown_on)


def _without_labels(source: SampledModel) -> SampledModel:
    from ..sources.samples import iterate

    pairs = source.data.samples
    return replace(source, data=replace(source.data, samples=(inputs for inputs, _ in iterate(pairs))))
