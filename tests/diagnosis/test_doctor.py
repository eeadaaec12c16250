"""The doctor names the one fault of each model first, and finds nothing wrong with healthy ones."""

from __future__ import annotations

import json

import pytest

from zeropoint.diagnosis.doctor import DiagnosisResult, diagnose
from zeropoint.diagnosis.evidence import DiagnosisRequest
from zeropoint.recipe import keep_float, preset

from .faults import FAULTS, HEALTHY, Patient, conv_net, images, plainly


def examined(patient: Patient) -> DiagnosisResult:
    return diagnose(
        DiagnosisRequest(
            patient.model, patient.data, patient.quantized, patient.calibration, seconds=60, **patient.options
        )
    )


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
    assert found.repaired is not None
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_the_range_method_that_helped_is_built_as_well():
    patient, told = FAULTS["outlier_values"](), []
    options = {"progress": told.append, "seconds": 60, **patient.options}
    request = DiagnosisRequest(patient.model, patient.data, patient.quantized, patient.calibration, **options)
    first = diagnose(request).diagnosis.findings[0]
    assert first.options["range"] not in ("mse", "minmax", "auto")  # which "auto" tries anyway
    built = [line for line in told if line.startswith("building")]
    assert any(f"range {first.options['range']}" in line for line in built)
    assert any(f"range {request.range}" in line for line in built)


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_healthy_models(name):
    found = examined(HEALTHY[name]())
    assert found.diagnosis.findings == ()
    assert found.diagnosis.is_healthy
    assert found.repaired is None


def test_ops_left_in_float_are_named_unless_the_recipe_keeps_them():
    model, data = conv_net(), images()
    given = DiagnosisRequest(model, data, quantized=plainly(model, data, keep_float=["b"]))
    asked_for = DiagnosisRequest(model, data, recipe=preset("int8").then(keep_float("b")))
    causes = [[finding.cause for finding in diagnose(request).diagnosis.findings] for request in (given, asked_for)]
    assert "float_fallback" in causes[0]
    assert "float_fallback" not in causes[1]
