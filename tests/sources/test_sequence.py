"""Frames in a row, with states that the model returns and is given again."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from tests.build import act, const, graph, op
from zeropoint.dtypes import Array
from zeropoint.errors import InvalidRecipe
from zeropoint.graph import Model
from zeropoint.runtime import Session
from zeropoint.sources.ports import entry
from zeropoint.sources.sequence import find_states, sequence_of

FRAME, CELLS = 8, 12


def enhancer(seed: int) -> Model:
    """One stage of an enhancer of the kind of DTLN: a gated recurrent cell whose state the caller carries, and a mask.

    h' = z h + (1 - z) tanh(W [x, h]), z = sigmoid(V [x, h]); the output is x * sigmoid(U h').
    """
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> Array:
        return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)

    x, h, both = act("frame", 1, FRAME), act("state_in", 1, CELLS), act("both", 1, FRAME + CELLS)
    names = ("gate_sum", "gate", "new_sum", "new", "difference", "kept", "state_out")
    gate_sum, gate, new_sum, new, difference, kept, state = (act(n, 1, CELLS) for n in names)
    mask_sum, mask, y = (act(n, 1, FRAME) for n in ("mask_sum", "mask", "enhanced"))

    def dense(source, made, size: int):
        inputs = [
            source,
            const(f"{made.name}/w", weights(made.shape[1], size)),
            const(f"{made.name}/b", weights(made.shape[1])),
        ]
        return op("FULLY_CONNECTED", inputs, made, options="FullyConnectedOptions")

    main = graph(
        "main",
        [x, h],
        [y, state],
        op("CONCATENATION", [x, h], both, options="ConcatenationOptions", axis=1),
        dense(both, gate_sum, FRAME + CELLS),
        op("LOGISTIC", [gate_sum], gate),
        dense(both, new_sum, FRAME + CELLS),
        op("TANH", [new_sum], new),
        op("SUB", [h, new], difference, options="SubOptions"),
        op("MUL", [gate, difference], kept, options="MulOptions"),
        op("ADD", [kept, new], state, options="AddOptions"),
        dense(state, mask_sum, CELLS),
        op("LOGISTIC", [mask_sum], mask),
        op("MUL", [x, mask], y, options="MulOptions"),
    )  # fmt: skip
    return Model([main])


def frames(count: int) -> list[Array]:
    """A slow tone in noise."""
    rng = np.random.default_rng(0)
    times = np.arange(count * FRAME).reshape(count, 1, FRAME)
    return list((np.sin(times / 40) + 0.3 * rng.normal(size=times.shape)).astype(np.float32))


def carried(models: list[Model], sequence: list[Array]) -> Array:
    """The signal through all stages, each with its own state; integers are fed back as they are."""
    sessions, states = [Session(m) for m in models], [np.zeros((1, CELLS), np.float32) for _ in models]
    states = [
        np.full((1, CELLS), t.params.zero_point, np.int8) if (t := m.main.inputs[1]).params else s
        for m, s in zip(models, states, strict=True)
    ]
    made = []
    for frame in sequence:
        for k, (session, model) in enumerate(zip(sessions, models, strict=True)):
            source, result = model.main.inputs[0].params, model.main.outputs[0].params
            if source is not None:
                frame = np.clip(np.rint(frame / source.scale) + source.zero_point, -128, 127).astype(np.int8)
            frame, states[k] = session.run([frame, states[k]])
            frame = frame if result is None else ((frame.astype(np.float32) - result.zero_point) * result.scale)
        made.append(frame)
    return np.concatenate(made).reshape(-1)


def snr(wanted: Array, found: Array) -> float:
    return float(10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum()))


def clean(count: int) -> Array:
    return np.sin(np.arange(count * FRAME) / 40).astype(np.float32)


@pytest.mark.parametrize("ends", ["float32", "int8"])
def test_two_stages_in_int8_enhance_ten_seconds_as_float_does(ends: str) -> None:
    """1,250 frames of 8 ms; within 1 dB of float, as far as the clean signal is concerned."""
    stages, given = [enhancer(1), enhancer(2)], frames(1250)
    between, made = given[:256], []
    for stage in stages:
        result = zeropoint.quantize(
            stage, data=between, sequence=True, target="integer", input_type=ends, output_type=ends, effort="quick"
        )
        made.append(result.model)
        between = list(np.split(carried([stage], between), 256))
        between = [frame.reshape(1, FRAME) for frame in between]
    exact, found = carried(stages, given), carried(made, given)
    float_snr, integer_snr = (
        snr(clean(1250), y * float(y @ clean(1250)) / float(y @ y)) for y in (exact, found)
    )  # fmt: skip
    assert abs(float_snr - integer_snr) < 1
    assert snr(exact, found) > 20


def test_a_state_has_one_scale_on_both_sides() -> None:
    for effort in ("quick", "standard"):
        model = zeropoint.quantize(
            enhancer(1), data=frames(100), sequence=True, input_type="int8", output_type="int8", effort=effort
        ).model
        assert model.main.inputs[1].params == model.main.outputs[1].params


def test_states_are_what_the_model_returned_for_the_frame_before() -> None:
    model, given = enhancer(1), frames(20)
    whole = list(sequence_of(model, given, True)())
    assert [len(row) for row in whole] == [2] * 20
    assert not whole[0][1].any()
    session = Session(model)
    for row, after in itertools.pairwise(whole):
        np.testing.assert_array_equal(session.run(row)[1], after[1])


def test_statistics_are_those_of_the_whole_sequence() -> None:
    stats = zeropoint.calibrate(enhancer(1), frames(50), sequence={"state_in": "state_out"})
    seen = stats.tensors["state_in"]
    assert seen.count == 50 * CELLS
    assert seen.high.value > 0.1


def test_pairs_are_found_by_shape_and_then_by_name() -> None:
    x, a, b = act("frame", 1, 4), act("left_in", 1, 4), act("right_in", 1, 4)
    outs = [act(n, 1, 4) for n in ("result", "right_out", "left_out")]
    ops = [
        op("ADD", pair, made, options="AddOptions") for pair, made in zip(((a, b), (x, b), (x, a)), outs, strict=True)
    ]
    where = entry(Model([graph("main", [x, a, b], outs, *ops)]))
    assert {s.port.name: s.name for s in find_states(where, True)} == {"left_in": "left_out", "right_in": "right_out"}
    assert [s.port.name for s in find_states(where, True, given=["left_in"])] == ["right_in"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"state": "state_out"}, "no input 'state'; it has 'frame', 'state_in'"),
        ({"state_in": "state"}, "no output 'state'; it has 'enhanced', 'state_out'"),
        ({"state_in": "enhanced"}, "cannot be filled with the output 'enhanced'"),
    ],
)
def test_wrong_pairs_are_named(asked: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRecipe, match=told):
        zeropoint.quantize(enhancer(1), data=frames(3), sequence=asked)


def test_a_model_without_states_is_refused() -> None:
    x, y = act("x", 1, 4), act("y", 1, 4)
    with pytest.raises(InvalidRecipe, match="looks like a state"):
        zeropoint.quantize(Model([graph("main", [x], [y], op("TANH", [x], y))]), data=frames(2), sequence=True)


def test_the_command_line_takes_frames(tmp_path: Path, run) -> None:
    path, out = tmp_path / "m.tflite", tmp_path / "out.tflite"
    zeropoint.save(enhancer(1), path)
    np.savez(tmp_path / "frames.npz", frame=np.concatenate(frames(40)))
    line = ["quantize", str(path), "-o", str(out), "--data", str(tmp_path / "frames.npz"), "--effort", "quick"]
    for states in ("auto", "state_in=state_out"):
        assert run(*line, "--sequence", states, "--overwrite")[0] == 0
    assert run(*line, "--sequence", "nonsense", "--overwrite")[0] == 2
