"""Models that remember: those that run step by step are kept running, others start every sample anew, unless asked
otherwise; hidden states are computed again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.judged import JUDGED
from zeropoint.calibration import Range, Ranges, Settings, calibrate
from zeropoint.calibration.collect import in_sequence_note, never_used, unknown_states
from zeropoint.calibration.recurrent_states import Replay, lstm_cell_states, replays
from zeropoint.calibration.task import CalibrationTask
from zeropoint.dtypes import Array, DType
from zeropoint.errors import speaking_of_options
from zeropoint.graph import Model, Tensor
from zeropoint.ops import OPS
from zeropoint.ops.states import has_state, initial_reads, is_streaming, returned_states
from zeropoint.runtime import Session

from .. import build
from ..nets import Net, normal
from .facts import exact


def variable(name: str, *shape: int) -> Tensor:
    tensor = build.act(name, *shape)
    tensor.is_variable = True
    return tensor


def recurrent() -> Model:
    """A state that a recurrent layer keeps in a variable tensor; its output is squared."""
    model = build.stateful()
    y, z = model.main.outputs[0], build.act("z", 1, 3, 2)
    model.main.ops.append(build.op("MUL", [y, y], z, options="MulOptions"))
    model.main.tensors.append(z)
    model.main.outputs = [z]
    return model


def counter() -> Model:
    """A running sum in a resource, which a graph of its own sets to zero."""
    handles = [build.act(n, 1, dtype=DType.RESOURCE) for n in ("handle", "init/handle")]
    x, before, y = build.act("x", 1, 3, 2), build.act("before", 1, 3, 2), build.act("y", 1, 3, 2)
    makers = [build.op("VAR_HANDLE", [], h, options="VarHandleOptions", sharedName="sum") for h in handles]
    zeros = build.const("zeros", np.zeros((1, 3, 2), np.float32))
    init = build.graph("init", [], [], makers[1], build.op("ASSIGN_VARIABLE", [handles[1], zeros]))
    ops = [
        build.op("CALL_ONCE", [], options="CallOnceOptions", initSubgraphIndex=init),
        makers[0],
        build.op("READ_VARIABLE", [handles[0]], before),
        build.op("ADD", [x, before], y, options="AddOptions"),
        build.op("ASSIGN_VARIABLE", [handles[0], y]),
    ]
    return Model([build.graph("main", [x], [y], *ops), init])


GATES = ("input", "forget", "cell", "output")
LSTM_CASES = {
    "plain": {},
    "coupled gates": {"coupled": True},
    "peepholes": {"peephole": True},
    "projection": {"projection": True},
    "layer normalization": {"norm": True},
    "clipped": {"clip": 0.3, "projection": True},
    "time first": {"time_major": True},
    "everything": {"peephole": True, "projection": True, "norm": True, "clip": 0.5},
}


def lstm(
    *,
    coupled: bool = False,
    peephole: bool = False,
    projection: bool = False,
    norm: bool = False,
    clip: float = 0.0,
    time_major: bool = False,
) -> Model:
    """UNIDIRECTIONAL_SEQUENCE_LSTM: two sequences of three steps of two values, five cells."""
    size, cells, outputs = 4, 5, 3 if projection else 5
    seeds = iter(range(100))

    def given(name: str, *shape: int) -> Tensor:
        return build.const(name, build.weights(*shape, seed=next(seeds)) / 3)

    def gates(name: str, *shape: int, skip: tuple[str, ...] = ()) -> list[Tensor | None]:
        left_out = (*skip, "input") if coupled else skip
        return [None if gate in left_out else given(f"{gate}/{name}", *shape) for gate in GATES]

    peepholes = gates("peephole", cells, skip=("cell",))
    inputs = [
        build.act("x", *((3, 2, size) if time_major else (2, 3, size))),
        *gates("weights", cells, size),
        *gates("recurrent", cells, outputs),
        *([peepholes[0], peepholes[1], peepholes[3]] if peephole else [None] * 3),
        *gates("bias", cells),
        given("projection", outputs, cells) if projection else None,
        given("projection/bias", outputs) if projection else None,
        variable("h", 2, outputs),
        variable("c", 2, cells),
        *(gates("norm", cells) if norm else []),
    ]
    y = build.act("y", *((3, 2, outputs) if time_major else (2, 3, outputs)))
    options = {"cellClip": clip, "projClip": clip, "timeMajor": time_major, "fusedActivationFunction": 4}
    call = build.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, y, options="UnidirectionalSequenceLSTMOptions", **options)
    call.version = 4
    return Model([build.graph("main", [inputs[0]], [y], call)])


def sequences(model: Model, count: int) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.normal(0, 2, model.main.inputs[0].shape).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("model", [recurrent(), counter()], ids=["variable", "resource"])
@pytest.mark.parametrize("histograms", [True, False])
def test_every_sample_starts_anew_if_asked(model, histograms):
    samples = sequences(model, 9)
    settings = Settings(histograms=histograms, keep_state=False)
    together = calibrate(model, samples, settings)
    alone = [calibrate(model, [sample], settings) for sample in samples]
    merged = alone[0]
    for part in alone[1:]:
        merged = merged.merge(part)
    assert exact(together) == exact(merged)


def test_state_is_kept_if_asked():
    model = counter()
    samples = sequences(model, 300)
    found = calibrate(model, samples, Settings(keep_state=True, workers=4)).tensors["y"]
    sums = np.cumsum(samples, axis=0, dtype=np.float32)
    assert (found.low.value, found.high.value) == (sums.min(), sums.max())


def test_state_is_kept_where_values_are_not_finite():
    """Looking at such a run once more must not start from another state."""
    model, z = counter(), build.act("z", 1, 3, 2)
    (y,) = model.main.outputs
    model.main.ops.append(build.op("LOG", [y], z))
    model.main.tensors.append(z)
    model.main.outputs = [z]
    samples = [np.ones((1, 3, 2), np.float32) for _ in range(8)]
    samples[5][0, 0, 0] = -5.0  # the sum is zero
    found = calibrate(model, samples, Settings(keep_state=True, allow_nonfinite=True)).tensors
    assert (found["y"].low.value, found["y"].high.value) == (0.0, 8.0)
    assert (found["z"].nonfinite, found["z"].high.value) == (1, np.log(np.float32(8)))


def test_what_was_stored_is_measured():
    """It comes from no input, but it is no constant either."""
    found = calibrate(counter(), sequences(counter(), 3), Settings(keep_state=True))
    assert found.tensors.keys() == {"x", "before", "y"}
    assert found.tensors["before"].high.value > 0


def test_keeping_the_state_makes_a_difference():
    samples = sequences(recurrent(), 9)
    kept, reset = (calibrate(recurrent(), samples, Settings(keep_state=keep)) for keep in (True, False))
    assert exact(kept) != exact(reset)
    assert exact(kept) == exact(calibrate(recurrent(), samples, Settings(keep_state=True, workers=1)))


@pytest.mark.parametrize("case", LSTM_CASES.values(), ids=LSTM_CASES)
def test_replayed_cell_states_are_those_of_the_runtime(case):
    model = lstm(**case)
    graph, op = model.main, model.main.ops[0]
    x = sequences(model, 1)[0]
    states, (last_h, last_c) = lstm_cell_states(op, x)
    shown = dataclasses.replace(graph, outputs=[*graph.outputs, graph.tensor("h"), graph.tensor("c")])
    y, h, c = Session(Model([shown])).run([x])
    np.testing.assert_allclose(states[-1], c, atol=1e-5)
    np.testing.assert_allclose(last_c, c, atol=1e-5)
    np.testing.assert_allclose(last_h, h, atol=1e-5)
    np.testing.assert_allclose(last_h, y[-1] if case.get("time_major") else y[:, -1], atol=1e-5)
    assert len(states) == 3


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_runs_of_any_lengths_are_replayed_as_if_each_were_alone(time_major, backward):
    (op,) = lstm(time_major=time_major).main.ops
    runs = [normal(2, length, op.inputs[0].shape[-1], seed=k) for k, length in enumerate((3, 3, 5, 3))]
    runs = [np.swapaxes(x, 0, 1) for x in runs] if time_major else runs
    found = Replay(op, op.inputs[0], "c", backward=backward).states_of_runs(runs, in_sequence=False)
    for x, states in zip(runs, found, strict=True):
        alone = Replay(op, op.inputs[0], "c", backward=backward).states(x)
        np.testing.assert_allclose(states, alone, atol=1e-6)


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize("keep_state", [True, False])
def test_cell_states_are_recorded(keep_state, histograms):
    model = lstm()
    samples = sequences(model, 6)
    stats = calibrate(model, samples, Settings(keep_state=keep_state, histograms=histograms))
    last, states = None, []
    for sample in samples:
        found, last = lstm_cell_states(model.main.ops[0], sample, last if keep_state else None)
        states.append(found)
    assert stats.tensors["c"].low.value == np.min(states)
    assert stats.tensors["c"].high.value == np.max(states)
    assert stats.tensors["c"].runs == 6


def one_step() -> Model:
    """The recurrent layer, one step in each run."""
    model = recurrent()
    for tensor in (*model.main.inputs, *model.main.outputs, model.main.tensor("y")):
        tensor.shape = (1, 1, 2)
    return model


def unassigned() -> Model:
    """A variable that is initialized and read, and never changes."""
    model = counter()
    model.main.ops = [op for op in model.main.ops if op.kind != "ASSIGN_VARIABLE"]
    return model


def assigned_first() -> Model:
    """A variable that every run overwrites before it reads it."""
    model = counter()
    model.main.ops.sort(key=lambda op: op.kind == "ADD")
    *start, read, assign, add = model.main.ops
    add.inputs = [add.inputs[0], read.outputs[0]]
    assign.inputs = [assign.inputs[0], model.main.inputs[0]]
    model.main.ops = [*start, assign, read, add]
    return model


KINDS = {
    "a variable": (counter(), True, True),
    "one step": (one_step(), True, True),
    "several steps": (recurrent(), True, False),
    "a constant variable": (unassigned(), False, False),
    "a variable for one run": (assigned_first(), True, False),
    "none": (build.float_cnn(), False, False),
}


@pytest.mark.parametrize(("model", "remembers", "streams"), KINDS.values(), ids=KINDS)
def test_what_runs_step_by_step_is_kept_running(model, remembers, streams):
    assert (has_state(model.main), is_streaming(model.main)) == (remembers, streams)
    samples = sequences(model, 4)
    default, kept, reset = (calibrate(model, samples, Settings(keep_state=keep)) for keep in (None, True, False))
    assert exact(default) == exact(kept if streams else reset)
    assert (default.notes == (in_sequence_note(),)) == streams
    assert not kept.notes


def test_a_state_that_was_never_used_has_no_range():
    """Zero in every run, it would be given a scale of 1."""
    model = counter()
    (before,) = initial_reads(model.main)
    assert before.name == "before"
    for samples, keep in ((sequences(model, 5), False), (sequences(model, 1), True)):
        found = calibrate(model, samples, Settings(keep_state=keep))
        assert found.tensors.keys() == {"x"}  # y is their sum
        assert found.notes == (never_used("before"),)
        assert unknown_states(model, found) == ["before"]
    assert initial_reads(unassigned().main) == []
    assert initial_reads(assigned_first().main) == []


def test_a_stream_is_quantized_and_judged_as_it_runs():
    model, samples = streaming_net()
    for effort in ("quick", "standard", "high"):
        made = zeropoint.quantize(model, "int8", samples, effort=effort)
        assert made.notes[-1] == in_sequence_note()
        assert not made.warnings
        compared = zeropoint.compare(model, made.model, samples)
        assert compared.snr > 30
        assert compared.notes == ("the samples were run as one sequence: each run starts from the state of the last",)
    judged = next(trial.error for trial in made.steps if trial.kept and trial.error is not None)
    compared = zeropoint.compare(model, made.model, samples[:JUDGED])
    assert -10 * np.log10(judged) == pytest.approx(compared.snr, abs=1)
    assert zeropoint.doctor(model, samples, seconds=5).comparison.snr > 30


def test_the_note_on_sequences_names_what_can_be_written():
    assert "(settings=zeropoint.Settings(keep_state=False))" in in_sequence_note()
    assert zeropoint.Settings(keep_state=False) == Settings(keep_state=False)
    with speaking_of_options():
        assert "(--reset-state)" in in_sequence_note()


def test_a_state_without_a_range_stays_float():
    model, samples = streaming_net()
    made = zeropoint.quantize(model, "int8", samples, settings=Settings(keep_state=False))
    assert made.warnings == (never_used("before"),)
    assert "the range of 'before' is not known" in {s.reason for s in made.skipped}
    assert zeropoint.compare(model, made.model, samples).snr > 30
    stats = calibrate(model, samples, Settings(keep_state=False))
    assert zeropoint.quantize(model, stats=stats).warnings == (never_used("before"),)
    given = Ranges({"before": Range(-1.0, 1.0, "given")})
    assert not zeropoint.quantize(model, stats=stats, ranges=given).warnings


def streaming_net() -> tuple[Model, list[Array]]:
    """h = tanh(W x + 2 h), with h in a variable: far from zero but in the first run."""
    model = counter()
    for tensor in (*model.main.tensors, *model.graphs[1].tensors):
        if tensor.dtype is DType.FLOAT32 and not tensor.is_constant:
            tensor.shape = (1, 8)
    zeros = build.const("zeros", np.zeros((1, 8), np.float32))
    model.graphs[1].ops[1].inputs[1] = zeros
    model.graphs[1].tensors = [*(t for t in model.graphs[1].tensors if t.name != "zeros"), zeros]
    once, handle, read, add, assign = model.main.ops
    x, before, y = model.main.inputs[0], read.outputs[0], add.outputs[0]
    dense, scaled, h = build.act("dense", 1, 8), build.act("scaled", 1, 8), build.act("h", 1, 8)
    weights, two = build.const("weights", build.weights(8, 8)), build.const("two", np.float32([2.0]))
    add.inputs, assign.inputs = [dense, scaled], [assign.inputs[0], h]
    model.main.ops = [
        once,
        handle,
        read,
        build.op("FULLY_CONNECTED", [x, weights], dense, options="FullyConnectedOptions"),
        build.op("MUL", [before, two], scaled, options="MulOptions"),
        add,
        build.op("TANH", [y], h),
        assign,
    ]
    model.main.tensors += [dense, scaled, h, weights, two]
    model.main.outputs = [h]
    rng = np.random.default_rng(0)
    return model, [rng.normal(size=(1, 8)).astype(np.float32) for _ in range(40)]


def test_quantized_weights_are_not_replayed():
    model = lstm()
    weights = model.main.ops[0].inputs[2]
    model.main.ops[0].inputs[2] = build.const(weights.name, np.ones(weights.shape, np.int8))
    assert replays(CalibrationTask(model, model.main, Settings(), OPS)) == []


def test_states_that_callers_feed_back_are_inputs_that_look_like_outputs():
    net = Net()
    frame, state = net.input(1, 4), net.input(1, 3)
    model = net.model(net.dense(frame, normal(2, 4)), net("TANH", [state]))
    assert returned_states(model.main) == [(state, model.main.outputs[1])]
    filtering = Net()
    assert not returned_states(filtering.model(filtering("TANH", [filtering.input(1, 4)])).main)
