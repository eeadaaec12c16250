"""The arithmetic of a trained graph, op by op, against the rules by which kernels compute (`zeropoint.simulate`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..affine import quantize
from ..bench.alignment import align_models
from ..dtypes import Array
from ..errors import InvalidSample
from ..graph.model import Op, Tensor
from ..improve.pipeline import Result
from ..ops import CONVERSIONS
from ..ops.execution import execution_of
from ..simulation.call import KernelCall
from ..simulation.kernels import kernel_of
from ..simulation.rules import KernelSet, Rules, rules_for
from ..simulation.trace import compute, initial_state
from ..sources.ports import entry
from ..sources.samples import Notes, Samples, rows
from .backend import array_of
from .deployment import Parity
from .fake_quant_graph import ForwardPass
from .network import Trainable


@dataclass(frozen=True)
class OpParity:
    """An op of the deployed model: what the trained graph makes of its inputs, against what kernels make of them."""

    kind: str
    parity: Parity

    def __str__(self) -> str:
        return f"{self.kind} {self.parity}"


def op_parity(
    trained: Trainable, result: Result, samples: Samples, *, limit: int = 10, kernels: KernelSet = "xnnpack"
) -> tuple[OpParity, ...]:
    """Run `samples` through the trained graph, and compute each integer op of the deployed model from the graph's own
    values, bit for bit as `kernels` do: what differs is the op's own doing, not what came before it."""
    graph = entry(result.model).graph
    partner = align_models(trained.blueprint.planned.model, result.model).partner
    ready = rules_for(result.model, graph, kernels)
    gaps: dict[Op, list[Array]] = {}
    chosen = [row for _, row in rows(samples, entry(trained.blueprint.planned.model), Notes())][:limit]
    if not chosen:
        raise InvalidSample("no samples were given to compare")
    for row in chosen:
        forward = ForwardPass(trained.graph, trained.step, training=False)
        forward.outputs(list(row))
        known = {tensor: array_of(value.real) for tensor, value in forward.values.items()}
        for op, gap in _gaps(graph.ops, ready, {t: known[p] for t, p in partner.items() if p in known}):
            gaps.setdefault(op, []).append(gap)
    return tuple(OpParity(op.label, Parity.of(op.outputs[0].name, np.concatenate(gap))) for op, gap in gaps.items())


def _gaps(ops: list[Op], rules: Mapping[Op, Rules], known: Mapping[Tensor, Array]) -> Iterator[tuple[Op, Array]]:
    """By how many units the first output of each op differs, if all that it reads is known."""
    for op in ops:
        result = op.outputs[0] if op.outputs else None
        if result is None or result.params is None or result not in known or op.kind in CONVERSIONS:
            continue
        inputs = [None if t is None else _held(t, known) for t in op.inputs]
        is_known = all(value is not None or t is None for value, t in zip(inputs, op.inputs, strict=True))
        if execution_of(op) == "integer" and is_known and kernel_of(op, rules[op]) is not None:
            made = compute(KernelCall(op, tuple(inputs), rules[op])).outputs[0].astype(np.int64)
            yield op, np.abs(made - quantize(known[result], result.params).astype(np.int64)).reshape(-1)


def _held(tensor: Tensor, known: Mapping[Tensor, Array]) -> Array | None:
    """What an op of the deployed model would read."""
    if tensor.is_variable:
        return initial_state(tensor)
    if tensor.data is not None or tensor not in known:
        return tensor.data
    return known[tensor] if tensor.params is None else quantize(known[tensor], tensor.params)
