"""Decides between two roundings without data, on synthetic inputs of several kinds.

Error-cancelling rounding suits typical layer inputs, and brings most models closer to the float model. Some get further
away, depending on their inputs, which are not known here. So it has to be as good as nearest rounding on noise, on
positive numbers, and on waves, in which neighbours are similar as in images and audio.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..bench.bench import Bench
from ..bench.errors import decibels
from ..dtypes import Array, DType
from ..errors import ZeropointError
from ..graph.model import Model, Tensor
from ..ops import OpSpec
from ..sources.ports import Row, entries

SAMPLES = 3
"""Number of samples of each kind."""

CHANCE = 0.5
"""In dB: two roundings of the same model that differ by less count as equal."""

if TYPE_CHECKING:  # the module takes some megabytes, and is rarely needed
    from numpy.random import Generator as Random

Kind: TypeAlias = "Callable[[Random, tuple[int, ...]], Array]"


def noise(rng: Random, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def positive(rng: Random, shape: tuple[int, ...]) -> Array:
    return rng.random(shape)


def waves(rng: Random, shape: tuple[int, ...]) -> Array:
    """Return values between 0 and 1, with some noise: cos(sum of f * i over the axes), with a phase for each
    channel."""
    places = np.indices(shape[:-1], dtype=np.float64)[..., None]
    frequencies = rng.uniform(0.0, 0.3, (len(shape) - 1,) + (1,) * len(shape))
    phases = rng.uniform(0.0, 2 * math.pi, shape[-1:])
    return np.asarray(0.5 + 0.5 * np.cos((places * frequencies).sum(axis=0) + phases) + 0.02 * noise(rng, shape))


KINDS: tuple[Kind, ...] = (noise, positive, waves)


def never_further_off(model: Model, made: Model, other: Model, ops: Mapping[str, OpSpec]) -> bool:
    """Whether `made` is at least as close to the float model as `other` on all kinds of inputs.

    Also false if that cannot be determined: for inputs that are not numeric, for example, or with several signatures.
    """
    graphs = {entry.graph for entry in entries(model)}
    tensors = [t for graph in graphs for t in graph.inputs]
    if len(graphs) > 1 or not tensors or any(t.dtype is not DType.FLOAT32 or not t.shape for t in tensors):
        return False
    bench = Bench(model, (), ops=ops)
    with contextlib.suppress(ZeropointError):  # the model does not run with its recorded shapes
        _ = bench.float_model(())  # once for all kinds
        benches = [bench.on(_rows(tensors, kind)) for kind in KINDS]
        if all(one.compared for one in benches):
            reached, needed = ([decibels(one.error(version)) for one in benches] for version in (made, other))
            return all(a >= b - CHANCE for a, b in zip(reached, needed, strict=True))
    return False


def _rows(tensors: Sequence[Tensor], kind: Kind) -> list[Row]:
    rng, shapes = np.random.default_rng(0), [tuple(max(1, d) for d in t.shape) for t in tensors]
    return [tuple(kind(rng, shape).astype(np.float32) for shape in shapes) for _ in range(SAMPLES)]
