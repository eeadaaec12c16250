"""Ops that the table lacks have a row that claims nothing."""

from __future__ import annotations

from zeropoint.ops import OPS, Activation, Trait, fused_activation, spec_of
from zeropoint.ops.execution import macs_of

from .. import build

OP = build.op("NOT_IN_THE_TABLE", [build.act("x", 1, 4), build.const("w", build.weights(4, 4))], build.act("y", 1, 4))


def test_it_claims_no_kernel_no_weights_and_no_rules():
    spec = spec_of(OP, OPS)
    assert OP.kind not in OPS
    assert (spec.types, spec.hybrid, spec.kernels.note, spec.kernels.in_place) == ((), (), "", ())
    assert not spec.weight_tensors(OP) + spec.held_tensors(OP)
    assert (spec.bias_slot, spec.layout, spec.plain_layout) == (None, None, None)
    claims = spec.tied, spec.is_pointwise, spec.reads_shapes_only, spec.fixed, spec.probabilities
    assert not any(claims)
    assert spec.traits == Trait.VARIADIC
    assert spec.own_activation == fused_activation(OP).name == "NONE"
    assert macs_of(OP) == 0


def test_all_that_it_reads_and_makes_may_be_activations():
    spec = spec_of(OP, OPS)
    assert all(spec.input_role(slot) == spec.output_role(slot) == Activation() for slot in range(5))
    assert list(spec.read_activations(OP)) == OP.inputs
    assert list(spec.made_activations(OP)) == OP.outputs


def test_known_ops_have_their_own_row():
    assert all(spec_of(build.op(kind, [], []), OPS) is row for kind, row in OPS.items())
