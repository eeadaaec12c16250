"""Models that remember: every sample starts anew unless asked otherwise, and hidden states are computed again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from zeropoint.calibration import Settings, calibrate
from zeropoint.calibration.inner_tensors import lstm_cell_states, replays
from zeropoint.calibration.task import CalibrationTask
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Tensor
from zeropoint.ops import OPS
from zeropoint.runtime import Session

from .. import build
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
    """UNIDIRECTIONAL_SEQUENCE_LSTM: two sequences of three steps of four values, five cells."""
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
def test_every_sample_starts_anew(model, histograms):
    samples = sequences(model, 9)
    settings = Settings(histograms=histograms)
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
    assert calibrate(model, samples).tensors["y"].high.value == np.max(samples)


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


def test_quantized_weights_are_not_replayed():
    model = lstm()
    weights = model.main.ops[0].inputs[2]
    model.main.ops[0].inputs[2] = build.const(weights.name, np.ones(weights.shape, np.int8))
    assert replays(CalibrationTask(model, model.main, Settings(), OPS)) == []
