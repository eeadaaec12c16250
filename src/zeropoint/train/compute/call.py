"""One op with the values of its inputs: what every function of the table computes from."""

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
    """The start of a recurrent layer's state, what happens to it after each step, and the grid that it is kept on."""

    value: Any
    keep: Callable[[Any], Any]
    integers: Any = None


@dataclass(frozen=True)
class Call:
    """`inputs` are backend tensors, NumPy arrays where they are known beforehand, or None where left out.

    The first dimension of tensors in `free` goes with the batch; it may be another than the recorded one.
    """

    op: Op
    inputs: Sequence[Any]
    free: frozenset[Tensor] = frozenset()

    def __getitem__(self, slot: int) -> Any:
        """The input at `slot`; None beyond the last."""
        return self.inputs[slot] if slot < len(self.inputs) else None

    def option(self, name: str, default: Any = None) -> Any:
        return self.op.option(name, default)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The recorded shape, with -1 for a first dimension that goes with the batch."""
        return (-1, *tensor.shape[1:]) if tensor in self.free else tensor.shape

    def output_shape(self, k: int = 0) -> tuple[int, ...]:
        return self.shape(self.op.outputs[k])

    def input_shape(self, slot: int) -> tuple[int, ...]:
        tensor = self.op.inputs[slot]
        assert tensor is not None
        return self.shape(tensor)

    def known(self, slot: int) -> Array:
        """An input that has to be known beforehand: axes, shapes, paddings."""
        value = self[slot]
        if not isinstance(value, np.ndarray):
            raise InvalidModel(
                f"{self.op.label} '{self.op.name}' computes its input {slot} while it runs, and the trainable graph "
                "needs to know it beforehand; give the model with constant shapes and axes"
            )
        return value

    def known_integers(self, slot: int) -> list[int]:
        """A known input as a flat list."""
        return [int(n) for n in self.known(slot).reshape(-1)]

    def axes(self, slot: int, of: int = 0) -> tuple[int, ...]:
        """A known input as axes of the input `of`, counted from the front."""
        return tuple(axis % len(self[of].shape) for axis in self.known_integers(slot))


def with_samples_in_front(instead: WithSampleAxis, inputs: Sequence[Any]) -> Call:
    """Inputs in the shapes that the op takes; what is the same for every sample as often as there are samples."""
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
"""From an op and its inputs to its output, or to a list of its outputs."""
