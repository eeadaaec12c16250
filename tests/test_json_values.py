"""Whatever values hold, JSON can hold it too."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zeropoint.json_values import json_values


@dataclass(frozen=True)
class Value:
    inner: Any


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | inner.map(Value)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_survives_as_json(value):
    found = json_values(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert json_values(found) == found


@given(st.floats(), st.integers(1, 8))
def test_digits_round_and_what_is_no_number_is_null(value, digits):
    found = json_values(Value((value,)), digits)["inner"][0]
    if math.isfinite(value):
        assert math.isclose(found, value, rel_tol=10.0 ** (1 - digits))
    else:
        assert found is None
