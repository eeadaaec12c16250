"""Compares the arithmetic of a trained graph op by op with that of the kernels (`zeropoint.simulate`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..affine import quantize
from ..bench.alignment import align_models
from ..dtypes import Array, DType
from ..errors import InvalidSample
from ..graph.model import Op, Tensor
from ..improve.pipeline import Result
from ..ops import CONVERSIONS, OpSpec
from ..ops.execution import execution_of
from ..simulation.call import KernelCall
from ..simulation.kernels import kernel_of
from ..simulation.rules import KernelSet, Rules, rules_for
from ..simulation.trace import compute, initial_state
from ..sources.ports import entry
from ..sources.samples import Samples, row_list
from .backend import array_of
from .deployment import Parity
from .forward_pass import ForwardPass, Value
from .network import Trainable


@dataclass(frozen=True)
class OpParity:
    """An op of the deployed model: what the trained graph computes from its inputs, compared with the kernels."""

    kind: str
    parity: Parity

    def __str__(self) -> str:
        return f"{self.kind} {self.parity}"


def op_parity(
    trained: Trainable, result: Result, samples: Samples, *, limit: int = 10, kernels: KernelSet = "xnnpack"
) -> tuple[OpParity, ...]:
    """Run `samples` through the trained graph, and compute each integer op of the deployed model from the graph's own
    values, bit for bit as `kernels` do: differences are then due to the op itself, not to earlier ones."""
    graph = entry(result.model).graph
    partner = align_models(trained.blueprint.planned.model, result.model).partner
    ready = rules_for(result.model, graph, kernels)
    gaps: dict[Op, list[Array]] = {}
    chosen = row_list(samples, entry(trained.blueprint.planned.model), limit)
    if not chosen:
        raise InvalidSample("no samples were given to compare")
    for row in chosen:
        forward = ForwardPass(trained.graph, trained.step, training=False)
        forward.outputs(list(row))
        for op, gap in _gaps(graph.ops, ready, _Known(forward, partner, trained.blueprint.specs)):
            gaps.setdefault(op, []).append(gap)
    return tuple(OpParity(op.label, Parity.of(op.outputs[0].name, np.concatenate(gap))) for op, gap in gaps.items())


class _Known:
    """What tensors of the deployed model hold, according to the trained graph, or to what kernels compute from that."""

    def __init__(self, forward: ForwardPass, partner: Mapping[Tensor, Tensor], ops: Mapping[str, OpSpec]) -> None:
        self.forward, self.partner, self.ops = forward, partner, ops
        self.made: dict[Tensor, Array] = {}

    def trained(self, tensor: Tensor) -> Array | None:
        """Return the trained graph's value of a tensor."""
        twin = self.partner.get(tensor)
        if twin is None:
            return None
        found = self.forward.values.get(twin)
        if tensor.params is not None and (found is None or found.dtype is not tensor.dtype or found.whole is None):
            found = self._converted(twin, tensor.dtype)
        return None if found is None else _held(array_of(found.real), tensor).reshape(tensor.shape)

    def _converted(self, twin: Tensor, dtype: DType) -> Value | None:
        """Return the value as an op reads it that wants another type."""
        found = (v for (tensor, _), v in self.forward.converted.items() if tensor is twin and v.dtype is dtype)
        return next(found, None)

    def read(self, tensor: Tensor) -> Array | None:
        if tensor.is_variable:
            return initial_state(tensor)
        if tensor.data is not None:
            return tensor.data
        found = self.trained(tensor)
        return self.made.get(tensor) if found is None else found


def _held(values: Array, tensor: Tensor) -> Array:
    return values if tensor.params is None else quantize(values, tensor.params)


def _gaps(ops: list[Op], rules: Mapping[Op, Rules], known: _Known) -> Iterator[tuple[Op, Array]]:
    """Yield by how many units the first output of each op differs, if all of its inputs are known."""
    for op in ops:
        inputs = [None if t is None else known.read(t) for t in op.inputs]
        is_known = all(value is not None or t is None for value, t in zip(inputs, op.inputs, strict=True))
        if not is_known or not op.outputs or kernel_of(op, rules[op], known.ops) is None:
            continue
        result, made = op.outputs[0], compute(KernelCall(op, tuple(inputs), rules[op], known.ops)).outputs
        known.made.update(zip(op.outputs, made, strict=True))
        found = known.trained(result)
        if execution_of(op, known.ops) == "integer" and found is not None and op.kind not in CONVERSIONS:
            yield op, np.abs(made[0].astype(np.int64) - found.astype(np.int64)).reshape(-1)
