"""Ranges from elsewhere: JSON files, and which of two origins wins."""

from __future__ import annotations

import json

import pytest

from zeropoint.affine import QuantParams
from zeropoint.calibration import Range, Ranges, default_range, ranges_from_input_stats, ranges_from_json
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
        "a": Range(-1, 2.5, "ranges.json"),
        "b": Range(0, 127.5, "ranges.json", QuantParams((0.5,), (-128,), DType.INT8)),
        "c": Range(-8192, 8191.75, "ranges.json", QuantParams((0.25,), (0,), DType.INT16)),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold an object of tensor names"),
        ({"a": 3}, "'a' needs an object with min and max, or scale and zero_point"),
        ({"a": {"min": 1}}, r"'a' has \['min'\]; give min and max"),
        ({"a": {"min": 1, "max": 2, "scale": 3}}, "give min and max, or scale and zero_point"),
        ({"a": {"min": 2, "max": 1}}, "'a': min 2.0 and max 1.0 are not a valid range"),
        ('{"a": {"min": NaN, "max": 1}}', "are not a valid range"),
        ('{"a": {"min": 0, "max": Infinity}}', "are not a valid range"),
        ({"a": {"min": "low", "max": 1}}, "'a': could not convert"),
        ({"a": {"min": None, "max": 1}}, "'a': "),
        ({"a": {"scale": 0, "zero_point": 0}}, "the scale 0.0 is not positive"),
        ({"a": {"scale": -1, "zero_point": 0}}, "not positive"),
        ('{"a": {"scale": 1, "zero_point": Infinity}}', "'a': "),
        ({"a": {"scale": 1, "zero_point": 200}}, "the zero point 200 is not an integer of int8"),
        ({"a": {"scale": 1, "zero_point": 0.5}}, "the zero point 0.5 is not an integer of int8"),
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


def test_a_name_that_does_not_exist_is_answered_with_one_that_does():
    model = build.float_cnn()
    (name,) = (t.name for t in model.graphs[0].inputs)
    for check in (Ranges({f"{name}s": Range(0, 1, "a file")}).require, Ranges({f"{name}s": Range(0, 1)}).resolved):
        with pytest.raises(InvalidStats, match=rf"did you mean '{name}'\? .* lists names"):
            check(model)


# Names that stand for several tensors, or for a signature's ends.


def signed_cnn() -> Model:
    model = build.float_cnn()
    model.signatures.clear()
    build.sign(model, "serve", model.graphs[0])
    return model


def test_patterns_and_signature_names_become_names_of_tensors():
    model = signed_cnn()
    names = [t.name for t in model.graphs[0].tensors]
    called = next(iter(model.signatures[0].inputs))
    given = Ranges({"*": Range(-1, 1, "a"), called: Range(-2, 2, "b"), names[-1]: Range(-3, 3, "c")})
    found = given.resolved(model).entries
    assert set(found) == set(names)
    assert found[model.graphs[0].inputs[0].name].origin == "b"
    assert found[names[-1]].origin == "c"
    assert found[names[1]].origin in ("a", "c")


def test_patterns_that_fit_nothing_are_an_error():
    with pytest.raises(InvalidStats, match=r"ranges are given for 'head/\*', which the model does not have"):
        Ranges({"head/*": Range(-1, 1, "a")}).resolved(signed_cnn())


def test_lists_are_ranges_of_channels(written):
    (found,) = ranges_from_json(written({"w": {"min": [-1, -2], "max": [3, 1]}})).entries.values()
    assert found.channels == ((-1, 3), (-2, 1))
    assert (found.low, found.high) == (-2, 3)
    with pytest.raises(InvalidStats, match="'w': "):
        ranges_from_json(written({"w": {"min": [-1, -2], "max": [3]}}))


# Other tools' files.

CONV = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "max": 64.0, "min": -63.5, "offset": -127, "scale": 0.5}
OLD = {
    "version": "0.6.1",
    "activation_encodings": {"conv": [CONV]},
    "param_encodings": {
        "kernel": [{"bitwidth": 8, "dtype": "int", "offset": -128, "scale": s} for s in (0.5, 0.25)],
        "half": [{"bitwidth": 16, "dtype": "float"}],
    },
}
NEW = {
    "version": "1.0.0",
    "activation_encodings": [{"name": "conv", "bw": 8, "dtype": "INT", "offset": [-127], "scale": [0.5]}],
    "param_encodings": [
        {"name": "kernel", "bw": 8, "dtype": "INT", "offset": [-128, -128], "scale": [0.5, 0.25]},
        {"name": "half", "bw": 16, "dtype": "FLOAT"},
    ],
}


@pytest.mark.parametrize("content", [OLD, NEW])
def test_encodings_of_both_versions_are_read(written, content):
    found = ranges_from_json(written(content))
    assert found.foreign
    assert set(found.entries) == {"conv", "kernel"}
    conv, kernel = found.entries["conv"], found.entries["kernel"]
    assert conv.params == QuantParams((0.5,), (-1,), DType.INT8)
    assert (conv.low, conv.high) == (-63.5, 64.0)
    assert kernel.channels == ((-64.0, 63.5), (-32.0, 31.75))


def test_encodings_of_unknown_tensors_are_listed(written):
    found = ranges_from_json(written(OLD)).resolved(build.float_cnn())
    assert found.unmatched
    assert all(name in " ".join(found.notes()) for name in found.unmatched)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"activation_encodings": 3}, "neither an object nor a list"),
        ({"activation_encodings": [{"bw": 8}]}, "without a name"),
        ({"activation_encodings": [{"name": "a", "scale": [1], "offset": []}]}, "as many scales as offsets"),
        ({"activation_encodings": {"a": [3]}}, "'a' is no object"),
        ({"activation_encodings": {"a": [{"scale": 1}]}}, "scale, offset and bitwidth"),
        ({"activation_encodings": {"a": [{"scale": 0, "offset": 0, "bitwidth": 8}]}}, "has scale 0"),
        ({"activation_encodings": {"a": [{"scale": 1, "offset": 1, "bitwidth": 8}]}}, "zero is not one"),
    ],
)
def test_damaged_encodings_are_refused(written, content, message):
    with pytest.raises(InvalidStats, match=message):
        ranges_from_json(written(content))


# Integer inputs, and ranges that are made up.


def test_mean_and_std_say_what_the_integers_of_an_input_stand_for():
    found = ranges_from_input_stats({"x": (127.5, 127.5)}, DType.UINT8).entries["x"]
    assert (found.low, found.high) == (-1, 1)
    found = ranges_from_input_stats({"x": (0, 32)}, DType.INT8).entries["x"]
    assert (found.low, found.high) == (-4, 127 / 32)


@pytest.mark.parametrize(
    ("mean", "std", "message"), [(0, 0, "must be positive"), (300, 1, "the zero point"), (float("nan"), 1, "positive")]
)
def test_impossible_means_are_refused(mean, std, message):
    with pytest.raises(InvalidStats, match=message):
        ranges_from_input_stats({"x": (mean, std)}, DType.UINT8)


@pytest.mark.parametrize("ends", [(1, 1), (2, -2), (float("-inf"), 1)])
def test_a_default_range_has_two_ends(ends):
    with pytest.raises(InvalidStats, match="is not a valid range; give two numbers such as -6,6"):
        default_range(*ends)
