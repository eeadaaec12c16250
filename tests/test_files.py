"""Files are written whole or not at all."""

from __future__ import annotations

import pytest

from zeropoint.errors import OutputExists, ZeropointError
from zeropoint.files import refuse_existing, write_whole


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
