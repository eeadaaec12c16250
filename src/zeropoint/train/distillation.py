"""Training without labels: the float model is the teacher of the quantized one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from ..errors import InvalidModel, InvalidRecipe
from ..files import PathLike
from ..graph.model import Graph, Model
from ..ops import Probabilities
from ..plan.pipeline import Planned, Request, Result, WeightOptions, resolve_recipe
from ..plan.plan import Plan
from ..quantization import quantize
from ..recipe import Effort, Recipe
from ..sources.samples import Samples
from ..tflite.read import load
from .building import Ends, from_plan
from .exporting import export
from .loop import Loop, Progress, Schedule, Trained, TrainingData
from .losses import Aim, aims_of
from .network import Trainable
from .settings import QuantSettings


@dataclass(frozen=True)
class Goal:
    """What training aims at. Besides the outputs, tensors of ops that fit a pattern in `inner` are compared.

    `loss` is the name of a Keras loss of labels, of which the teacher has `teacher` of the say.
    """

    inner: tuple[str, ...] = ()
    inner_weight: float = 1.0
    loss: str | None = None
    teacher: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.teacher <= 1:
            raise InvalidRecipe(f"the teacher's share of the loss is between 0 and 1, not {self.teacher}")


@dataclass(frozen=True)
class Distilled:
    """The trained model, how training went, and the trained graph itself."""

    result: Result
    training: Trained
    trained: Trainable

    def save(self, path: PathLike, *, overwrite: bool = False) -> int:
        return self.result.save(path, overwrite=overwrite)


def distill(
    model: Model | PathLike | bytes,
    samples: Samples,
    recipe: Recipe | str = "int8",
    steps: int | None = None,
    *,
    weight_bits: int = 8,
    schedule: Schedule | None = None,
    settings: QuantSettings | None = None,
    goal: Goal | None = None,
    freeze: Sequence[str] = (),
    ends: tuple[str, str] = ("float32", "float32"),
    effort: Effort = "standard",
    progress: Progress | None = None,
) -> Distilled:
    """Quantize `model` as `zeropoint.quantize` does, then train it on `samples` to compute what the float model does.

    Held-back samples tell which state was best; it is never worse on them than before training. Ctrl-C ends training
    and keeps the best state so far. With a `goal` that names a loss, samples are pairs of inputs and labels. `ends` are
    the types of inputs and outputs as callers of the result see them.
    """
    source = model if isinstance(model, Model) else load(model)
    schedule = schedule or Schedule()
    schedule = schedule if steps is None else replace(schedule, steps=steps)
    goal = goal or Goal()
    data = TrainingData.of(source, samples, labelled=goal.loss is not None)
    if isinstance(recipe, Recipe) and weight_bits != 8:
        raise InvalidRecipe("give a recipe, or a mode and the bits of the weights, not both")
    rules = resolve_recipe(recipe, None, WeightOptions(weight_bits)) if isinstance(recipe, str) else recipe
    start = quantize(source, data=data.samples, recipe=rules, effort=effort)
    assert start.prepared is not None
    planned = Planned(start.prepared, start.plans)
    settings = settings or QuantSettings()
    if settings.settle is None:
        settings = replace(settings, settle=schedule.settling(_weight_bits(start, settings)))
    pupil = Pupil.of(planned, Request(rules), settings, goal, freeze)
    training = Loop(pupil, schedule, data, progress).run()
    result = export(pupil.student, input_type=ends[0], output_type=ends[1])
    return Distilled(replace(result, notes=(*result.notes, str(training))), training, pupil.student)


def _weight_bits(start: Result, settings: QuantSettings) -> int:
    """The fewest that weights are trained in."""
    types = [scheme.weights for plan in start.plans for scheme in plan.schemes.values()]
    return min((8 if settings.weight_bits is None else settings.weight_bits, *(t.bits for t in types if t is not None)))


class Pupil(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A student and its teacher, side by side."""

    def __init__(self, student: Trainable, teacher: Trainable, aims: Sequence[Aim], goal: Goal) -> None:
        super().__init__(name="pupil")
        self.student, self.teacher = student, teacher
        self._comparison = _Comparison(tuple(aims), goal, label_loss(goal.loss, aims[0].head))
        self.built = True

    @classmethod
    def of(
        cls, planned: Planned, request: Request, settings: QuantSettings, goal: Goal, freeze: Sequence[str] = ()
    ) -> Pupil:
        student = from_plan(planned, request, settings, Ends(), freeze)
        graph = student.blueprint.plan.graph
        aims = aims_of(graph, goal.inner, goal.inner_weight)
        if not aims:
            raise InvalidModel("the model has no float output that could be compared with the float model's")
        _require_inner(graph, goal)
        outputs = tuple(aim.tensor for aim in aims)
        student = Trainable(replace(student.blueprint, outputs=outputs))
        teacher = Trainable(replace(student.blueprint, plan=Plan(graph), quantize=False))
        teacher.trainable = False
        return cls(student, teacher, aims, goal)

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
        return self._comparison.loss(y, y_pred)


@dataclass(frozen=True)
class _Comparison:
    aims: tuple[Aim, ...]
    goal: Goal
    labelled: Callable[[Any, Any], Any] | None

    def loss(self, labels: Any, found: Sequence[Any]) -> Any:
        ours, theirs = found[: len(self.aims)], found[len(self.aims) :]
        parts = [a.weight * a.loss(s, t) for a, s, t in zip(self.aims, ours, theirs, strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        if self.labelled is None:
            return total
        return self.goal.teacher * total + (1.0 - self.goal.teacher) * ops.mean(self.labelled(labels, ours[0]))


def label_loss(name: str | None, head: Probabilities | None) -> Callable[[Any, Any], Any] | None:
    """The Keras loss called `name`. Those of probabilities get logits where the model ends in a softmax or sigmoid."""
    if name is None:
        return None
    try:
        loss = keras.losses.get(name)
    except ValueError:
        raise InvalidRecipe(f"Keras has no loss {name!r}; try sparse_categorical_crossentropy or mse") from None
    entropy = "crossentropy" in name.lower().replace("_", "")
    if not entropy or head is None:
        return lambda labels, found: loss(labels, found)
    return lambda labels, found: loss(labels, found, from_logits=True)


def _require_inner(graph: Graph, goal: Goal) -> None:
    for pattern in goal.inner:
        if not aims_of(graph, [pattern])[len(aims_of(graph)) :]:
            raise InvalidRecipe(f"no op inside the graph fits {pattern!r}; `zeropoint inspect --ops` lists names")
