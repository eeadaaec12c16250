"""The doctor names the one fault of each model first, and finds nothing wrong with healthy ones."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import zeropoint
from zeropoint.comparison.values import MetricRow
from zeropoint.demo import digits as digits_data
from zeropoint.diagnosis.doctor import DiagnosisResult, diagnose
from zeropoint.diagnosis.evidence import DiagnosisRequest
from zeropoint.graph.edit import copy_model, set_constant
from zeropoint.recipe import keep_float, preset
from zeropoint.report.comparison import print_diagnosis
from zeropoint.runtime import Session

from ..nets import Net, normal
from .faults import FAULTS, HEALTHY, Patient, conv_net, four_bit_weights, images, plainly, saved


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


def test_four_bits_are_too_few_where_the_score_falls_and_else_a_choice():
    patient = four_bit_weights()
    exact = [Session(patient.model).run(sample)[0] for sample in patient.data]

    def score(outputs):
        return 1 - 10 * sum(float(np.abs(o[0] - e).mean()) for o, e in zip(outputs, exact, strict=True)) / len(exact)

    asked = DiagnosisRequest(patient.model, patient.data, patient.quantized, metric=("score", score), seconds=60)
    first = diagnose(asked).diagnosis.findings[0]
    assert first.cause == "too_few_bits"
    assert set(patient.ops) <= set(first.ops)
    assert first.numbers["bits"] == 4
    usual = examined(patient).diagnosis
    assert usual.is_close
    assert "too_few_bits" not in [finding.cause for finding in usual.findings]


def test_all_samples_are_used_and_the_metric_is_told():
    model, data = conv_net(), images(50)
    seen = []

    def mean(outputs):
        seen.append(len(outputs))
        return sum(float(np.abs(o[0]).mean()) for o in outputs)

    found = zeropoint.doctor(model, data, metric=mean, seconds=60)
    assert found.comparison.samples == 50
    assert set(seen) == {50}
    assert found.to_json()["comparison"]["metric"]["name"] == "mean"
    assert any("32 of 50 samples" in note for note in found.comparison.notes)
    assert zeropoint.doctor(model, data, limit=40, seconds=60).comparison.samples == 40


def test_a_model_that_is_wrong_for_no_known_reason_is_not_healthy():
    """The biases of a layer were turned round: no range and no bits are to blame."""
    model, data = conv_net(), images()
    spoilt = copy_model(plainly(model, data))
    bias = next(op for op in spoilt.main.ops if op.name == "a").inputs[2]
    set_constant(bias, -3 * bias.data, bias.dtype, bias.params)
    diagnosis = diagnose(DiagnosisRequest(model, data, saved(spoilt), seconds=60)).diagnosis
    assert diagnosis.verdict.level != "good"
    assert diagnosis.findings[0].cause == "other_quantizer"
    assert diagnosis.findings[0].gain > 10


def test_nothing_to_fix_takes_outputs_that_are_close():
    model, data = conv_net(), images(8)
    healthy = zeropoint.doctor(model, data, seconds=60)
    assert healthy.is_healthy
    assert healthy.verdict.level == "good"
    for changed in (
        replace(healthy, verdict=replace(healthy.verdict, level="doubtful")),
        replace(healthy, comparison=replace(healthy.comparison, metric=MetricRow("score", 0.984, 0.944))),
    ):
        assert not changed.is_healthy
        console = Console(file=io.StringIO(), width=200)
        print_diagnosis(changed, console)
        assert "Nothing to fix" not in console.file.getvalue()
        assert "not close" in console.file.getvalue()


def test_a_stretch_of_ops_that_does_the_harm_is_found():
    """The first layers compute a small difference of large numbers; the others are harmless."""
    net = Net()
    x = net.input(1, 8, 8, 3, name="image")
    big = net("MUL", [x, np.float32([1000.0])], name="big")
    shifted = net("ADD", [big, net.conv(x, normal(3, 3, 3, 3, spread=0.2), name="small")], name="shifted")
    y = net("SUB", [shifted, big], name="difference")
    for k in range(6):
        y = net.conv(y, normal(8, 3, 3, y.shape[-1], seed=k, spread=0.2), name=f"layer{k}", activation=1)
    model, data = saved(net.model(net.conv(y, normal(4, 1, 1, 8), name="out"))), images()
    patient = Patient(model, data, options={"range": "minmax", "effort": "quick"})
    found = examined(patient).diagnosis
    causes = [finding.cause for finding in found.findings]
    assert causes
    named = {name for finding in found.findings for name in finding.ops}
    assert {"shifted", "difference"} & named
    assert not found.is_healthy
    assert found.remedy.after.snr > found.remedy.before.snr + 10


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


def test_no_model_is_called_good_on_samples_that_look_wrong(digits):
    data = [0 * image[None] for image in digits_data()["calibration"][:24]]
    found = zeropoint.doctor(digits, data, seconds=1)
    assert found.findings[0].cause == "constant_samples"
    assert found.verdict.samples_look_wrong
    assert found.verdict.level == "unknown"  # all are copies of one
    assert found.verdict.samples == 1
