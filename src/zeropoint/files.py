"""Reading and writing files: written completely or not at all, and never overwritten unless requested."""

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
    """Return the operating system's message without the error number."""
    return (error.strerror or str(error)).lower()


@contextmanager
def reading(path: PathLike, content: str, refusal: type[ZeropointError]) -> Iterator[None]:
    """Raise `refusal` if the file cannot be read, or if parsing it fails because it is not `content`.

    Anything but a regular file or a folder is not even opened: a device may be endless, and a pipe may have no writer.
    """
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise refusal(f"{path} is not a regular file; copy its content into one and give that")
    try:
        yield
    except (ZeropointError, MemoryError):
        raise
    except (TooLarge, HoldsObjects) as error:
        raise refusal(f"{path} {error}") from None
    except OSError as error:
        raise refusal(f"cannot read {path}: {describe_os_error(error)}") from None
    except Exception as error:  # parsers may raise anything
        raise refusal(f"{path} is not {content}: {str(error) or type(error).__name__}") from None


class TooLarge(Exception):
    """A file unpacks to more than the limit. `reading` adds the file's name."""


class HoldsObjects(Exception):
    """A file with Python objects in place of numbers. `reading` adds the file's name."""


def read_arrays(file: BinaryIO, most: int, advice: str = "") -> dict[str, Array]:
    """Return the arrays of an `.npz` by name, up to `most` bytes in total. Objects, which could run code, are refused.

    A zip archive states the unpacked size of each member, and the zip reader never returns more than that.
    """
    import numpy as np  # imported here, so that --help stays fast

    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > most:
            raise TooLarge(f"unpacks to {size / 2**30:,.1f} GB, and the limit is {most / 2**30:g} GB{advice}")
        arrays = {}
        for entry in archive.infolist():
            with archive.open(entry) as content:
                version = np.lib.format.read_magic(content)
                read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
                shape, _, dtype = read_header(content)
            name = entry.filename.removesuffix(".npy")
            if dtype.hasobject:
                raise HoldsObjects(
                    f"holds Python objects in '{name}'; store numbers, in an array without None or lists"
                )
            if math.prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError(f"{entry.filename} is shorter than it says")
            with archive.open(entry) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
        return arrays


def make_folder(path: PathLike) -> None:
    """Create a folder for output files, unless it exists."""
    try:
        Path(path).mkdir(exist_ok=True)
    except OSError as error:
        raise ZeropointError(f"cannot write to the folder {path}: {describe_os_error(error)}") from None


def refuse_existing(path: PathLike, overwrite: bool) -> None:
    """Raise before any work is done if `path` could not be written at the end."""
    target = Path(path)
    if target.is_dir():
        raise CannotWrite(f"cannot write {target}: it is a folder; give the name of a file")
    if target.exists() and not target.is_file():
        raise CannotWrite(f"cannot write {target}: it is not a regular file; give another name")
    if os.path.lexists(target) and not overwrite:  # a dangling link is in the way, too
        raise OutputExists(
            f"{target} exists already; choose another name, or allow it with {argument('overwrite', True)}"
        )
    if not target.parent.is_dir():
        raise CannotWrite(f"cannot write {target}: there is no folder {target.parent}; make it, or choose another one")
    if not os.access(target.parent, os.W_OK):
        raise CannotWrite(f"cannot write {target}: no permission to write in {target.parent}; choose another folder")


def write_whole(path: PathLike, chunks: Iterable[bytes | memoryview], *, overwrite: bool = False) -> int:
    """Write `chunks` to `path` atomically, so that readers see the old file or the new one; return the size."""
    refuse_existing(path, overwrite)
    target = Path(path)
    partial = target.with_name(f".{secrets.token_hex(8)}.part")  # a fixed name, never too long
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
    except FileExistsError:  # created meanwhile; the first writer wins
        refuse_existing(path, overwrite)
        raise
    except OSError as error:
        raise CannotWrite(f"cannot write {target}: {describe_os_error(error)}") from None
    finally:
        try:  # noqa: SIM105  # anything in front of the call would be a place for an interrupt
            os.unlink(partial)  # noqa: PTH108
        except FileNotFoundError:  # renamed, or never created
            pass
    return size


def _rename_to_new(partial: Path, target: Path) -> None:
    """Rename, raising FileExistsError rather than replacing another writer's file."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: claim the name
        target.touch(exist_ok=False)
        try:
            partial.replace(target)
        except BaseException:
            target.unlink()
            raise
