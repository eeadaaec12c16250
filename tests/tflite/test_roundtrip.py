"""Reading and writing lose nothing, copy no weights, and leave whole files or none."""

from __future__ import annotations

import errno
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from zeropoint.dtypes import DType
from zeropoint.errors import CannotWrite, InvalidModel, OutputExists, UnsupportedOp, ZeropointError
from zeropoint.graph import BlockScales, Model, Signature
from zeropoint.graph.edit import copy_model, set_constant
from zeropoint.runtime import Kernels, Session
from zeropoint.tflite import load, save, to_bytes

from .. import build
from ..difference import difference
from .encodings import ENCODINGS, object_api

every_model = pytest.mark.parametrize("make", build.MODELS.values(), ids=build.MODELS.keys())


def outputs(content: bytes, kernels: Kernels) -> list[bytes]:
    """Two runs, so that state counts; twice the batch where the batch is free."""
    session = Session(content, kernels=kernels)
    if any(-1 in d["shape_signature"] for d in session.inputs):
        session.resize([(2, *d["shape"][1:]) for d in session.inputs])
    return [a.tobytes() for seed in (0, 1) for a in session.run(build.sample(session.inputs, seed))]


# Nothing is lost.


@every_model
def test_reading_undoes_writing(make):
    model = make()
    content = to_bytes(model)
    assert difference(model, load(content)) is None
    assert to_bytes(load(content)) == content


@every_model
def test_equal_models_give_equal_bytes(make):
    assert to_bytes(make()) == to_bytes(make()) == to_bytes(copy_model(make()))


@every_model
@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS.keys())
def test_another_encoding_is_the_same_model(make, encode):
    content = to_bytes(make())
    assert difference(load(content), load(encode(content))) is None


@pytest.mark.parametrize("kernels", ["delegate", "reference"])
@pytest.mark.parametrize("make", build.RUNNABLE.values(), ids=build.RUNNABLE.keys())
def test_litert_computes_the_same_bits(make, kernels):
    ours = to_bytes(make())
    theirs = object_api(ours)
    assert ours != theirs
    assert outputs(to_bytes(load(theirs)), kernels) == outputs(theirs, kernels)


@pytest.mark.parametrize("kernels", ["delegate", "reference"])
def test_a_file_of_the_converter_survives(digits, kernels):
    model = load(digits)
    content = to_bytes(model)
    assert difference(model, load(content)) is None
    assert to_bytes(load(content)) == content
    assert outputs(content, kernels) == outputs(digits, kernels)


@pytest.mark.parametrize("zeros", [-1, 0], ids=["stored as -1", "left alone"])
def test_missing_zero_points_of_blocks_stay_missing(zeros):
    model = build.blockwise()
    weights = model.main.tensor("w")
    details = weights.quantization.details
    record = details.record if zeros else details.record.replace(zeroPoints=0)
    weights.quantization = build.Quantization(details=BlockScales(record, details.scales, None))
    model.main.tensors.remove(details.zero_points)
    content = to_bytes(model)
    (stored,) = (q.details for t in _tables(content) if (q := t.quantization) and q.detailsType == 2)
    assert stored.zeroPoints == zeros
    assert difference(model, load(content)) is None


def _tables(content: bytes):
    from ai_edge_litert.schema_py_generated import ModelT

    return ModelT.InitFromPackedBuf(content).subgraphs[0].tensors


def test_signatures_name_graphs_and_tensors():
    model = load(to_bytes(build.branches()))
    assert [(s.key, s.graph.name) for s in model.signatures] == [("serving_default", "main"), ("just_add", "then")]
    assert all(isinstance(s, Signature) and list(s.inputs.values()) == s.graph.inputs for s in model.signatures)
    assert list(model.main.ops[0].graphs()) == model.graphs[1:]


def test_branches_by_the_dozen_are_graphs_too():
    """STABLEHLO_CASE holds a vector of subgraphs."""
    model = build.branches()
    call = model.main.ops[0]
    call.kind = "STABLEHLO_CASE"
    call.options = build.default_options("StablehloCaseOptions", branchSubgraphIndices=tuple(model.graphs[1:]))
    restored = load(to_bytes(model))
    assert list(restored.main.ops[0].graphs()) == restored.graphs[1:]
    assert difference(model, restored) is None


def test_an_unknown_op_is_carried_but_not_run():
    content = to_bytes(build.custom())
    with pytest.raises(UnsupportedOp):
        Session(content)


def test_the_native_interpreter_never_sees_what_the_reader_rejects(monkeypatch):
    def untouched(*args: object, **kwargs: object) -> None:
        pytest.fail("the file reached the interpreter")

    monkeypatch.setattr("ai_edge_litert.interpreter.Interpreter", untouched)
    content = to_bytes(build.float_cnn())
    with pytest.raises(InvalidModel):
        Session(content[: len(content) // 2])


# Constants.


@every_model
def test_loading_copies_no_weights(make):
    content = to_bytes(make())
    whole = np.frombuffer(content, np.uint8)
    for tensor in (t for g in load(content).graphs for t in g.tensors if t.buffer is not None):
        assert np.shares_memory(tensor.buffer.raw, whole)
        if tensor.data is not None and not tensor.dtype.is_packed:
            assert np.shares_memory(tensor.data, whole)
            assert not tensor.data.flags.writeable


def test_loading_a_path_copies_no_weights_either(digits, tmp_path, monkeypatch):
    path, read, contents = tmp_path / "model.tflite", np.fromfile, []
    path.write_bytes(digits)
    monkeypatch.setattr(np, "fromfile", lambda *given: contents.append(read(*given)) or contents[-1])
    constants = [t for t in load(path).main.tensors if t.is_constant]
    (content,) = contents
    assert len(constants) == 11
    assert all(np.shares_memory(t.data, content) and not t.data.flags.writeable for t in constants)


@every_model
def test_constants_lie_on_16_bytes(make):
    content = to_bytes(make())
    model, start = load(content), np.frombuffer(content, np.uint8).ctypes.data
    buffers = [t.buffer for g in model.graphs for t in g.tensors]
    buffers += [b for _, b in model.metadata] + (model.metadata_buffers or [])
    assert all((b.raw.ctypes.data - start) % 16 == 0 for b in buffers if b is not None)


def test_shared_bytes_are_stored_once():
    model = load(to_bytes(build.shared()))
    first, second, third = (model.main.tensor(name).buffer for name in "cde")
    assert first is second
    assert first is not third


def test_an_edit_is_in_the_file(digits):
    model = load(digits)
    bias = next(t for t in model.main.tensors if t.shape == (10,) and t.is_constant)
    set_constant(bias, np.zeros(10, np.float32), DType.FLOAT32)
    again = load(to_bytes(model))
    assert not again.main.tensor(bias.name).data.any()
    assert difference(load(digits), again) is not None


# Files.


@pytest.mark.parametrize("form", [str, Path, os.fspath], ids=["str", "Path", "fspath"])
def test_a_file_holds_the_bytes(tmp_path, form):
    model, path = build.float_cnn(), tmp_path / "model.tflite"
    size = save(model, form(path))
    assert path.read_bytes() == to_bytes(model)
    assert path.stat().st_size == size
    assert difference(load(form(path)), model) is None


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview], ids=lambda f: f.__name__)
def test_bytes_come_in_several_forms(digits, form):
    assert difference(load(form(digits)), load(digits)) is None


def test_nothing_is_overwritten_unless_asked(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(b"precious")
    with pytest.raises(OutputExists, match="exists already"):
        save(build.float_cnn(), path)
    assert path.read_bytes() == b"precious"
    save(build.float_cnn(), path, overwrite=True)
    assert path.read_bytes() == to_bytes(build.float_cnn())


@pytest.mark.parametrize("place", [".", "no/such/model.tflite"], ids=["folder", "no folder"])
def test_where_no_file_can_be_there_is_none(tmp_path, place):
    with pytest.raises(CannotWrite, match="cannot write"):
        save(build.float_cnn(), tmp_path / place, overwrite=True)
    assert list(tmp_path.iterdir()) == []


FAILURES = {
    "disk full": (OSError(errno.ENOSPC, "No space left on device"), ZeropointError),
    "interrupted": (KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.mark.parametrize("existing", [None, b"precious"], ids=["new", "existing"])
@pytest.mark.parametrize(("failure", "seen"), FAILURES.values(), ids=FAILURES.keys())
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, existing, failure, seen):
    from zeropoint.tflite import write

    def half(model: Model):
        yield b"TFL3" * 25
        raise failure

    path = tmp_path / "model.tflite"
    if existing is not None:
        path.write_bytes(existing)
    monkeypatch.setattr(write, "chunks", half)
    with pytest.raises(seen):
        save(build.float_cnn(), path, overwrite=True)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if existing is None else [existing])


def test_a_broken_graph_leaves_no_file(tmp_path):
    model = build.float_cnn()
    model.main.ops.reverse()
    with pytest.raises(InvalidModel):
        save(model, tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []


def test_a_zero_among_options_has_no_sign():
    """Files leave out what is the default, and 0 is that with either sign."""
    model = build.one_op("SOFTMAX", [build.act("x", 1, 3)], build.act("y", 1, 3), options="SoftmaxOptions", beta=-1.5)
    negative = to_bytes(model).replace(struct.pack("<f", -1.5), struct.pack("<f", -0.0))
    read = load(negative)
    assert math.copysign(1, read.main.ops[0].option("beta")) == 1
    assert load(to_bytes(read)).main.ops[0].options == read.main.ops[0].options
