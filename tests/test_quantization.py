"""The front doors of Python: they take what the command line takes, and say the same in other words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data
from zeropoint.dtypes import DType
from zeropoint.errors import CannotWrite, InvalidRecipe, InvalidSample, OutputExists, UnsupportedOp
from zeropoint.graph.edit import copy_model, only_signature
from zeropoint.graph.model import Signature

QUICK = {"effort": "quick"}


@pytest.fixture(scope="module")
def images():
    return digits_data()["calibration"][:24]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, digits, images) -> Path:
    folder = tmp_path_factory.mktemp("front")
    (folder / "model.tflite").write_bytes(digits)
    np.savez(folder / "samples.npz", images)
    np.save(folder / "samples.npy", images)
    (folder / "mine.py").write_text(
        "import numpy as np\ndef made():\n    return [np.zeros((1, 8, 8, 1), np.float32)]\n"
    )
    (folder / "rules.json").write_text('{"rules": [{"scheme": "int8"}, {"scheme": "float", "either": "softmax"}]}')
    return folder


@pytest.fixture(scope="module")
def wanted(digits, images) -> bytes:
    return zeropoint.to_bytes(zeropoint.quantize(digits, data=[image[None] for image in images], **QUICK).model)


@pytest.mark.parametrize("holder", ["samples.npz", "samples.npy", "array", "path", "by name", "by signature"])
def test_samples_come_from_whatever_holds_them(folder, images, wanted, holder):
    held = {
        "array": images,
        "path": folder / "samples.npz",
        "by name": {"image": images},
        "by signature": {"serving_default": str(folder / "samples.npy")},
    }
    data = held.get(holder, str(folder / holder))
    made = zeropoint.quantize(folder / "model.tflite", data=data, **QUICK)
    assert zeropoint.to_bytes(made.model) == wanted


def test_every_function_takes_a_path_of_samples(folder):
    model, data = folder / "model.tflite", str(folder / "samples.npz")
    assert zeropoint.calibrate(model, data).samples == 24
    assert zeropoint.calibrate(model, f"{folder / 'mine.py'}:made").samples == 1
    made = zeropoint.quantize(model, data=data, **QUICK).model
    assert zeropoint.compare(model, made, data, limit=4).samples == 4
    assert zeropoint.doctor(model, data, quantized=made, limit=4).comparison.samples == 4


def test_a_folder_of_images_and_its_normalization(tmp_path, digits):
    from PIL import Image

    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "white.png")
    for normalization, expected in ((zeropoint.Normalization(), 255.0), (zeropoint.Normalization(scale=1 / 255), 1.0)):
        stats = zeropoint.calibrate(digits, zeropoint.ImageFolder(tmp_path, normalization))
        assert stats.tensors["serving_default_image:0"].high.value == pytest.approx(expected)
    with pytest.raises(InvalidSample, match="std= must not be 0"):
        zeropoint.calibrate(digits, zeropoint.ImageFolder(tmp_path, zeropoint.Normalization(std=(0.0,))))


@pytest.mark.parametrize("int8", ["int8", np.int8, np.dtype("int8"), DType.INT8], ids=str)
def test_types_of_inputs_are_given_as_numpy_has_them(folder, images, int8):
    made = zeropoint.quantize(folder / "model.tflite", data=images, input_type=int8, output_type=int8, **QUICK).model
    assert [t.dtype for t in (*made.main.inputs, *made.main.outputs)] == [DType.INT8, DType.INT8]


@pytest.mark.parametrize("other", [np.float64, object, 3], ids=str)
def test_other_types_are_refused(digits, images, other):
    with pytest.raises(InvalidRecipe, match=r"the input type .* is not one of float32, int8, uint8, int16"):
        zeropoint.quantize(digits, data=images, input_type=other)


def test_models_are_inspected_where_they_lie(folder):
    shown = zeropoint.inspect(folder / "model.tflite")
    assert shown.file_bytes == (folder / "model.tflite").stat().st_size
    assert zeropoint.inspect(str(folder / "model.tflite")) == shown
    assert zeropoint.inspect((folder / "model.tflite").read_bytes()).file_bytes is None


def test_models_are_timed_where_they_lie(folder):
    options = {"options": None, "progress": None}
    timed = zeropoint.benchmark({"float": folder / "model.tflite"}, **options)
    assert [model.name for model in timed.models] == ["float"]


def test_a_recipe_may_be_a_file(folder, images):
    made = zeropoint.quantize(folder / "model.tflite", data=images, recipe=folder / "rules.json", **QUICK)
    assert [s.op.kind for s in made.skipped if s.code == "recipe"] == ["SOFTMAX"]


def test_what_was_given_twice_is_refused(digits, images):
    stats = zeropoint.calibrate(digits, images)
    with pytest.raises(InvalidRecipe, match=r"^give data= or stats=, not both$"):
        zeropoint.quantize(digits, data=images, stats=stats)


@pytest.mark.parametrize(
    ("pattern", "near"), [("CONV2D", "CONV_2D"), ("soft_max", "SOFTMAX"), ("digits_1/residual/Add", "residual_1/Add")]
)
def test_a_misspelt_pattern_names_what_it_looks_like(digits, images, pattern, near):
    with pytest.raises(
        InvalidRecipe, match=rf"no op matches .*{pattern}.*did you mean .*{near}\? .*allow_unmatched=True"
    ):
        zeropoint.quantize(digits, data=images, keep_float=pattern)
    made = zeropoint.quantize(digits, data=images, keep_float=pattern, allow_unmatched=True, **QUICK)
    assert any(pattern in warning for warning in made.warnings)


def test_case_does_not_matter(digits, images):
    made = zeropoint.quantize(digits, data=images, keep_float=["softmax", "DIGITS_1/RESIDUAL_1/*"], **QUICK)
    assert {"SOFTMAX", "ADD"} <= {s.op.kind for s in made.skipped if s.code == "recipe"}


def test_errors_speak_of_arguments(digits):
    for options, message in (
        ({}, r"\(data=\), statistics of it \(stats=\)"),
        ({"mode": "dynamic", "strict": True}, "^strict=True needs integer arithmetic"),
        ({"mode": "dynamic", "input_type": "int8"}, r'\(mode="int8", or int16x8\)'),
    ):
        with pytest.raises((InvalidRecipe, InvalidSample), match=message):
            zeropoint.quantize(digits, **options)
    data = [np.zeros((1, 8, 8, 1), np.float32)]
    with pytest.raises(UnsupportedOp, match="omit strict=True"):
        zeropoint.quantize(digits, data=data, strict=True, keep_float="SOFTMAX")


def test_a_missing_folder_is_not_an_existing_file(digits, tmp_path):
    model = zeropoint.load(digits)
    zeropoint.save(model, tmp_path / "model.tflite")
    with pytest.raises(OutputExists, match="overwrite=True"):
        zeropoint.save(model, tmp_path / "model.tflite")
    for path in (tmp_path / "none" / "model.tflite", tmp_path):
        with pytest.raises(CannotWrite, match="cannot write"):
            zeropoint.save(model, path)


def test_the_doctor_looks_at_one_signature(digits, images):
    model = zeropoint.load(digits)
    twin = copy_model(model).main
    twin.name = "twin"
    model.graphs.append(twin)
    model.signatures.append(Signature("twin", twin, {"image": twin.inputs[0]}, {"scores": twin.outputs[0]}))
    made = zeropoint.quantize(model, data={"serving_default": images, "twin": images}, **QUICK).model
    assert [len(only_signature(made, key).graphs) for key in ("serving_default", "twin")] == [1, 1]
    found = zeropoint.doctor(model, images, quantized=made, signature="twin", limit=4)
    assert found.comparison.samples == 4
    with pytest.raises(InvalidSample, match="no signature 'none'; it has 'serving_default', 'twin'"):
        zeropoint.doctor(model, images, quantized=made, signature="none")
