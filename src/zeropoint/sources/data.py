"""Samples named on a command line: an .npz or .npy, a folder of images, or a Python function."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import Array, DType
from ..errors import InvalidSample, MissingExtra
from ..files import describe_os_error
from .ports import Entry, Port
from .samples import Samples

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True)
class Normalization:
    """value = (pixel * scale + offset - mean) / std, pixels being 0 .. 255."""

    scale: float = 1.0
    offset: float = 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, pixels: Array) -> Array:
        value = pixels.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)
        result: Array = (value - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return result


@dataclass(frozen=True)
class Data:
    """Samples with their number, where it is known beforehand."""

    samples: Samples
    count: int | None


def load_data(spec: str, entry: Entry, normalization: Normalization | None = None) -> Data:
    """The samples that `spec` names: `x.npz`, `x.npy`, a folder of images, or `file.py:function`."""
    path = Path(spec)
    script, colon, function = spec.rpartition(":")
    if colon and script.endswith(".py"):
        return _from_function(Path(script), function)
    if path.is_dir():
        return _from_images(path, entry, normalization or Normalization())
    if normalization is not None:
        raise InvalidSample("--scale, --offset, --mean and --std are for folders of images")
    if path.suffix == ".npz":
        return _from_npz(path, entry)
    if path.suffix == ".npy":
        return _from_arrays({"": _read_array(path)}, entry, spec)
    problem = "cannot read samples from" if path.exists() else "there is no"
    raise InvalidSample(f"{problem} {spec}; give an .npz, an .npy, a folder of images, or file.py:function")


def _from_function(script: Path, function: str) -> Data:
    if not script.is_file():
        raise InvalidSample(f"there is no {script}")
    try:
        names = runpy.run_path(str(script))
    except Exception as error:
        raise InvalidSample(f"{script} raised {type(error).__name__}: {error}") from error
    found = names.get(function)
    if not callable(found):
        raise InvalidSample(f"{script} has no function '{function}'")
    return Data(found, None)


def _read_array(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InvalidSample(f"cannot read {path}: {describe_os_error(error)}") from None
    except ValueError as error:
        raise InvalidSample(f"{path} is not a NumPy array file: {error}") from None
    return array


def _from_npz(path: Path, entry: Entry) -> Data:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise InvalidSample(f"cannot read {path}: {describe_os_error(error)}") from None
    except Exception as error:  # zip files break in many ways
        raise InvalidSample(f"{path} is not a NumPy archive: {error}") from None
    return _from_arrays(arrays, entry, str(path))


def _from_arrays(arrays: dict[str, Array], entry: Entry, source: str) -> Data:
    """One array for each input by name, or a single array for a single input; their first axis counts samples."""
    named = {p.name: next((arrays[n] for n in p.names if n in arrays), None) for p in entry.ports}
    if any(a is None for a in named.values()):
        if len(arrays) != 1 or len(entry.ports) != 1:
            wanted = ", ".join(str(p) for p in entry.ports)
            has = ", ".join(repr(n) for n in arrays) or "nothing"
            raise InvalidSample(f"{source} has {has}; name its arrays after the model's inputs: {wanted}")
        named = {entry.ports[0].name: next(iter(arrays.values()))}
    columns = {name: a for name, a in named.items() if a is not None}
    lengths = {name: a.shape[0] if a.ndim else 0 for name, a in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        counts = ", ".join(f"'{name}' {n}" for name, n in lengths.items())
        raise InvalidSample(f"{source}: the arrays must hold the same number of samples, at least one: {counts}")
    count = next(iter(lengths.values()))
    by_port = [(p, columns[p.name]) for p in entry.ports]
    return Data(_Rows(by_port, count), count)


@dataclass(frozen=True)
class _Rows:
    """Row k of each array, with a batch dimension where the model has one and the array's rows do not."""

    columns: Sequence[tuple[Port, Array]]
    count: int

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        for k in range(self.count):
            yield tuple(a[k : k + 1] if a.ndim == len(p.shape) else a[k] for p, a in self.columns)


def _from_images(folder: Path, entry: Entry, normalization: Normalization) -> Data:
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in IMAGES)
    if not files:
        raise InvalidSample(f"{folder} holds no images ({', '.join(IMAGES)})")
    if len(entry.ports) != 1:
        raise InvalidSample(f"a folder of images fits a model with one input, this one has {len(entry.ports)}")
    return Data(_Images(files, entry.ports[0], normalization), len(files))


@dataclass(frozen=True)
class _Images:
    files: Sequence[Path]
    port: Port
    normalization: Normalization

    def __iter__(self) -> Iterator[Array]:
        image = _pillow()
        height, width, channels, first = _layout(self.port)
        for file in self.files:
            try:
                with image.open(file) as opened:
                    picture = opened.convert("L" if channels == 1 else "RGB").resize((width, height))
                    pixels = np.asarray(picture, np.uint8).reshape(height, width, channels)
            except OSError as error:
                raise InvalidSample(f"cannot read the image {file}: {error}") from None
            value = pixels if self.port.dtype is DType.UINT8 else self.normalization.apply(pixels)
            yield (value.transpose(2, 0, 1) if first else value)[None]


def _layout(port: Port) -> tuple[int, int, int, bool]:
    """(height, width, channels, whether channels come first) of an image input."""
    shape = port.tensor.shape
    if len(shape) == 4 and shape[3] in (1, 3):
        return shape[1], shape[2], shape[3], False
    if len(shape) == 4 and shape[1] in (1, 3):
        return shape[2], shape[3], shape[1], True
    raise InvalidSample(f"images do not fit the input {port}; it needs four dimensions with 1 or 3 channels")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("reading images needs Pillow: pip install 'zeropoint[images]'") from None
    return Image
