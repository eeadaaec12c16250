"""An op that is added by argument goes all the way: calibration, quantization, comparison, diagnosis, training,
simulation, tuning, and the ranges of other tools.

The table itself lacks the row here, so whatever looked into it would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

import zeropoint
from zeropoint.calibration.given_ranges import ranges_from_json
from zeropoint.graph.model import Model
from zeropoint.ops import OPS, OpSpec
from zeropoint.recipe import EFFORTS
from zeropoint.runtime import Session

from .nets import Net, normal, samples_for

NEW = "HARD_SWISH"
Table = Mapping[str, OpSpec]


@pytest.fixture
def table(monkeypatch) -> Iterator[Table]:
    """The op table with a row that the global one no longer has."""
    row = OPS[NEW]
    monkeypatch.delitem(OPS, NEW)
    return {**OPS, NEW: row}


def net() -> Model:
    made = Net()
    x = made.dense(made.input(1, 16), normal(12, 16), normal(12), name="first")
    twice = made(NEW, [made(NEW, [x], name="once")], name="twice")
    return made.model(made.dense(twice, normal(4, 12), normal(4), name="last"))


def kinds(model: Model) -> dict[str, str]:
    return {op.kind: op.outputs[0].dtype.label for op in model.main.ops}


def test_calibration_measures_it(table: Table) -> None:
    model = net()
    data = samples_for(model, 8)
    assert "once" in zeropoint.calibrate(model, data, ops=table).tensors
    assert "once" not in zeropoint.calibrate(model, data).tensors


@pytest.mark.parametrize("effort", EFFORTS)
def test_quantization_computes_it_in_integers(effort, table: Table) -> None:
    model = net()
    data = samples_for(model, 40)
    result = zeropoint.quantize(model, "int8", data=data, effort=effort, ops=table, target="integer")
    assert not result.skipped
    assert kinds(result.model)[NEW] == "int8"
    without = zeropoint.quantize(model, "int8", data=data, effort=effort, target="integer")
    assert {s.op.kind for s in without.skipped} == {NEW}


def test_comparison_and_diagnosis_know_it(table: Table) -> None:
    model = net()
    data = samples_for(model, 24)
    made = zeropoint.quantize(model, "int8", data=data, ops=table, target="integer").model
    compared = zeropoint.compare(model, made, data, ops=table)
    rows = [row for row in compared.ops if row.label == NEW]
    assert len(rows) == 2
    assert all(row.own is not None and row.execution == "integer" for row in rows)
    diagnosis = zeropoint.doctor(model, data, ops=table, target="integer")
    assert "float_fallback" not in {finding.cause for finding in diagnosis.findings}
    assert any(row.label == NEW and row.execution == "integer" for row in diagnosis.comparison.ops)
    assert not any(
        row.label == NEW and row.execution == "integer"
        for row in zeropoint.doctor(model, data, target="integer").comparison.ops
    )


def test_training_rounds_it_and_deploys_it(table: Table) -> None:
    from zeropoint import train

    model = net()
    data = samples_for(model, 24)
    trained = train.distill(model, data, "int8", 4, ops=table, target="integer")
    assert trained.trained.takes_any_batch
    assert not trained.result.skipped
    assert kinds(trained.result.model)[NEW] == "int8"
    rng = np.random.default_rng(0)
    (parity,) = train.parity(trained.trained, trained.result, [rng.normal(size=(1, 16)).astype(np.float32)])
    assert parity.within_one == 1


def dense_net(prefix: str = "") -> Model:
    made = Net()
    x = made.dense(made.input(1, 64), normal(64, 64), normal(64), name=f"{prefix}first")
    return made.model(made.dense(x, normal(64, 64), normal(64), name=f"{prefix}last"))


@pytest.fixture
def with_dense(monkeypatch) -> Iterator[Table]:
    """The op table with a row for dense layers that the global one no longer has."""
    row = OPS["FULLY_CONNECTED"]
    monkeypatch.delitem(OPS, "FULLY_CONNECTED")
    return {**OPS, "FULLY_CONNECTED": row}


@pytest.mark.parametrize("mode", ["int8", "dynamic"])
def test_simulation_computes_it(mode, with_dense: Table) -> None:
    model = dense_net()
    data = samples_for(model, 24)
    result = zeropoint.quantize(model, mode, data=data, ops=with_dense, target="integer")
    trace = zeropoint.simulate(result.model, data[0], ops=with_dense)
    (made,) = Session(result.model, kernels="reference").run(list(data[0]))
    np.testing.assert_allclose(trace.outputs[0], made, rtol=1e-6)
    assert len(trace.explain("first", (0, 0)).products) == 64


def test_tuning_makes_it_smaller(with_dense: Table) -> None:
    model = dense_net()
    data = samples_for(model, 40)
    budget, search = zeropoint.Budget(min_metric=10), zeropoint.SearchSettings(trials=3)
    tuned = zeropoint.tune(model, data, budget=budget, metric="snr", search=search, ops=with_dense)
    assert any(op.kind == "FULLY_CONNECTED" and op.inputs[1].is_quantized for op in tuned.model.main.ops)


def test_tuning_cannot_send_it_elsewhere(with_dense: Table) -> None:
    model = dense_net()
    with pytest.raises(zeropoint.ZeropointError, match="neither stored nor sent"):
        zeropoint.tune(
            model,
            samples_for(model, 40),
            budget=zeropoint.Budget(min_metric=10),
            search=zeropoint.SearchSettings(workers=2),
            ops=with_dense,
        )


def test_ranges_of_another_tool_are_found_by_its_weights(with_dense: Table, tmp_path) -> None:
    theirs, model = dense_net("theirs/"), dense_net()
    data = samples_for(model, 24)
    path = tmp_path / "theirs.tflite"
    zeropoint.quantize(theirs, "int8", data=data, ops=with_dense, target="integer").save(path)
    found = ranges_from_json(path, ops=with_dense).resolved(model, ops=with_dense)
    assert not found.unmatched
    assert len(ranges_from_json(path).resolved(model).unmatched) == 2  # the weights of both layers
