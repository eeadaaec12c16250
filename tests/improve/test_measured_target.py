"""With `measure`, several ways to place the ops are timed and one of them is taken; the note says what each took."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import zeropoint
from zeropoint.bench.latency import Benchmark, Latency, Timing, TimingOptions
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidRecipe, RuntimeFailure
from zeropoint.graph import Model
from zeropoint.improve import measured_target
from zeropoint.ops import OpSpec
from zeropoint.plan.plan import Planned

from ..nets import Net, normal, samples_for


def test_the_fastest_way_is_taken() -> None:
    net = Net()
    x = net.conv(net.input(1, 16, 16, 8), normal(32, 3, 3, 8))
    model = net.model(net.conv(net("HARD_SWISH", [x]), normal(4, 3, 3, 32, seed=1)))
    result = zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", measure=True)
    (note,) = [note for note in result.notes if "timed on this machine" in note]
    assert "by the table" in note
    assert "integers wherever possible" in note
    assert "float " in note
    assert result.target.name == "cpu"
    assert "float on integer weights" in note
    with pytest.raises(InvalidRecipe, match="nothing to choose for the target integer"):
        zeropoint.quantize(model, data=samples_for(model, 8), target="integer", measure=True)


def two_layers() -> Model:
    net = Net()
    x = net.conv(net.input(1, 16, 16, 8), normal(8, 3, 3, 8))
    return net.model(net.conv(x, normal(32, 3, 3, 8, seed=1)))


def slow_integers(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Make up the clock of a processor on which each int8 layer takes so much longer, so that tests do not depend on
    this one."""

    def benchmark(models: Mapping[str, Model], options: TimingOptions) -> Benchmark:
        found = []
        for name, timed in models.items():
            seconds = 1.0 + by * sum(op.inputs[0].dtype is DType.INT8 for op in timed.main.ops if op.kind == "CONV_2D")
            latency = Latency(1, seconds, seconds, seconds, seconds, options.rounds)
            found.append(Timing(name, 0, (latency,), None, (), {}))
        return Benchmark(tuple(found), 1, ())

    monkeypatch.setattr("zeropoint.improve.measured_target.benchmark", benchmark)


def test_layers_that_are_slow_in_integers_keep_only_integer_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_integers(monkeypatch, by=1.0)
    model = two_layers()
    result = zeropoint.quantize(model, data=samples_for(model, 8), measure=True)
    layers = [op for op in result.model.main.ops if op.kind == "CONV_2D"]
    assert all(op.inputs[0].dtype is DType.FLOAT32 for op in layers)
    assert len(zeropoint.to_bytes(result.model)) < len(zeropoint.to_bytes(model))


def test_the_table_decides_where_no_way_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways are timed with quick effort. A tie there may be broken by what later steps do, as in a transformer whose
    measured model was 1.8 times as slow as the one by the table."""
    slow_integers(monkeypatch, by=0.01)
    model = two_layers()
    samples = samples_for(model, 8)
    result = zeropoint.quantize(model, data=samples, measure=True)
    assert zeropoint.to_bytes(result.model) == zeropoint.to_bytes(zeropoint.quantize(model, data=samples).model)
    (note,) = [note for note in result.notes if "timed on this machine" in note]
    assert note.startswith("by the table: none timed on this machine is clearly faster")


def test_a_way_that_fails_is_named_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    x = net.conv(net.input(1, 16, 16, 8), normal(8, 3, 3, 8))
    model = net.model(net.conv(net("HARD_SWISH", [x]), normal(32, 3, 3, 8, seed=1)))
    build = measured_target.build

    def failing(planned: Planned, ops: Mapping[str, OpSpec]) -> Model:
        if not planned.plans[0].schemes:
            raise RuntimeFailure("a kernel is missing")
        return build(planned, ops)

    monkeypatch.setattr(measured_target, "build", failing)
    result = zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", measure=True)
    (note,) = [note for note in result.notes if "timed on this machine" in note]
    assert "by the table" in note
    assert "dynamic layers not possible: a kernel is missing" in note

    def broken(planned: Planned, ops: Mapping[str, OpSpec]) -> Model:
        raise RuntimeFailure("no kernel at all")

    monkeypatch.setattr(measured_target, "build", broken)
    with pytest.raises(RuntimeFailure, match="no kernel at all"):
        zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", measure=True)
