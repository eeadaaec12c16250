"""Golden vectors: the files say what the trace says, and the same trace gives the same files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import zeropoint
from zeropoint.demo import digits as digits_data
from zeropoint.errors import InvalidRecipe, OutputExists
from zeropoint.simulation.trace import SimulationOptions, Trace, simulate_all
from zeropoint.simulation.vectors import export_vectors


@pytest.fixture(scope="module")
def traces(digits) -> list[Trace]:
    images = [image[None] for image in digits_data()["calibration"][:20]]
    model = zeropoint.quantize(digits, data=images, effort="quick", weight_bits=4).model
    return list(simulate_all(model, images[:2], SimulationOptions()))


def read_hex(text: str, dtype: str, shape: list[int]) -> np.ndarray:
    bits = int(dtype.removeprefix("u").removeprefix("int")) if "int" in dtype else 32
    numbers = np.array([int(line, 16) for line in text.split()], np.int64)
    if dtype == "float32":
        return numbers.astype(np.uint32).view(np.float32).reshape(shape)
    signed = np.where(numbers >= 1 << (bits - 1), numbers - (1 << bits), numbers)
    return (numbers if dtype.startswith("u") else signed).reshape(shape)


@pytest.mark.parametrize("format", ["npy", "hex"])
def test_files_hold_what_the_trace_holds(traces, tmp_path, format):
    files = export_vectors(traces, tmp_path / "v", format=format)
    index = json.loads((tmp_path / "v/index.json").read_text())
    assert index["samples"] == len(traces)
    assert sorted(files) == sorted(path.name for path in (tmp_path / "v").iterdir())
    for tensor in index["tensors"]:
        for number, trace in enumerate(traces):
            path = tmp_path / "v" / tensor["file"].replace("{n}", str(number))
            value = trace.value(trace.entry.graph.tensors[tensor["id"]])
            read = np.load(path) if format == "npy" else read_hex(path.read_text(), tensor["type"], tensor["shape"])
            np.testing.assert_array_equal(read, value)
    convolution = next(op for op in index["ops"] if op["kind"] == "CONV_2D")
    assert len(convolution["arithmetic"]["multiplier"]) == traces[0].entry.graph.ops[1].outputs[0].shape[-1]


def test_kinds_narrow_it_and_the_same_trace_gives_the_same_bytes(traces, tmp_path):
    for folder in ("a", "b"):
        export_vectors(traces[:1], tmp_path / folder, ops=["ADD"])
    index = json.loads((tmp_path / "a/index.json").read_text())
    assert [op["kind"] for op in index["ops"]] == ["ADD"]
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / f).iterdir()} for f in "ab")
    assert first == second
    assert len(first) == 4


def test_nothing_is_replaced_unasked(traces, tmp_path):
    export_vectors(traces[:1], tmp_path / "v", ops=["ADD"])
    with pytest.raises(OutputExists):
        export_vectors(traces[:1], tmp_path / "v", ops=["ADD"])
    export_vectors(traces[:1], tmp_path / "v", ops=["ADD"], overwrite=True)


def test_kinds_that_the_model_lacks(traces, tmp_path):
    with pytest.raises(InvalidRecipe, match=r"the model has no LSTM; it has QUANTIZE, CONV_2D"):
        export_vectors(traces, tmp_path / "v", ops=["LSTM"])
    assert not (tmp_path / "v").exists()
