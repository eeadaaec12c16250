"""One op with the values of its inputs, as the functions of the table take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from keras import ops

from ...dtypes import Array
from ...errors import InvalidModel
from ...graph.model import Op, Tensor
from ...ops.sample_axis import WithSampleAxis


@dataclass(frozen=True)
class RecurrentState:
    """The initial state of a recurrent layer, what happens to it after each step, and the grid that it is rounded
    to."""

    value: Any
    keep: Callable[[Any], Any]
    integers: Any = None


@dataclass(frozen=True)
class Call:
    """An op with its inputs: backend tensors, NumPy arrays if they are known in advance, or None if absent.

    The first dimension of tensors in `free` is the batch; it may differ from the recorded one.
    """

    op: Op
    inputs: Sequence[Any]
    free: frozenset[Tensor] = frozenset()

    def __getitem__(self, slot: int) -> Any:
        """Return the input at `slot`; None beyond the last."""
        return self.inputs[slot] if slot < len(self.inputs) else None

    def option(self, name: str, default: Any = None) -> Any:
        return self.op.option(name, default)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the recorded shape, with -1 for a batch dimension."""
        return (-1, *tensor.shape[1:]) if tensor in self.free else tensor.shape

    def output_shape(self, k: int = 0) -> tuple[int, ...]:
        return self.shape(self.op.outputs[k])

    def input_shape(self, slot: int) -> tuple[int, ...]:
        tensor = self.op.inputs[slot]
        assert tensor is not None
        return self.shape(tensor)

    def known(self, slot: int) -> Array:
        """Return an input that has to be known in advance: axes, shapes, paddings."""
        value = self[slot]
        if not isinstance(value, np.ndarray):
            raise InvalidModel(
                f"{self.op.label} '{self.op.name}' computes its input {slot} at run time, and the trainable graph "
                "needs to know it in advance; give a model with constant shapes and axes"
            )
        return value

    def known_integers(self, slot: int) -> list[int]:
        """Return a known input as a flat list."""
        return [int(n) for n in self.known(slot).reshape(-1)]

    def axes(self, slot: int, of: int = 0) -> tuple[int, ...]:
        """Return a known input as axes of the input `of`, counted from the front."""
        return tuple(axis % len(self[of].shape) for axis in self.known_integers(slot))


def with_samples_in_front(instead: WithSampleAxis, inputs: Sequence[Any]) -> Call:
    """Return a call with inputs in the shapes that the op takes; inputs that are the same for every sample are
    repeated."""
    given, flowing = list(inputs), [k for k, t in enumerate(instead.op.inputs) if t in instead.free]
    for slot in flowing:
        tensor = instead.op.inputs[slot]
        assert tensor is not None
        if slot not in instead.repeated:
            given[slot] = ops.reshape(given[slot], (-1, *tensor.shape[1:]))
    for slot in instead.repeated:
        first = next(given[k] for k in flowing if k not in instead.repeated)
        shape = (ops.shape(first)[0], *ops.shape(given[slot]))
        given[slot] = ops.broadcast_to(ops.expand_dims(given[slot], 0), shape)
    return Call(instead.op, [instead.known.get(k, value) for k, value in enumerate(given)], instead.free)


Compute: TypeAlias = Callable[[Call], Any]
"""Computes the output, or a list of outputs, of an op with its inputs."""
