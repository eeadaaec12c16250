"""The doctor names the one fault of each model first, and finds nothing wrong with healthy ones."""

from __future__ import annotations

import json

import pytest

from zeropoint.verify.doctor import Case, Examined, examine

from .faults import FAULTS, HEALTHY, Patient


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


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_healthy_models(name):
    found = examined(HEALTHY[name]())
    assert found.diagnosis.findings == ()
    assert found.diagnosis.is_healthy
    assert found.mended is None
