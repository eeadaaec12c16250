"""Which operands of an op hold the data that flow through it."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.model import Op, Tensor
from ..ops import Activation, OpSpec


def read_activations(op: Op, spec: OpSpec) -> Iterator[Tensor]:
    for slot, tensor in enumerate(op.inputs):
        if tensor is not None and isinstance(spec.input_role(slot), Activation):
            yield tensor


def made_activations(op: Op, spec: OpSpec) -> Iterator[Tensor]:
    for slot, tensor in enumerate(op.outputs):
        if isinstance(spec.output_role(slot), Activation):
            yield tensor
