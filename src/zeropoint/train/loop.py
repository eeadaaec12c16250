"""The training loop: batches, a schedule, held-back samples, and the best state so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras
import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe, InvalidSample
from ..graph.model import Model
from ..sources.data import DataSource, samples_from
from ..sources.ports import Row, entry
from ..sources.samples import Notes, iterate, rows
from .backend import array_of

RATE, RATE_OF_FEW_BITS = 3e-4, 1e-3
"""Relative to the size of the weights: in 8 bits these are nearly right from the start, in 4 they have a way to go."""

SETTLED = 0.8
"""The share of the steps after which every weight has found its integer."""

Progress = Callable[[int, float], None]
"""Called with the number of steps done and the loss."""

EMA_DECAY = 0.99
"""How much of the moving average of states stays with each step."""


@dataclass(frozen=True)
class Schedule:
    """`steps` of Adam on batches of `batch` samples. The learning rate, None for one that suits the weights' bits,
    rises over the first twentieth and then falls along a cosine. A share of the samples is held back; on these the
    loss is taken `checks` times. `mirror` flips half of the images of a batch left to right; `shift` moves each
    by up to so many pixels, with the border repeated.
    """

    steps: int = 500
    batch: int = 32
    learning_rate: float | None = None
    held_back: float = 0.2
    checks: int = 20
    seed: int = 0
    mirror: bool = False
    shift: int = 0

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise InvalidRecipe(f"images are shifted by zero pixels or more, not by {self.shift}")
        if self.steps < 1 or self.batch < 1 or self.checks < 1:
            raise InvalidRecipe("training takes at least one step, one sample a batch, and one check")
        if self.learning_rate is not None and not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InvalidRecipe(f"the learning rate must be greater than zero, not {self.learning_rate}")
        if not 0 <= self.held_back < 1:
            raise InvalidRecipe(f"the share of samples held back is at least 0 and below 1, not {self.held_back}")

    def rate(self, bits: int) -> float:
        """The learning rate at its highest, for weights of so many bits."""
        if self.learning_rate is not None:
            return self.learning_rate
        return RATE if bits >= 8 else RATE_OF_FEW_BITS

    def settling(self, bits: int) -> int:
        """Over how many steps weights of so many bits come to rest; 0 if they are rounded from the first step on.

        With 8 bits there is hardly anything to make up for; with fewer than 4 weights have a long way to go, and those
        that come to rest early are in the way.
        """
        return round(SETTLED * self.steps) if 4 <= bits < 8 else 0


@dataclass(frozen=True)
class TrainingData:
    """All samples in memory: rows for one run each, and labels beside them."""

    rows: tuple[Row, ...]
    labels: tuple[Array, ...] | None = None

    @classmethod
    def of(cls, model: Model, data: DataSource, *, labelled: bool, limit: int | None = None) -> TrainingData:
        """All samples of `data`, or the first so many."""
        where = entry(model)
        samples = islice(iterate(samples_from(data, where)), limit)
        if labelled:
            pairs = [pair for k, sample in enumerate(samples) for pair in _labelled(sample, where, k)]
            found, labels = tuple(row for row, _ in pairs), tuple(label for _, label in pairs)
        else:
            found, labels = tuple(row for _, row in rows(samples, where, Notes())), None
        if len(found) < 2:
            raise InvalidSample(f"training needs at least two samples, one of them to check with, not {len(found)}")
        return cls(found, labels)

    def batch(self, chosen: Sequence[int]) -> tuple[list[Array], Array | None]:
        inputs = [np.concatenate(column) for column in zip(*(self.rows[k] for k in chosen), strict=True)]
        return inputs, None if self.labels is None else np.concatenate([self.labels[k] for k in chosen])


def _labelled(sample: Any, where: Any, number: int) -> list[tuple[Row, Array]]:
    """A pair of inputs and labels, or of batches of them."""
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise InvalidSample(f"sample {number} is no pair of inputs and labels; without labels, leave out the loss")
    found = [row for _, row in rows([sample[0]], where, Notes())]
    labels = np.asarray(sample[1])
    if len(found) == 1:
        return [(found[0], labels if labels.ndim and labels.shape[0] == 1 else labels[None])]
    if labels.shape[:1] != (len(found),):
        raise InvalidSample(f"sample {number} has {len(found)} inputs and labels of shape {list(labels.shape)}")
    return [(row, labels[k : k + 1]) for k, row in enumerate(found)]


@dataclass(frozen=True)
class TrainingSummary:
    """How training went: the loss on held-back samples before and at its best, and at which step that was."""

    steps: int
    before: float
    best: float
    best_step: int
    history: tuple[tuple[int, float], ...] = ()
    interrupted: bool = False

    def __str__(self) -> str:
        stopped = "interrupted; " if self.interrupted else ""
        if self.best_step == 0:
            return f"{stopped}{self.steps} steps did not lower the loss on held-back samples ({self.before:.4g})"
        gain = f"from {self.before:.4g} to {self.best:.4g}"
        return f"{stopped}the loss on held-back samples fell {gain} at step {self.best_step} of {self.steps}"


@dataclass
class TrainingLoop:
    """Trains the student of `distiller`, and leaves it in the best state."""

    distiller: Any
    schedule: Schedule
    data: TrainingData
    progress: Progress | None = None

    def run(self) -> TrainingSummary:
        schedule = self.schedule
        self._compile()
        kept, held = self._split()
        state = self._state()
        average, history = WeightEma(state), [(0, self._check(state, held))]
        best_step, best = history[0]
        every, interrupted, step = max(1, schedule.steps // schedule.checks), False, 0
        try:
            for step, (inputs, labels) in enumerate(self._batches(kept), start=1):
                loss = _number(self.distiller.train_on_batch(inputs, labels))
                present = self._state()
                average.add(present)
                if self.progress is not None:
                    self.progress(step, loss)
                if step % every and step != schedule.steps:
                    continue
                tried = [(self._check(candidate, held), candidate) for candidate in (average.state, present)]
                found, candidate = min(tried, key=lambda pair: pair[0])
                history.append((step, found))
                if found < best:
                    best_step, best, state = step, found, candidate
        except KeyboardInterrupt:
            interrupted = True
        self._restore(state)
        return TrainingSummary(step, history[0][1], best, best_step, tuple(history), interrupted)

    def _state(self) -> list[Array]:
        return [array_of(variable) for variable in self.distiller.student.weights]

    def _restore(self, state: Sequence[Array]) -> None:
        for variable, value in zip(self.distiller.student.weights, state, strict=True):
            variable.assign(value)

    def _compile(self) -> None:
        schedule = self.schedule
        warmup, peak = max(1, schedule.steps // 20), schedule.rate(self.distiller.student.least_bits)
        rate = keras.optimizers.schedules.CosineDecay(
            peak / 10, max(1, schedule.steps - warmup), alpha=0.01, warmup_target=peak, warmup_steps=warmup
        )
        # XLA on a CPU makes steps of convolutional networks slower, not faster.
        jit = False if keras.backend.backend() == "tensorflow" else "auto"
        self.distiller.compile(optimizer=keras.optimizers.Adam(rate, clipnorm=1.0), jit_compile=jit)

    def _split(self) -> tuple[list[int], list[int]]:
        """Samples to train on and to check with: every so many is held back, at least one."""
        count = len(self.data.rows)
        wanted = max(1, round(self.schedule.held_back * count)) if self.schedule.held_back else 0
        held = {int(k * count / wanted) for k in range(wanted)} if wanted else set()
        kept = [k for k in range(count) if k not in held]
        return kept, sorted(held) or kept

    def _batches(self, kept: Sequence[int]) -> Iterator[tuple[list[Array], Array | None]]:
        """Random batches of one size, so that nothing is compiled twice."""
        rng = np.random.default_rng(self.schedule.seed)
        size = min(self._batch_size(), len(kept))
        order: list[int] = []
        for _ in range(self.schedule.steps):
            while len(order) < size:
                order += rng.permutation(kept).tolist()
            chosen, order = order[:size], order[size:]
            inputs, labels = self.data.batch(chosen)
            yield [self._varied(array, rng) for array in inputs], labels

    def _varied(self, array: Array, rng: np.random.Generator) -> Array:
        """Images mirrored and shifted at random, if the schedule says so."""
        if not self.schedule.mirror and not self.schedule.shift:
            return array
        if array.ndim != 4:
            raise InvalidRecipe(f"only images can be mirrored or shifted, not arrays of {array.ndim} dimensions")
        array = _mirrored(array, rng) if self.schedule.mirror else array
        return shifted(array, self.schedule.shift, rng) if self.schedule.shift else array

    def _batch_size(self) -> int:
        return self.schedule.batch if self.distiller.student.takes_any_batch else 1

    def _check(self, state: Sequence[Array], held: Sequence[int]) -> float:
        """The mean loss on held-back samples in that state, which the student is left in."""
        self._restore(state)
        size, total = self._batch_size(), 0.0
        for start in range(0, len(held), size):
            chosen = held[start : start + size]
            inputs, labels = self.data.batch(chosen)
            found = self.distiller(inputs, training=False)
            total += _number(self.distiller.compute_loss(y=labels, y_pred=found)) * len(chosen)
        return total / len(held)


@dataclass
class WeightEma:
    """An exponential moving average of all variables.

    A weight that swings between two integers is, on average, at the better one.
    """

    state: list[Array]
    count: int = 0

    def add(self, state: Sequence[Array]) -> None:
        self.count += 1
        share = max(1 - EMA_DECAY, 1 / (self.count + 1))
        self.state = [
            mean + np.asarray(share * (value - mean), mean.dtype) if mean.dtype.kind == "f" else value
            for mean, value in zip(self.state, state, strict=True)
        ]


def _number(loss: Any) -> float:
    value = loss[0] if isinstance(loss, list | tuple) else loss
    return float(array_of(value))


def _mirrored(images: Array, rng: np.random.Generator) -> Array:
    turned = rng.random((images.shape[0], 1, 1, 1)) < 0.5
    return np.where(turned, images[:, :, ::-1], images)


def shifted(images: Array, most: int, rng: np.random.Generator) -> Array:
    """Each image moved by up to `most` pixels down and across, with its border repeated."""
    count, height, width, _ = images.shape
    down, across = rng.integers(-most, most + 1, (2, count, 1))
    rows = np.clip(np.arange(height) + down, 0, height - 1)
    columns = np.clip(np.arange(width) + across, 0, width - 1)
    return np.asarray(images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]])
