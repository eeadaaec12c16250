"""Files are written whole or not at all, and what cannot be read is refused in words."""

from __future__ import annotations

import pytest

from zeropoint.errors import InvalidModel, InvalidStats, OutputExists, ZeropointError
from zeropoint.files import reading, refuse_existing, write_whole


@pytest.mark.parametrize("pieces", [[], [b""], [b"abc"], [b"a", memoryview(b"bc"), b"d" * 100_000]], ids=len)
def test_a_file_holds_its_pieces(tmp_path, pieces):
    path = tmp_path / "file"
    assert write_whole(path, pieces) == path.stat().st_size
    assert path.read_bytes() == b"".join(pieces)
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "there").write_bytes(b"")
    for name, overwrite in (("there", False), (".", True), ("no/file", True)):
        with pytest.raises(OutputExists):
            refuse_existing(tmp_path / name, overwrite)
    refuse_existing(tmp_path / "there", True)
    refuse_existing(tmp_path / "new", False)


@pytest.mark.parametrize("step", ["pathlib.Path.open", "os.fsync", "pathlib.Path.replace"])
def test_a_failing_disk_leaves_what_was_there(tmp_path, monkeypatch, step):
    def broken(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "file"
    path.write_bytes(b"precious")
    with monkeypatch.context() as patched:
        patched.setattr(step, broken)
        with pytest.raises(ZeropointError, match=r"cannot write .*file: input/output error"):
            write_whole(path, [b"abc"], overwrite=True)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"precious"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(2, "No such file or directory"), "cannot read x.json: no such file or directory"),
        (ValueError("line 1"), "x.json is not JSON: line 1"),
        (RecursionError(), "x.json is not JSON: RecursionError"),
    ],
)
def test_what_cannot_be_read_is_refused(error, words):
    with pytest.raises(InvalidStats) as refused, reading("x.json", "JSON", InvalidStats):
        raise error
    assert str(refused.value) == words


def test_a_refusal_while_reading_passes_unchanged():
    with pytest.raises(InvalidModel, match="our own words"), reading("x.json", "JSON", InvalidStats):
        raise InvalidModel("our own words")
