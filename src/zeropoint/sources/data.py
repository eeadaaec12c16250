"""Samples from files and arrays: an .npz or .npy, a folder of images, a Python function, arrays in memory."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import Array, DType
from ..errors import InvalidSample, ZeropointError, argument
from ..files import PathLike, read_arrays, reading
from ..graph.model import Model
from .conversion import require_library
from .ports import Entry, Port, entries, entry
from .samples import NotedSamples, Notes, Samples

LARGEST_ARCHIVE = 4 << 30
"""Bytes that an .npz may unpack to."""

EXIF_ORIENTATION = 0x0112

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True)
class Normalization:
    """value = (pixel * scale + offset - mean) / std, pixels being 0 .. 255."""

    scale: float = 1.0
    offset: float = 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def require(self, port: Port, channels: int) -> None:
        """Raise unless this can be applied to images for `port`."""
        if any(len(values) not in (1, channels) for values in (self.mean, self.std)):
            raise InvalidSample(
                f"{argument('mean')} and {argument('std')} need one number, or one for each channel of the input {port}"
            )
        if 0.0 in self.std:
            raise InvalidSample(f"{argument('std')} must not be 0")
        if port.dtype is DType.UINT8 and self != Normalization():
            raise InvalidSample(f"the input {port} takes the pixels themselves; leave out {_normalizing()}")

    def apply(self, pixels: Array) -> Array:
        value = pixels.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)
        return np.asarray((value - np.array(self.mean, np.float32)) / np.array(self.std, np.float32))


@dataclass(frozen=True)
class Data:
    """Samples with their number, where it is known beforehand."""

    samples: Samples
    count: int | None


def _normalizing() -> str:
    *most, last = map(argument, ("scale", "offset", "mean", "std"))
    return f"{', '.join(most)} and {last}"


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images as samples, and how its pixels become what a model takes."""

    folder: PathLike
    normalization: Normalization = Normalization()


DataSource = Samples | PathLike | ImageFolder | Mapping[str, Any]
"""Samples, or what holds them: a path as on the command line, a folder of images, one array of all samples, or such
arrays by the names of the inputs."""


def samples_from(data: DataSource, where: Entry) -> Samples:
    """The samples of whatever holds them."""
    if isinstance(data, ImageFolder):
        return load_data(os.fspath(data.folder), where, data.normalization).samples
    if isinstance(data, str | os.PathLike):
        return load_data(os.fspath(data), where).samples
    if isinstance(data, np.ndarray):
        return _from_arrays({"": data}, where, "the array").samples
    if isinstance(data, Mapping) and _are_arrays(data):
        return _from_arrays(dict(data), where, "the data").samples
    return data


def samples_by_signature(data: DataSource | Mapping[str, DataSource], model: Model) -> Samples | Mapping[str, Samples]:
    """The same for a model of several signatures, where data are given for each of these."""
    keys = {one.key for one in entries(model)}
    if isinstance(data, Mapping) and (keys.issuperset(data) or not _are_arrays(data)):
        return {key: samples_from(own, entry(model, key)) for key, own in data.items()}
    return samples_from(data, entry(model))


def _are_arrays(data: Mapping[str, Any]) -> bool:
    return all(isinstance(value, np.ndarray) for value in data.values())


def load_data(spec: str, entry: Entry, normalization: Normalization | None = None) -> Data:
    """The samples that `spec` names: `x.npz`, `x.npy`, a folder of images, or `file.py:function`."""
    path = Path(spec)
    script, colon, function = spec.rpartition(":")
    if colon and script.endswith(".py"):
        return Data(function_in(Path(script), function, InvalidSample), None)
    if path.is_dir():
        return _from_images(path, entry, normalization or Normalization())
    if normalization is not None:
        raise InvalidSample(f"{_normalizing()} are for folders of images")
    if path.suffix in (".npz", ".npy"):
        return _from_arrays(_read_arrays(path), entry, spec)
    problem = "cannot read samples from" if path.exists() else "there is no"
    raise InvalidSample(f"{problem} {spec}; give an .npz, an .npy, a folder of images, or file.py:function")


def _read_arrays(path: Path) -> dict[str, Array]:
    if path.suffix == ".npy":
        with reading(path, "a NumPy array file", InvalidSample):
            return {"": np.lib.format.open_memmap(path, mode="r")}
    with reading(path, "a NumPy archive", InvalidSample), path.open("rb") as content:
        return read_arrays(content, LARGEST_ARCHIVE, "; give an .npy, which may have any size, or file.py:function")


def _from_arrays(arrays: dict[str, Array], entry: Entry, source: str) -> Data:
    """One array for each input by name, or a single array for a single input; their first axis counts samples."""
    ports = entry.ports
    if not ports:
        raise InvalidSample(f"the model has no inputs, so nothing in {source} can be given to it; leave the data out")
    if len(arrays) == len(ports) == 1:
        chosen = list(arrays.values())
    else:
        chosen = [arrays[n] for p in ports for n in [n for n in p.names if n in arrays][:1]]
    if len(chosen) < len(ports):
        wanted = ", ".join(str(p) for p in ports)
        has = ", ".join(repr(n) for n in arrays) or "nothing"
        raise InvalidSample(f"{source} has {has}; name its arrays after the model's inputs: {wanted}")
    columns = [_by_sample(a, p) for a, p in zip(chosen, ports, strict=True)]
    lengths = [len(c) for c in columns]
    if len(set(lengths)) != 1 or 0 in lengths:
        counts = ", ".join(f"'{p.name}' {n}" for p, n in zip(ports, lengths, strict=True))
        raise InvalidSample(f"{source}: the arrays must hold the same number of samples, at least one: {counts}")
    return Data(lambda: (tuple(map(np.asarray, row)) for row in zip(*columns, strict=True)), lengths[0])


def _by_sample(array: Array, port: Port) -> Array:
    """A view with samples along its first axis. Rows that have the input's rank are grouped to its batch size."""
    if array.ndim == 0:
        return array.reshape(1)[:0]
    if array.ndim != len(port.shape):
        return array
    count = array.shape[0] // port.batch
    return array[: count * port.batch].reshape(count, port.batch, *array.shape[1:])


def _from_images(folder: Path, entry: Entry, normalization: Normalization) -> Data:
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in IMAGES and f.is_file())
    if not files:
        raise InvalidSample(f"{folder} holds no images ({', '.join(IMAGES)})")
    if len(entry.ports) != 1:
        raise InvalidSample(f"a folder of images fits a model with one input, this one has {len(entry.ports)}")
    (port,) = entry.ports
    normalization.require(port, _image_layout(port).channels)
    return Data(_Images(files, port, normalization), len(files))


class _ImageLayout(NamedTuple):
    """How an input holds an image. A height or width of -1 is the image's own."""

    height: int
    width: int
    channels: int
    channels_first: bool = False


def _image_layout(port: Port) -> _ImageLayout:
    if len(port.shape) == 4 and port.shape[3] in (1, 3):
        return _ImageLayout(*port.shape[1:])
    if len(port.shape) == 4 and port.shape[1] in (1, 3):
        return _ImageLayout(*port.shape[2:], port.shape[1], channels_first=True)
    raise InvalidSample(f"images do not fit the input {port}; it needs four dimensions with 1 or 3 channels")


@dataclass
class _Images(NotedSamples):
    """Images as a model's input takes them."""

    files: Sequence[Path]
    port: Port
    normalization: Normalization
    notes: Notes = field(default_factory=Notes)

    def __call__(self) -> Iterator[Array]:
        require_library("PIL", "reading images", "Pillow: pip install 'zeropoint[images]'")
        layout = _image_layout(self.port)
        for file in self.files:
            try:
                pixels = self._pixels(file, layout)
            except MemoryError:
                raise
            except Exception as error:  # parsers raise whatever they come across
                raise InvalidSample(f"cannot read the image {file}: {error or type(error).__name__}") from None
            value = pixels if self.port.dtype is DType.UINT8 else self.normalization.apply(pixels)
            yield (value.transpose(2, 0, 1) if layout.channels_first else value)[None]

    def _pixels(self, file: Path, layout: _ImageLayout) -> Array:
        """Values from 0 to 255: uint8, or float32 of an image that has more than 8 bits."""
        from PIL import Image, ImageOps

        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened)
            if opened.getexif().get(EXIF_ORIENTATION, 1) != 1:
                self.notes.say("images were turned upright, as their EXIF data ask for")
            is_deep = picture.mode.startswith("I")  # 16 bits, of which Pillow would keep what is below 256
            if is_deep:
                self.notes.say("images of 16 bits were divided by 257, so that their values are 0 to 255")
                picture = Image.fromarray(np.asarray(picture).astype(np.float32) / np.float32(257))
            else:
                picture = picture.convert("L" if layout.channels == 1 else "RGB")
            size = (
                picture.width if layout.width < 0 else layout.width,
                picture.height if layout.height < 0 else layout.height,
            )
            pixels = np.asarray(picture.resize(size)).reshape(*size[::-1], -1)
        if is_deep:
            pixels = np.repeat(pixels, layout.channels, 2)
        return np.rint(pixels).astype(np.uint8) if is_deep and self.port.dtype is DType.UINT8 else pixels


def function_in(script: Path, name: str, refusal: type[ZeropointError]) -> Callable[..., Any]:
    """The function `name` of a user's own script; whatever is wrong with it is raised as a `refusal`."""
    if not script.is_file():
        raise refusal(f"there is no {script}; give the path of a Python file and the name of a function in it")
    try:
        names = runpy.run_path(str(script))
    except (Exception, SystemExit) as error:
        raise refusal(f"{script} raised {type(error).__name__}: {error}") from error
    function: Callable[..., Any] | None = names.get(name)
    if not callable(function):
        has = ", ".join(n for n, v in names.items() if getattr(v, "__module__", None) == names["__name__"]) or "none"
        raise refusal(f"{script} has no function '{name}'; it has {has}")
    return function
