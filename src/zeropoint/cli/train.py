"""zeropoint train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .command import Screen
from .options import (
    DataOption,
    EffortOption,
    ImageOptions,
    InterfaceOptions,
    ModelArgument,
    OverwriteOption,
    ReportOption,
    ReportOptions,
    WeightBitsOption,
    efforts,
    known,
    load_model,
)

if TYPE_CHECKING:
    from .sampled import SampledModel


@dataclass(frozen=True)
class ScheduleOptions:
    """How long to train, and on what."""

    steps: Annotated[int, typer.Option(metavar="N", help="How many batches to train on.")] = 500
    batch: Annotated[int, typer.Option(metavar="N", help="Samples in a batch.")] = 32
    learning_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="Relative to the size of the weights. [default: by bits]")
    ] = None
    mirror: Annotated[bool, typer.Option("--mirror", help="Images: flip half of them left to right.")] = False
    shift: Annotated[int, typer.Option(min=0, help="Images: move each by up to this many pixels.")] = 0


@dataclass(frozen=True)
class GoalOptions:
    """What the trained model is to come close to."""

    loss: Annotated[
        str | None, typer.Option(metavar="LOSS", help="A Keras loss of labels; DATA then gives pairs (inputs, label).")
    ] = None
    teacher: Annotated[
        float, typer.Option(metavar="SHARE", help="With labels: the float model's share of the loss.")
    ] = 0.5
    inner: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Compare outputs of these ops as well (repeatable).")
    ] = None
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Do not train weights of these ops (repeatable).")
    ] = None


def train(
    screen: Screen,
    model: ModelArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the trained .tflite.")],
    data: DataOption,
    schedule: ScheduleOptions,
    goal: GoalOptions,
    interface: InterfaceOptions,
    images: ImageOptions,
    mode: Annotated[str, typer.Option(metavar="MODE", help="int8 or int16x8.")] = "int8",
    weight_bits: WeightBitsOption = 8,
    effort: EffortOption = "standard",
    report: ReportOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Quantize a model and train it to compute what the float model does. No labels are needed.

    Some of the samples are held back to choose the best state. Ctrl-C ends training and writes the best so far.

    Examples:
      zeropoint train model.tflite -o model_int8.tflite --data samples.npz
      zeropoint train model.tflite -o model_int4.tflite --data samples.npz \\
        --weight-bits 4 --steps 1000
      zeropoint train model.tflite -o out.tflite --data data.py:pairs \\
        --loss sparse_categorical_crossentropy
    """
    from ..report.progress import training_bar
    from ..report.quantization import print_result
    from ..sources.models import size_of
    from ..train import require_keras, start_keras

    reports = ReportOptions(report, overwrite=overwrite)
    reports.require(output, inputs=(model, data))
    interface.checked()
    require_keras()
    source = images.sampled(load_model(model, screen), data)
    start_keras()  # takes seconds: what is wrong with the model or the data is reported before
    from ..train import Goal, Schedule, distill

    with training_bar(schedule.steps, screen.remarks) as progress:
        distilled = distill(
            source.model,
            source.data.samples,
            mode,
            weight_bits=weight_bits,
            schedule=Schedule(
                schedule.steps, schedule.batch, schedule.learning_rate, mirror=schedule.mirror, shift=schedule.shift
            ),
            goal=Goal(tuple(goal.inner or ()), loss=goal.loss, teacher=goal.teacher),
            freeze=tuple(goal.freeze or ()),
            ends=(interface.input_type, interface.output_type),
            effort=known("effort", effort, efforts()),
            progress=progress,
        )
    result = distilled.result
    size, before = distilled.save(output, overwrite=overwrite), size_of(model, source.model)
    print_result(result, before, size, screen.remarks)
    if reports.wanted:
        unlabelled = source if goal.loss is None else _without_labels(source)
        reports.write(
            screen.remarks,
            title=output.name,
            model=result.model,
            size=size,
            size_before=before,
            result=result,
            comparison=unlabelled.compare_briefly(result.model, screen.remarks),
            data=data,
        )


def _without_labels(source: SampledModel) -> SampledModel:
    from ..sources.samples import iterate

    pairs = source.data.samples
    return replace(source, data=replace(source.data, samples=(inputs for inputs, _ in iterate(pairs))))
