"""The ranges in which networks take pixels, and what tells which of them a model takes: its first layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..errors import argument, spelled
from ..graph.edit import copy_model
from ..graph.model import Tensor
from ..ops import Trait
from ..runtime.runner import Runner
from ..sources.ports import Port, Row, entry
from .bench import Bench

IMAGE_CHANNELS = (1, 3)

SMALLEST_IMAGE = 8
"""Height and width of what is taken for an image."""

TOLERANCE = 0.02
"""By how much of its width a range may be exceeded: resizing overshoots."""

HALF_USED = 0.5
"""The share of a range that samples of it fill, at least. No real set of images is all dark or all light."""


@dataclass(frozen=True)
class Convention:
    """Pixels from 0 to 255 as networks take them: pixel * scale + offset."""

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
        """What makes it of a folder of images."""
        if self == PIXELS:
            return f"no {argument('scale')} and no {argument('offset')}"
        given = {"scale": self.scale} | ({"offset": self.offset} if self.offset else {})
        return spelled(", ", " ").join(argument(name, value) for name, value in given.items())

    def remedy(self, given: Convention) -> str:
        """How to make these numbers of images, and of the numbers that were given."""
        factor = self.scale / given.scale
        shift = self.offset - given.offset * factor
        formula = f"x * {factor:.5g}{f' {shift:+g}' if round(shift, 6) else ''}"
        return f"{self.option} for images, {formula} for arrays"

    def instead_of(self, given: Convention, rows: Sequence[Row]) -> list[Row]:
        """The same images, as this convention has them."""
        factor = self.scale / given.scale
        shift = np.float32(self.offset - given.offset * factor)
        return [(np.asarray(row[0] * np.float32(factor) + shift, np.float32),) for row in rows]

    def fits(self, stated: tuple[float, float]) -> bool:
        """Whether this is, roughly, what a model is said to take."""
        (low, high), (least, most) = self.ends, stated
        slack = 0.25 * (most - least)
        return abs(low - least) <= slack and abs(high - most) <= slack

    @property
    def others(self) -> tuple[Convention, ...]:
        return tuple(c for c in (PIXELS, UNIT, SIGNED) if c != self)


PIXELS, UNIT, SIGNED, TWICE = Convention(1.0), Convention(1 / 255), Convention(1 / 127.5, -1.0), Convention(1 / 255**2)
"""As they are in files, the two ways to scale them, and what comes of scaling them twice."""


def convention_of(ports: Sequence[Port], rows: Sequence[Row]) -> Convention | None:
    """The convention that samples follow, if the model takes one image; None if they follow none that is known."""
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
    """Images in their usual layout; where there are no channels, a matrix may be one."""
    sizes = port.shape[1:]
    if port.dtype is not DType.FLOAT32 or len(sizes) not in (2, 3):
        return False
    if len(sizes) == 3:
        if sizes[2] not in IMAGE_CHANNELS and sizes[0] not in IMAGE_CHANNELS:
            return False
        sizes = sizes[:2] if sizes[2] in IMAGE_CHANNELS else sizes[1:]
    return all(size == -1 or size >= SMALLEST_IMAGE for size in sizes)


class Response:
    """The first layer with weights, before its activation. Without an input it gives its bias."""

    def __init__(self, bench: Bench, place: int) -> None:
        model = copy_model(bench.model)
        graph = entry(model).graph
        op = graph.ops[place]
        if op.options is not None and "fusedActivationFunction" in op.options.values:
            op.options = op.options.replace(fusedActivationFunction=0)
        self._runner = Runner.exposing(model, graph, [op.outputs[0]])

    @classmethod
    def of(cls, bench: Bench) -> Response | None:
        """None if no layer of `bench`'s model answers to the input alone."""
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

    def ratio(self, rows: Sequence[Row]) -> float:
        """The deviation of its outputs over samples and places, beside its bias: both as root mean square of channels.

        About 1 for trained networks; infinite if it has no bias.
        """
        bias = np.median(self._channels(tuple(np.zeros_like(a) for a in rows[0])), axis=0)
        power = float((bias**2).mean())
        moments = np.zeros((2, bias.size))
        for row in rows:
            values = self._channels(row)
            moments += np.stack([values.mean(axis=0), (values**2).mean(axis=0)]) / len(rows)
        variance = float((moments[1] - moments[0] ** 2).mean())
        return float(np.sqrt(max(variance, 0.0) / power)) if power > 0 else np.inf

    def _channels(self, row: Row) -> Array:
        (values,) = self._runner.run(row)
        return np.asarray(values.reshape(-1, values.shape[-1]), np.float64)
