"""Fits a layer to what is left of its outputs behind a clamp, such as a ReLU.

The squared error of w . x + b counts errors that the clamp removes: where an output is negative in the float model and
in the quantized one, nothing is lost, however far apart the two are. What counts is E[(clamp(w . x + b) - y)**2], where
y is the float model's output behind the clamp. With the residuals

    r = 0 where w . x + b and y are clamped to the same end, y - (w . x + b) elsewhere,

E[(w . x + b + r - v . x - c)**2] is an upper bound of that error for all other weights v and biases c. Its minimum is a
least-squares problem with the same second moments for all outputs. Residuals are taken and the problem is solved a few
times in turn (majorization and minimization). The bound is not tight where the quantized layer alone is clamped, so
that such outputs are drawn back, which the error itself would not do; for that reason an output whose error has not
become smaller in the end keeps its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array
from .layer_inputs import Pair

FITS = 8
"""Number of times that residuals are taken and weights fitted to them, before these are rounded."""

AT_ONCE = 1 << 18
"""Number of outputs whose residuals are computed at once: few enough to stay in a processor's cache."""


@dataclass(frozen=True)
class Affine:
    """Weights [groups, rows, inputs] and biases [groups, rows] of a layer."""

    weights: Array
    biases: Array

    def with_weights(self, weights: Array, means: Array) -> Affine:
        """Return other weights, with biases that keep the mean outputs for inputs of these `means`."""
        return Affine(weights, self.biases + np.einsum("goi,gi->go", self.weights - weights, means))

    def outputs(self, x: Array) -> Array:
        """Return the outputs [groups, vectors, rows] for inputs [groups, vectors, inputs], in single precision."""
        weights, biases = self.weights.astype(np.float32), self.biases.astype(np.float32)
        return np.asarray(x @ weights.transpose(0, 2, 1) + biases[:, None])


@dataclass(frozen=True)
class ClampedOutputs:
    """Vectors x [groups, vectors, inputs] that a layer reads, and the outputs [groups, vectors, rows] that it should
    have behind a clamp with these `bounds`."""

    x: Array
    wanted: Array
    bounds: tuple[float, float]

    @classmethod
    def joined(cls, samples: Sequence[tuple[Array, Array]], bounds: tuple[float, float]) -> ClampedOutputs:
        """Return the vectors and wanted outputs of all samples."""
        x, wanted = (np.concatenate(parts, axis=1) for parts in zip(*samples, strict=True))
        return cls(x, wanted, bounds)

    def error(self, layer: Affine) -> Array:
        """Return the mean squared error of each output [groups, rows] behind the clamp."""
        gaps = np.clip(layer.outputs(self.x), *self.bounds) - self.wanted
        return np.asarray(np.einsum("gvo,gvo->go", gaps, gaps) / self.x.shape[1])

    def pull(self, layer: Affine) -> tuple[Array, Array]:
        """Return E[r (x - E[x])'] [groups, inputs, rows] and E[r] [groups, rows] of the residuals r."""
        products, means = zip(*self._pulls(layer), strict=True)
        product, mean = np.concatenate(products, axis=2), np.concatenate(means, axis=1)
        return product - self.x.mean(axis=1, dtype=np.float64)[:, :, None] * mean[:, None, :], mean

    def _pulls(self, layer: Affine) -> Iterator[tuple[Array, Array]]:
        """Yield E[r x'] and E[r] for some rows at a time."""
        (low, high), (_, rows, _), vectors = self.bounds, layer.weights.shape, self.x.shape[1]
        step = max(1, AT_ONCE // vectors)
        for part in (slice(start, start + step) for start in range(0, rows, step)):
            wanted = self.wanted[:, :, part]
            left = Affine(layer.weights[:, part], layer.biases[:, part]).outputs(self.x)
            # An output that should be at an end of the clamp may be anywhere beyond it.
            np.maximum(left, np.where(wanted <= low, np.float32(low), np.float32(-np.inf)), out=left)
            if np.isfinite(high):
                np.minimum(left, np.where(wanted >= high, np.float32(high), np.float32(np.inf)), out=left)
            np.subtract(wanted, left, out=left)
            product = (self.x.transpose(0, 2, 1) @ left).astype(np.float64) / vectors
            yield product, left.mean(axis=1, dtype=np.float64)


class ClampedFit:
    """A layer fitted to its outputs behind a clamp, from `start` on; more `damping` keeps it closer to that. `whole`
    has the central moments of its inputs."""

    def __init__(self, outputs: ClampedOutputs, start: Affine, whole: Pair, damping: float) -> None:
        self._outputs, self._moments = outputs, whole.second
        self._means = outputs.x.mean(axis=1, dtype=np.float64)
        fitted, damped = start, whole.damped(damping)
        for _ in range(FITS):
            fitted = self._moved(fitted, damped)
        better = outputs.error(fitted) < outputs.error(start)
        self.target = np.where(better[:, :, None], fitted.weights, start.weights)
        self._layer = Affine(self.target, np.where(better, fitted.biases, start.biases))

    def _moved(self, layer: Affine, certain: Array, drawn: Array | None = None) -> Affine:
        """Return the minimum of the upper bound, given the damped moments; and what it is `drawn` to besides."""
        pull, mean = self._outputs.pull(layer)
        change = np.linalg.solve(certain, pull if drawn is None else pull + drawn).transpose(0, 2, 1)
        moved = layer.with_weights(layer.weights + change, self._means)
        return Affine(moved.weights, moved.biases + mean)

    def goal(self, made: Array, certain: Array) -> Array:
        """Return what to round, if rounding has given `made` so far: where the residuals draw the layer; towards the
        target where only the damping in the `certain` moments decides."""
        drawn = (certain - self._moments) @ (self.target - made).transpose(0, 2, 1)
        self._layer = self._moved(self._layer.with_weights(made, self._means), certain, drawn)
        return self._layer.weights

    def biases(self, made: Array) -> Array:
        """Return the biases for these weights in the end."""
        return self._layer.with_weights(made, self._means).biases
