"""The text form, against golden files. `--update-golden` writes them anew; read the diff."""

from __future__ import annotations

from importlib.resources import files

import pytest

from zeropoint.graph import Model
from zeropoint.tflite import load, to_bytes

from .. import build
from ..difference import difference


def embedded() -> Model:
    return load(files("zeropoint").joinpath("data/digits.tflite").read_bytes())


MODELS = {"digits": embedded} | build.MODELS
WRITTEN_OUT = ("digits", "quantized_cnn", "branches", "blockwise", "sparse", "names")


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_the_text_is_the_golden_one(name, golden):
    golden(f"{name}.txt", f"{MODELS[name]()}\n")


@pytest.mark.parametrize("name", MODELS)
def test_the_text_survives_a_file(name):
    model = MODELS[name]()
    assert str(load(to_bytes(model))) == str(model)


def changed(name: str, value: object, where: str = "main"):
    def change(model: Model) -> None:
        target = {"model": model, "main": model.main, "tensor": model.main.tensors[1], "op": model.main.ops[0]}[where]
        assert getattr(target, name) != value
        setattr(target, name, value)

    return change


CHANGES = [
    changed("description", "other", "model"),
    changed("version", 4, "model"),
    changed("metadata", [("more", None)], "model"),
    changed("metadata_buffers", [], "model"),
    changed("external_buffers", (), "model"),
    changed("name", "other"),
    changed("outputs", []),
    changed("debug_metadata_index", 7),
    changed("name", "other", "tensor"),
    changed("shape_signature", (-1, 3, 3, 1), "tensor"),
    changed("is_variable", True, "tensor"),
    changed("has_rank", True, "tensor"),
    changed("external_buffer", 3, "tensor"),
    changed("buffer", build.raw(b"\0" * 144), "tensor"),
    changed("quantization", build.Quantization(zero_points=(1,)), "tensor"),
    changed("quantization", build.Quantization(axis=1), "tensor"),
    changed("kind", "BUILTIN_77", "op"),
    changed("version", 9, "op"),
    changed("options", None, "op"),
    changed("custom_code", "mine", "op"),
    changed("custom_options", build.raw(b"x").raw, "op"),
    changed("custom_options_format", 1, "op"),
    changed("mutating_variable_inputs", (False,), "op"),
    changed("debug_metadata_index", 7, "op"),
    changed("inputs", [], "op"),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_no_difference_goes_unseen(change):
    left, right = build.float_cnn(), build.float_cnn()
    assert difference(left, right) is None
    change(right)
    assert difference(left, right) is not None


def test_sharing_is_a_difference():
    left, right = build.shared(), build.shared()
    first, third = right.main.tensor("c"), right.main.tensor("e")
    third.buffer = first.buffer
    assert str(left) == str(right)
    assert difference(left, right) == "buffers are shared between other tensors"
