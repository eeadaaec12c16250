"""Where runtimes disagree: the difference is found at the op that makes it, and nowhere else."""

from __future__ import annotations

import json

import numpy as np
import pytest

import zeropoint
from zeropoint.comparison.kernels import compare_kernels
from zeropoint.demo import digits as digits_data
from zeropoint.errors import InvalidRecipe, InvalidSample, RuntimeFailure
from zeropoint.graph import Model

from ..conformance.cases import CASES, quantized


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    return [image[None] for image in digits_data()["calibration"][:20]]


@pytest.fixture(scope="module")
def model(digits, images) -> Model:
    return zeropoint.quantize(digits, data=images, effort="quick").model


def test_runtimes_differ_by_a_unit_where_their_rounding_does(model, images):
    found = compare_kernels(model, images[:5], ("reference", "xnnpack", "tflm"))
    assert found.samples == 5
    assert found.of("tflm") == []
    first, *_ = found.of("xnnpack")
    assert (first.kind, first.units, first.own_units) == ("CONV_2D", 1, 1)
    assert max(op.own_units for op in found.of("xnnpack")) == 1
    assert all(output.same_greatest == 1 for output in found.outputs)
    assert json.loads(json.dumps(found.to_json()))["kernels"] == ["reference", "xnnpack", "tflm"]


def test_ops_that_pass_on_a_difference_have_none_of_their_own(model, images):
    pool = next(op for op in compare_kernels(model, images, ("reference", "xnnpack")).ops if op.kind == "MAX_POOL_2D")
    assert pool.units > 0
    assert pool.own_units == 0


def test_layers_on_float_data_differ_by_real_numbers(digits, images):
    made = zeropoint.quantize(digits, "dynamic").model
    found = compare_kernels(made, images[:3], ("reference", "xnnpack", "tflm"))
    assert [refusal.kernels for refusal in found.refused] == ["tflm"]
    differing = found.of("xnnpack")
    assert differing
    assert all(0 < op.units < 0.5 and op.own_units is not None for op in differing)


def test_a_runtime_that_refuses_the_model_is_named():
    case = next(c for c in CASES if str(c) == "SPACE_TO_BATCH_ND-image-int16")
    made, samples = quantized(case).model, case.sample.draw(1)
    found = compare_kernels(made, samples, ("reference", "xnnpack", "tflm"))
    assert [refusal.kernels for refusal in found.refused] == ["tflm"]
    with pytest.raises(RuntimeFailure, match="tflm: "):
        compare_kernels(made, samples, ("reference", "tflm"))


def test_bad_input(model):
    with pytest.raises(InvalidRecipe, match="at least two"):
        compare_kernels(model, [], ("xnnpack", "xnnpack"))
    with pytest.raises(InvalidSample, match="no samples"):
        compare_kernels(model, [], ("xnnpack", "tflm"))


def test_the_command(run, tmp_path, model, images):
    path, data = tmp_path / "m.tflite", tmp_path / "x.npz"
    zeropoint.save(model, path)
    np.savez(data, np.concatenate(images[:3]))
    code, out, _ = run("compare", path, "--data", data, "--kernels", "reference,xnnpack,tflm")
    assert code == 0
    assert "First       CONV_2D" in out
    assert "tflm against reference: the same integers everywhere (3 samples)" in out
    code, out, err = run("compare", path, "--data", data)
    assert (code, out) == (2, "")
    assert "--kernels" in err
    code, _, err = run("compare", path, path, "--data", data, "--kernels", "reference,tflm")
    assert code == 2
    assert "omit the second model" in err
