"""Lists of byte strings in the options of custom ops."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from flatbuffers import flexbuffers
from hypothesis import given
from hypothesis import strategies as st

from zeropoint.dtypes import Array
from zeropoint.errors import InvalidModel
from zeropoint.tflite.flexbuffer import strings


def options(content: object) -> Array:
    builder = flexbuffers.Builder()
    builder.Add(content)
    return np.frombuffer(bytes(builder.Finish()), np.uint8)


@given(st.lists(st.text(max_size=400), max_size=5))
def test_texts_come_back(texts):
    builder = flexbuffers.Builder()
    with builder.Vector():
        for text in texts:
            builder.String(text)
    assert strings(np.frombuffer(bytes(builder.Finish()), np.uint8)) == [text.encode() for text in texts]


@given(st.binary(max_size=60))
def test_strange_bytes_are_refused_in_words(content):
    with contextlib.suppress(InvalidModel):
        strings(np.frombuffer(content, np.uint8))


@pytest.mark.parametrize("content", [{"a": 1}, 5, "text"])
def test_other_content_is_refused(content):
    with pytest.raises(InvalidModel, match="not a list of strings"):
        strings(options(content))
    with pytest.raises(InvalidModel):
        strings(None)
