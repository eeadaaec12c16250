"""Files packed behind a model survive whatever is done with it, and the metadata that names them stays true."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import quantize
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidModel
from zeropoint.graph import Buffer, Model
from zeropoint.graph.edit import copy_model
from zeropoint.report.inspection import inspect
from zeropoint.runtime import Session
from zeropoint.tflite import load, metadata, save, to_bytes
from zeropoint.tflite.builder import OFFSET, Builder
from zeropoint.tflite.flatbuffer import File
from zeropoint.tflite.packed_files import PackedFile, packed_files

from .. import build
from .tables import put_table

FILES = {"labels.txt": b"cat\ndog\nPK\3\4 PK\5\6\n", "vocab/größe.txt": b"word " * 2000, "empty": b""}


def files(content: bytes) -> dict[str, bytes]:
    """What a zip reader finds, each checked by its checksum."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def appended(content: bytes, **options: int) -> bytes:
    """As TFLite Metadata does it: offsets count from the beginning of the file."""
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a", **options) as archive:
        archive.comment = b"packed"
        for name, data in FILES.items():
            archive.writestr(name, data)
    return file.getvalue()


def concatenated(content: bytes) -> bytes:
    """As `cat` does it: offsets count from the beginning of the archive."""
    return content + appended(b"")


PACKINGS = {
    "appended": appended,
    "compressed": lambda content: appended(content, compression=zipfile.ZIP_DEFLATED),
    "concatenated": concatenated,
    "padded": lambda content: appended(content + bytes(1000)),
}


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
def test_packed_files_survive_reading_and_writing(digits, pack, tmp_path):
    packed = pack(digits)
    model = load(packed)
    content = to_bytes(model)
    assert files(content) == files(packed) == FILES
    assert to_bytes(load(content)) == content
    assert content.startswith(to_bytes(load(digits)))
    assert packed_files(model) == [PackedFile(name, len(data)) for name, data in FILES.items()]
    # Strict readers take offsets as they are, without looking for the archive's beginning.
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            assert content[entry.header_offset :].startswith(b"PK\3\4")
    (end,) = struct.unpack_from("<I", content, content.rindex(b"PK\5\6") + 16)
    assert content[end:].startswith(b"PK\1\2")
    save(model, tmp_path / "model.tflite")
    assert files((tmp_path / "model.tflite").read_bytes()) == FILES


def test_the_archive_is_kept_byte_for_byte_where_it_does_not_move(digits):
    packed = appended(to_bytes(load(digits)))
    assert to_bytes(load(packed)) == packed


@pytest.mark.parametrize("mode", ["dynamic", "weights", "float16", "int8", "int16x8"])
def test_packed_files_survive_quantization(digits, mode):
    data = None if mode in ("dynamic", "weights", "float16") else [np.zeros((1, 8, 8, 1), np.float32)]
    result = zeropoint.quantize(load(appended(digits)), mode, data=data, effort="quick", min_elements=0)
    content = to_bytes(result.model)
    assert files(content) == FILES
    Session(content)


def test_packed_files_survive_edits(digits):
    assert files(to_bytes(copy_model(load(appended(digits))))) == FILES


def test_inspect_lists_them(digits, tmp_path, run):
    (tmp_path / "m.tflite").write_bytes(appended(digits))
    assert [file.name for file in inspect(load(appended(digits))).packed_files] == list(FILES)
    code, out, _ = run("inspect", tmp_path / "m.tflite", "--summary")
    assert code == 0
    assert "Packed files  labels.txt 18 B, vocab/größe.txt 10.0 kB, empty 0 B" in out


def test_bytes_that_only_look_like_an_archive_are_none(digits):
    for tail in (
        b"PK\5\6",
        b"PK\5\6" + bytes(18),
        b"PK\5\6" + b"\1" * 18,
        b"PK\1\2" + bytes(42) + b"PK\5\6" + bytes(18),
    ):
        assert load(digits + tail).main.ops


def test_a_damaged_archive_is_no_crash(digits):
    """Any byte changed, any length: a model with or without packed files, or our error; what is there is written."""
    content = appended(digits)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content[: rng.integers(len(digits), len(content) + 1)])
        for at in rng.integers(len(digits), len(damaged) + 1, 3):
            damaged[at : at + 1] = rng.bytes(1)
        try:
            model = load(bytes(damaged))
        except InvalidModel:
            continue
        assert packed_files(load(to_bytes(model))) == packed_files(model)


def test_an_archive_that_cannot_be_kept_is_refused(digits):
    content = bytearray(appended(digits))
    struct.pack_into("<I", content, content.rindex(b"PK\5\6") + 16, 0xFFFFFFFF)
    with pytest.raises(InvalidModel, match="zip64 archive, which cannot be kept"):
        load(bytes(content))


# Metadata.


def described(model: Model, *, shared: bool = False) -> bytes:
    """TFLite Metadata for a model with one input and one output: value ranges and a normalization."""
    builder = Builder()

    def tensor(low: list[float], high: list[float], *units: int) -> int:
        ends = [builder.numbers(np.array(end, np.float32)) for end in (high, low)]
        stats = put_table(builder, *((slot, OFFSET, place) for slot, place in enumerate(ends)))
        return put_table(builder, (4, OFFSET, builder.tables(units) if units else None), (5, OFFSET, stats))

    options = put_table(
        builder, *((slot, OFFSET, builder.numbers(np.array([v], np.float32))) for slot, v in ((0, 2), (1, 4)))
    )
    unit = put_table(builder, (0, "B", 1), (1, OFFSET, options))
    inputs = builder.tables([tensor([-1.0], [1.0], unit)])
    outputs = builder.tables([tensor([-1.0] if shared else [0.0], [1.0] if shared else [0.5])])
    graph = put_table(builder, (2, OFFSET, inputs), (3, OFFSET, outputs))
    content = bytes(builder.finish(put_table(builder, (3, OFFSET, builder.tables([graph]))), b"M001"))
    model.metadata.append((metadata.NAME, Buffer(np.frombuffer(content, np.uint8))))
    return content


def ranges(model: Model) -> list[tuple[float, float]]:
    """What the metadata says of the least and greatest values of input and output."""
    content = dict(model.metadata)[metadata.NAME]
    assert content is not None
    (graph,) = File(content.raw.tobytes()).root().tables(3) or ()
    stats = [t.table(5) for slot in (2, 3) for t in graph.tables(slot) or ()]
    return [(s.numbers(1, np.float32)[0], s.numbers(0, np.float32)[0]) for s in stats if s]  # type: ignore[index]


SAMPLES = [np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 4, 4, 1)]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float32"])
def test_value_ranges_are_those_of_the_types_that_callers_see(dtype):
    model = build.float_cnn()
    before = described(model)
    made = zeropoint.quantize(model, data=SAMPLES, effort="quick", input_type=dtype, output_type=dtype).model
    params = [t.params for t in (*made.main.inputs, *made.main.outputs)]
    if dtype == "float32":
        assert ranges(made) == [(-1.0, 1.0), (0.0, 0.5)]
        assert to_bytes(made).count(before) == 1
        return
    expected = [tuple(quantize(np.float32(ends), p)) for ends, p in zip(ranges(model), params, strict=True) if p]
    assert ranges(made) == expected
    least = DType.parse(dtype).min
    assert expected[1] == (least, least + 128)  # scores have the scale 1 / 256
    assert ranges(model) == [(-1.0, 1.0), (0.0, 0.5)]  # the float model keeps its own


def test_a_range_stored_once_for_two_types_stays_as_it_is():
    model = build.float_cnn()
    before = described(model, shared=True)
    made = zeropoint.quantize(model, data=SAMPLES, effort="quick", input_type="int8", output_type="int8").model
    assert to_bytes(made).count(before) == 1


@pytest.mark.parametrize("damage", [b"", b"M002", b"\xff" * 40], ids=["short", "identifier", "offsets"])
def test_metadata_that_cannot_be_read_is_carried(damage):
    model = build.float_cnn()
    described(model)
    ((name, buffer),) = model.metadata
    assert buffer is not None
    content = buffer.raw.tobytes()
    content = content[:6] if not damage else content[:4] + damage + content[4 + len(damage) :]
    if len(damage) > 4:
        content = content[:4] + b"M001" + content[8:]
    model.metadata[0] = (name, Buffer(np.frombuffer(content, np.uint8)))
    made = zeropoint.quantize(model, data=SAMPLES, effort="quick", input_type="int8").model
    (_, kept), _ = made.metadata
    assert kept is not None
    assert kept.raw.tobytes() == content
