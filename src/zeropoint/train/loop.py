"""The training loop, on `keras.Model.fit`: held-back samples, and the best state so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from ..bench.errors import Compared, Decides
from ..bench.measure import error_of_sample
from ..bench.yardsticks import Yardsticks
from ..dtypes import Array
from ..errors import InvalidRecipe, ZeropointError
from ..files import PathLike
from .backend import array_of
from .checkpoint import Progressed, StateCheck, TrainingCheckpoint, plain_text
from .schedule import Schedule
from .training_data import Augmentation, HeldBack, RandomBatches, TrainingData, unmixed

Progress = Callable[[int, float], None]
"""Called with the number of steps done and the loss."""

EMA_DECAY = 0.99
"""Decay per step of the moving average of states."""

EMA_EVERY = 5
"""Steps between states that are averaged: reading all variables takes time. An odd number, because a weight that jumps
to and fro with every step would otherwise always be seen on the same side."""

PARTS = 8
"""The standard error of a gain is estimated from its spread over at least this many parts of the held-back samples, if
there are as many. A smaller gain does not count."""


@dataclass(frozen=True)
class TrainingSummary:
    """How training went: the loss on held-back samples before and at its best, and at which step that was.

    `judge` is the metric that selected the best state, or "loss"; the other numbers are then of it. `noise` is the
    standard error of the gain; a smaller gain is discarded, and `given_up` is its value. `stopped` is why training
    ended early, if it did.
    """

    steps: int
    before: float
    best: float
    best_step: int
    history: tuple[tuple[int, float], ...] = ()
    interrupted: bool = False
    judge: str = "loss"
    noise: float | None = None
    given_up: float | None = None
    stopped: str = ""

    def __str__(self) -> str:
        stopped = "interrupted; " if self.interrupted else f"{self.stopped}; " if self.stopped else ""
        last = self.history[-1][1] if self.history else self.best
        if self.given_up is not None:
            return (
                f"{stopped}{self.steps} steps took the {self.judge} on held-back samples from {self.before:.4g} to "
                f"{self.given_up:.4g}, which is within noise (standard error {self.noise:.2g}); the state before "
                "training was kept"
            )
        if self.best_step == 0:
            moved = "" if last == self.before else f", which {_moved(self.before, last)} to {last:.4g}"
            return (
                f"{stopped}{self.steps} steps did not improve the {self.judge} on held-back samples "
                f"({self.before:.4g}{moved}); the state before training was kept"
            )
        gain = f"{_moved(self.before, self.best)} from {self.before:.4g} to {self.best:.4g}"
        later = "" if last == self.best else f", and {_moved(self.best, last)} to {last:.4g} after that"
        at = f"at step {self.best_step} of {self.steps}"
        return f"{stopped}the {self.judge} on held-back samples {gain} {at}{later}"


def _moved(before: float, after: float) -> str:
    return "fell" if after < before else "rose"


@dataclass
class WeightEma:
    """An exponential moving average of all variables.

    A weight that oscillates between two integers is, on average, at the better one.
    """

    state: list[Array]
    count: int = 0
    every: int = 1

    def add(self, state: Sequence[Array]) -> None:
        """Add a state, `every` steps after the last one."""
        self.count += 1
        share = max(1 - EMA_DECAY**self.every, 1 / (self.count + 1))
        self.state = [
            mean + np.asarray(share * (value - mean), mean.dtype) if mean.dtype.kind == "f" else value
            for mean, value in zip(self.state, state, strict=True)
        ]


@dataclass
class TrainingLoop:
    """Trains the student of `distiller`, and leaves it in the best state.

    `callbacks` are the user's, for `fit`. With `resume`, a file, training continues from the last check stored in it.
    """

    distiller: Any
    schedule: Schedule
    data: TrainingData
    progress: Progress | None = None
    callbacks: Sequence[Any] = ()
    resume: PathLike | None = None

    def run(self) -> TrainingSummary:
        schedule, distiller = self.schedule, self.distiller
        self._compile()
        kept, held = self.data.split(schedule.held_back)
        size = schedule.batch if distiller.student.takes_any_batch else 1
        vary = Augmentation(schedule.mirror, schedule.shifts, schedule.mix)
        batches = RandomBatches(self.data, kept, size, schedule.seed, vary)
        distiller.labelled = unmixed(batches.size, schedule.mix) if schedule.mix else None
        if self.data.labels is not None and distiller.labelled == 0:
            raise InvalidRecipe("mixtures of samples have no labels; mix fewer of them, or omit the loss")
        batches.each = schedule.every
        checkpoint = None if self.resume is None else TrainingCheckpoint(self.resume, plain_text(schedule))
        keeper = KeepBest(distiller, schedule, batches, HeldBack(self.data, held, min(size, -(-len(held) // PARTS))))
        keeper.progress, keeper.checkpoint = self.progress, checkpoint
        first = keeper.start()
        interrupted = False
        try:
            distiller.fit(
                batches,
                initial_epoch=first,
                epochs=-(-schedule.steps // schedule.every),
                callbacks=[keeper, *self.callbacks],
                shuffle=False,
                verbose=0,
            )
        except KeyboardInterrupt:
            interrupted = True
            keeper.compare_present()
        found = keeper.finish()
        if checkpoint is not None and not interrupted:
            checkpoint.remove()
        return replace(found, interrupted=interrupted)

    def _compile(self) -> None:
        schedule, student = self.schedule, self.distiller.student
        optimizer = schedule.optimizer
        if optimizer is None:
            optimizer = keras.optimizers.Adam(schedule.rate(student.least_bits), clipnorm=1.0)
        # XLA on a CPU makes steps of convolutional networks slower, not faster.
        jit = False if keras.backend.backend() == "tensorflow" else "auto"
        self.distiller.compile(optimizer=optimizer, metrics=list(self.distiller.goal.metrics), jit_compile=jit)
        self.distiller.optimizer.build(self.distiller.trainable_variables)  # otherwise TensorFlow traces the step again


class HeldBackError:
    """The error of a student's outputs on held-back samples, batch by batch, by the measure of `bench.measure`.

    `compared` are the tensors that student and teacher compute; `wanted` are the teacher's values, by batch.
    """

    def __init__(self, compared: Sequence[Any], wanted: Sequence[Sequence[Array]]) -> None:
        decides: dict[str | None, Decides] = {"row": "row", "each": "logits"}
        outputs = [k for k, one in enumerate(compared) if one.is_output]
        self.outputs = {k: Compared(k, decides.get(compared[k].head)) for k in outputs}
        self.weights = [1.0 for _ in outputs]
        rows = [self._rows(values) for values in wanted]
        every = [row for batch in rows for row in batch]
        sticks = Yardsticks.of(list(self.outputs.values()), list(zip(*every, strict=True)))
        self.references = [[sticks.references(row) for row in batch] for batch in rows]

    def _rows(self, values: Sequence[Array]) -> list[list[Array]]:
        """Return what is compared of each sample of a batch."""
        kept = [one.judged(np.asarray(values[k], np.float32)) for k, one in self.outputs.items()]
        return [[one[place : place + 1] for one in kept] for place in range(len(kept[0]))]

    def of(self, batch: int, values: Sequence[Array]) -> float:
        """Return the error of the student's values for a batch."""
        pairs = zip(self.references[batch], self._rows(values), strict=True)
        return float(np.mean([error_of_sample(exact, own, self.weights) for exact, own in pairs]))


class KeepBest(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Compares the current and the averaged state with the best so far on held-back samples, after each epoch, which
    lasts from one check to the next: by the first metric or the loss on labels, or else by the measure of error that
    steers all searches."""

    progress: Progress | None = None
    checkpoint: TrainingCheckpoint | None = None

    def __init__(self, distiller: Any, schedule: Schedule, batches: RandomBatches, held: HeldBack) -> None:
        super().__init__()
        self.distiller, self.schedule, self.batches, self.held = distiller, schedule, batches, held
        self.judge, self.sign = "loss" if distiller.goal.is_labelled else "error", 1.0
        self.measured: HeldBackError | None = None
        self.first = StateCheck(0.0, ())
        self.done, self.stopped = Progressed(), ""
        self.initial: list[Array] = []
        self.present: list[Array] = []
        self.average = WeightEma([])

    def start(self) -> int:
        """Evaluate the loss before training, or restore an earlier run; return the epoch to begin with."""
        self.initial = self.present = self._state()
        self.first = self._first_check()
        every = min(EMA_EVERY, self.schedule.every)
        self.average = WeightEma(self.initial, every=every)
        self.done = Progressed(0, [(0, self.first.value)], 0, self.first, self.initial)
        found = None if self.checkpoint is None else self.checkpoint.read(self.distiller)
        if found is not None:
            self.done = found.progressed
            self.average = WeightEma(found.average, self.done.step // every, every)
            self.present = self._state()
        return self.done.step // self.schedule.every

    def _first_check(self) -> StateCheck:
        goal = self.distiller.goal
        try:
            found = self._check(self.initial)
        except ZeropointError:
            raise
        except Exception as error:
            if not goal.is_labelled:
                raise
            raise InvalidRecipe(
                f"the loss or a metric cannot be computed from these labels and outputs: {str(error).splitlines()[0]}"
            ) from error
        if not math.isfinite(found.value):
            raise InvalidRecipe(
                f"the {self.judge} on held-back samples is {found.value} before training; look for values that are too "
                "large in the samples and labels, or choose another loss"
            )
        return found

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self.batches.first = epoch * self.schedule.every

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        del batch
        loss = float((logs or {})["loss"])
        self.done.step += 1
        if not math.isfinite(loss):
            self.stopped = f"the loss became {loss} at step {self.done.step}, so training ended there"
            self.model.stop_training = True
            return
        if self.done.step % self.average.every == 0:
            self._sync()
            self.average.add(self._state())
        if self.progress is not None:
            self.progress(self.done.step, loss)
        if self.done.step >= self.schedule.steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Evaluate the current state on held-back samples, and pass the result to the other callbacks as `val_loss` and
        so on."""
        del epoch
        if self.stopped:
            return
        model = self.model  # with JAX, accessing the model syncs its variables
        self.present = self._state()
        found = self._check(self.present)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in found.logs.items()})
        self._compare(found)
        self._restore(self.present)
        if self.checkpoint is not None:
            self.checkpoint.write(model, self.done, self.average.state)
        patience, since = self.schedule.patience, self._checks_since_best()
        if patience is not None and since >= patience and self.done.step < self.schedule.steps:
            self.stopped = f"no better {self.judge} in {since} checks, so training ended after {self.done.step} steps"
            model.stop_training = True

    def compare_present(self) -> None:
        """After an interruption, also evaluate what was trained since the last check."""
        self._sync()
        if self.done.step > self.done.history[-1][0] and not self.stopped:
            self.present = self._state()
            try:
                self._compare(self._check(self.present))
            except KeyboardInterrupt:
                return

    def finish(self) -> TrainingSummary:
        """Leave the student in the best state, if that is better than the first by more than noise."""
        done, best = self.done, self.done.best.value
        found = TrainingSummary(done.step, self.first.value, best, done.best_step, tuple(done.history))
        found = replace(found, judge=self.judge, stopped=self.stopped)
        if done.best_step and len(self.first.parts) > 1:
            gains = self.sign * (np.array(self.first.parts) - np.array(done.best.parts))
            noise = standard_error(gains)
            found = replace(found, noise=noise)
            if gains.mean() <= noise:
                found = replace(found, best=found.before, best_step=0, given_up=best)
        self._restore(self.initial if found.best_step == 0 else done.state)
        return found

    def _compare(self, present: StateCheck) -> None:
        """Keep the better of the current and the averaged state, if it is the best so far."""
        done = self.done
        tried = [(self._check(self.average.state), self.average.state), (present, self.present)]
        found, state = min(tried, key=lambda pair: self._rank(pair[0].value))
        done.history.append((done.step, found.value))
        kept = [pair for pair in tried if not self._disagrees(pair[0])]
        if not kept:
            return
        found, state = min(kept, key=lambda pair: self._rank(pair[0].value))
        if self._rank(found.value) < self._rank(done.best.value):
            done.best_step, done.best, done.state = done.step, found, state

    def _disagrees(self, found: StateCheck) -> bool:
        """Whether, without labels, it disagrees with the float model's classes more often than before training.

        A lower divergence may come from probabilities alone; what matters in a classifier is its decision.
        """
        if self.distiller.goal.is_labelled or not found.agreements:
            return False
        gains = np.array(found.agreements) - np.array(self.first.agreements)
        return bool(gains.mean() < -standard_error(gains))

    def _rank(self, value: float) -> float:
        return self.sign * value if math.isfinite(value) else math.inf

    def _check(self, state: Sequence[Array]) -> StateCheck:
        """Evaluate a state on the held-back samples; the student is left in that state."""
        self._restore(state)
        batches = [self.held[k] for k in range(self.held.num_batches)]
        sizes = [len(inputs[0]) for inputs, *_ in batches]
        if self.judge == "error":
            found = self._errors([self.distiller.predict_on_batch(inputs) for inputs, *_ in batches])
        else:
            found = [self.distiller.test_on_batch(*batch, return_dict=True) for batch in batches]
            self._choose_judge()
        logs = {name: float(np.average([one[name] for one in found], weights=sizes)) for name in found[0]}
        agreements = tuple(float(one["agreement"]) for one in found if "agreement" in one)
        return StateCheck(logs[self.judge], tuple(float(one[self.judge]) for one in found), logs, agreements)

    def _errors(self, outputs: Sequence[Sequence[Array]]) -> list[Mapping[str, float]]:
        """Return the loss and the error of each batch, from the values of student and teacher."""
        count, found = len(self.distiller.compared), list[Mapping[str, float]]()
        self.measured = self.measured or HeldBackError(self.distiller.compared, [own[count:] for own in outputs])
        for place, values in enumerate(outputs):
            loss = float(self.distiller.compute_loss(y_pred=list(values), training=False))
            logs = {"loss": loss, "error": self.measured.of(place, values[:count])}
            if self.distiller.agreement is not None:
                ours, theirs = (np.argmax(values[k], axis=-1) for k in (0, count))
                logs["agreement"] = float((ours == theirs).mean())
            found.append(logs)
        return found

    def _choose_judge(self) -> None:
        """Select the first metric, once Keras has created it, or the loss."""
        if self.distiller.goal.metrics and self.judge == "loss":
            first = next(m for one in self.distiller.metrics for m in getattr(one, "metrics", ()))
            self.judge, self.sign = first.name, 1.0 if _is_better_lower(first) else -1.0

    def _checks_since_best(self) -> int:
        return sum(step > self.done.best_step for step, _ in self.done.history)

    def _sync(self) -> None:
        if hasattr(self.distiller, "jax_state_sync"):  # JAX keeps the variables elsewhere during training
            self.distiller.jax_state_sync()

    def _state(self) -> list[Array]:
        return [array_of(variable) for variable in self.distiller.student.weights]

    def _restore(self, state: Sequence[Array]) -> None:
        for variable, value in zip(self.distiller.student.weights, state, strict=True):
            variable.assign(value)


def standard_error(values: Array) -> float:
    """Return the standard error of the mean; zero for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


class OnCheck(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Calls a function with Keras's logs after each check: the loss, `val_loss`, metrics."""

    def __init__(self, function: Callable[[Mapping[str, float]], None]) -> None:
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        del epoch
        self.function(logs or {})


def _is_better_lower(metric: Any) -> bool:
    """Whether a lower value of the metric is better. Keras knows that of its own; others are better when higher, unless
    they are named after an error."""
    direction = getattr(metric, "_direction", None)
    if direction is not None:
        return bool(direction == "down")
    return any(word in metric.name.lower() for word in ("loss", "error", "entropy", "divergence"))
