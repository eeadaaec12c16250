"""A graph's constants as variables, in multiples of their own size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from ..affine import SMALLEST_SCALE
from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use
from ..ops import Bias, Coefficients, OpSpec, Weight, spec_of
from ..plan.plan import Plan
from ..recipe import keep_float
from .backend import LayerOf, array_of, new_variable, variable_name

LEAST_SIZE = 2.0**-10
"""Channels whose weights are smaller than this share of the others' hardly contribute; they get the others' unit."""

BIAS_STEPS, FAST_BIAS_STEPS = 8, 32
"""The unit of a bias, in steps of the output; the latter if the outputs themselves change a lot."""


@dataclass(frozen=True)
class TrainableConstant:
    """A float constant as a variable, and the uses that read it.

    The variable holds multiples of `unit`, a power of two of about the size of the weights of each channel. Batch
    normalization has been folded into them, so that they differ by orders of magnitude; in multiples of their size one
    learning rate suits them all. `correction` is by how much the plan's numbers differ from the file's: biases and
    weights that make up for rounding.
    """

    tensor: Tensor
    uses: tuple[Use, ...]
    variable: Any
    unit: Array
    correction: Array | None = None

    @property
    def in_float(self) -> Any:
        """What a float network would compute with: without the compensation for rounding."""
        return self.current if self.correction is None else self.current - ops.convert_to_tensor(self.correction)

    @property
    def value(self) -> Array:
        """The value of the variable."""
        return array_of(self.variable).astype(np.float32) * self.unit

    @property
    def current(self) -> Any:
        """The value of the variable inside a computation."""
        return ops.multiply(ops.convert_to_tensor(self.variable), ops.convert_to_tensor(self.unit))


@dataclass(frozen=True)
class Units:
    """The units of a plan's constants; with `fast`, those of biases are larger, so that they learn faster."""

    plan: Plan
    specs: Mapping[str, OpSpec]
    fast: bool = False

    def of(self, value: Array, use: Use) -> Array:
        """Return powers of two near the magnitude of the values: of each channel's weights; of a bias, relative to the
        output's range."""
        role = self.specs[use.op.kind].input_role(use.slot)
        size = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) if value.size else 0.0
        if isinstance(role, Weight) and role.axis is not None:
            others = tuple(k for k in range(value.ndim) if k != role.axis)
            sizes = np.sqrt(np.mean(np.square(value, dtype=np.float64), axis=others, keepdims=True))
            return _power_of_two(np.where(sizes > size * LEAST_SIZE, sizes, size))
        held = self.plan.stored.get(use.op.outputs[0])
        if isinstance(role, Bias) and held is not None:
            return _power_of_two(np.array(held.scale * (FAST_BIAS_STEPS if self.fast else BIAS_STEPS)))
        return _power_of_two(np.array(size))


def constants_of(
    units: Units, needed: Sequence[Op], freeze: Sequence[str], layer_of: LayerOf
) -> tuple[TrainableConstant, ...]:
    """Return variables for the float constants that `needed` ops read: weights and biases can be trained, others
    cannot.

    If the plan has other values than the constant's, training starts from these.
    """
    plan, specs = units.plan, units.specs
    readers: dict[tuple[Tensor, str | None], list[Use]] = {}
    for op in needed:
        for slot, tensor in enumerate(op.inputs):
            if tensor is not None and tensor.data is not None and tensor.dtype is DType.FLOAT32:
                use = Use(op, slot)
                readers.setdefault((tensor, plan.constants.keys.get(use)), []).append(use)
    made: list[TrainableConstant] = []
    for (tensor, _), uses in readers.items():
        value = np.asarray(plan.constants.at(uses[0]))
        trained = any(_is_trained(use, specs) for use in uses) and not _is_frozen(tensor, uses, freeze)
        unit = units.of(value, uses[0]) if trained else np.ones((), np.float32)
        add_weight, name = layer_of(uses[0].op), variable_name(tensor.name)
        variable = new_variable(add_weight, name, value / unit, trainable=trained)
        correction = value - np.asarray(tensor.data).reshape(value.shape) if uses[0] in plan.constants.keys else None
        made.append(TrainableConstant(tensor, tuple(uses), variable, unit, correction))
    return tuple(made)


def _power_of_two(sizes: Array) -> Array:
    safe = np.where(sizes > SMALLEST_SCALE * 2.0**20, sizes, 1.0)
    return np.exp2(np.round(np.log2(safe))).astype(np.float32)


def _is_trained(use: Use, specs: Mapping[str, OpSpec]) -> bool:
    return isinstance(spec_of(use.op, specs).input_role(use.slot), Weight | Bias | Coefficients)


def _is_frozen(tensor: Tensor, uses: Sequence[Use], patterns: Sequence[str]) -> bool:
    candidates = (Op("", [], [tensor]), *(use.op for use in uses))
    return any(keep_float(pattern).matches(op) for pattern in patterns for op in candidates)


def unmatched(patterns: Sequence[str], graphs: Sequence[Graph]) -> list[str]:
    """Return patterns that match nothing: most likely misspelled."""
    named = [Op("", [], [t]) for graph in graphs for t in graph.tensors if t.is_constant]
    known = [*(op for graph in graphs for op in graph.ops), *named]
    return [p for p in patterns if not any(keep_float(p).matches(op) for op in known)]
