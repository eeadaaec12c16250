"""Whatever people hold their data in gives the same rows, or an error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zeropoint.calibration import calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidSample
from zeropoint.graph import Model
from zeropoint.sources.ports import entry
from zeropoint.sources.samples import Notes, Samples, rows

from .. import build

IMAGES = np.random.default_rng(0).integers(-4, 9, (6, 1, 4, 4, 1)).astype(np.float32)
PIXELS = np.abs(IMAGES)

BATCHES = "samples are batches; they are fed row by row"
NO_BATCH = "samples have no batch dimension; one was added"
LABELS = "each sample is a pair; its second element was taken for labels and ignored"


class Loader:
    """An indexed data set, as Keras and PyTorch have them."""

    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, k: int) -> Any:
        return self.items[k]


class Foreign:
    """A tensor of another library."""

    def __init__(self, value: Array) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.value


def fed(samples: Samples, model: Model | None = None) -> tuple[list[tuple[Array, ...]], list[str]]:
    """The rows that reach the model, and the notes."""
    notes = Notes()
    found = [row for _, row in rows(samples, entry(model or build.float_cnn()), notes)]
    return found, notes.lines


def same(found: list[tuple[Array, ...]], expected: list[tuple[Array, ...]]) -> bool:
    """Equal in value, type and shape; and laid out as the runtime wants it."""
    plain, wanted = ([[(a.dtype, a.shape, a.tolist()) for a in row] for row in side] for side in (found, expected))
    return plain == wanted and all(a.flags.c_contiguous for row in found for a in row)


CONVERTED = "input 'in0': {} values were converted to float32, unscaled"
FORMS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a list of arrays": (lambda: list(IMAGES), []),
    "tuples": (lambda: [(x,) for x in IMAGES], []),
    "lists": (lambda: [[x] for x in IMAGES], []),
    "dicts by signature name": (lambda: [{"in0": x} for x in IMAGES], []),
    "dicts by tensor name": (lambda: [{"image": x} for x in IMAGES], []),
    "a generator": (lambda: (x for x in IMAGES), []),
    "a generator function": (lambda: lambda: (x for x in IMAGES), []),
    "a function that returns a list": (lambda: lambda: list(IMAGES), []),
    "an iterator": (lambda: iter(list(IMAGES)), []),
    "an indexed loader": (lambda: Loader(IMAGES), []),
    "tensors of another library": (lambda: [Foreign(x) for x in IMAGES], []),
    "pairs": (lambda: [(x, k) for k, x in enumerate(IMAGES)], [LABELS]),
    "pairs in lists": (lambda: [[x, np.int64([k])] for k, x in enumerate(IMAGES)], [LABELS]),
    "pairs with a tuple": (lambda: [((x,), k) for k, x in enumerate(IMAGES)], [LABELS]),
    "pairs with a dict": (lambda: [({"image": x}, k) for k, x in enumerate(IMAGES)], [LABELS]),
    "batches": (lambda: [IMAGES[:4, 0], IMAGES[4:, 0]], [BATCHES]),
    "batches with labels": (lambda: [(IMAGES[:4, 0], np.arange(4)), (IMAGES[4:, 0], np.arange(2))], [LABELS, BATCHES]),
    "no batch dimension": (lambda: list(IMAGES[:, 0]), [NO_BATCH]),
    "float64": (lambda: list(IMAGES.astype(np.float64)), []),
    "float16": (lambda: list(IMAGES.astype(np.float16)), [CONVERTED.format("float16")]),
    "int32": (lambda: list(IMAGES.astype(np.int32)), [CONVERTED.format("int32")]),
    "Python lists": (lambda: [x.tolist() for x in IMAGES], []),
    "Python lists without a batch": (lambda: [x.tolist() for x in IMAGES[:, 0]], [NO_BATCH]),
    "Python lists with labels": (lambda: [(x.tolist(), 3) for x in IMAGES], [LABELS]),
    "other strides": (lambda: [np.asfortranarray(x) for x in IMAGES], []),
    "every second of a larger array": (lambda: [np.repeat(x, 2, axis=2)[:, :, ::2] for x in IMAGES], []),
}


@pytest.mark.parametrize(("form", "notes"), FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_rows(form, notes):
    found, said = fed(form())
    assert same(found, [(x,) for x in IMAGES])
    assert said == notes


def test_uint8_images_are_converted_and_said():
    found, said = fed(list(PIXELS.astype(np.uint8)))
    assert same(found, [(x,) for x in PIXELS])
    assert said == [CONVERTED.format("uint8")]


def test_statistics_carry_the_notes():
    batch = IMAGES[:, 0].astype(np.uint8)
    assert calibrate(build.float_cnn(), [batch]).notes == (CONVERTED.format("uint8"), BATCHES)


def test_rows_are_numbered_by_sample():
    numbered = rows([IMAGES[:2, 0], IMAGES[2], IMAGES[3:, 0]], entry(build.float_cnn()), Notes())
    assert [number for number, _ in numbered] == [0, 0, 1, 2, 2, 2]


def test_a_generator_is_read_no_further_than_needed():
    seen = []

    def generate():
        for k, x in enumerate(IMAGES):
            seen.append(k)
            yield x

    next(rows(generate, entry(build.float_cnn()), Notes()))
    assert seen == [0]


# Several inputs, odd types and shapes.


def two_inputs(*, free: bool = False) -> Model:
    """Float values and int32 indices, with a batch of one or any."""
    x, k, y = build.act("x", 1, 4), build.act("k", 1, 2, dtype=DType.INT32), build.act("y", 1, 2)
    for tensor in (x, k, y) if free else ():
        tensor.shape_signature = (-1, *tensor.shape[1:])
    model = build.one_op("GATHER", [x, k], y, options="GatherOptions", axis=1, batchDims=1)
    build.sign(model, "serving_default", model.main)
    return model


X, K = np.arange(12, dtype=np.float32).reshape(3, 1, 4), np.int32([[[0, 1]], [[3, 2]], [[1, 1]]])
PAIRS: dict[str, Callable[[], Any]] = {
    "tuples": lambda: list(zip(X, K, strict=True)),
    "lists": lambda: [[x, k] for x, k in zip(X, K, strict=True)],
    "dicts": lambda: [{"in1": k, "in0": x} for x, k in zip(X, K, strict=True)],
    "dicts by tensor name": lambda: [{"x": x, "k": k} for x, k in zip(X, K, strict=True)],
    "int64 indices": lambda: list(zip(X, K.astype(np.int64), strict=True)),
    "whole numbers as floats": lambda: list(zip(X, K.astype(np.float32), strict=True)),
    "with labels": lambda: [((x, k), 1) for x, k in zip(X, K, strict=True)],
    "dicts with labels": lambda: [({"x": x, "k": k}, 1) for x, k in zip(X, K, strict=True)],
    "a batch": lambda: [(X[:, 0], K[:, 0])],
    "no batch": lambda: list(zip(X[:, 0], K[:, 0], strict=True)),
    "Python lists": lambda: [(x.tolist(), k.tolist()) for x, k in zip(X, K, strict=True)],
}


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("form", PAIRS.values(), ids=PAIRS)
def test_several_inputs_are_put_in_order(form, free):
    found, _ = fed(form(), two_inputs(free=free))
    assert same(found, list(zip(X, K, strict=True)))


def test_two_lists_are_two_inputs():
    """Not inputs and labels, even where the first has as many rows as the model has inputs."""
    x, y = build.act("x", 2, 2), build.act("y", 2, 2)
    model = build.one_op("ADD", [x, y], build.act("z", 2, 2), options="AddOptions")
    found, said = fed([([[1, 2], [3, 4]], [[5, 6], [7, 8]])], model)
    assert same(found, [(np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]]))])
    assert LABELS not in said


@pytest.mark.parametrize("sample", [2.5, np.float64(2.5), np.array(2.5), [2.5], (2.5,), {"x": 2.5}], ids=repr)
def test_a_scalar_input_takes_a_number(sample):
    model = build.one_op("ABS", [build.act("x")], build.act("y"), options="AbsOptions")
    assert same(fed([sample], model)[0], [(np.array(2.5, np.float32),)])


def test_scalars_go_with_every_row_of_a_batch():
    x, y, z = build.act("x", 1, 2), build.act("y"), build.act("z", 1, 2)
    model = build.one_op("MUL", [x, y], z, options="MulOptions")
    batch = np.float32([[1, 2], [3, 4]])
    expected = [(batch[:1], np.float32(7)), (batch[1:], np.float32(7))]
    assert same(fed([(batch, 7.0)], model)[0], expected)
    assert same(fed([(row, 7.0) for row in batch], model)[0], expected)


@pytest.mark.parametrize("sample", [[1.0, 2.0], (1.0, 2.0), np.float32([1, 2]), [[1.0, 2.0]]], ids=repr)
def test_numbers_alone_are_one_array(sample):
    model = build.one_op("ABS", [build.act("x", 2)], build.act("y", 2), options="AbsOptions")
    assert same(fed([sample], model)[0], [(np.float32([1, 2]),)])


def test_a_larger_batch_of_its_own_is_kept():
    model = build.one_op("ABS", [build.act("x", 2, 3)], build.act("y", 2, 3), options="AbsOptions")
    data = np.arange(18, dtype=np.float32).reshape(6, 3)
    assert same(fed([data[:2], data[2:]], model)[0], [(data[:2],), (data[2:4],), (data[4:],)])


def test_free_dimensions_take_what_comes():
    model = build.dynamic()
    for tensor in model.main.tensors:
        tensor.shape_signature = (1, -1)
    samples = [np.zeros((1, n), np.float32) for n in (2, 5)]
    assert same(fed(samples, model)[0], [(s,) for s in samples])


def test_booleans_are_taken_as_they_are():
    x = build.act("x", 2, dtype=DType.BOOL)
    model = build.one_op("CAST", [x], build.act("y", 2), options="CastOptions")
    assert same(fed([[True, False]], model)[0], [(np.array([True, False]),)])


# What is refused.


HOLDERS: dict[str, tuple[Any, str]] = {
    "a plain array": (IMAGES, "samples are a single array; give an iterable, such as"),
    "text": ("data.npz", "samples are of type str; give a list, a generator"),
    "bytes": (b"data", "samples are of type bytes; give a list"),
    "a number": (3, "samples are of type int, which is not iterable"),
    "none": (None, "samples are of type NoneType, which is not iterable"),
    "a function that returns nothing": (lambda: None, "not iterable"),
}


@pytest.mark.parametrize(("samples", "message"), HOLDERS.values(), ids=HOLDERS)
def test_what_holds_no_samples_is_refused(samples, message):
    with pytest.raises(InvalidSample, match=message):
        fed(samples)


IMAGE = r"input 'in0' \(float32\[1,4,4,1\]\)"
MISFITS: dict[str, tuple[Any, str]] = {
    "too many arrays": ((IMAGES[0],) * 3, "sample 0 has 3 arrays, the model has 1 inputs: 'in0'"),
    "no arrays": ((), r"the shape \[0\] does not fit"),
    "another shape": (IMAGES[0][:, :3], IMAGE + r": the shape \[1, 3, 4, 1\] does not fit"),
    "a dimension too many": (IMAGES[:2], IMAGE + r": the shape \[2, 1, 4, 4, 1\] does not fit"),
    "an empty batch": (IMAGES[:0, 0], IMAGE + r": the shape \[0, 4, 4, 1\] does not fit"),
    "an unknown name": ({"picture": IMAGES[0]}, f"sample 0 has no {IMAGE}; it has 'picture'"),
    "a name too many": ({"image": IMAGES[0], "label": 3}, "sample 0 has 'label', which is no input: 'in0'"),
    "nothing by name": ({}, f"sample 0 has no {IMAGE}; it has nothing"),
    "texts": (np.array(["a"]), f"{IMAGE}: cannot use values of type <U1"),
    "complex numbers": (IMAGES[0] * 1j, f"{IMAGE}: cannot use values of type complex"),
    "objects": (object(), f"{IMAGE}: cannot use values of type object"),
    "lists of unequal length": ({"image": [[1.0], [1.0, 2.0]]}, f"sample 0, {IMAGE}: not an array"),
}


@pytest.mark.parametrize(("sample", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused_by_name(sample, message):
    with pytest.raises(InvalidSample, match=message):
        fed([sample])


INDICES = r"input 'in1' \(int32\[1,2\]\)"
MISFIT_PAIRS: dict[str, tuple[Any, str]] = {
    "too few arrays": (X[0], "sample 0 has 1 arrays, the model has 2 inputs: 'in0' .*, 'in1' "),
    "a fraction": ((X[0], K[0] + 0.5), f"sample 0, {INDICES}: float64 values do not fit into int32"),
    "too large an integer": ((X[0], K[0] + np.int64(2**40)), f"{INDICES}: int64 values do not fit into int32"),
    "NaN": ((X[0], K[0] * np.nan), f"{INDICES}: float64 values do not fit into int32"),
    "a shape": ((X[:, 0], K[:, 0, :1]), rf"{INDICES}: the shape \[3, 1\] does not fit"),
    "ragged batches": ((X[:, 0], K[:2, 0]), "sample 0: the inputs have batches of different sizes: 'in0' 3, 'in1' 2"),
}


@pytest.mark.parametrize(("sample", "message"), MISFIT_PAIRS.values(), ids=MISFIT_PAIRS)
def test_of_several_inputs_the_one_that_does_not_fit_is_named(sample, message):
    with pytest.raises(InvalidSample, match=message):
        fed([sample], two_inputs())


def test_half_a_batch_is_refused():
    model = build.one_op("ABS", [build.act("x", 2, 3)], build.act("y", 2, 3), options="AbsOptions")
    with pytest.raises(InvalidSample, match=r"input 'x' \(float32\[2,3\]\): the shape \[3, 3\] does not fit"):
        fed([np.zeros((3, 3), np.float32)], model)


def test_a_tensor_that_refuses_to_be_an_array_is_named():
    class Stubborn:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
            raise RuntimeError("call detach first")

    with pytest.raises(InvalidSample, match=r"sample 0, input 'in0' .*: not an array \(call detach first\)"):
        fed([Stubborn()])


def test_a_string_input_cannot_be_fed():
    x = build.act("x", 1, dtype=DType.STRING)
    model = build.one_op("CAST", [x], build.act("y", 1), options="CastOptions")
    with pytest.raises(InvalidSample, match=r"takes string, which cannot be fed"):
        fed([np.zeros(1, np.float32)], model)


@pytest.mark.parametrize("bad", [0, 1, 4])
@pytest.mark.parametrize("kind", ["generator", "loader"])
def test_an_exception_in_the_data_is_shown_as_theirs(bad, kind):
    def generate():
        for k, x in enumerate(IMAGES):
            if k == bad:
                raise KeyError("lost")
            yield x

    class Broken(Loader):
        def __getitem__(self, k: int) -> Any:
            if k == bad:
                raise KeyError("lost")
            return super().__getitem__(k)

    samples = generate if kind == "generator" else Broken(IMAGES)
    with pytest.raises(InvalidSample, match=f"your data raised KeyError while making sample {bad}: 'lost'") as raised:
        calibrate(build.float_cnn(), samples)
    assert isinstance(raised.value.__cause__, KeyError)


def test_an_interrupt_is_not_swallowed():
    def generate():
        yield IMAGES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(build.float_cnn(), generate)


@pytest.mark.parametrize(
    "samples", [[], iter(()), Loader([]), lambda: iter(())], ids=["list", "iterator", "loader", "function"]
)
def test_no_samples_are_refused(samples):
    with pytest.raises(InvalidSample, match="no samples were given; calibration needs at least one"):
        calibrate(build.float_cnn(), samples)


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_a_float64_beyond_float32_is_infinite(value):
    with pytest.raises(InvalidSample, match="sample 0 makes 16 of 16 values of 'image' NaN or infinite"):
        calibrate(build.float_cnn(), [np.full((1, 4, 4, 1), value)])
