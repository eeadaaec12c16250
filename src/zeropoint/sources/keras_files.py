"""Keras files: `.keras` (a zip archive) and `.h5`."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

from ..errors import ConversionFailed, InvalidModel, MissingExtra
from ..files import describe_os_error
from .conversion import Conversion, converting, first_relevant_line
from .tensorflow import require_tensorflow

SUFFIXES = (".keras", ".h5", ".hdf5")
HDF5_START = b"\x89HDF\r\n\x1a\n"


def read_keras_file(path: Path, conversion: Conversion) -> Any:
    """The Keras model in a file. Code that a file brings along is not run."""
    _require_readable(path)
    with converting("Keras", conversion):
        require_tensorflow("reading a Keras file")
        written_by = _version(path)
        keras = _library(path, written_by)
        try:
            # Lambda layers hold code; running that is for whoever trusts the file.
            return keras.models.load_model(str(path), compile=False, safe_mode=True)
        except Exception as error:
            origin = f"written by Keras {written_by}, read by" if written_by else "read by"
            raise ConversionFailed(
                f"cannot read {path} ({origin} {keras.__name__} {keras.__version__}): {first_relevant_line(error)}",
                "  load it in Python, with the Keras that wrote it and your own classes, and give the model itself",
            ) from error


def _require_readable(path: Path) -> None:
    if not path.is_file():
        raise InvalidModel(f"there is no file {path}")
    try:
        with path.open("rb") as file:
            start = file.read(len(HDF5_START))
    except OSError as error:
        raise InvalidModel(f"cannot read {path}: {describe_os_error(error)}") from None
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):
        raise InvalidModel(f"{path} is no Keras file: it is not the zip archive that model.save('x.keras') writes")
    if path.suffix != ".keras" and start != HDF5_START:
        raise InvalidModel(f"{path} is no Keras file: it does not start as HDF5 does")


def _version(path: Path) -> str | None:
    """The version of Keras that wrote the file, where it says so."""
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                found = json.loads(archive.read("metadata.json")).get("keras_version")
        else:
            import h5py

            with h5py.File(path, "r") as file:
                found = file.attrs.get("keras_version")
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile):
        return None  # reading the model will say what is wrong with it
    return None if found is None else found.decode() if isinstance(found, bytes) else str(found)


def _library(path: Path, written_by: str | None) -> Any:
    """Keras 3, or for files in the newer format that Keras 2 wrote, tf_keras."""
    if path.suffix == ".keras" and (written_by or "").startswith("2."):
        try:
            import tf_keras
        except ImportError:
            raise MissingExtra(
                f"{path} was written by Keras {written_by}, which only tf_keras reads: pip install tf_keras"
            ) from None
        return tf_keras
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # as its converter needs
    import keras

    return keras
