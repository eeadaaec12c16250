"""Parts of a planned model that can be built and run by themselves, as one part is fed what another has computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..graph.model import Model, Op, Tensor
from ..graph.query import Use
from .plan import Planned

Value = TypeVar("Value")


def part_of(planned: Planned, ops: Sequence[Op], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Planned:
    """Return the plan for some ops of the first graph, which compute `outputs` from `inputs`.

    Outputs are float. Inputs that the whole plan stores as integers are fed as integers.
    """
    first, *others = planned.plans
    graph = replace(first.graph, ops=list(ops), inputs=list(inputs), outputs=list(outputs))
    used, own = graph.referred(), set(ops)
    graph.tensors = [t for t in graph.tensors if t in used]
    constants = first.constants
    plan = replace(
        first.without_explanations(),
        graph=graph,
        schemes={op: scheme for op, scheme in first.schemes.items() if op in own},
        constants=replace(constants, keys=_uses_of(own, constants.keys), grids=_uses_of(own, constants.grids)),
        stored={t: params for t, params in first.stored.items() if t in used},
        wanted=_uses_of(own, first.wanted),
        packed=_uses_of(own, first.packed),
        received={t: params for t, params in first.received.items() if t in used},
        inputs={},
        outputs={},
    )
    return replace(planned, model=Model([graph, *planned.model.graphs[1:]]), plans=(plan, *others))


def read_from_before(ops: Sequence[Op]) -> list[Tensor]:
    """Return the tensors that `ops` read and do not compute themselves, without constants."""
    made = {t for op in ops for t in op.outputs}
    read = dict.fromkeys(t for op in ops for t in op.inputs if t is not None and t not in made)
    return [t for t in read if not t.is_constant]


def _uses_of(ops: Collection[Op], known: Mapping[Use, Value]) -> dict[Use, Value]:
    return {use: value for use, value in known.items() if use.op in ops}
