"""Samples from files and arrays: an .npz or .npy, a folder of images, a Python function, or arrays in memory."""

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
from .samples import NotedSamples, Notes, Samples, fits

LARGEST_ARCHIVE = 4 << 30
"""Limit on the unpacked size of an .npz, in bytes."""

EXIF_ORIENTATION = 0x0112

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True)
class Normalization:
    """value = (pixel * scale + offset - mean) / std, with pixels from 0 to 255."""

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
            raise InvalidSample(f"the input {port} takes raw pixels; omit {_normalizing()}")

    def apply(self, pixels: Array) -> Array:
        value = pixels.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)
        return np.asarray((value - np.array(self.mean, np.float32)) / np.array(self.std, np.float32))


@dataclass(frozen=True)
class Preparation:
    """How data are prepared after reading: pixels are normalized, axes of arrays moved, and a folder limited to a
    part."""

    normalization: Normalization | None = None
    transpose: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class Data:
    """Samples, with their number if it is known in advance."""

    samples: Samples
    count: int | None


def _normalizing() -> str:
    *most, last = map(argument, ("scale", "offset", "mean", "std"))
    return f"{', '.join(most)} and {last}"


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images as samples, with the normalization of their pixels."""

    folder: PathLike
    normalization: Normalization = Normalization()


DataSource = Samples | PathLike | ImageFolder | Mapping[str, Any]
"""Samples, or where they are: a path as on the command line, a folder of images, one array of all samples, or a dict of
such arrays by input name."""


def samples_from(data: DataSource, where: Entry) -> Samples:
    """Return the samples from any data source."""
    if isinstance(data, ImageFolder):
        return load_data(os.fspath(data.folder), where, Preparation(data.normalization)).samples
    if isinstance(data, str | os.PathLike):
        return load_data(os.fspath(data), where).samples
    if isinstance(data, np.ndarray):
        return _from_arrays({"": data}, where, "the array").samples
    if isinstance(data, Mapping) and _are_arrays(data):
        return _from_arrays(dict(data), where, "the data").samples
    return data


def samples_by_signature(data: DataSource | Mapping[str, DataSource], model: Model) -> Samples | Mapping[str, Samples]:
    """Return samples from any data source; for a model with several signatures, by signature."""
    keys = {one.key for one in entries(model)}
    if isinstance(data, Mapping) and (keys.issuperset(data) or not _are_arrays(data)):
        return {key: samples_from(own, entry(model, key)) for key, own in data.items()}
    return samples_from(data, entry(model))


def _are_arrays(data: Mapping[str, Any]) -> bool:
    return all(isinstance(value, np.ndarray) for value in data.values())


def load_data(spec: str, entry: Entry, how: Preparation | None = None) -> Data:
    """Load the samples that `spec` names: `x.npz`, `x.npy`, a folder of images, or `file.py:function`."""
    path, how = Path(spec), how or Preparation()
    script, colon, function = spec.rpartition(":")
    is_script, is_folder = bool(colon) and script.endswith(".py"), path.is_dir()
    if how.transpose and (is_script or is_folder):
        raise InvalidSample("--transpose applies to arrays in .npz and .npy files; a folder of images does not need it")
    if is_script:
        return Data(function_in(Path(script), function, InvalidSample), None)
    if is_folder:
        return _from_images(path, entry, how)
    if how.normalization is not None:
        raise InvalidSample(f"{_normalizing()} are for folders of images")
    if path.suffix in (".npz", ".npy"):
        return _from_arrays(_read_arrays(path), entry, spec, how.transpose)
    problem = "cannot read samples from" if path.exists() else "there is no"
    raise InvalidSample(f"{problem} {spec}; give an .npz, an .npy, a folder of images, or file.py:function")


def _read_arrays(path: Path) -> dict[str, Array]:
    if path.suffix == ".npy":
        with reading(path, "a NumPy array file", InvalidSample):
            return {"": np.lib.format.open_memmap(path, mode="r")}
    with reading(path, "a NumPy archive", InvalidSample), path.open("rb") as content:
        return read_arrays(content, LARGEST_ARCHIVE, "; give an .npy, which may have any size, or file.py:function")


def array_names(spec: str) -> tuple[str, ...]:
    """Return the names of the arrays in an .npz; none for any other source."""
    path = Path(spec)
    return tuple(_read_arrays(path)) if path.suffix == ".npz" and path.is_file() else ()


def read_labels(path: Path) -> Array:
    """Read the label of each sample: the only array of an `.npy` or `.npz`."""
    if path.suffix not in (".npz", ".npy"):
        raise InvalidSample(f"cannot read labels from {path}; give an .npy, or an .npz with one array")
    arrays = _read_arrays(path)
    if len(arrays) != 1:
        raise InvalidSample(f"{path} holds {len(arrays)} arrays; labels must be a single one")
    return np.asarray(next(iter(arrays.values())))


@dataclass
class _Columns(NotedSamples):
    """Arrays, one for each input, whose first axes count samples."""

    columns: Sequence[Array]
    notes: Notes = field(default_factory=Notes)

    def __call__(self) -> Iterator[tuple[Array, ...]]:
        return (tuple(map(np.asarray, row)) for row in zip(*self.columns, strict=True))


def _from_arrays(arrays: dict[str, Array], entry: Entry, source: str, transpose: bool = False) -> Data:
    """Return data from one array for each input, by name; for a single input, the array that fits. Their first axis
    counts samples."""
    ports = entry.ports
    if not ports:
        raise InvalidSample(f"the model has no inputs, so nothing in {source} can be given to it; leave the data out")
    chosen = _chosen(arrays, ports, transpose)
    if len(chosen) < len(ports):
        wanted = ", ".join(str(p) for p in ports)
        has = ", ".join(repr(n) for n in arrays) or "nothing"
        raise InvalidSample(f"{source} has {has}; name its arrays after the model's inputs: {wanted}")
    notes = Notes()
    if left_out := [name for name in arrays if name not in chosen]:
        taken = " and ".join(f"{n!r} for the input '{p.name}'" for n, p in zip(chosen, ports, strict=True))
        notes.say(f"{source}: {taken} was taken, and {', '.join(map(repr, left_out))} left out")
    given = [_transposed(arrays[n], p) if transpose else arrays[n] for n, p in zip(chosen, ports, strict=True)]
    for array, port in zip(given, ports, strict=True):
        if len(port.shape) > 1 and fits(array.shape, port.shape[1:]):
            shape = f"the shape {list(array.shape)} is that of a single sample"
            raise InvalidSample(f"{source}: {shape} of the input {port}; the first axis has to count samples: x[None]")
    columns = [_by_sample(a, p) for a, p in zip(given, ports, strict=True)]
    return Data(_Columns(columns, notes), _common_length(columns, ports, source))


def _common_length(columns: Sequence[Array], ports: Sequence[Port], source: str) -> int:
    lengths = [len(c) for c in columns]
    if len(set(lengths)) != 1 or 0 in lengths:
        counts = ", ".join(f"'{p.name}' {n}" for p, n in zip(ports, lengths, strict=True))
        raise InvalidSample(f"{source}: the arrays must hold the same number of samples, at least one: {counts}")
    return lengths[0]


def _chosen(arrays: dict[str, Array], ports: Sequence[Port], transpose: bool) -> list[str]:
    """Return the name of the array for each input: the input's own name, or for a single input the only array that
    fits."""
    own = [name for port in ports for name in [n for n in port.names if n in arrays][:1]]
    if own or len(ports) != 1:
        return own
    fitting = [name for name, array in arrays.items() if _holds(array, ports[0], transpose)]
    return list(arrays) if len(arrays) == 1 else fitting if len(fitting) == 1 else []


def _holds(array: Array, port: Port, transpose: bool) -> bool:
    """Whether the array can hold samples of this input. Integer arrays are taken for labels, not for a float input."""
    is_number = array.dtype.kind == "f" if port.dtype.is_float else array.dtype.kind in "iu"
    is_picture = array.dtype == np.uint8 and port.dtype.is_float and len(port.shape) > 2
    shapes = [array.shape[1:], *([o.shape[1:] for o in _other_orders(array)] if transpose else [])]
    return (is_number or is_picture) and any(fits(s, w) for s in shapes for w in (port.shape, port.shape[1:]))


def _other_orders(array: Array) -> list[Array]:
    """Return the array with its channels moved from first to last, and from last to first. Images are in the last three
    axes."""
    return [] if array.ndim < 4 else [np.moveaxis(array, -3, -1), np.moveaxis(array, -1, -3)]


def _transposed(array: Array, port: Port) -> Array:
    """Return the array in the other axis order, which fits the input."""
    if len(port.shape) < 4:  # not an image
        return array
    for other in _other_orders(array):
        if any(fits(other.shape[1:], wanted) for wanted in (port.shape, port.shape[1:])):
            return other
    raise InvalidSample(f"--transpose: {list(array.shape)} does not fit the input {port} in another order either")


def _by_sample(array: Array, port: Port) -> Array:
    """Return a view with samples along its first axis. Rows that have the input's rank are grouped by its batch
    size."""
    if array.ndim == 0:
        return array.reshape(1)[:0]
    if array.ndim != len(port.shape):
        return array
    count = array.shape[0] // port.batch
    return array[: count * port.batch].reshape(count, port.batch, *array.shape[1:])


def _from_images(folder: Path, entry: Entry, how: Preparation) -> Data:
    """Return the images in a folder tree, sorted by name; if there are more than the limit, an even selection."""
    found = sorted(f for f in folder.rglob("*") if f.suffix.lower() in IMAGES and f.is_file())
    hidden = [f for f in found if any(part.startswith(".") for part in f.relative_to(folder).parts)]
    files = [f for f in found if f not in set(hidden)]
    if not files:
        also = f" but {len(hidden)} hidden" if hidden else ""
        raise InvalidSample(f"{folder} holds no images{also} ({', '.join(IMAGES)})")
    if len(entry.ports) != 1:
        raise InvalidSample(f"a folder of images needs a model with one input; this one has {len(entry.ports)}")
    (port,) = entry.ports
    normalization = how.normalization or Normalization()
    normalization.require(port, _image_layout(port).channels)
    notes = Notes()
    if hidden:
        notes.say(f"{len(hidden)} hidden {'file was' if len(hidden) == 1 else 'files were'} left out: {hidden[0].name}")
    if how.limit is not None and how.limit < len(files):
        notes.say(f"{how.limit} of {len(files)} images are used, spread evenly over their names")
        files = [files[k * len(files) // how.limit] for k in range(how.limit)]
    return Data(_Images(files, port, normalization, notes), len(files))


class _ImageLayout(NamedTuple):
    """How an input holds an image. A height or width of -1 is taken from the image."""

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
    """Yields images in the format of a model's input."""

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
            except Exception as error:  # parsers may raise anything
                raise InvalidSample(f"cannot read the image {file}: {error or type(error).__name__}") from None
            value = pixels if self.port.dtype is DType.UINT8 else self.normalization.apply(pixels)
            yield (value.transpose(2, 0, 1) if layout.channels_first else value)[None]

    def _pixels(self, file: Path, layout: _ImageLayout) -> Array:
        """Return values from 0 to 255: uint8, or float32 for an image with more than 8 bits."""
        from PIL import Image, ImageOps

        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened)
            if opened.getexif().get(EXIF_ORIENTATION, 1) != 1:
                self.notes.say("images were rotated according to their EXIF data")
            is_deep = picture.mode.startswith("I")  # 16 bits, which Pillow would clip at 255
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
    """Return the function `name` of a user's script; any error in it is raised as a `refusal`."""
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
