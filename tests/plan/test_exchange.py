"""Plans in which single layers have the weights that another plan gives them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zeropoint import calibrate, to_bytes
from zeropoint.improve.candidate import Candidate
from zeropoint.improve.mixed_precision import Widening, narrow_layers
from zeropoint.ops import OPS
from zeropoint.plan import exchange
from zeropoint.plan.exchange import with_weights_of
from zeropoint.plan.plan import Planned
from zeropoint.plan.prepared import prepare_model
from zeropoint.plan.request import Request
from zeropoint.recipe import preset

from ..nets import Net, normal


def network(mode: str) -> Candidate:
    net = Net()
    hidden = net.conv(net.input(1, 8, 8, 4), normal(32, 3, 3, 4), normal(32), activation=1)
    model = net.model(net.conv(hidden, normal(16, 3, 3, 32), normal(16)))
    stats = calibrate(model, [normal(1, 8, 8, 4, seed=k) for k in range(8)])
    request = Request(preset(mode, weight_bits=4), stats=stats, effort="standard")
    return Candidate(prepare_model(model, request), request)


@pytest.mark.parametrize("mode", ["int8", "dynamic"])
def test_it_is_the_plan_that_planning_again_gives(mode, monkeypatch):
    narrow = network(mode)
    layers = narrow_layers(narrow.planned, narrow.request.recipe)
    wide = narrow.widened(Widening((*layers,), len(layers)))
    quick = {layer: to_bytes(narrow.narrow_only_in(layer, wide).model()) for layer in layers}
    assert len({*quick.values(), to_bytes(wide.model()), to_bytes(narrow.model())}) == len(layers) + 2
    monkeypatch.setattr("zeropoint.improve.candidate.with_weights_of", lambda *_: None)
    for layer, made in quick.items():
        planned_again = narrow.narrow_only_in(layer, wide)
        assert planned_again.refined is None
        assert to_bytes(planned_again.model()) == made


def test_other_arithmetic_needs_another_plan():
    narrow = network("int8")
    layer = narrow_layers(narrow.planned, narrow.request.recipe)[0]
    plan, *rest = narrow.planned.plans
    left_float = replace(narrow.planned, plans=(plan.without(layer.ops), *rest))
    assert with_weights_of(left_float, narrow.planned, layer.ops, OPS) is None
    assert with_weights_of(narrow.planned, Planned(narrow.planned.model, ()), layer.ops, OPS) is None


def test_weights_that_other_layers_read_as_well_need_another_plan():
    narrow = network("int8")
    plan = narrow.planned.plans[0]
    first, second = (use for use in plan.constants.keys if use in plan.constants.grids)
    shared = {**plan.constants.keys, second: plan.constants.keys[first]}
    one = replace(narrow.planned, plans=(replace(plan, constants=replace(plan.constants, keys=shared)),))
    assert with_weights_of(one, narrow.planned, [first.op], OPS) is None
    assert with_weights_of(narrow.planned, narrow.planned, [first.op], OPS) is not None


def test_a_plan_that_kernels_refuse_is_none(monkeypatch):
    narrow = network("int8")
    layer = narrow_layers(narrow.planned, narrow.request.recipe)[0]
    monkeypatch.setattr(exchange, "settle", lambda plan, _: (plan, ("refused",)))
    assert with_weights_of(narrow.planned, narrow.planned, layer.ops, OPS) is None
