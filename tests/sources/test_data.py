"""Samples named on a command line: archives, arrays, folders of images, functions."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zeropoint.calibration import calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidSample, MissingExtra
from zeropoint.graph import Model
from zeropoint.sources.data import Data, Normalization, Preparation, load_data
from zeropoint.sources.ports import entry
from zeropoint.sources.samples import Notes, rows

from .. import build

IMAGES = np.random.default_rng(0).normal(size=(5, 4, 4, 1)).astype(np.float32)
X, K = np.arange(12, dtype=np.float32).reshape(3, 4), np.int32([[0, 1], [3, 2], [1, 1]])


def picture_model(*shape: int, dtype: DType = DType.FLOAT32, free: tuple[int, ...] | None = None) -> Model:
    x, y = build.act("x", *shape, dtype=dtype), build.act("y", *shape)
    x.shape_signature = free
    if dtype is DType.FLOAT32:
        return build.one_op("ABS", [x], y, options="AbsOptions")
    return build.one_op("CAST", [x], y, options="CastOptions")


def two_inputs() -> Model:
    x, k = build.act("x", 1, 4), build.act("k", 1, 2, dtype=DType.INT32)
    model = build.one_op("GATHER", [x, k], build.act("y", 1, 2), options="GatherOptions", axis=1, batchDims=1)
    build.sign(model, "serving_default", model.main)
    return model


def fed(data: Data, model: Model) -> list[list[Array]]:
    return [list(row) for _, row in rows(data.samples, entry(model), Notes())]


def loaded(path: object, model: Model, **how: Any) -> list[list[Array]]:
    return fed(load_data(str(path), entry(model), Preparation(**how)), model)


def refused(path: object, model: Model, message: str, **how: Any) -> None:
    with pytest.raises(InvalidSample, match=message):
        loaded(path, model, **how)


def said(path: object, model: Model, **how: Any) -> list[str]:
    """What is remarked on the samples."""
    notes = Notes()
    list(rows(load_data(str(path), entry(model), Preparation(**how)).samples, entry(model), notes))
    return notes.lines


# Archives and arrays.


@pytest.mark.parametrize("names", [("in0",), ("image",), ("anything",), ("image", "labels")], ids=" ".join)
@pytest.mark.parametrize("images", [IMAGES, IMAGES[:, None]], ids=["rows", "rows with a batch"])
def test_an_archive_of_one_input(tmp_path, names, images):
    np.savez(tmp_path / "a.npz", **dict(zip(names, (images, np.arange(5)), strict=False)))
    model = build.float_cnn()
    data = load_data(str(tmp_path / "a.npz"), entry(model))
    assert data.count == 5
    np.testing.assert_array_equal(fed(data, model), IMAGES[:, None, None])


def test_an_array_file(tmp_path):
    np.save(tmp_path / "a.npy", IMAGES)
    np.testing.assert_array_equal(loaded(tmp_path / "a.npy", build.float_cnn()), IMAGES[:, None, None])


@pytest.mark.parametrize("names", [("in0", "in1"), ("x", "k"), ("x", "in1")], ids=" ".join)
def test_an_archive_of_several_inputs(tmp_path, names):
    np.savez(tmp_path / "a.npz", **dict(zip(names, (X, K), strict=True)))
    found = loaded(tmp_path / "a.npz", two_inputs())
    np.testing.assert_array_equal([x for x, _ in found], X[:, None])
    np.testing.assert_array_equal([k for _, k in found], K[:, None])


def test_rows_are_put_together_to_the_models_own_batch(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12).reshape(6, 2))
    data = load_data(str(tmp_path / "a.npy"), entry(picture_model(3, 2)))
    assert data.count == 2
    np.testing.assert_array_equal(fed(data, picture_model(3, 2)), np.arange(12).reshape(2, 1, 3, 2))


def test_numbers_for_a_scalar_input(tmp_path):
    np.save(tmp_path / "a.npy", np.float32([1, 2, 3]))
    model = build.one_op("ABS", [build.act("x")], build.act("y"), options="AbsOptions")
    assert [row[0].tolist() for row in loaded(tmp_path / "a.npy", model)] == [1, 2, 3]


ARCHIVES: dict[str, tuple[dict[str, Array], str]] = {
    "unequal lengths": ({"x": X, "k": K[:2]}, r"the same number of samples, at least one: 'in0' 3, 'in1' 2"),
    "no samples": ({"x": X[:0], "k": K[:0]}, r"at least one: 'in0' 0, 'in1' 0"),
    "scalars": ({"x": X[0, 0], "k": K}, r"at least one: 'in0' 0, 'in1' 3"),
    "another name": ({"x": X, "indices": K}, r"has 'x', 'indices'; name its arrays after the model's inputs: 'in0'"),
    "one of two": ({"x": X}, r"has 'x'; name its arrays"),
    "nothing": ({}, r"has nothing; name its arrays"),
    "objects": ({"x": X, "k": np.array([None])}, r"a\.npz holds Python objects in 'k'; store numbers"),
}


@pytest.mark.parametrize(("arrays", "message"), ARCHIVES.values(), ids=ARCHIVES)
def test_a_bad_archive_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", two_inputs(), message)


def test_a_single_sample_without_an_axis_that_counts_is_named(tmp_path):
    np.save(tmp_path / "a.npy", X[0])
    shape = list(X[0].shape)
    assert len(shape) == 1
    model = build.one_op("ABS", [build.act("x", 1, *shape)], build.act("y", 1, *shape), options="AbsOptions")
    refused(tmp_path / "a.npy", model, r"is that of a single sample of the input 'x' .*: x\[None\]")


def test_a_bomb_stops_at_a_stated_size(tmp_path, monkeypatch):
    """A zip archive that says what it unpacks to, and an array that says more than the archive holds of it."""
    np.savez_compressed(tmp_path / "a.npz", np.zeros((10**6, 1), np.float32))
    monkeypatch.setattr("zeropoint.sources.data.LARGEST_ARCHIVE", 10**6)
    refused(tmp_path / "a.npz", build.float_cnn(), r"a\.npz unpacks to 0\.0 GB, and the limit is .* GB; give an \.npy")
    np.lib.format.write_array_header_1_0(
        header := io.BytesIO(), {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    )
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    refused(tmp_path / "b.npz", build.float_cnn(), r"b\.npz is not a NumPy archive: x\.npy is shorter than it says")


@pytest.mark.parametrize("suffix", ["npz", "npy"])
@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 damaged", b"\x93NUMPY\x01\x00", b"\x80\x04."], ids=repr)
def test_a_damaged_file_is_refused(tmp_path, content, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    refused(path, build.float_cnn(), r"a\.np[yz] is not a NumPy (archive|array file)")


def test_archives_and_arrays_are_not_confused(tmp_path):
    np.save(tmp_path / "a", IMAGES)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    refused(tmp_path / "a.npz", build.float_cnn(), r"a\.npz is not a NumPy archive")
    np.savez(tmp_path / "b", IMAGES)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    refused(tmp_path / "b.npy", build.float_cnn(), r"b\.npy is not a NumPy array file")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npz", r"cannot read .*none\.npz: no such file"),
        ("none.npy", r"cannot read .*none\.npy: no such file"),
        ("none", r"there is no .*none; give an \.npz, an \.npy, a folder of images, or file\.py:function"),
        ("none.py:samples", r"there is no .*none\.py"),
    ],
)
def test_a_missing_file_is_named(tmp_path, name, message):
    refused(tmp_path / name, build.float_cnn(), message)


def test_an_unknown_kind_of_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    refused(tmp_path / "a.csv", build.float_cnn(), r"cannot read samples from .*a\.csv; give an \.npz")


def test_normalization_is_for_images(tmp_path):
    np.save(tmp_path / "a.npy", IMAGES)
    refused(
        tmp_path / "a.npy",
        build.float_cnn(),
        "scale=, offset=, mean= and std= are",
        normalization=Normalization(scale=2),
    )


def test_of_several_arrays_the_one_that_fits_is_taken_and_the_rest_named(tmp_path):
    path, model = tmp_path / "a.npz", build.float_cnn()
    np.savez(path, x=IMAGES, y=np.arange(5), weights=np.ones((5, 2), np.float32))
    np.testing.assert_array_equal(loaded(path, model), IMAGES[:, None, None])
    assert any("'x' for the input 'in0' was taken, and 'y', 'weights' left out" in line for line in said(path, model))
    np.savez(path, x=IMAGES, y=IMAGES)
    refused(path, model, r"has 'x', 'y'; name its arrays after the model's inputs")
    np.savez(path, image=IMAGES, y=IMAGES)
    assert any("'image' for the input 'in0' was taken, and 'y' left out" in line for line in said(path, model))


FIRST = np.random.default_rng(2).uniform(size=(5, 3, 4, 6)).astype(np.float32)
LAST = np.moveaxis(FIRST, 1, -1)


@pytest.mark.parametrize("batch", [False, True], ids=["rows", "rows with a batch"])
@pytest.mark.parametrize(
    ("shape", "array", "expected", "order"),
    [((1, 4, 6, 3), FIRST, LAST, "first"), ((1, 3, 4, 6), LAST, FIRST, "last")],
    ids=["channels first", "channels last"],
)
def test_the_order_of_axes_is_noticed_and_mended(tmp_path, batch, shape, array, expected, order):
    path, model = tmp_path / "a.npy", picture_model(*shape)
    np.save(path, array[:, None] if batch else array)
    refused(path, model, rf"the axes look like channels {order}: np.moveaxis\(x, .* puts them where the model has")
    np.testing.assert_array_equal(loaded(path, model, transpose=True), expected[:, None, None])


def test_transposing_is_refused_where_it_does_not_help(tmp_path, photos):
    np.save(tmp_path / "a.npy", IMAGES)
    refused(tmp_path / "a.npy", picture_model(1, 9, 9, 3), "does not fit the input .* in another order", transpose=True)
    refused(tmp_path / "a.npy", picture_model(1, 9, 9, 3), r"the shape \[.*\] does not fit$")
    refused(photos, picture_model(1, 4, 6, 3), "--transpose applies to arrays", transpose=True)


# Images.

PIXELS = np.random.default_rng(1).integers(0, 256, (3, 4, 6, 3), np.uint8)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Three images of 4 x 6 pixels, in two folders, and something else."""
    (tmp_path / "more").mkdir()
    for name, pixels in zip(("b.png", "a.PNG", "more/c.png"), PIXELS[[1, 0, 2]], strict=True):
        Image.fromarray(pixels).save(tmp_path / name, "png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_images_are_read_in_order(photos):
    model = picture_model(1, 4, 6, 3)
    data = load_data(str(photos), entry(model))
    assert data.count == 3
    np.testing.assert_array_equal(fed(data, model), PIXELS[:, None, None])


def test_hidden_files_are_left_out_with_a_remark(photos):
    (photos / "._b.png").write_bytes(b"what a file system keeps beside an image")
    (photos / ".trash").mkdir()
    Image.fromarray(PIXELS[0]).save(photos / ".trash" / "x.png")
    model = picture_model(1, 4, 6, 3)
    np.testing.assert_array_equal(loaded(photos, model), PIXELS[:, None, None])
    assert said(photos, model) == ["2 hidden files were left out: ._b.png"]
    for name in ("a.PNG", "b.png", "more/c.png"):
        (photos / name).unlink()
    refused(photos, model, "holds no images but 2 hidden")


def test_a_limit_spreads_over_the_folder(tmp_path):
    for k in range(10):
        Image.fromarray(np.full((4, 6, 3), k, np.uint8)).save(tmp_path / f"{k}.png")
    model = picture_model(1, 4, 6, 3)
    found = loaded(tmp_path, model, limit=4)
    assert [int(row[0][0, 0, 0, 0]) for row in found] == [0, 2, 5, 7]
    assert said(tmp_path, model, limit=4) == ["4 of 10 images are used, spread evenly over their names"]
    assert len(loaded(tmp_path, model, limit=11)) == 10
    assert said(tmp_path, model, limit=10) == []


def test_images_are_normalized(photos):
    normalization = Normalization(1 / 255, 0.5, (0.1, 0.2, 0.3), (2.0,))
    found = loaded(photos, picture_model(1, 4, 6, 3), normalization=normalization)
    expected = (PIXELS / 255 + 0.5 - [0.1, 0.2, 0.3]) / 2
    np.testing.assert_allclose(found, expected[:, None, None], atol=1e-6)


def test_channels_may_come_first(photos):
    found = loaded(photos, picture_model(1, 3, 4, 6))
    np.testing.assert_array_equal(found, PIXELS.transpose(0, 3, 1, 2)[:, None, None])


def test_one_channel_is_grey(photos):
    found = loaded(photos, picture_model(1, 4, 6, 1))
    expected = [np.asarray(Image.fromarray(pixels).convert("L")) for pixels in PIXELS]
    np.testing.assert_array_equal(np.reshape(found, (3, 4, 6)), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA"])
def test_other_pictures_become_rgb(tmp_path, mode):
    picture = Image.fromarray(PIXELS[0]).convert(mode)
    picture.save(tmp_path / "a.png")
    found = loaded(tmp_path, picture_model(1, 4, 6, 3))
    np.testing.assert_array_equal(found[0][0][0], np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_images_are_turned_upright(tmp_path, orientation, suffix):
    """A quarter of an image is bright; the camera held it in one of eight ways."""
    upright = np.zeros((16, 32), np.uint8)
    upright[:8, :16] = 255
    # What the camera stored is what becomes upright by undoing the orientation.
    undo = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.T,
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].T,
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(undo(upright)))
    stored.save(tmp_path / f"a.{suffix}", exif=exif, **({"quality": 100} if suffix == "jpg" else {}))
    notes, model = Notes(), picture_model(1, 16, 32, 1)
    ((_, (found,)),) = rows(load_data(str(tmp_path), entry(model)).samples, entry(model), notes)
    np.testing.assert_allclose(found[0, :, :, 0], upright, atol=2)
    assert notes.lines == (["images were rotated according to their EXIF data"] if orientation > 1 else [])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.UINT8])
def test_sixteen_bits_are_kept(tmp_path, channels, dtype):
    deep = np.array([[0, 257, 300], [30000, 65278, 65535]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    notes, model = Notes(), picture_model(1, 2, 3, channels, dtype=dtype)
    ((_, (found,)),) = rows(load_data(str(tmp_path), entry(model)).samples, entry(model), notes)
    expected = deep / np.float32(257)
    if dtype is DType.UINT8:
        expected = np.rint(expected)
    assert found.dtype == dtype.storage
    np.testing.assert_allclose(found[0], np.repeat(expected[..., None], channels, 2), rtol=1e-6)
    assert notes.lines == ["images of 16 bits were divided by 257, so that their values are 0 to 255"]


def test_sixteen_bits_are_resized_without_rounding(tmp_path):
    deep = np.array([[0, 0, 257, 257], [0, 0, 257, 257]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    found = loaded(tmp_path, picture_model(1, 1, 3, 1))
    values = np.ravel(found[0][0])
    assert 0 < values[1] < 1
    assert values[0] < values[1] < values[2]


def test_images_are_resized(photos):
    found = loaded(photos, picture_model(1, 8, 5, 3))
    expected = [np.asarray(Image.fromarray(pixels).resize((5, 8))) for pixels in PIXELS]
    np.testing.assert_array_equal(np.reshape(found, (3, 8, 5, 3)), expected)


def test_images_keep_their_size_where_the_model_takes_any(photos):
    found = loaded(photos, picture_model(1, 1, 1, 3, free=(1, -1, -1, 3)))
    np.testing.assert_array_equal(found, PIXELS[:, None, None])


def test_pixels_go_into_uint8_as_they_are(photos):
    found = loaded(photos, picture_model(1, 4, 6, 3, dtype=DType.UINT8))
    assert found[0][0].dtype == np.uint8
    np.testing.assert_array_equal(found, PIXELS[:, None, None])


@pytest.mark.parametrize(
    ("model", "normalization", "message"),
    [
        (picture_model(1, 4, 6, 2), {}, r"images do not fit the input 'x' \(float32\[1,4,6,2\]\)"),
        (picture_model(4, 3), {}, "it needs four dimensions with 1 or 3 channels"),
        (two_inputs(), {}, "needs a model with one input; this one has 2"),
        (picture_model(1, 4, 6, 3), {"mean": (1.0, 2.0)}, "one number, or one for each channel"),
        (picture_model(1, 4, 6, 1), {"std": (1.0, 2.0, 3.0)}, "one number, or one for each channel"),
        (picture_model(1, 4, 6, 3), {"std": (1.0, 0.0, 1.0)}, "std= must not be 0"),
        (picture_model(1, 4, 6, 3, dtype=DType.UINT8), {"scale": 0.5}, "takes raw pixels"),
    ],
)
def test_images_that_cannot_be_used_are_refused(photos, model, normalization, message):
    refused(photos, model, message, normalization=Normalization(**normalization) if normalization else None)


def test_a_folder_without_images_is_refused(tmp_path):
    refused(tmp_path, picture_model(1, 4, 6, 3), r"holds no images \(\.png, \.jpg")


@pytest.mark.parametrize("damage", [lambda _: b"", lambda c: c[: len(c) // 2], lambda c: c[:60] + b"?" * 99])
def test_a_damaged_image_is_named(photos, damage: Callable[[bytes], bytes]):
    path = photos / "b.png"
    path.write_bytes(damage(path.read_bytes()))
    refused(photos, picture_model(1, 4, 6, 3), r"cannot read the image .*b\.png")


def test_without_pillow_the_extra_is_named(photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'zeropoint\[images\]'"):
        loaded(photos, picture_model(1, 4, 6, 3))


# Functions.

SCRIPT = """
import numpy as np

NUMBERS = [1, 2]

def samples():
    for k in range(3):
        yield np.full((1, 4, 4, 1), k, np.float32)

def broken():
    yield from samples()
    raise OSError("disk on fire")
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return path


def test_a_function_gives_samples(script):
    model = build.float_cnn()
    data = load_data(f"{script}:samples", entry(model))
    assert data.count is None
    assert [row[0].max() for row in fed(data, model)] == [0, 1, 2]
    assert calibrate(model, data.samples).samples == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", r"mine\.py has no function 'absent'"),
        ("NUMBERS", r"mine\.py has no function 'NUMBERS'"),
        ("broken", "your data raised OSError while making sample 3: disk on fire"),
    ],
)
def test_a_bad_function_is_refused(script, name, message):
    refused(f"{script}:{name}", build.float_cnn(), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import absent_module", "raised ModuleNotFoundError: No module named 'absent_module'"),
        ("def", "raised SyntaxError"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
    ],
)
def test_a_broken_script_is_refused(script, content, message):
    script.write_text(content)
    refused(f"{script}:samples", build.float_cnn(), message)


def test_a_model_without_inputs_takes_no_data(tmp_path):
    constant, y = build.const("c", [1.0, 2.0]), build.act("y", 2)
    model = build.one_op("ABS", [constant], y, options="AbsOptions")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 2), np.float32))
    with pytest.raises(InvalidSample, match="the model has no inputs"):
        load_data(str(tmp_path / "x.npz"), entry(model))
