"""Training without labels: the float model is the teacher of the quantized one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops as kops

from ..bench.bench import Bench
from ..bench.verdict import Verdict, verdict
from ..calibration import Settings
from ..display import Brief, notebook_line
from ..errors import InvalidModel, InvalidRecipe, names_are_listed
from ..files import PathLike
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..improve.pipeline import Result, quantize_on
from ..ops import OPS, OpSpec, Probabilities
from ..ops.execution import logits_of
from ..plan.plan import Plan, Planned
from ..plan.request import Request, TypeLike, WeightOptions, interface_of, resolve_recipe, resolve_target
from ..recipe import Effort, Recipe, keep_float
from ..sources.data import DataSource
from ..sources.models import ModelSource, load
from ..targets import Target
from .deployment import export
from .fake_quant import QuantSettings
from .fake_quant_graph import Blueprint, trainable_target
from .loop import Progress, TrainingLoop, TrainingSummary
from .losses import binary_divergence, check_labels, divergence, label_loss, probabilities, relative_error
from .low_bits import Stages, at_stage, low_bit_recipe, stages_of, with_narrow_ranges
from .mean_shift import channel_means
from .network import Trainable, entry_plan
from .open_shapes import fixed_for
from .schedule import Schedule
from .training_data import TrainingData


@dataclass(frozen=True)
class Goal:
    """What training optimizes. Besides the outputs, outputs of ops that match a pattern in `inner` are compared.

    `loss` is a loss on labels: a Keras name, a Keras object, or a function; `teacher` is then the weight of the
    distillation loss. `metrics`, as `compile` takes them, are also computed on labels, and the first of them selects
    the best state instead of the loss.
    """

    inner: tuple[str, ...] = ()
    inner_weight: float = 1.0
    loss: Any = None
    teacher: float = 0.5
    metrics: tuple[Any, ...] = ()

    @property
    def is_labelled(self) -> bool:
        return self.loss is not None or bool(self.metrics)

    def __post_init__(self) -> None:
        if not 0 <= self.teacher <= 1:
            raise InvalidRecipe(f"the teacher's share of the loss must be between 0 and 1, not {self.teacher}")


@dataclass(frozen=True, repr=False)
class Distilled(Brief):
    """The trained model, how training went, the trained graph itself, and the quantized model that it started from."""

    result: Result
    training: TrainingSummary
    trained: Trainable
    start: Result

    def save(self, path: PathLike, *, overwrite: bool = False) -> int:
        return self.result.save(path, overwrite=overwrite)


def distill(
    model: ModelSource,
    data: DataSource,
    mode: str | None = None,
    steps: int | None = None,
    *,
    recipe: Recipe | PathLike | None = None,
    weight_bits: int = 8,
    train_bits: str | Sequence[str] | None = None,
    every_layer: bool = False,
    keep_float: Sequence[str] | str = (),
    strict: bool = False,
    allow_unmatched: bool = False,
    limit: int | None = None,
    schedule: Schedule | None = None,
    settings: QuantSettings | None = None,
    goal: Goal | None = None,
    freeze: Sequence[str] = (),
    input_type: TypeLike = "float32",
    output_type: TypeLike = "float32",
    effort: Effort | None = None,
    target: Target | str | None = None,
    progress: Progress | None = None,
    callbacks: Sequence[Any] = (),
    resume: PathLike | None = None,
    allow_nonfinite: bool = False,
    ops: Mapping[str, OpSpec] = OPS,
) -> Distilled:
    """Quantize a model and train it to match the float model (knowledge distillation). No labels are needed.

    Held-back samples select the best state; on them the result is never worse than before training. Ctrl-C ends
    training and keeps the best state so far.

    Args:
        model: The float model, as for `quantize`.
        data: Training samples, as for `calibrate`; pairs (inputs, labels) if `goal` has a loss or metrics.
        mode: "int8" (the default) or "int16x8".
        steps: The number of training steps; overrides that of `schedule`.
        recipe: Rules that set the mode for each op, or the path of a recipe file.
        weight_bits: 2 to 8.

        train_bits: Low-bit training of weights and activations: "w2a8", "w4a4", "ternary" or "binary"; several, such as
            ("w8a8", "w4a8", "w2a8"), are trained one after the other, for the same number of steps each.
        every_layer: With `train_bits`: use few bits in the first and last layers, too, which otherwise have 8-bit
            weights.
        schedule: Steps, batch size, learning rate, augmentation.
        settings: How fake quantization is trained.
        goal: What to optimize besides matching the outputs: a loss on labels, metrics, inner tensors.
        freeze: Patterns of op kinds, op names or constants that are not trained.
        limit: The maximum number of samples.
        callbacks: Keras callbacks for `fit`; an epoch lasts from one check to the next.
        resume: A file that stores the progress; after an interruption, the same call resumes from it.
        allow_nonfinite: Accept samples that contain NaN or infinity.

        keep_float: Patterns of op kinds or names that stay float.
        allow_unmatched: Accept patterns and rules that match no op.
        strict: Raise if any op has to stay float.
        input_type: The type of the inputs.
        output_type: The type of the outputs.
        effort: The effort spent on quantization before training.
        target: What the model is made for, as in `quantize`.
        progress: Called with the number of steps done and the loss.
        ops: The op table, if not the package's own.

    Returns:
        The trained model, a summary of how training went, and the trained graph.
    """
    source = load(model)
    stages = () if train_bits is None else stages_of(train_bits)
    if resume is not None and len(stages) > 1:
        raise InvalidRecipe("only training in one bit width can be resumed from a file; omit resume")
    if stages:
        _require_nothing_else(mode, recipe, weight_bits)
        recipe, mode = low_bit_recipe(source, stages[-1], ops, every_layer=every_layer), None
    rules = resolve_recipe(mode, recipe, WeightOptions(weight_bits), training=True).unmixed().keeping_float(keep_float)
    schedule, goal, settings = schedule or Schedule(), goal or Goal(), settings or QuantSettings()
    schedule = schedule if steps is None else replace(schedule, steps=steps)
    held = TrainingData.of(source, data, labelled=goal.is_labelled, limit=limit)
    if not allow_nonfinite:
        held.require_finite(source)
    source = fixed_for(source, held.rows)
    made_for = resolve_target(target, rules, interface_of(input_type, output_type), strict)
    request = Request(
        rules, effort=effort or _usual_effort(rules), ops=ops, target=trainable_target(made_for), strict=strict
    )
    calibration = Settings(allow_nonfinite=allow_nonfinite)
    start = quantize_on(source, replace(request, allow_unmatched=allow_unmatched), list(held.rows), calibration)
    assert start.prepared is not None
    planned = Planned(start.prepared, start.plans)
    settings = _scheduled(settings, schedule, _weight_bits(planned, settings))
    blueprint = Blueprint(planned, entry_plan(planned), request, (), settings, tuple(freeze))
    blueprint = replace(blueprint, means=channel_means(start.stats))
    blueprint = with_narrow_ranges(blueprint, start.stats)
    progress = progress or notebook_line("training, step and loss:")
    first = Distiller.of(blueprint if len(stages) < 2 else replace(blueprint, stage=stages[0]), goal)
    if held.labels is not None:
        check_labels(held.labels, goal.loss, first.compared[0].tensor)
    loop = TrainingLoop(first, schedule, held, progress, callbacks, resume)
    summaries = list(_trained(loop, blueprint, stages))
    student, training = loop.distiller.student, summaries[-1]
    result = export(student, input_type=input_type, output_type=output_type)
    notes = (*result.notes, *_summary_notes(stages, summaries))
    _, unseen = held.split(schedule.held_back)
    judge = Bench(source, [held.rows[k] for k in unseen], calibration, ops=ops)
    result = replace(result, notes=notes, verdict=_verdict_of_training(judge, result), origin=start.origin)
    return Distilled(result, training, student, start)


def _verdict_of_training(judge: Bench, result: Result) -> Verdict:
    """Return the verdict by samples that training held back; calibration saw them."""
    return replace(verdict(judge, result.model), held_back=None)


def _require_nothing_else(mode: str | None, recipe: Recipe | PathLike | None, weight_bits: int) -> None:
    """Raise for options that `train_bits` replaces."""
    if (mode or "int8") != "int8" or recipe is not None or weight_bits != 8:
        raise InvalidRecipe("train_bits sets the bits of weights and activations; omit mode and recipe")


def _usual_effort(rules: Recipe) -> Effort:
    """Return the default effort: with low-bit training, the loss before training is no reason to keep ops in float."""
    return "quick" if rules.is_for_training else "standard"


def _summary_notes(stages: Stages, summaries: Sequence[TrainingSummary]) -> Iterator[str]:
    """Yield how training went, for each bit width."""
    for stage, summary in zip(stages or (None,), summaries, strict=False):
        yield f"{stage}: {summary}" if len(stages) > 1 else str(summary)


def _trained(loop: TrainingLoop, blueprint: Blueprint, stages: Stages) -> Iterator[TrainingSummary]:
    """Train in each bit width. After an interruption the result has the last one, without training in it."""
    found = loop.run()
    yield found
    for number, stage in enumerate(stages[1:], start=2):
        wanted = stages[-1] if found.interrupted else stage
        loop.distiller = Distiller.of(at_stage(blueprint, loop.distiller.student, wanted), loop.distiller.goal)
        if found.interrupted:
            return
        loop.schedule = replace(loop.schedule, seed=loop.schedule.seed + number)
        found = loop.run()
        yield found


def _scheduled(settings: QuantSettings, schedule: Schedule, bits: int) -> QuantSettings:
    """Return the settings with the steps that the schedule chooses, where they are open."""
    settle = schedule.settling(bits) if settings.settle is None else settings.settle
    return replace(settings, settle=settle, decide=settings.decide or schedule.deciding)


def _weight_bits(planned: Planned, settings: QuantSettings) -> int:
    """Return the fewest bits that weights are trained in."""
    levels = [scheme.levels for plan in planned.plans for scheme in plan.schemes.values()]
    return min(
        (8 if settings.weight_bits is None else settings.weight_bits, *(x.bits for x in levels if x is not None))
    )


class Distiller(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A student and its teacher side by side; the loss is the difference between them.

    In a training batch, labels apply to the first `labelled` samples; None for all of them.
    """

    labelled: int | None = None

    def __init__(self, student: Trainable, teacher: Trainable, compared: Sequence[ComparedTensor], goal: Goal) -> None:
        super().__init__(name="distiller", autocast=False)
        self.student, self.teacher, self.goal = student, teacher, goal
        self.compared, self._label_loss = tuple(compared), label_loss(goal.loss, compared[0].head)
        self.agreement = keras.metrics.Mean("agreement") if compared[0].head == "row" else None
        self.built = True

    def save(self, filepath: PathLike, overwrite: bool = True, **options: Any) -> None:
        """Save only the student: it is what is trained, and what `keras.models.load_model` returns."""
        self.student.save(filepath, overwrite=overwrite, **options)

    def freeze_ranges(self) -> None:
        self.student.freeze_ranges()

    @classmethod
    def of(cls, blueprint: Blueprint, goal: Goal) -> Distiller:
        """Return student and teacher of one blueprint, with the outputs that `goal` compares."""
        graph = blueprint.plan.graph
        compared = compared_tensors(graph, goal, blueprint.specs)
        student = Trainable(replace(blueprint, outputs=tuple(c.tensor for c in compared)))
        teacher = Trainable(replace(student.blueprint, plan=Plan(graph), quantize=False))
        teacher.trainable = False
        return cls(student, teacher, compared, goal)

    def build(self, input_shape: Any = None) -> None:
        """Do nothing: all variables already exist."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        found = self.student(inputs, training=training), self.teacher(inputs, training=False)
        ours, theirs = (list(v) if isinstance(v, list | tuple) else [v] for v in found)
        return [*ours, *theirs]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss; Keras calls this with the result of `call`."""
        del x, sample_weight
        count, share = len(self.compared), self.goal.teacher
        pairs = zip(self.compared, y_pred[:count], y_pred[count:], strict=True)
        total = sum(compared.weight * compared.loss(ours, theirs) for compared, ours, theirs in pairs)
        if self._label_loss is None:
            return total
        known = slice(self.labelled if training else None)
        return share * total + (1.0 - share) * kops.mean(self._label_loss(y[known], y_pred[0][known]))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return metrics of labels and the model's first output; and how often student and teacher predict the same
        class."""
        if self.agreement is not None:
            ours, theirs = (kops.argmax(y_pred[k], axis=-1) for k in (0, len(self.compared)))
            self.agreement.update_state(kops.cast(kops.equal(ours, theirs), "float32"))
        return super().compute_metrics(x, y, probabilities(y_pred[0], self.compared[0].head), sample_weight)


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor that the student is to match; `head` says which probabilities are computed from it, if any."""

    tensor: Tensor
    head: Probabilities | None = None
    weight: float = 1.0
    is_output: bool = True

    def loss(self, student: Any, teacher: Any) -> Any:
        if self.head == "row":
            return divergence(student, teacher)
        if self.head == "each":
            return binary_divergence(student, teacher)
        return relative_error(student, teacher)


def compared_tensors(graph: Graph, goal: Goal, ops: Mapping[str, OpSpec]) -> tuple[ComparedTensor, ...]:
    """Return the graph's float outputs, taken before a softmax or sigmoid, and the outputs of ops that `goal` names.

    The latter share `inner_weight` among them.
    """
    uses = Uses(graph)
    found = [ComparedTensor(*logits_of(t, uses, ops)) for t in dict.fromkeys(graph.outputs) if t.dtype.is_float]
    if not found:
        raise InvalidModel("the model has no float output that could be compared with the float model's")
    own = {c.tensor for c in found}
    inner = {p: [t for op in graph.ops for t in _outputs_of(op, p) if t not in own] for p in goal.inner}
    if unknown := [pattern for pattern, tensors in inner.items() if not tensors]:
        raise InvalidRecipe(f"no op inside the graph matches {unknown[0]!r}; {names_are_listed()}")
    chosen = set().union(*inner.values())
    ordered = [t for op in graph.ops for t in op.outputs if t in chosen]
    weight = goal.inner_weight / max(1, len(ordered))
    return (*found, *(ComparedTensor(t, weight=weight, is_output=False) for t in ordered))


def _outputs_of(op: Op, pattern: str) -> list[Tensor]:
    return [t for t in op.outputs if t.dtype.is_float] if keep_float(pattern).matches(op) else []
