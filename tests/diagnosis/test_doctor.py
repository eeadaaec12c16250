"""The doctor names the one fault of each model first, and finds nothing wrong with healthy ones."""

from __future__ import annotations

import json

import pytest

from zeropoint.diagnosis.doctor import Case, Examined, examine
from zeropoint.recipe import keep_float, preset

from .faults import FAULTS, HEALTHY, Patient, conv_net, images, plainly


def examined(patient: Patient) -> Examined:
    case = Case(patient.model, patient.data, patient.quantized, patient.calibration, seconds=60, **patient.options)
    return examine(case)


@pytest.mark.parametrize("cause", FAULTS)
def test_the_fault_is_named_first(cause):
    patient = FAULTS[cause]()
    found = examined(patient)
    diagnosis = found.diagnosis
    assert diagnosis.findings, "nothing was found"
    first = diagnosis.findings[0]
    assert first.cause == cause
    assert first.evidence
    assert first.numbers
    assert first.gain is not None
    assert first.gain >= 1
    assert set(patient.samples) <= set(first.samples)
    assert set(patient.ops) <= set(first.ops)
    assert diagnosis.remedy is not None
    assert diagnosis.remedy.after.snr > diagnosis.remedy.before.snr
    assert found.mended is not None
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_the_range_method_that_helped_is_built_as_well():
    patient, told = FAULTS["outlier_values"](), []
    options = {"told": told.append, "seconds": 60, **patient.options}
    case = Case(patient.model, patient.data, patient.quantized, patient.calibration, **options)
    first = examine(case).diagnosis.findings[0]
    assert first.options["range"] not in ("mse", "minmax", "auto")  # which "auto" tries anyway
    built = [line for line in told if line.startswith("building")]
    assert any(f"range {first.options['range']}" in line for line in built)
    assert any(f"range {case.range}" in line for line in built)


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_healthy_models(name):
    found = examined(HEALTHY[name]())
    assert found.diagnosis.findings == ()
    assert found.diagnosis.is_healthy
    assert found.mended is None


def test_ops_left_in_float_are_named_unless_the_recipe_keeps_them():
    model, data = conv_net(), images()
    given = Case(model, data, quantized=plainly(model, data, keep=["b"]))
    asked_for = Case(model, data, recipe=preset("int8").then(keep_float("b")))
    causes = [[finding.cause for finding in examine(case).diagnosis.findings] for case in (given, asked_for)]
    assert "float_fallback" in causes[0]
    assert "float_fallback" not in causes[1]
