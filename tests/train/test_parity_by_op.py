"""What each op of a trained graph computes is what kernels compute: by the rules of the simulation, and in LiteRT."""

from __future__ import annotations

import keras
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidSample
from zeropoint.train import Trainable, export, op_parity, parity, trainable

from ..conformance.cases import CASES, Case, statistics
from .test_compute import WITHOUT_GRADIENT

SAMPLES = 3

TRAINED = [c for c in CASES if c.activations is not DType.UINT8 and c.sample.kind not in WITHOUT_GRADIENT]
"""Every row that trains, in every type that it claims."""

FLOAT_STEPS = ("projection", "normalized")
"""Variants of recurrent layers whose steps are computed in float between the grids."""

WIDE = keras.backend.backend() != "jax"
"""Whether the backend has float64; without, numbers of more than 24 bits are rounded."""


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_every_row_computes_as_its_kernel_does(case: Case):
    """Exactly where the backend has float64. Ops that become several, around a table, are compared in LiteRT."""
    in_float = case.sample.name.startswith(FLOAT_STEPS)
    net = trainable(case.sample.model(), recipe=case.recipe(), stats=statistics(case.sample), ranges=case.ranges())
    result, samples = export(net), case.sample.draw(SAMPLES)
    found = [op.parity for op in op_parity(net, result, samples)] or list(parity(net, result, samples))
    assert found
    assert max(one.worst for one in found) <= (0 if WIDE and not in_float else 1)
    assert min(one.equal for one in found) >= (0.5 if in_float else 1 if WIDE else 0.95)


@pytest.fixture(scope="module")
def images():
    return [image[None] for image in digits_data()["calibration"][:20]]


def graph(digits, images, mode: str = "int8", bits: int = 8) -> Trainable:
    return trainable(digits, mode, zeropoint.calibrate(digits, images), weight_bits=bits)


@pytest.mark.parametrize("bits", [8, 4])
def test_every_op_computes_as_the_runtime_does(digits, images, bits):
    net = graph(digits, images, bits=bits)
    result = export(net)
    found = op_parity(net, result, images, limit=SAMPLES)
    integer = [op for op in result.model.main.ops if op.kind not in ("QUANTIZE", "DEQUANTIZE", "RESHAPE")]
    assert [op.parity.name for op in found] == [op.outputs[0].name for op in integer]
    assert [op.parity.elements for op in found] == [SAMPLES * op.outputs[0].size for op in integer]
    assert {op.parity.worst for op in found} == {0}


def test_kernels_that_round_in_another_way_differ_by_a_unit(digits, images):
    net = graph(digits, images)
    found = op_parity(net, export(net), images, limit=SAMPLES, kernels="reference")
    assert {op.kind for op in found if op.parity.worst} >= {"CONV_2D"}
    assert max(op.parity.worst for op in found) == 1
    assert "CONV_2D" in str(found[0])


def test_there_has_to_be_a_sample(digits, images):
    net = graph(digits, images)
    with pytest.raises(InvalidSample, match="no samples"):
        op_parity(net, export(net), [])
