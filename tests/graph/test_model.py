"""What tensors and ops say about themselves."""

from __future__ import annotations

import pytest

from zeropoint.dtypes import DType
from zeropoint.graph import Tensor

from .. import build


@pytest.mark.parametrize("signature", [None, (2, 3), (-1, 3), (2, -1)])
def test_a_shape_is_dynamic_if_a_dimension_is_known_only_at_run_time(signature):
    tensor = Tensor("x", (2, 3), DType.FLOAT32, shape_signature=signature)
    assert tensor.dynamic_shape == (signature or (2, 3))
    assert tensor.is_dynamic == (-1 in (signature or ()))


def test_an_input_beyond_those_of_the_file_is_absent():
    x, y = build.act("x", 1), build.act("y", 1)
    op = build.op("ADD", [x, None], y)
    assert [op.input(slot) for slot in range(4)] == [x, None, None, None]
