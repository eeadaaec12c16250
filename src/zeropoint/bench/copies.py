"""Finds copies of samples, which say no more than one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..dtypes import Array

LOOKED_AT = 64
"""Elements of each array by which samples are told apart before they are compared in full."""


class KnownSamples:
    """Samples in memory, in which others can be looked up."""

    def __init__(self, samples: Iterable[Any] = ()) -> None:
        self._by_mark: dict[tuple[object, ...], list[list[Array]]] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Any) -> None:
        arrays = parts(sample)
        self._by_mark.setdefault(_mark(arrays), []).append(arrays)

    def __contains__(self, sample: Any) -> bool:
        arrays = parts(sample)
        others = self._by_mark.get(_mark(arrays), ())
        return any(all(map(_are_equal, arrays, other)) for other in others)


def parts(sample: Any) -> list[Array]:
    """Return the arrays of a sample. What is no array is not looked into: whether it can be used is found out later."""
    if isinstance(sample, Mapping):
        values = [sample[name] for name in sorted(sample, key=str)]
    else:
        values = list(sample) if isinstance(sample, tuple | list) else [sample]
    return [one if isinstance(one, np.ndarray) else np.array([one], dtype=object) for one in values]


def _mark(arrays: list[Array]) -> tuple[object, ...]:
    """Return what equal arrays have in common, and most others do not."""
    looked_at = (one.reshape(-1)[:: max(1, one.size // LOOKED_AT)] for one in arrays)
    return tuple((one.shape, few.tobytes()) for one, few in zip(arrays, looked_at, strict=True))


def _are_equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()
