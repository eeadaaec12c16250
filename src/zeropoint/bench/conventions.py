"""The ranges in which networks take pixels, and how to tell from its first layer which of them a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..calibration.stats import median
from ..dtypes import Array, DType
from ..errors import argument, spelled
from ..graph.edit import copy_model
from ..graph.model import Tensor
from ..graph.query import tensor_keys
from ..ops import Trait
from ..runtime.runner import Runner
from ..sources.ports import Port, Row, entry
from .bench import Bench
from .measure import dot

IMAGE_CHANNELS = (1, 3)

SMALLEST_IMAGE = 8
"""Minimum height and width of what is taken for an image."""

TOLERANCE = 0.02
"""The share of its width by which a range may be exceeded, because resizing overshoots."""

HALF_USED = 0.5
"""The minimum share of a range that samples must fill. No real set of images is all dark or all light."""


@dataclass(frozen=True)
class Convention:
    """A range in which networks take pixels: pixel * scale + offset, with pixels from 0 to 255."""

    scale: float
    offset: float = 0.0

    @property
    def ends(self) -> tuple[float, float]:
        return self.offset, 255 * self.scale + self.offset

    @property
    def range(self) -> str:
        low, high = self.ends
        return f"{low:.4g} to {high:.4g}"

    @property
    def option(self) -> str:
        """The options that apply this convention to a folder of images."""
        if self == PIXELS:
            return f"no {argument('scale')} and no {argument('offset')}"
        given = {"scale": self.scale} | ({"offset": self.offset} if self.offset else {})
        return spelled(", ", " ").join(argument(name, value) for name, value in given.items())

    def remedy(self, given: Convention) -> str:
        """Return how to convert images, or arrays in the `given` convention, to this one."""
        factor = self.scale / given.scale
        shift = self.offset - given.offset * factor
        formula = f"x * {factor:.5g}{f' {shift:+g}' if round(shift, 6) else ''}"
        return f"{self.option} for images, {formula} for arrays"

    def instead_of(self, given: Convention, rows: Sequence[Row]) -> list[Row]:
        """Return the same images, converted from the `given` convention to this one."""
        factor = self.scale / given.scale
        shift = np.float32(self.offset - given.offset * factor)
        return [(np.asarray(row[0] * np.float32(factor) + shift, np.float32),) for row in rows]

    def fits(self, stated: tuple[float, float]) -> bool:
        """Whether this roughly matches the range that the model's metadata state."""
        (low, high), (least, most) = self.ends, stated
        slack = 0.25 * (most - least)
        return abs(low - least) <= slack and abs(high - most) <= slack

    @property
    def others(self) -> tuple[Convention, ...]:
        return tuple(c for c in (PIXELS, UNIT, SIGNED) if c != self)


PIXELS, UNIT, SIGNED, TWICE = Convention(1.0), Convention(1 / 255), Convention(1 / 127.5, -1.0), Convention(1 / 255**2)
"""Raw pixels, the two usual ways to scale them, and the result of scaling them twice."""


def convention_of(ports: Sequence[Port], rows: Sequence[Row]) -> Convention | None:
    """Return the convention that samples follow, if the model takes one image; None if it is not a known one."""
    if len(ports) != 1 or not _takes_images(ports[0]):
        return None
    low = min(float(row[0].min()) for row in rows)
    high = max(float(row[0].max()) for row in rows)
    for convention in (TWICE, UNIT, SIGNED, PIXELS):
        least, most = convention.ends
        slack = TOLERANCE * (most - least)
        is_inside = least - slack <= low and high <= most + slack
        if is_inside and high - low >= HALF_USED * (most - least):
            return convention
    return None


def _takes_images(port: Port) -> bool:
    """Whether an input takes images in their usual layout; without channels, a matrix may be one."""
    sizes = port.shape[1:]
    if port.dtype is not DType.FLOAT32 or len(sizes) not in (2, 3):
        return False
    if len(sizes) == 3:
        if sizes[2] not in IMAGE_CHANNELS and sizes[0] not in IMAGE_CHANNELS:
            return False
        sizes = sizes[:2] if sizes[2] in IMAGE_CHANNELS else sizes[1:]
    return all(size == -1 or size >= SMALLEST_IMAGE for size in sizes)


class Response:
    """The first layer with weights, before its activation. With zeros as input, its output is the bias."""

    def __init__(self, bench: Bench, place: int) -> None:
        model = copy_model(bench.model)
        graph = entry(model).graph
        op = graph.ops[place]
        key = tensor_keys(bench.model)[bench.entry.graph.ops[place].outputs[0]]
        self._measured = None if op.option("fusedActivationFunction") else bench.stats.tensors.get(key)
        if op.options is not None and "fusedActivationFunction" in op.options.values:
            op.options = op.options.replace(fusedActivationFunction=0)
        self._runner = Runner.exposing(model, graph, [op.outputs[0]], checked=True)

    @classmethod
    def of(cls, bench: Bench) -> Response | None:
        """Return the first layer; None if no layer of the model depends on the input alone."""
        graph, behind = bench.entry.graph, set[Tensor](bench.entry.graph.inputs)
        for place, op in enumerate(graph.ops):
            if not behind.intersection(t for t in op.inputs if t is not None):
                continue
            behind.update(op.outputs)
            spec = bench.ops.get(op.kind)
            if spec is None or Trait.RECURRENT in spec.traits:
                return None
            if spec.macs is not None and spec.bias_slot is not None:
                return cls(bench, place)
        return None

    def calibrated_ratio(self, row: Row) -> float | None:
        """Return the ratio for the samples of the calibration, from a histogram of its outputs; None if there is none.
        `row` is any sample."""
        seen = self._measured
        if seen is None or seen.channels is None or not seen.histogram.total:
            return None
        square = float(seen.histogram.centers() ** 2 @ seen.histogram.counts) / seen.histogram.total
        return _relative(square - float((seen.channels.mean**2).mean()), self._bias_power(row))

    def _bias_power(self, row: Row) -> float:
        bias = median(self._channels(tuple(np.zeros_like(a) for a in row)))
        return float((bias**2).mean())

    def ratio(self, rows: Sequence[Row]) -> float:
        """Return the standard deviation of its outputs over samples and positions relative to its bias, both as RMS
        over channels.

        About 1 for trained networks; infinite if it has no bias.
        """
        power = self._bias_power(rows[0])
        means, square = np.zeros(1), 0.0
        for row in rows:
            values = self._channels(row)
            # Products of vectors are several times as fast as sums along an axis, and exact enough.
            means = means + np.ones(len(values), np.float32) @ values / (len(values) * len(rows))
            square += dot(values.reshape(-1), values.reshape(-1)) / (values.size * len(rows))
        return _relative(square - float((means**2).mean()), power)

    def _channels(self, row: Row) -> Array:
        (values,) = self._runner.run(row)
        return values.reshape(-1, values.shape[-1])


def _relative(variance: float, power: float) -> float:
    return float(np.sqrt(max(variance, 0.0) / power)) if power > 0 else np.inf
