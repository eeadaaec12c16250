"""Training without labels: the float model is the teacher of the quantized one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
from keras import ops as kops

from ..display import Brief, notebook_line
from ..errors import InvalidModel, InvalidRecipe, names_are_listed
from ..files import PathLike
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..improve.pipeline import Result, quantize_on
from ..ops import OPS, OpSpec, Probabilities
from ..plan.plan import Plan, Planned
from ..plan.request import Request, TypeLike, WeightOptions, interface_of, resolve_recipe, resolve_target
from ..recipe import Effort, Recipe, keep_float
from ..sources.data import DataSource
from ..sources.models import ModelSource, load
from ..targets import Target
from .deployment import export
from .fake_quant import QuantSettings
from .fake_quant_graph import Blueprint
from .loop import Progress, Schedule, TrainingData, TrainingLoop, TrainingSummary
from .network import Trainable, entry_plan, logits_of, without_dynamic_layers
from .open_shapes import fixed_for

SMALLEST = 1e-12


@dataclass(frozen=True)
class Goal:
    """What training aims at. Besides the outputs, tensors of ops that fit a pattern in `inner` are compared.

    `loss` is the name of a Keras loss of labels; the teacher's part of the whole loss is then `teacher`.
    """

    inner: tuple[str, ...] = ()
    inner_weight: float = 1.0
    loss: str | None = None
    teacher: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.teacher <= 1:
            raise InvalidRecipe(f"the teacher's share of the loss must be between 0 and 1, not {self.teacher}")


@dataclass(frozen=True, repr=False)
class Distilled(Brief):
    """The trained model, how training went, and the trained graph itself."""

    result: Result
    training: TrainingSummary
    trained: Trainable

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
    effort: Effort = "standard",
    target: Target | str | None = None,
    progress: Progress | None = None,
    ops: Mapping[str, OpSpec] = OPS,
) -> Distilled:
    """Quantize `model` as `zeropoint.quantize` does, then train it on `data` to compute what the float model does.

    Held-back samples decide which state was best; on them the result is never worse than before training. Ctrl-C ends
    training and keeps the best state so far. With a `goal` that names a loss, samples are pairs of inputs and labels.
    At most `limit` samples are used. All else is as in `quantize`.
    """
    source = load(model)
    rules = resolve_recipe(mode, recipe, WeightOptions(weight_bits)).unmixed().keeping_float(keep_float)
    schedule, goal, settings = schedule or Schedule(), goal or Goal(), settings or QuantSettings()
    schedule = schedule if steps is None else replace(schedule, steps=steps)
    held = TrainingData.of(source, data, labelled=goal.loss is not None, limit=limit)
    source = fixed_for(source, held.rows)
    made_for = resolve_target(target, rules, interface_of(input_type, output_type), strict)
    request = Request(rules, effort=effort, ops=ops, target=without_dynamic_layers(made_for), strict=strict)
    start = quantize_on(source, replace(request, allow_unmatched=allow_unmatched), list(held.rows))
    assert start.prepared is not None
    planned = Planned(start.prepared, start.plans)
    if settings.settle is None:
        settings = replace(settings, settle=schedule.settling(_weight_bits(planned, settings)))
    blueprint = Blueprint(planned, entry_plan(planned), request, (), settings, tuple(freeze))
    distiller = Distiller.of(blueprint, goal)
    training = TrainingLoop(distiller, schedule, held, progress or notebook_line("training, step and loss:")).run()
    result = export(distiller.student, input_type=input_type, output_type=output_type)
    return Distilled(replace(result, notes=(*result.notes, str(training))), training, distiller.student)


def _weight_bits(planned: Planned, settings: QuantSettings) -> int:
    """The fewest that weights are trained in."""
    levels = [scheme.levels for plan in planned.plans for scheme in plan.schemes.values()]
    return min(
        (8 if settings.weight_bits is None else settings.weight_bits, *(x.bits for x in levels if x is not None))
    )


class Distiller(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A student and its teacher, side by side; the loss is how far the one is from the other."""

    def __init__(self, student: Trainable, teacher: Trainable, compared: Sequence[ComparedTensor], goal: Goal) -> None:
        super().__init__(name="distiller")
        self.student, self.teacher, self.goal = student, teacher, goal
        self._compared, self._label_loss = tuple(compared), label_loss(goal.loss, compared[0].head)
        self.built = True

    @classmethod
    def of(cls, blueprint: Blueprint, goal: Goal) -> Distiller:
        """Student and teacher of one blueprint, with the outputs that `goal` compares."""
        graph = blueprint.plan.graph
        compared = compared_tensors(graph, goal, blueprint.specs)
        student = Trainable(replace(blueprint, outputs=tuple(c.tensor for c in compared)))
        teacher = Trainable(replace(student.blueprint, plan=Plan(graph), quantize=False))
        teacher.trainable = False
        return cls(student, teacher, compared, goal)

    def build(self, input_shape: Any = None) -> None:
        """All variables exist already."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        found = self.student(inputs, training=training), self.teacher(inputs, training=False)
        ours, theirs = (list(v) if isinstance(v, list | tuple) else [v] for v in found)
        return [*ours, *theirs]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Keras calls it with what `call` gave."""
        del x, sample_weight, training
        count, share = len(self._compared), self.goal.teacher
        pairs = zip(self._compared, y_pred[:count], y_pred[count:], strict=True)
        total = sum(compared.weight * compared.loss(ours, theirs) for compared, ours, theirs in pairs)
        if self._label_loss is None:
            return total
        return share * total + (1.0 - share) * kops.mean(self._label_loss(y, y_pred[0]))


def label_loss(name: str | None, head: Probabilities | None) -> Callable[[Any, Any], Any] | None:
    """The Keras loss called `name`. Those of probabilities get logits where the model ends in a softmax or sigmoid."""
    if name is None:
        return None
    try:
        loss: Callable[..., Any] = keras.losses.get(name)
    except ValueError:
        raise InvalidRecipe(f"Keras has no loss {name!r}; try sparse_categorical_crossentropy or mse") from None
    takes_logits = head is not None and "crossentropy" in name.lower().replace("_", "")
    return partial(loss, from_logits=True) if takes_logits else loss


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor that the student is to match; `head` says which probabilities are made of it, if any are."""

    tensor: Tensor
    head: Probabilities | None = None
    weight: float = 1.0

    def loss(self, student: Any, teacher: Any) -> Any:
        if self.head == "row":
            return divergence(student, teacher)
        if self.head == "each":
            return binary_divergence(student, teacher)
        return relative_error(student, teacher)


def compared_tensors(graph: Graph, goal: Goal, ops: Mapping[str, OpSpec]) -> tuple[ComparedTensor, ...]:
    """The graph's float outputs, taken in front of a softmax or sigmoid, and the outputs of ops that `goal` names.

    The latter share `inner_weight` among them.
    """
    uses = Uses(graph)
    found = [ComparedTensor(*logits_of(t, uses, ops)) for t in dict.fromkeys(graph.outputs) if t.dtype.is_float]
    if not found:
        raise InvalidModel("the model has no float output that could be compared with the float model's")
    own = {c.tensor for c in found}
    inner = {p: [t for op in graph.ops for t in _outputs_of(op, p) if t not in own] for p in goal.inner}
    if unknown := [pattern for pattern, tensors in inner.items() if not tensors]:
        raise InvalidRecipe(f"no op inside the graph fits {unknown[0]!r}; {names_are_listed()}")
    chosen = set().union(*inner.values())
    ordered = [t for op in graph.ops for t in op.outputs if t in chosen]
    return (*found, *(ComparedTensor(t, weight=goal.inner_weight / len(ordered)) for t in ordered))


def _outputs_of(op: Op, pattern: str) -> list[Tensor]:
    return [t for t in op.outputs if t.dtype.is_float] if keep_float(pattern).matches(op) else []


def divergence(student: Any, teacher: Any) -> Any:
    """Kullback-Leibler divergence of the student's distribution from the teacher's, of logits; the mean over rows."""
    wanted = kops.log_softmax(teacher, axis=-1)
    return kops.mean(kops.sum(kops.exp(wanted) * (wanted - kops.log_softmax(student, axis=-1)), axis=-1))


def binary_divergence(student: Any, teacher: Any) -> Any:
    """The same for logits that each stand for a probability of their own."""
    wanted = kops.sigmoid(teacher)
    return kops.mean(_cross_entropy(student, wanted) - _cross_entropy(teacher, wanted))


def _cross_entropy(logits: Any, wanted: Any) -> Any:
    return kops.relu(logits) - logits * wanted + kops.softplus(-kops.abs(logits))


def relative_error(student: Any, teacher: Any) -> Any:
    """Squared error relative to how much the teacher's values vary."""
    spread = kops.mean(kops.square(teacher - kops.mean(teacher)))
    return kops.mean(kops.square(student - teacher)) / kops.maximum(spread, SMALLEST)
