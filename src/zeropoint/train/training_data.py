"""Training data: samples in memory, their labels, and batches of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras
import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe, InvalidSample, argument
from ..graph.model import Model
from ..sources.data import DataSource, samples_from
from ..sources.ports import Row, entry
from ..sources.samples import iterate, row_list


@dataclass(frozen=True)
class TrainingData:
    """All samples in memory: rows for one run each, and their labels."""

    rows: tuple[Row, ...]
    labels: tuple[Array, ...] | None = None

    @classmethod
    def of(cls, model: Model, data: DataSource, *, labelled: bool, limit: int | None = None) -> TrainingData:
        """Return all samples of `data`, or the first `limit`."""
        where = entry(model)
        samples = islice(iterate(samples_from(data, where)), limit)
        if labelled:
            pairs = [pair for k, sample in enumerate(samples) for pair in _labelled(sample, where, k)]
            found, labels = tuple(row for row, _ in pairs), tuple(label for _, label in pairs)
        else:
            found, labels = tuple(row_list(samples, where)), None
        if len(found) < 2:
            raise InvalidSample(f"training needs at least two samples, one of them for validation, not {len(found)}")
        return cls(found, labels)

    def require_finite(self, model: Model) -> None:
        """Raise if an input contains NaN or infinity: one such sample makes every weight NaN."""
        ports = entry(model).ports
        for number, row in enumerate(self.rows):
            for port, values in zip(ports, row, strict=True):
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    raise InvalidSample(
                        f"sample {number}, input {port}: {np.count_nonzero(~np.isfinite(values))} values are NaN or "
                        f"infinite; leave that sample out, or allow it ({argument('allow_nonfinite', True)})"
                    )

    def split(self, share: float) -> tuple[list[int], list[int]]:
        """Return samples to train on and to validate with: an even selection is held back, at least one; all, for a
        share of 0."""
        count = len(self.rows)
        wanted = max(1, round(share * count)) if share else 0
        held = {int(k * count / wanted) for k in range(wanted)} if wanted else set()
        kept = [k for k in range(count) if k not in held]
        return kept, sorted(held) or kept

    def batch(self, chosen: Sequence[int]) -> tuple[list[Array], Array | None]:
        inputs = [np.concatenate(column) for column in zip(*(self.rows[k] for k in chosen), strict=True)]
        return inputs, None if self.labels is None else np.concatenate([self.labels[k] for k in chosen])


def _labelled(sample: Any, where: Any, number: int) -> list[tuple[Row, Array]]:
    """Return a pair of inputs and labels, or several from a batch."""
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise InvalidSample(
            f"sample {number} is not a pair of inputs and labels; without labels, omit the loss and the metric"
        )
    found = row_list([sample[0]], where)
    labels = np.asarray(sample[1])
    if labels.dtype.kind not in "biuf":
        raise InvalidSample(f"the label of sample {number} is {sample[1]!r}; labels must be numbers or arrays of them")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidSample(f"the label of sample {number} is NaN or infinite; leave that sample out")
    if len(found) == 1:
        return [(found[0], labels if labels.ndim and labels.shape[0] == 1 else labels[None])]
    if labels.shape[:1] != (len(found),):
        raise InvalidSample(f"sample {number} has {len(found)} inputs and labels of shape {list(labels.shape)}")
    return [(row, labels[k : k + 1]) for k, row in enumerate(found)]


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images: `mirror` flips half of a batch left to right; `shift` moves each by up to so many
    pixels down and across; `mix` is the share of samples that are mixed with another one, for which only the teacher
    provides a target (mixup)."""

    mirror: bool = False
    shift: tuple[int, int] = (0, 0)
    mix: float = 0.0

    def __call__(self, inputs: Sequence[Array], rng: np.random.Generator) -> tuple[Array, ...]:
        varied = tuple(self._moved(array, rng) for array in inputs)
        return mixed(varied, self.mix, rng) if self.mix else varied

    def _moved(self, array: Array, rng: np.random.Generator) -> Array:
        if not self.mirror and not any(self.shift):
            return array
        if array.ndim != 4:
            raise InvalidRecipe(f"only images can be mirrored or shifted, not arrays of {array.ndim} dimensions")
        is_turned = rng.random((array.shape[0], 1)) < 0.5 if self.mirror else None
        return shifted(array, self.shift, rng, is_turned)


def unmixed(count: int, share: float) -> int:
    """Return how many samples of a batch stay unchanged if a share of them is mixed: the first ones."""
    return count - round(share * count)


def mixed(inputs: Sequence[Array], share: float, rng: np.random.Generator) -> tuple[Array, ...]:
    """Mix the last samples with another one: part * x + (1 - part) * other, part uniform in 0..1."""
    if any(array.dtype.kind != "f" for array in inputs):
        raise InvalidRecipe("samples with integer inputs, such as tokens, cannot be mixed; omit mix")
    count, first = inputs[0].shape[0], unmixed(inputs[0].shape[0], share)
    part = np.asarray(rng.random(count), np.float32)[first:]
    others = rng.permutation(count)[first:]

    def with_others(array: Array) -> Array:
        own = part.reshape(-1, *(1,) * (array.ndim - 1))
        return np.concatenate([array[:first], array[first:] * own + array[others] * (1 - own)])

    return tuple(map(with_others, inputs))


def shifted(images: Array, most: tuple[int, int], rng: np.random.Generator, is_turned: Array | None = None) -> Array:
    """Return each image moved by up to `most` pixels down and across, with its border repeated; those of `is_turned`
    are flipped left to right before that."""
    count, height, width, _ = images.shape
    down, across = (rng.integers(-one, one + 1, (count, 1)) if one else np.zeros((count, 1), np.intp) for one in most)
    rows = np.clip(np.arange(height) + down, 0, height - 1)
    columns = np.clip(np.arange(width) + across, 0, width - 1)
    if is_turned is not None:
        columns = np.where(is_turned, width - 1 - columns, columns)
    return np.asarray(images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]])


class _Batches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    def __init__(self, data: TrainingData) -> None:
        super().__init__(workers=0)
        self.data = data

    def taken(self, chosen: Sequence[int]) -> tuple[tuple[Array, ...], Array | None]:
        inputs, labels = self.data.batch(chosen)
        return tuple(inputs), labels

    @staticmethod
    def item(inputs: tuple[Array, ...], labels: Array | None) -> tuple[Any, ...]:
        return (inputs,) if labels is None else (inputs, labels)


class HeldBack(_Batches):
    """The validation samples, always in the same order."""

    def __init__(self, data: TrainingData, held: Sequence[int], size: int) -> None:
        super().__init__(data)
        self.held, self.size = held, min(size, len(held))

    @property
    def num_batches(self) -> int:
        return -(-len(self.held) // self.size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.item(*self.taken(self.held[index * self.size : (index + 1) * self.size]))


class RandomBatches(_Batches):
    """Random batches of one size, so that nothing is compiled twice: `each` of them, starting at `first`.

    The batch of a step depends only on the seed and the step, so that training can be resumed.
    """

    def __init__(self, data: TrainingData, kept: Sequence[int], size: int, seed: int, vary: Augmentation) -> None:
        super().__init__(data)
        self.kept, self.size, self.seed, self.vary = np.asarray(kept), min(size, len(kept)), seed, vary
        self.first, self.each = 0, 1

    @property
    def num_batches(self) -> int:
        return self.each

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        step = self.first + index
        inputs, labels = self.taken(self.chosen(step))
        rng = np.random.default_rng((self.seed, 1, step))
        return self.item(self.vary(inputs, rng), labels)

    def chosen(self, step: int) -> list[int]:
        """Return the samples of a step: shuffled passes over all samples, split into batches."""
        start, count = step * self.size, len(self.kept)
        rounds = range(start // count, (start + self.size - 1) // count + 1)
        order = np.concatenate([np.random.default_rng((self.seed, 0, k)).permutation(self.kept) for k in rounds])
        place = start - rounds[0] * count
        found: list[int] = order[place : place + self.size].tolist()
        return found
