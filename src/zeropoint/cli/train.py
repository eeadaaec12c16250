"""zeropoint train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    NO_IMAGE_OPTIONS,
    DataOption,
    EffortOption,
    ImageOptions,
    InputTypeOption,
    ModelArgument,
    OutputTypeOption,
    OverwriteOption,
    WeightBitsOption,
    efforts,
    known,
    load_model,
    samples_of,
)
from .reports import ReportOption, Reports, command_line, compared
from .screen import Screen

if TYPE_CHECKING:
    from ..report.progress import SampledModel


def train(
    screen: Screen,
    model: ModelArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the trained .tflite.")],
    data: DataOption,
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="int8 or int16x8.")] = "int8",
    weight_bits: WeightBitsOption = 8,
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
    effort: EffortOption = "standard",
    mirror: Annotated[bool, typer.Option("--mirror", help="Images: turn half of them round, left to right.")] = False,
    shift: Annotated[int, typer.Option("--shift", min=0, help="Images: move each by up to so many pixels.")] = 0,
    input_type: InputTypeOption = "float32",
    output_type: OutputTypeOption = "float32",
    report: ReportOption = None,
    images: ImageOptions = NO_IMAGE_OPTIONS,
    overwrite: OverwriteOption = False,
) -> None:
    """Quantize a model and train it to compute what the float model does. No labels are needed.

    Some of the samples are held back to tell the best state. Ctrl-C ends training and writes the best so far.

    Examples:
      zeropoint train model.tflite -o model_int8.tflite --data samples.npz
      zeropoint train model.tflite -o model_int4.tflite --data samples.npz \\
        --weight-bits 4 --steps 1000
      zeropoint train model.tflite -o out.tflite --data data.py:pairs \\
        --loss sparse_categorical_crossentropy
    """
    from ..plan.pipeline import interface_of
    from ..report.progress import training_bar
    from ..report.quantization import print_result
    from ..sources.models import size_of
    from ..train import require_keras, start_keras

    reports = Reports(report, overwrite=overwrite)
    reports.require(output, inputs=(model, data))
    interface_of(input_type, output_type)
    require_keras()
    source = samples_of(load_model(model, screen), data, images)
    start_keras()  # takes seconds: what is wrong with the model or the data is told before
    from ..train import Goal, Schedule, distill

    schedule = Schedule(steps, batch, learning_rate, mirror=mirror, shift=shift)
    goal = Goal(tuple(inner or ()), loss=loss, teacher=teacher)
    with training_bar(steps, screen.remarks) as told:
        distilled = distill(
            source.model,
            source.data.samples,
            mode,
            weight_bits=weight_bits,
            schedule=schedule,
            goal=goal,
            freeze=tuple(freeze or ()),
            ends=(input_type, output_type),
            effort=known("effort", effort, efforts()),
            progress=told,
        )
    result = distilled.result
    size, before = distilled.save(output, overwrite=overwrite), size_of(model, source.model)
    print_result(result, before, size, screen.remarks)
    if reports.wanted:
        from ..report.page_build import Evidence

        inputs = source if loss is None else _without_labels(source)
        evidence = Evidence(
            output.name,
            result.model,
            size,
            before,
            result,
            comparison=compared(inputs, result.model, screen.remarks),
            command=command_line(),
            data=data,
        )
        reports.write(evidence, screen.remarks)


def _without_labels(source: SampledModel) -> SampledModel:
    from ..sources.samples import iterate

    pairs = source.data.samples
    return replace(source, data=replace(source.data, samples=(inputs for inputs, _ in iterate(pairs))))
