"""Element types agree with the schema, with NumPy, and with themselves."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import TensorType

from zeropoint.dtypes import DType
from zeropoint.tflite import schema

every = pytest.mark.parametrize("dtype", DType, ids=lambda d: d.label)


@every
def test_names_are_those_of_the_schema(dtype):
    assert schema.dtype_of(getattr(TensorType, dtype.name)) is dtype
    assert schema.dtype_of(schema.dtype_code(dtype)) is dtype
    assert DType.parse(dtype.label) is dtype


def test_no_type_of_the_schema_is_missing():
    assert {name for name in vars(TensorType) if not name.startswith("_")} == {d.name for d in DType}


@every
def test_storage_holds_what_the_bits_say(dtype):
    if dtype.storage is None:
        assert dtype.nbytes(3) is None
        return
    assert dtype.nbytes(0) == 0
    assert dtype.nbytes(3) == -(-3 * dtype.bits // 8)
    if not dtype.is_packed:
        assert dtype.storage.itemsize * 8 == dtype.bits
        assert dtype.variant or DType.parse(dtype.storage.name) is dtype


@every
def test_only_integers_have_bounds(dtype):
    if not dtype.is_integer:
        with pytest.raises(ValueError, match=dtype.label):
            _ = dtype.min
        return
    assert dtype.max - dtype.min == 2**dtype.bits - 1
    assert dtype.min == (-(dtype.max + 1) if dtype.kind == "int" else 0)
    bounds = np.iinfo(dtype.storage)
    assert bounds.min <= dtype.min < dtype.max <= bounds.max


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'int7'.*int8"):
        DType.parse("int7")
