"""zeropoint train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import shared
from .command import Screen, flag, option

if TYPE_CHECKING:
    from .sampled import SampledModel


@dataclass(frozen=True)
class ScheduleOptions:
    """How long to train, and on what: fields of `train.Schedule`."""

    steps: int = option(500, "N", "How many batches to train on.")
    batch: int = option(32, "N", "Samples in a batch.")
    learning_rate: float | None = option(None, "RATE", "Relative to the size of the weights. [default: by bits]")
    mirror: bool = flag("Images: flip half of them left to right.")
    shift: int = option(0, None, "Images: move each by up to this many pixels.", min=0)


@dataclass(frozen=True)
class GoalOptions:
    """What the trained model is to come close to."""

    loss: str | None = option(None, "LOSS", "A Keras loss of labels; DATA then gives pairs (inputs, label).")
    teacher: float = option(0.5, "SHARE", "With labels: the float model's share of the loss.")
    inner: list[str] | None = option(None, "PATTERN", "Compare outputs of these ops as well (repeatable).")
    freeze: list[str] | None = option(None, "PATTERN", "Do not train weights of these ops (repeatable).")


@dataclass(frozen=True)
class TrainOptions:
    """What to make, and of which data."""

    output: Path = option(..., "OUT", "Where to write the trained .tflite.", "--output", "-o")
    data: str = option(..., "DATA", shared.DATA_HELP)
    mode: str = option("int8", "MODE", "int8 or int16x8.")
    weight_bits: int = option(8, "BITS", shared.WEIGHT_BITS_HELP)


def train(
    screen: Screen,
    model: shared.ModelArgument,
    options: TrainOptions,
    schedule: ScheduleOptions,
    goal: GoalOptions,
    effort: shared.EffortOptions,
    interface: shared.InterfaceOptions,
    images: shared.ImageOptions,
    reports: shared.PageOptions,
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

    reports.require(options.output, inputs=(model, options.data))
    interface.checked()
    require_keras()
    source = images.sampled(shared.load_model(model, screen), options.data)
    start_keras()  # takes seconds: what is wrong with the model or the data is reported before
    from ..train import Goal, Schedule, distill

    with training_bar(schedule.steps, screen.remarks) as progress:
        distilled = distill(
            source.model,
            source.data.samples,
            options.mode,
            weight_bits=options.weight_bits,
            schedule=Schedule(**vars(schedule)),
            goal=Goal(tuple(goal.inner or ()), loss=goal.loss, teacher=goal.teacher),
            freeze=tuple(goal.freeze or ()),
            ends=(interface.input_type, interface.output_type),
            effort=effort.chosen_effort(),
            progress=progress,
        )
    result = distilled.result
    size, before = distilled.save(options.output, overwrite=reports.overwrite), size_of(model, source.model)
    print_result(result, before, size, screen.remarks)
    if reports.wanted:
        unlabelled = source if goal.loss is None else _without_labels(source)
        comparison = unlabelled.compare_briefly(result.model, screen.remarks)
        known = {"size_before": before, "result": result, "data": options.data}
        reports.write(screen.remarks, options.output.name, result.model, size, comparison=comparison, **known)


def _without_labels(source: SampledModel) -> SampledModel:
    from ..sources.samples import iterate

    pairs = source.data.samples
    return replace(source, data=replace(source.data, samples=(inputs for inputs, _ in iterate(pairs))))
