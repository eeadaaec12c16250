"""The table of causes, and how doctor works through it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.bench import bench as bench_module
from zeropoint.bench.alignment import align_models
from zeropoint.bench.bench import Bench
from zeropoint.calibration.collect import collect_stats
from zeropoint.comparison.compare import compare_models
from zeropoint.diagnosis.causes import CAUSES
from zeropoint.diagnosis.doctor import diagnose
from zeropoint.diagnosis.evidence import DiagnosisRequest, Fix, FixTrials, ModelEvidence, rule_for
from zeropoint.diagnosis.weight_causes import bias_overflow
from zeropoint.graph.model import Model
from zeropoint.improve import candidate as candidate_module
from zeropoint.improve.pipeline import quantize_with
from zeropoint.ops import OPS
from zeropoint.plan.request import Request
from zeropoint.recipe import preset

from ..nets import Net, normal
from .faults import conv_net, drowned_concat_input, images, outlier_sample

DOCS = Path(__file__).parents[2] / "docs" / "compare.md"


def evidence_of(model: Model, data: list) -> ModelEvidence:
    bench = Bench(model, data)
    result = quantize_with(bench, Request(preset("int8"), method="minmax", effort="quick"))
    trials = FixTrials(bench.judging(8), preset("int8"), math.inf)
    comparison, alignment = compare_models(model, result.model, data), align_models(model, result.model)
    return ModelEvidence(
        DiagnosisRequest(model, data), result.model, comparison, alignment, trials, quantization=result
    )


def test_every_cause_has_a_code_of_its_own_and_a_line_in_the_docs():
    codes = [find.__name__ for causes in CAUSES.values() for find in causes]
    assert len(set(codes)) == len(codes)
    documented = {line.split("`")[1] for line in DOCS.read_text().splitlines() if line.startswith("| `")}
    assert set(codes) <= documented


def test_biases_that_needed_room_are_found_by_the_code_of_the_repair():
    net = Net()
    hidden = net.dense(net.input(1, 8), normal(4, 8) * np.float32(1e-9), np.full(4, 100, np.float32), name="spoilt")
    model = net.model(net("TANH", [hidden]))
    evidence = evidence_of(model, [(normal(1, 8, seed=k),) for k in range(8)])
    assert any(repair.code == "bias_overflow" for repair in evidence.quantization.repairs)
    assert bias_overflow(evidence).numbers["biases"] >= 1
    assert bias_overflow(evidence_of(conv_net(), images())) is None


def test_each_data_set_is_calibrated_once(monkeypatch):
    calls = []

    def counting(*args, **options):
        calls.append(args)
        return collect_stats(*args, **options)

    monkeypatch.setattr(bench_module, "collect_stats", counting)
    for patient, data_sets in ((drowned_concat_input(), 1), (outlier_sample(), 2)):
        calls.clear()
        request = DiagnosisRequest(patient.model, patient.data, patient.quantized, patient.calibration, seconds=60)
        assert diagnose(request).repaired is not None
        assert len(calls) == data_sets


def test_a_fix_is_tried_once_and_prepared_once():
    evidence = evidence_of(conv_net(), images())
    trials = evidence.trials
    fix = Fix((rule_for(conv_net().main.ops[1], "float"),))
    assert trials.error(fix) != trials.error()
    assert len(trials.errors) == 3  # two range methods, and the fix with the better one
    assert len(trials.prepared) == 2
    shared = replace(trials, errors={}, prepared={})
    assert shared.error(fix, prepared_for=Fix()) == trials.error(fix)
    assert len(shared.prepared) == 1
    assert trials.after(fix).error() == trials.error(fix)


def test_sets_of_ops_are_compared_without_another_plan_for_each(monkeypatch):
    trials, plans = evidence_of(conv_net(), images()).trials, []
    planned = candidate_module.plan_and_correct
    monkeypatch.setattr(candidate_module, "plan_and_correct", lambda *given: plans.append(given) or planned(*given))
    ops = conv_net().main.ops
    fix = Fix(tuple(rule_for(op, "float") for op in ops[1:3]))
    wanted = trials.error(fix, prepared_for=Fix())
    plans.clear()
    errors = [trials.error_without(some) for some in ((), ops[1:2], ops[1:3], ops)]
    assert errors[0] == trials.error()
    assert errors[2] == pytest.approx(wanted, rel=0.2)
    assert errors[3] < 1e-9
    assert len(plans) == 1


def test_another_op_table_reaches_compare_and_doctor():
    model, data = conv_net(), images()
    unknown = {kind: spec for kind, spec in OPS.items() if kind != "CONV_2D"}
    found = zeropoint.compare(model, model, data, limit=2, ops=unknown)
    assert [bool(row.macs) for row in found.ops] == [False, False, False, False, True]
    diagnosis = zeropoint.doctor(model, data, ops=unknown, seconds=60)
    executions = {row.name: row.execution for row in diagnosis.comparison.ops}
    assert executions["a"] == executions["b"] == "float"
    assert executions["out"] == "integer"
