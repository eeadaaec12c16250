"""The command `train`, which trains a quantized model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRecipe
from . import shared
from .command import Screen, flag, option
from .make import SUMMARY_JSON_HELP, show

if TYPE_CHECKING:
    from .sampled import SampledModel


@dataclass(frozen=True)
class ScheduleOptions:
    """How long to train, and on what: fields of `train.Schedule`."""

    steps: int = option(500, "N", "Number of batches to train on.")
    batch: int = option(32, "N", "Batch size.")
    learning_rate: float | None = option(None, "RATE", "Relative to the magnitude of the weights (default: by bits).")
    mirror: bool = flag("Images: flip half of them left to right.")
    shift: str = option("0", "PIXELS", "Images: shift each by up to this many pixels; 5,0 shifts down and up only.")
    mix: float = option(
        0.0, "SHARE", "Mix this share of the samples with others (mixup); their labels do not count.", min=0, max=1
    )
    seed: int = option(0, "N", "Random seed of the order of the samples.", min=0)
    patience: int | None = option(None, "N", "Stop after this many of 20 checks without improvement.", min=1)

    @property
    def fields(self) -> Mapping[str, Any]:
        """The arguments of `train.Schedule`."""
        return {**vars(self), "shift": shifts_in(self.shift)}


def shifts_in(text: str) -> tuple[int, int]:
    """Parse the largest shifts down and across, or one number for both."""
    numbers = text.split(",")
    if len(numbers) not in (1, 2) or not all(one.strip().isdecimal() for one in numbers):
        raise InvalidRecipe(f"--shift needs a number of pixels, or one down and one across such as 5,0; not {text!r}")
    return int(numbers[0]), int(numbers[-1])


@dataclass(frozen=True)
class GoalOptions:
    """What the trained model is trained towards."""

    loss: str | None = option(None, "LOSS", "A Keras loss on labels; DATA then yields pairs (inputs, label).")
    metric: str | None = option(None, "METRIC", "A Keras metric on labels that selects the best state: accuracy.")
    teacher: float = option(0.5, "SHARE", "With labels: weight of distillation from the float model.")
    inner: list[str] | None = option(None, "PATTERN", "Also match the outputs of these ops (repeatable).")
    inner_weight: float = option(1.0, "WEIGHT", "Weight of these outputs in the loss, all together.", min=0)
    freeze: list[str] | None = option(None, "PATTERN", "Do not train weights of these ops (repeatable).")


@dataclass(frozen=True)
class TrainOptions:
    """What to make, and from which data."""

    output: Path = option(..., "OUT", "Where to write the trained .tflite.", "--output", "-o")
    data: str = option(..., "DATA", shared.DATA_HELP)
    mode: str | None = option(None, "MODE", "int8 (the default) or int16x8.")
    recipe: Path | None = option(None, "FILE", shared.RECIPE_HELP, show_default=False)
    keep_float: list[str] | None = option(None, "PATTERN", shared.KEEP_FLOAT_HELP)
    target: str | None = shared.target_option()
    strict: bool = flag(shared.STRICT_HELP)
    allow_unmatched: bool = flag(shared.ALLOW_UNMATCHED_HELP)
    weight_bits: int = option(8, "BITS", shared.WEIGHT_BITS_HELP)
    train_bits: str | None = option(
        None, "BITS", "Low-bit training: w2a8, w4a4, ternary, binary; or w8a8,w4a8,w2a8 in turn."
    )
    every_layer: bool = flag("With --train-bits: low bits in the first and last layers, too.")
    limit: int | None = option(None, "N", shared.LIMIT_HELP, min=1)
    allow_nonfinite: bool = flag("Accept samples that contain NaN or infinity.")
    resume: Path | None = option(None, "FILE", "Save progress in this file; the same command resumes from it.")
    as_json: bool = flag(SUMMARY_JSON_HELP, "--json")


@dataclass(frozen=True)
class QuantizerOptions:
    """How fake quantization is trained: fields of `train.QuantSettings`."""

    ranges: str = option("learned", "HOW", "Ranges of activations: learned, average or last.")
    delay: int = option(0, "N", "Train in float for this many steps first.", min=0)
    gradient_bits: int | None = option(None, "BITS", "Round gradients to this many bits (DoReFa).", min=1, max=16)


def train(
    screen: Screen,
    model: shared.ModelArgument,
    options: TrainOptions,
    schedule: ScheduleOptions,
    goal: GoalOptions,
    quantizers: QuantizerOptions,
    effort: shared.EffortOptions,
    interface: shared.InterfaceOptions,
    images: shared.ImageOptions,
    reports: shared.PageOptions,
) -> None:
    """Quantize a model and train it to match the float model (distillation). No labels are needed.

    Some of the samples are held back to select the best state. Ctrl-C ends training and writes the best so far.

    Examples:
      zeropoint train model.tflite -o model_int8.tflite --data samples.npz
      zeropoint train model.tflite -o model_int4.tflite --data samples.npz \\
        --weight-bits 4 --steps 1000
      zeropoint train model.tflite -o ternary.tflite --data samples.npz \\
        --train-bits ternary --steps 2000
      zeropoint train model.tflite -o out.tflite --data data.py:pairs \\
        --loss sparse_categorical_crossentropy --metric accuracy
    """
    from ..report.progress import training_bar
    from ..report.quantization import SavedAs
    from ..sources.models import size_of
    from ..train import require_keras, start_keras

    reports.require(options.output, inputs=(model, options.data, options.recipe))
    if options.resume is not None and options.resume.resolve() == options.output.resolve():
        raise InvalidRecipe(f"{options.resume} was given for the result and for the run; choose another name for one")
    interface.checked()
    require_keras()
    remarks = screen.beside(options.as_json)
    source = images.sampled(shared.load_model(model, screen), options.data)
    start_keras()  # takes seconds: problems with the model or the data are reported first
    from ..train import Goal, OnCheck, QuantSettings, Schedule, distill

    settings = QuantSettings(**vars(quantizers))
    total = schedule.steps * (1 if options.train_bits is None else options.train_bits.count(",") + 1)
    with training_bar(total, remarks) as (progress, report_check):
        distilled = distill(
            source.model,
            source.data.samples,
            options.mode,
            recipe=options.recipe,
            weight_bits=options.weight_bits,
            train_bits=options.train_bits,
            every_layer=options.every_layer,
            keep_float=options.keep_float or (),
            strict=options.strict,
            allow_unmatched=options.allow_unmatched,
            limit=options.limit,
            schedule=Schedule(**schedule.fields),
            settings=settings,
            goal=Goal(
                tuple(goal.inner or ()),
                goal.inner_weight,
                loss=goal.loss,
                teacher=goal.teacher,
                metrics=() if goal.metric is None else (goal.metric,),
            ),
            freeze=tuple(goal.freeze or ()),
            input_type=interface.input_type,
            output_type=interface.output_type,
            effort=None if effort.chosen_effort() == "standard" else effort.chosen_effort(),
            target=options.target,
            progress=progress,
            callbacks=[OnCheck(report_check)],
            resume=options.resume,
            allow_nonfinite=options.allow_nonfinite,
        )
    size, before = distilled.save(options.output, overwrite=reports.overwrite), size_of(model, source.model)
    result = distilled.result.from_file_of(before)
    show(screen, result, SavedAs(options.output, size, before), options.as_json)
    if reports.wanted:
        unlabelled = source if goal.loss is None and goal.metric is None else _without_labels(source)
        comparison = unlabelled.compare_briefly(result.model, remarks)
        known = {"size_before": before, "result": result, "data": options.data}
        command = shared.trace_command(options.output, options.data, model)
        known |= reports.explained(unlabelled, result.model, command, remarks)
        reports.write(remarks, options.output.name, result.model, size, comparison=comparison, **known)


def _without_labels(source: SampledModel) -> SampledModel:
    from ..sources.samples import iterate

    pairs = source.data.samples
    return replace(source, data=replace(source.data, samples=(inputs for inputs, _ in iterate(pairs))))
