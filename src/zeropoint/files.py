"""Reading and writing files: whole or not at all, nothing overwritten unless asked."""

from __future__ import annotations

import math
import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import CannotWrite, OutputExists, ZeropointError, argument

if TYPE_CHECKING:
    from .dtypes import Array

PathLike = str | os.PathLike[str]


def describe_os_error(error: OSError) -> str:
    """What the operating system said, without its number."""
    return (error.strerror or str(error)).lower()


@contextmanager
def reading(path: PathLike, content: str, refusal: type[ZeropointError]) -> Iterator[None]:
    """Raise a `refusal` if the file cannot be read or, as whatever parses it finds, is not `content`.

    What is neither a file nor a folder is not even opened: a device may have no end, a pipe no writer.
    """
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise refusal(f"{path} is not a regular file; write what it gives into one, and give that")
    try:
        yield
    except (ZeropointError, MemoryError):
        raise
    except TooLarge as error:
        raise refusal(f"{path} {error}") from None
    except OSError as error:
        raise refusal(f"cannot read {path}: {describe_os_error(error)}") from None
    except Exception as error:  # parsers raise whatever they come across
        raise refusal(f"{path} is not {content}: {str(error) or type(error).__name__}") from None


class TooLarge(Exception):
    """A file unpacks to more than is read. `reading` puts its name in front of that."""


def read_arrays(file: BinaryIO, most: int, advice: str = "") -> dict[str, Array]:
    """The arrays of an `.npz` by name, if they take at most so many bytes. Objects, which could run code, are refused.

    A zip archive says beforehand what each of its files unpacks to, and its reader gives no more than that.
    """
    import numpy as np  # here, because help is quick without it

    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > most:
            raise TooLarge(f"unpacks to {size / 2**30:,.1f} GB, and at most {most / 2**30:g} GB are read{advice}")
        arrays = {}
        for entry in archive.infolist():
            with archive.open(entry) as content:
                version = np.lib.format.read_magic(content)
                read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
                shape, _, dtype = read_header(content)
            if math.prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError(f"{entry.filename} is shorter than it says")
            with archive.open(entry) as content:
                arrays[entry.filename.removesuffix(".npy")] = np.lib.format.read_array(content, allow_pickle=False)
        return arrays


def refuse_existing(path: PathLike, overwrite: bool) -> None:
    """Raise before any work is done if `path` could not be written in the end."""
    target = Path(path)
    if target.is_dir():
        raise CannotWrite(f"cannot write {target}: it is a folder; give the name of a file")
    if target.exists() and not target.is_file():
        raise CannotWrite(f"cannot write {target}: it is not a regular file; give another name")
    if os.path.lexists(target) and not overwrite:  # links that lead nowhere are in the way, too
        raise OutputExists(
            f"{target} exists already; choose another name, or allow it with {argument('overwrite', True)}"
        )
    if not target.parent.is_dir():
        raise CannotWrite(f"cannot write {target}: there is no folder {target.parent}; make it, or choose another one")
    if not os.access(target.parent, os.W_OK):
        raise CannotWrite(f"cannot write {target}: no permission to write in {target.parent}; choose another folder")


def write_whole(path: PathLike, chunks: Iterable[bytes | memoryview], *, overwrite: bool = False) -> int:
    """Write `chunks` to `path` in one step, so that a reader sees the old file or the new one; return the size."""
    refuse_existing(path, overwrite)
    target = Path(path)
    partial = target.with_name(f".{secrets.token_hex(8)}.part")  # a name that is never too long
    size = 0
    try:
        with partial.open("xb") as file:
            for chunk in chunks:
                size += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            partial.replace(target)
        else:
            _rename_to_new(partial, target)
    except FileExistsError:  # since this began; the first one wins
        refuse_existing(path, overwrite)
        raise
    except OSError as error:
        raise CannotWrite(f"cannot write {target}: {describe_os_error(error)}") from None
    finally:
        try:  # noqa: SIM105  # anything in front of the call would be a place for an interrupt
            os.unlink(partial)  # noqa: PTH108
        except FileNotFoundError:  # renamed, or never made
            pass
    return size


def _rename_to_new(partial: Path, target: Path) -> None:
    """Raise FileExistsError rather than replace another writer's file."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: claim the name
        target.touch(exist_ok=False)
        try:
            partial.replace(target)
        except BaseException:
            target.unlink()
            raise
