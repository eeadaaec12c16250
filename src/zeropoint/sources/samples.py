"""Converts user data in any form to rows that fit the model's inputs. Nothing unchecked reaches the runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import InvalidSample, ZeropointError, spelled
from .ports import Entry, Port, Row

Samples = Iterable[Any] | Callable[[], Iterable[Any]]
"""Arrays, tuples in input order, or dicts by name; a list, generator, generator function, or loader of those."""


@dataclass
class Notes:
    """Remarks on how samples were converted, each reported once."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)


class NotedSamples(ABC):
    """Samples produced by a function, with remarks on how."""

    notes: Notes

    @abstractmethod
    def __call__(self) -> Iterable[Any]: ...


def rows(samples: Samples, entry: Entry, notes: Notes) -> Iterator[tuple[int, Row]]:
    """Yield (sample number, inputs of one run). A sample that is a batch gives several runs."""
    ready = None  # type and shape of an array that needed no conversion: most others are the same
    own = samples.notes.lines if isinstance(samples, NotedSamples) else []
    for number, sample in _numbered(samples):
        for line in own:
            notes.say(line)
        if isinstance(sample, np.ndarray) and (sample.dtype, sample.shape) == ready and sample.flags.c_contiguous:
            yield number, (sample,)
            continue
        arrays = _arranged(sample, entry, number, notes)
        typed = [_typed(a, p, number, notes) for a, p in zip(arrays, entry.ports, strict=True)]
        for row in _split(typed, entry.ports, number, notes):
            if len(row) == 1 and row[0] is sample:
                ready = sample.dtype, sample.shape
            yield number, row


def row_list(samples: Samples, entry: Entry, limit: int | None = None) -> list[Row]:
    """Return the inputs of all runs, or of the first `limit`, where neither sample numbers nor remarks matter."""
    return [row for _, row in islice(rows(samples, entry, Notes()), limit)]


def _numbered(samples: Samples) -> Iterator[tuple[int, Any]]:
    """Iterate over samples; an exception raised by the user's own code is reported as such."""
    number = 0
    try:
        for number, sample in enumerate(iterate(samples)):
            yield number, sample
            number += 1
    except ZeropointError:
        raise
    except Exception as error:
        raise InvalidSample(f"your data raised {type(error).__name__} while making sample {number}: {error}") from error


def iterate(samples: Samples) -> Iterator[Any]:
    if isinstance(samples, np.ndarray):
        raise InvalidSample("samples are a single array; give an iterable, such as a list with one array for each run")
    if isinstance(samples, str | bytes | Mapping):
        raise InvalidSample(
            f"samples are of type {type(samples).__name__}; give a list, a generator or a generator function"
        )
    source = samples() if callable(samples) and not hasattr(samples, "__getitem__") else samples
    if not hasattr(source, "__iter__") and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return (source[k] for k in range(len(source)))  # a loader that only supports indexing
    if not isinstance(source, Iterable):
        what = "samples are" if source is samples else "the function of the samples returned a value"
        raise InvalidSample(
            f"{what} of type {type(source).__name__}, which is not iterable; give a list or a generator"
        )
    return iter(source)


def _arranged(sample: Any, entry: Entry, number: int, notes: Notes) -> list[Array]:
    """Return the sample's arrays in input order."""
    ports = entry.ports
    if isinstance(sample, Mapping):
        return _by_name(sample, ports, number)
    if not isinstance(sample, tuple | list) or _is_one_array(sample, ports):
        values = [sample]
    elif _is_labelled(sample, ports):
        notes.say("each sample is a pair; its second element was taken for labels and ignored")
        return _arranged(sample[0], entry, number, notes)
    else:
        values = list(sample)
    if len(values) != len(ports):
        wanted = ", ".join(str(p) for p in ports)
        raise InvalidSample(f"sample {number} has {len(values)} arrays, the model has {len(ports)} inputs: {wanted}")
    return [_array(v, p, number) for v, p in zip(values, ports, strict=True)]


def _is_one_array(sample: Sequence[Any], ports: Sequence[Port]) -> bool:
    """Whether numbers, or lists of numbers, form the array of a single input rather than one array for each input."""
    if len(ports) != 1:
        return False
    if all(np.isscalar(v) for v in sample):
        return len(sample) != 1 or bool(ports[0].shape)
    if not isinstance(sample, list) or not all(isinstance(v, list) for v in sample):
        return False
    try:
        shape = np.asarray(sample).shape
    except ValueError:
        return False
    return fits(shape, ports[0].shape) or fits(shape, ports[0].shape[1:])


def _is_labelled(sample: Sequence[Any], ports: Sequence[Port]) -> bool:
    """Whether a pair is (inputs, labels), as data loaders for training return it."""
    if len(sample) != 2:
        return False
    inputs = sample[0]
    if isinstance(inputs, tuple | list | Mapping) and len(inputs) == len(ports):
        # With two inputs, a list of lists is an array: that of the first input.
        is_array = not isinstance(inputs, Mapping) and all(np.isscalar(v) or isinstance(v, list) for v in inputs)
        return len(ports) != 2 or not is_array
    return len(ports) == 1


def _by_name(sample: Mapping[str, Any], ports: Sequence[Port], number: int) -> list[Array]:
    left = dict(sample)
    values = []
    for port in ports:
        name = next((name for name in port.names if name in left), None)
        if name is None:
            given = ", ".join(repr(k) for k in sample) or "nothing"
            raise InvalidSample(f"sample {number} has no input {port}; it has {given}")
        values.append(_array(left.pop(name), port, number))
    if left:
        wanted = ", ".join(str(p) for p in ports)
        raise InvalidSample(f"sample {number} has {', '.join(map(repr, left))}, which is no input: {wanted}")
    return values


def _array(value: Any, port: Port, number: int) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:  # tensors of other libraries convert themselves, or raise
        raise InvalidSample(f"sample {number}, input {port}: not an array ({error})") from None
    if array.dtype.kind not in "fiub":
        raise InvalidSample(f"sample {number}, input {port}: cannot use values of type {array.dtype}")
    return array


def _typed(array: Array, port: Port, number: int, notes: Notes) -> Array:
    """Return the array in the input's type, converted if nothing is lost or the intention is clear."""
    target = port.dtype.storage
    if target is None:
        raise InvalidSample(f"the input {port} takes {port.dtype.label}, which cannot be fed")
    if array.dtype == target:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(target)
        fits = target.kind == "f" or np.array_equal(converted.astype(array.dtype), array)
    if not fits:
        raise InvalidSample(f"sample {number}, input {port}: {array.dtype} values do not fit into {target}")
    if target.kind != "f" or array.dtype != np.float64:
        notes.say(f"input '{port.name}': {array.dtype} values were converted to {target}, unscaled")
    return converted


def _split(arrays: Sequence[Array], ports: Sequence[Port], number: int, notes: Notes) -> Iterator[Row]:
    """Yield one row, or a batch split into rows of the model's batch size. Scalars are the same for all rows."""
    pairs = list(zip(arrays, ports, strict=True))
    if _is_one_run(pairs):
        yield tuple(np.asarray(a, order="C") for a in arrays)
    elif any(p.shape for p in ports) and all(fits(a.shape, p.shape[1:]) for a, p in pairs):
        notes.say("samples have no batch dimension; one was added")
        yield from _split([a[None] if p.shape else a for a, p in pairs], ports, number, notes)
    else:
        runs = _runs(pairs, number)
        notes.say("samples are batches; they are fed row by row")
        for k in range(runs):
            parts = (a[k * p.batch : (k + 1) * p.batch] if p.shape else a for a, p in pairs)
            yield tuple(np.asarray(part, order="C") for part in parts)


def _is_one_run(pairs: Sequence[tuple[Array, Port]]) -> bool:
    """Whether the arrays fit as they are. With a dynamic batch size a whole batch would fit as well, but single rows
    keep memory use and statistics uniform."""
    if not all(fits(array.shape, port.shape) for array, port in pairs):
        return False
    sizes = {array.shape[0] for array, port in pairs if port.shape and port.shape[0] < 0}
    return len(sizes) != 1 or sizes == {1}


def fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True))


def channel_order_hint(shape: tuple[int, ...], port: Port) -> str:
    """Return a hint for an image whose axes are in another order than the input's; empty if that is not the problem."""
    if len(port.shape) != 4 or len(shape) not in (3, 4):
        return ""
    *before, a, b, c = shape
    for order, text, move in (((b, c, a), "first", "-3, -1"), ((c, a, b), "last", "-1, -3")):
        if fits((*before, *order)[-3:], port.shape[1:]):
            how = f"np.moveaxis(x, {move}) puts them where the model has them{spelled('', ', and so does --transpose')}"
            return f"; the axes look like channels {text}: {how}"
    return ""


def _runs(pairs: Sequence[tuple[Array, Port]], number: int) -> int:
    """Return how many runs a batch makes."""
    counts: dict[str, int] = {}
    for array, port in pairs:
        is_batch = port.shape and array.ndim == len(port.shape) and fits(array.shape[1:], port.shape[1:])
        if is_batch and array.shape[0] and array.shape[0] % port.batch == 0:
            counts[port.name] = array.shape[0] // port.batch
        elif port.shape or array.shape:
            hint = channel_order_hint(array.shape, port)
            raise InvalidSample(f"sample {number}, input {port}: the shape {list(array.shape)} does not fit{hint}")
    if len(set(counts.values())) != 1:
        sizes = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise InvalidSample(f"sample {number}: the inputs have batches of different sizes: {sizes}")
    return next(iter(counts.values()))
