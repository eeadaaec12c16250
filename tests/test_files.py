"""Files are written whole or not at all, and what cannot be read is refused in words."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from zeropoint.errors import CannotWrite, InvalidModel, InvalidStats, OutputExists, ZeropointError
from zeropoint.files import reading, refuse_existing, write_whole


@pytest.mark.parametrize("pieces", [[], [b""], [b"abc"], [b"a", memoryview(b"bc"), b"d" * 100_000]], ids=len)
def test_a_file_holds_its_pieces(tmp_path, pieces):
    path = tmp_path / "file"
    assert write_whole(path, pieces) == path.stat().st_size
    assert path.read_bytes() == b"".join(pieces)
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "there").write_bytes(b"")
    for name, overwrite, error in (
        ("there", False, OutputExists),
        (".", True, CannotWrite),
        ("no/file", True, CannotWrite),
    ):
        with pytest.raises(error):
            refuse_existing(tmp_path / name, overwrite)
    refuse_existing(tmp_path / "there", True)
    refuse_existing(tmp_path / "new", False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path, overwrite):
    path = tmp_path / ("n" * 255)
    write_whole(path, [b"abc"], overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_of_several_writers_one_wins(tmp_path, monkeypatch, links):
    """All have seen that there is no file; the first to finish has it, and the others say so."""
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path, together = tmp_path / "file", threading.Barrier(8)

    def pieces(number: int) -> Iterator[bytes]:
        together.wait()
        yield bytes([number]) * 1000

    def write(number: int) -> int | None:
        try:
            write_whole(path, pieces(number))
        except OutputExists:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (winner,) = (number for number in pool.map(write, range(8)) if number is not None)
    assert path.read_bytes() == bytes([winner]) * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path):
    def pieces() -> Iterator[bytes]:
        yield b"abc"
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", pieces())
    assert list(tmp_path.iterdir()) == []


def no_links(*arguments: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_name_that_was_claimed_is_given_up_if_the_file_cannot_be_moved(tmp_path, monkeypatch):
    def broken(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_links)
        patched.setattr("pathlib.Path.replace", broken)
        with pytest.raises(ZeropointError, match="input/output error"):
            write_whole(tmp_path / "file", [b"abc"])
    assert list(tmp_path.iterdir()) == []


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
