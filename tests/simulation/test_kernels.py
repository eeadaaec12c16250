"""Every integer kernel of the op table has a simulation, and every one with integer weights on float data."""

from __future__ import annotations

from zeropoint.ops import OPS
from zeropoint.simulation.kernels import HYBRID_KERNELS, KERNELS

BECOME_OTHERS = {"DIV", *(kind for kind, spec in OPS.items() if spec.table is not None)}
"""Ops that the planner turns into other ops before they compute with integers."""


def test_every_row_with_integer_kernels_is_simulated():
    assert {kind for kind, spec in OPS.items() if spec.types} - KERNELS.keys() == BECOME_OTHERS


def test_every_row_with_hybrid_kernels_is_simulated():
    assert {kind for kind, spec in OPS.items() if spec.hybrid} == HYBRID_KERNELS.keys()
