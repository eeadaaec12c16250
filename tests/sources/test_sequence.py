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


def integrator() -> Model:
    """A state that holds small numbers beside large ones, as DTLN's does: h in [-1, 1] and c in hundreds.

    c' = 0.98 c + 10 tanh(x + h), h' = tanh(W c' / 100); the output is h'.
    """
    rng = np.random.default_rng(3)
    x, both = act("frame", 1, FRAME), act("state_in", 1, 2 * FRAME)
    h, c, faded, total, new, grown, sums = (act(n, 1, FRAME) for n in ("h", "c", "fade", "x+h", "new", "add", "sums"))
    cell, y, after = act("cell", 1, FRAME), act("enhanced", 1, FRAME), act("state_out", 1, 2 * FRAME)
    axis, mixing = const("axis", np.array(1, np.int32)), (rng.normal(size=(FRAME, FRAME)) / 100).astype(np.float32)

    def times(source, factor: float, made):
        return op("MUL", [source, const(f"{made.name}/by", np.float32([factor]))], made, options="MulOptions")

    main = graph(
        "main",
        [x, both],
        [y, after],
        op("SPLIT", [axis, both], h, c, options="SplitOptions", numSplits=2),
        times(c, 0.98, faded),
        op("ADD", [x, h], total, options="AddOptions"),
        op("TANH", [total], new),
        times(new, 10, grown),
        op("ADD", [faded, grown], cell, options="AddOptions"),
        op("FULLY_CONNECTED", [cell, const("w", mixing), None], sums, options="FullyConnectedOptions"),
        op("TANH", [sums], y),
        op("CONCATENATION", [y, cell], after, options="ConcatenationOptions", axis=1),
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
        np.full((1, CELLS), t.params.zero_point, t.dtype.storage) if (t := m.main.inputs[1]).params else s
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


@pytest.mark.parametrize("ends", ["int8", "uint8"])
def test_a_state_that_the_model_has_in_16_bits_keeps_them_at_the_ends(ends: str) -> None:
    """One scale of 8 bits leaves nothing of small numbers beside large ones, and callers only hand the state back."""
    sequence = {"state_in": "state_out"}
    result = zeropoint.quantize(
        integrator(), data=frames(250), sequence=sequence, input_type=ends, output_type=ends, target="integer"
    )
    (frame, state), (enhanced, after) = result.model.main.inputs, result.model.main.outputs
    assert [t.dtype.label for t in (frame, enhanced, state, after)] == [ends, ends, "int16", "int16"]
    assert state.params == after.params
    assert any("'state_in'" in note and "int16" in note for note in result.notes)
    assert result.verdict.snr is not None
    assert result.verdict.snr > 20


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_every_pair_of_types_at_the_ends_runs_and_states_have_one(mode: str) -> None:
    """LiteRT has no kernel between int16 and uint8: there are two conversions, then."""
    given = frames(60)
    for ends in itertools.product(["float32", "int8", "uint8", "int16"], repeat=2):
        types = dict(zip(("input_type", "output_type"), ends, strict=True))
        result = zeropoint.quantize(enhancer(1), mode, data=given, sequence=True, effort="quick", **types)
        (frame, state), (enhanced, after) = result.model.main.inputs, result.model.main.outputs
        assert (frame.dtype.label, enhanced.dtype.label) == ends
        assert "float32" in ends or state.params == after.params
        assert result.verdict.snr is not None
        assert result.verdict.snr > 30


def test_what_looks_like_a_state_is_told_where_8_bits_would_lose_it() -> None:
    whole = list(sequence_of(integrator(), frames(250), True)())
    result = zeropoint.quantize(
        integrator(), data=whole, input_type="int8", output_type="int8", target="integer", effort="standard"
    )
    assert {t.dtype.label for t in result.model.main.inputs} == {"int8"}
    assert any("may be a state" in note and "sequence=" in note for note in result.notes)


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


def test_samples_that_hold_the_states_are_refused_by_that_reason() -> None:
    held = [{"frame": f, "state_in": np.zeros((1, CELLS), np.float32)} for f in frames(3)]
    with pytest.raises(InvalidRecipe, match=r"hold every input that looks like a state \('state_in'\)"):
        zeropoint.quantize(enhancer(1), data=held, sequence=True)


def test_the_command_line_takes_frames(tmp_path: Path, run) -> None:
    path, out = tmp_path / "m.tflite", tmp_path / "out.tflite"
    zeropoint.save(enhancer(1), path)
    np.savez(tmp_path / "frames.npz", frame=np.concatenate(frames(40)))
    line = ["quantize", str(path), "-o", str(out), "--data", str(tmp_path / "frames.npz"), "--effort", "quick"]
    for states in ("auto", "state_in=state_out"):
        assert run(*line, "--sequence", states, "--overwrite")[0] == 0
    assert run(*line, "--sequence", "nonsense", "--overwrite")[0] == 2
