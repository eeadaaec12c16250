"""Flatbuffers that are built here: what is put in comes out, aligned as it must be, and what is equal is there once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.tflite.builder import ALIGNMENT, OFFSET, Builder
from zeropoint.tflite.flatbuffer import File, Table

from .tables import Field, put_table

SCALARS = {"b": (-128, 127), "B": (0, 255), "h": (-(2**15), 2**15 - 1), "i": (-(2**31), 2**31 - 1), "I": (0, 2**32 - 1)}
NUMBERS = [np.uint8, np.bool_, np.int16, np.int32, np.float32, np.int64]

scalars = st.sampled_from(sorted(SCALARS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.integers(*SCALARS[kind]).filter(bool))
)
vectors = st.tuples(st.sampled_from(NUMBERS), st.lists(st.integers(0, 1), max_size=9)).map(
    lambda v: np.array(v[1], v[0])
)
texts = st.binary(max_size=9)
contents = st.lists(scalars | vectors | texts, max_size=12)


def built(content: list[object]) -> tuple[Builder, list[Field]]:
    """A table with one field for each, in slots 0, 1, 2 ..."""
    builder, fields = Builder(), []
    for slot, value in enumerate(content):
        if isinstance(value, tuple):
            fields.append((slot, *value))
        else:
            is_text = isinstance(value, bytes)
            place = builder.text(value.decode("utf-8", "surrogateescape")) if is_text else builder.numbers(value)
            fields.append((slot, OFFSET, place))
    return builder, fields


@given(contents)
def test_what_is_put_in_comes_out_aligned(content):
    builder, fields = built(content)
    file = bytes(builder.finish(put_table(builder, *fields), b"TEST"))
    assert len(file) % ALIGNMENT == 0
    assert file[4:8] == b"TEST"
    root = File(file).root()
    assert root.position % 4 == 0
    for slot, value in enumerate(content):
        place = root.at(slot)
        if isinstance(value, tuple):
            kind, number = value
            assert root.number(slot, kind) == number
            assert place % np.dtype(kind.replace("B", "u1").replace("b", "i1")).itemsize == 0
        elif isinstance(value, bytes):
            assert root.vector(slot, np.uint8).tobytes() == value
            assert file[root.file.offset(place) + 4 + len(value)] == 0
        else:
            found = root.vector(slot, value.dtype)
            np.testing.assert_array_equal(found, value)
            assert (root.file.offset(place) + 4) % value.itemsize == 0


@given(st.lists(contents, max_size=6))
def test_tables_of_a_vector_keep_their_order(several):
    builder = Builder()
    places = [put_table(builder, (k, "I", k + 1)) for k in range(len(several))]
    file = bytes(builder.finish(put_table(builder, (0, OFFSET, builder.tables(places))), b"TEST"))
    tables = File(file).root().tables(0)
    assert [table.number(k, "I") for k, table in enumerate(tables)] == list(range(1, len(several) + 1))


def test_equal_vectors_and_layouts_are_there_once():
    builder = Builder()
    first, second = (builder.numbers(np.arange(1000)) for _ in range(2))
    assert first == second
    assert builder.numbers(np.arange(1000, dtype=np.int32)) != first
    tables = [put_table(builder, (0, OFFSET, first), (1, "i", k)) for k in range(3)]
    assert len({b - a for a, b in pairwise(tables)}) == 1
    assert tables[1] - tables[0] == 12  # the offset of the layout, and two fields


@pytest.mark.parametrize("slots", [(), (0,), (3,), (7, 2)])
def test_fields_that_are_left_out_are_absent(slots):
    builder = Builder()
    file = bytes(builder.finish(put_table(builder, *((slot, "i", 5) for slot in slots)), b"TEST"))
    root: Table = File(file).root()
    assert [slot for slot in range(12) if root.at(slot) is not None] == sorted(slots)
