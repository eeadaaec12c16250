"""Ranges from elsewhere: JSON files, and which of two origins wins."""

from __future__ import annotations

import json

import pytest

from zeropoint.affine import QuantParams
from zeropoint.calibration import Range, Ranges, ranges_from_json
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidStats
from zeropoint.graph import Model

from .. import build


@pytest.fixture
def written(tmp_path):
    def write(content: object) -> str:
        path = tmp_path / "ranges.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return str(path)

    return write


def test_json_gives_ranges_and_parameters(written):
    path = written(
        {
            "a": {"min": -1, "max": 2.5},
            "b": {"scale": 0.5, "zero_point": -128},
            "c": {"scale": 0.25, "zero_point": 0, "type": "int16"},
        }
    )
    found = ranges_from_json(path).entries
    assert found == {
        "a": Range(-1, 2.5, path),
        "b": Range(0, 127.5, path, QuantParams((0.5,), (-128,), DType.INT8)),
        "c": Range(-8192, 8191.75, path, QuantParams((0.25,), (0,), DType.INT16)),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold an object of tensor names"),
        ({"a": 3}, "'a' needs an object with min and max, or scale and zero_point"),
        ({"a": {"min": 1}}, r"'a' has \['min'\]; give min and max"),
        ({"a": {"min": 1, "max": 2, "scale": 3}}, "give min and max, or scale and zero_point"),
        ({"a": {"min": 2, "max": 1}}, "'a': min 2.0 and max 1.0 are no range"),
        ('{"a": {"min": NaN, "max": 1}}', "are no range"),
        ('{"a": {"min": 0, "max": Infinity}}', "are no range"),
        ({"a": {"min": "low", "max": 1}}, "'a': could not convert"),
        ({"a": {"min": None, "max": 1}}, "'a': "),
        ({"a": {"scale": 0, "zero_point": 0}}, "the scale 0.0 is not positive"),
        ({"a": {"scale": -1, "zero_point": 0}}, "not positive"),
        ('{"a": {"scale": 1, "zero_point": Infinity}}', "'a': "),
        ({"a": {"scale": 1, "zero_point": 200}}, "the zero point 200 is no integer of int8"),
        ({"a": {"scale": 1, "zero_point": 0.5}}, "the zero point 0.5 is no integer of int8"),
        ({"a": {"scale": 1, "zero_point": 0, "type": "int7"}}, "unknown type 'int7'"),
        ({"a": {"scale": 1, "zero_point": 0, "type": 8}}, "unknown type '8'"),
        ({"a": {"scale": 1, "zero_point": 0, "type": "float32"}}, "no integer bounds"),
    ],
)
def test_bad_json_is_refused_by_name(written, content, message):
    with pytest.raises(InvalidStats, match=message) as raised:
        ranges_from_json(written(content))
    assert "ranges.json" in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidStats, match=r"cannot read .*none\.json: no such file"):
        ranges_from_json(tmp_path / "none.json")


def fake_quant() -> Model:
    x, y = build.act("x", 2), build.act("y", 2)
    return build.one_op("FAKE_QUANT", [x], y, options="FakeQuantOptions", min=-1.5, max=2.0, numBits=8)


def test_the_later_origin_wins_and_is_kept():
    first = Ranges({"a": Range(0, 1, "statistics"), "b": Range(0, 2, "statistics")})
    second = Ranges({"b": Range(-1, 1, "FAKE_QUANT"), "c": Range(0, 3, "FAKE_QUANT")})
    merged = first.merge(second).entries
    assert {name: entry.origin for name, entry in merged.items()} == {
        "a": "statistics",
        "b": "FAKE_QUANT",
        "c": "FAKE_QUANT",
    }
    assert second.merge(first).entries["b"] == Range(0, 2, "statistics")


def test_ranges_know_whether_they_fit_a_model():
    Ranges({"x": Range(0, 1, "a file")}).require(fake_quant())
    with pytest.raises(InvalidStats, match="ranges are given for 'absent', which the model does not have"):
        Ranges({"x": Range(0, 1, "a file"), "absent": Range(0, 1, "a file")}).require(fake_quant())
