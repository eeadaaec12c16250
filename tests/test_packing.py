"""Types narrower than a byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.dtypes import DType
from zeropoint.packing import pack, unpack

PACKED = [d for d in DType if d.is_packed]
elements = st.sampled_from(PACKED).flatmap(
    lambda dtype: st.tuples(st.just(dtype), st.lists(st.integers(dtype.min, dtype.max), max_size=33))
)


@given(elements, st.sampled_from([np.int8, np.int16, np.int64]))
def test_values_come_back(drawn, held_as):
    dtype, values = drawn
    packed = pack(np.array(values, held_as), dtype)
    assert packed.dtype == np.uint8
    assert packed.size == dtype.nbytes(len(values))
    restored = unpack(packed, dtype, len(values))
    assert restored.dtype == dtype.storage
    assert restored.tolist() == values


@given(elements)
def test_the_first_element_sits_in_the_lowest_bits(drawn):
    dtype, values = drawn
    everything = sum((value & ((1 << dtype.bits) - 1)) << (dtype.bits * k) for k, value in enumerate(values))
    needed = dtype.nbytes(len(values))
    assert pack(np.array(values, np.int8), dtype).tobytes() == everything.to_bytes(needed, "little")


@given(st.sampled_from(PACKED), st.binary(max_size=16))
def test_bytes_come_back(dtype, content):
    packed = np.frombuffer(content, np.uint8)
    assert pack(unpack(packed, dtype, packed.size * 8 // dtype.bits), dtype).tobytes() == content


@pytest.mark.parametrize("dtype", PACKED, ids=lambda d: d.label)
def test_what_does_not_fit_is_refused(dtype):
    for value in (dtype.min - 1, dtype.max + 1):
        with pytest.raises(ValueError, match=dtype.label):
            pack(np.array([value], np.int16), dtype)
    with pytest.raises(ValueError, match="cannot hold"):
        unpack(np.zeros(1, np.uint8), dtype, 8 // dtype.bits + 1)


def test_whole_bytes_are_not_packed():
    with pytest.raises(ValueError, match="int8 is not"):
        pack(np.zeros(1, np.int8), DType.INT8)
