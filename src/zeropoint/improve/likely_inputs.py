"""Estimates the inputs that a network was probably made for, without data, from the biases of its first layer.

A layer is trained, or normalized, so that its outputs for usual inputs are centred around zero: W E[x] + b is small. So
E[x] solves W m = -b, as far as that has a plausible solution: one that is nearly the same for all inputs,

    m = c + d, with c and d of least |W (c + d) + b|**2 + k |d|**2.

If the constant c alone explains most of the biases, one number explains many, which is no accident. Otherwise nothing
is known about the inputs except how large they must be to matter relative to the biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Model
from ..graph.query import Use
from ..ops import OpSpec
from ..plan.weights import bias_use
from ..sources.ports import Row, entries
from .made_up_inputs import noise, waves

EVEN = 0.05
"""How much an uneven mean has to explain: the root of k above, relative to the largest singular value of W."""

EXPLAINED = 0.5
"""The share of the biases' squares that a constant must explain to count as known."""

SPREADS = (0.1, 0.3, 1.0)
"""The deviation of inputs from their mean, relative to its magnitude."""


@dataclass(frozen=True, eq=False)
class InputLevel:
    """The mean of an input, one number for all elements or for each channel or element, and its magnitude.

    It `is_known` if the biases determine it; otherwise the mean is zero.
    """

    mean: Array
    size: float
    is_known: bool


def likely_rows(model: Model, ops: Mapping[str, OpSpec], count: int, seed: int = 0) -> tuple[list[Row], bool]:
    """Return synthetic inputs, half of them noise and half waves, and whether their mean is known.

    There are none for models with more than one input, or with an input that is not float.
    """
    graphs = {entry.graph for entry in entries(model)}
    inputs = [t for graph in graphs for t in graph.inputs]
    if len(graphs) > 1 or len(inputs) != 1 or inputs[0].dtype is not DType.FLOAT32 or not inputs[0].shape:
        return [], False
    shape, rng = tuple(max(1, d) for d in inputs[0].shape), np.random.default_rng(seed)
    level = input_level(next(iter(graphs)), ops)
    if level.mean.size not in (1, shape[-1], math.prod(shape)):  # the layer's input was assembled in another way
        level = InputLevel(np.zeros(1), level.size, is_known=False)
    mean = level.mean.reshape(shape) if level.mean.size == math.prod(shape) else level.mean
    # Neighbours are similar along a vector, too, which has no other axis.
    flat = shape if len(shape) > 2 else (math.prod(shape), 1)
    rows: list[Row] = []
    for number in range(count):
        spread = level.size * SPREADS[number % len(SPREADS)]
        is_noise = number // len(SPREADS) % 2 == 0
        values = noise(rng, shape) if is_noise else 2 * waves(rng, flat).reshape(shape) - 1
        rows.append(((mean + spread * values).astype(np.float32),))
    return rows, level.is_known


def input_level(graph: Graph, ops: Mapping[str, OpSpec]) -> InputLevel:
    """Return what the first layer that reads the only input of `graph` says about it."""
    weights, bias = _first_layer(graph, ops)
    if weights is None or bias is None or not bias.any():
        return InputLevel(np.zeros(1), 1.0, False)
    matrix = weights.sum(axis=2)  # every tap reads the same mean
    constant = matrix.sum(axis=1)
    # Without d, c is a quotient; the share of b that it explains is the square of a cosine.
    explained = float(constant @ bias) ** 2 / max(float((constant @ constant) * (bias @ bias)), 1e-30)
    if explained < EXPLAINED:
        return InputLevel(np.zeros(1), float(np.sqrt((bias @ bias) / max(float(np.sum(weights**2)), 1e-30))), False)
    # Both at once: d = -W' S (b + c W 1), S = (W W' + k)^-1, and c is the best for the errors that S weighs.
    power = (EVEN * np.linalg.norm(matrix, 2)) ** 2
    weighed = np.linalg.solve(matrix @ matrix.T + power * np.eye(len(matrix)), np.stack([bias, constant], axis=1))
    level = -float(constant @ weighed[:, 0]) / float(constant @ weighed[:, 1])
    mean = level - matrix.T @ (weighed[:, 0] + level * weighed[:, 1])
    return InputLevel(mean, float(np.sqrt(np.mean(mean**2))), True)


def _first_layer(graph: Graph, ops: Mapping[str, OpSpec]) -> tuple[Array | None, Array | None]:
    """Return the weights [outputs, inputs, taps] and the biases of the first layer that the input reaches, moved but
    unchanged."""
    same = set(graph.inputs)
    for op in graph.ops:
        spec = ops.get(op.kind)
        if spec is None or not same.intersection(t for t in op.inputs if t is not None):
            continue
        layout = spec.layout
        if layout is not None:
            bias, weights = bias_use(op, spec), op.inputs[layout.weights]
            is_plain = layout.inputs != layout.outputs and op.inputs[layout.data] in same
            if not is_plain or bias is None or bias.tensor.data is None or weights is None or weights.data is None:
                return None, None
            own = layout.by_input(op, Use(op, layout.weights).data.astype(np.float64))
            return own, bias.data.astype(np.float64).reshape(-1)
        if not spec.tied:
            return None, None
        same.update(op.outputs)
    return None, None
