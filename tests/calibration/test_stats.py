"""Statistics add up, survive a file unchanged, and belong to one model."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropoint.calibration import Settings, Stats, calibrate
from zeropoint.calibration.stats import FORMAT, median
from zeropoint.errors import InvalidStats, OutputExists

from .. import build
from .facts import averages, close, exact, sums


@pytest.fixture(scope="module")
def singles(case) -> list[Stats]:
    """The statistics of each sample by itself."""
    return [calibrate(case.model, [sample]) for sample in case.samples[:12]]


@pytest.fixture(scope="module")
def whole(case) -> Stats:
    """The same samples in one pass."""
    return calibrate(case.model, case.samples[:12])


def merged(parts: list[Stats]) -> Stats:
    result = parts[0]
    for part in parts[1:]:
        result = result.merge(part)
    return result


# Merging.


@settings(max_examples=30)
@given(data=st.data())
def test_any_grouping_of_the_samples_gives_the_same(singles, whole, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(singles) - 1))))
    groups = [singles[a:b] for a, b in zip([0, *cuts], [*cuts, len(singles)], strict=True)]
    result = merged([merged(group) for group in groups])
    assert exact(result) == exact(whole)
    assert close(sums(result), sums(whole))
    assert close(averages(result), averages(whole))
    assert result.samples == whole.samples == len(singles)


@settings(max_examples=30)
@given(data=st.data())
def test_order_matters_only_for_the_average(singles, whole, data):
    result = merged(data.draw(st.permutations(singles)))
    assert exact(result, numbers=False) == exact(whole, numbers=False)
    assert close(sums(result), sums(whole))


@pytest.mark.parametrize("at", [1, 7, 16, 17, 39])
def test_two_passes_give_the_same_as_one(case, at):
    parts = [calibrate(case.model, case.samples[:at]), calibrate(case.model, case.samples[at:])]
    result, one = merged(parts), calibrate(case.model, case.samples)
    assert exact(result) == exact(one)
    assert close(sums(result), sums(one))
    assert close(averages(result), averages(one))


def test_extremes_name_the_first_sample_that_had_them(case):
    twice = calibrate(case.model, [*case.samples, *case.samples])
    once = calibrate(case.model, case.samples)
    for name, t in once.tensors.items():
        assert (twice.tensors[name].low, twice.tensors[name].high) == (t.low, t.high)


def test_tensors_that_only_one_side_knows_are_kept():
    model = build.branches()
    first = calibrate(model, {"serving_default": [{"choice": np.bool_(False), "x": np.float32([1, 2])}]})
    second = calibrate(model, {"just_add": [np.float32([3, 4])]})
    assert "then::then/x" not in first.tensors
    both = first.merge(second)
    assert both.tensors.keys() == first.tensors.keys() | second.tensors.keys()
    assert exact(second.merge(first), numbers=False) == exact(both, numbers=False)
    assert both.tensors["then::then/x"].high.sample == 1


def test_statistics_of_two_models_do_not_merge(case):
    other = calibrate(build.dynamic(), [np.zeros((1, 3), np.float32)])
    with pytest.raises(InvalidStats, match="two different models"):
        calibrate(case.model, case.samples[:1]).merge(other)


def test_statistics_know_their_model(whole, case):
    whole.require(case.model)
    with pytest.raises(InvalidStats, match="another model"):
        whole.require(build.dynamic())


# The file.


def test_a_file_gives_back_the_same(whole, tmp_path):
    whole.save(tmp_path / "a.stats")
    loaded = Stats.load(tmp_path / "a.stats")
    assert exact(loaded) == exact(whole)
    assert sums(loaded) == sums(whole)
    assert [t.average for t in loaded.tensors.values()] == [t.average for t in whole.tensors.values()]
    assert (loaded.fingerprint, loaded.samples, loaded.notes) == (whole.fingerprint, whole.samples, whole.notes)
    assert list(loaded.tensors) == list(whole.tensors)


def test_the_same_input_gives_the_same_bytes(case, tmp_path):
    for name in ("a", "b"):
        calibrate(case.model, case.samples[:5]).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_loaded_statistics_merge_and_save_like_others(singles, tmp_path):
    for k, part in enumerate(singles[:2]):
        part.save(tmp_path / f"{k}.stats")
    loaded = [Stats.load(tmp_path / f"{k}.stats") for k in range(2)]
    merged(loaded).save(tmp_path / "loaded")
    merged(singles[:2]).save(tmp_path / "fresh")
    assert (tmp_path / "loaded").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_odd_names_and_empty_histograms_survive(tmp_path):
    stats = calibrate(build.names(), [np.float32([1, -1])], Settings(histograms=False))
    stats.save(tmp_path / "odd")
    assert exact(Stats.load(tmp_path / "odd")) == exact(stats)


def test_nothing_is_overwritten_unasked(whole, tmp_path):
    path = tmp_path / "a.stats"
    path.write_bytes(b"precious")
    with pytest.raises(OutputExists):
        whole.save(path)
    assert path.read_bytes() == b"precious"
    whole.save(path, overwrite=True)
    assert Stats.load(path).samples == whole.samples


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("stats") / "a.stats"
    rng = np.random.default_rng(0)
    calibrate(build.float_cnn(), list(rng.normal(size=(3, 1, 4, 4, 1)).astype(np.float32))).save(path)
    return path.read_bytes()


def archive(content: bytes, **changes: object) -> bytes:
    """The file with other values in its header; the archive itself is sound."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    header = {**json.loads(arrays["header"].tobytes()), **changes}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    result = io.BytesIO()
    np.savez(result, **arrays)
    return result.getvalue()


def changed(content: bytes, field: str, value: object) -> bytes:
    """The file with another value of a field of its first tensor."""
    with np.load(io.BytesIO(content)) as file:
        tensors = json.loads(file["header"].tobytes())["tensors"]
    tensors[0][field] = value(tensors[0][field]) if callable(value) else value
    return archive(content, tensors=tensors)


def deep(content: bytes) -> bytes:
    return with_arrays(content, header=lambda _: np.frombuffer(b"[" * 10**6, np.uint8))


def with_arrays(content: bytes, **changes: Callable[[Any], Any]) -> bytes:
    """The file with other arrays."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    result = io.BytesIO()
    np.savez_compressed(result, **(arrays | {name: change(arrays.get(name)) for name, change in changes.items()}))
    return result.getvalue()


def zipped(**files: bytes) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return result.getvalue()


DAMAGES = {
    "nothing": lambda _: b"",
    "text": lambda _: b"these are not statistics",
    "half": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
    "noise behind a zip's start": lambda content: content[:40] + np.random.default_rng(0).bytes(len(content)),
    "another archive": lambda _: zipped(a=b"b"),
    "arrays that are none": lambda _: zipped(
        **{f"{n}.npy": b"x" for n in ("header", "counts", "low", "high", "total")}
    ),
    "another format": lambda content: archive(content, format="zeropoint-stats-9"),
    "no format": lambda content: archive(content, format=None),
    "tensors that are none": lambda content: archive(content, tensors=7),
    "no tensors": lambda content: archive(content, tensors=[]),
    "samples": lambda content: archive(content, samples=-1),
    "no samples": lambda content: archive(content, samples=0),
    "a number of text": lambda content: archive(content, samples="3"),
    "notes": lambda content: archive(content, notes=[1]),
    "deep": lambda content: deep(content),
    "lengths": lambda content: changed(content, "histogram", [0, 0, -5]),
    "counts": lambda content: changed(content, "count", -1),
    "no counts": lambda content: changed(content, "count", 0),
    "runs": lambda content: changed(content, "runs", 0),
    "true": lambda content: changed(content, "runs", True),
    "nothing finite": lambda content: changed(content, "nonfinite", -3),
    "total": lambda content: changed(content, "total", float("nan")),
    "a mean beyond all values": lambda content: changed(content, "total", 1e30),
    "low": lambda content: changed(content, "low", [float("-inf"), 0]),
    "low above high": lambda content: changed(content, "low", [1e30, 0]),
    "a value of text": lambda content: changed(content, "low", ["1", 0]),
    "sample": lambda content: changed(content, "high", [100.0, -1]),
    "weight": lambda content: changed(content, "average", [0.0, 0.0, 0.0]),
    "average": lambda content: changed(content, "average", [2.0, 1.0, 1.0]),
    "exponent": lambda content: changed(content, "histogram", lambda h: [10**9, *h[1:]]),
    "first bin": lambda content: changed(content, "histogram", lambda h: [h[0], 10**40, h[2]]),
    "other bins": lambda content: changed(content, "histogram", lambda h: [h[0], h[1] + 10**6, h[2]]),
    "negative counts": lambda content: with_arrays(content, counts=lambda a: -a.astype(np.int64)),
    "broken counts": lambda content: with_arrays(content, counts=lambda a: a + 0.5),
    "channels": lambda content: with_arrays(content, low=lambda a: a * np.float32("nan")),
    "channels beyond all values": lambda content: with_arrays(content, low=lambda a: a - np.float32(1e30)),
    "channels the wrong way round": lambda content: with_arrays(content, high=lambda a: a - np.float32(1e30)),
    "means": lambda content: with_arrays(content, total=lambda a: a * np.inf),
    "too many tensors": lambda content: archive(content, tensors=[{"name": "x", "histogram": [0, 0, 10**9]}]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused(content, damage, tmp_path):
    path = tmp_path / "damaged.stats"
    path.write_bytes(damage(content))
    with pytest.raises(InvalidStats, match=r"damaged\.stats is not a statistics file, or is damaged"):
        Stats.load(path)


def test_a_bomb_stops_at_a_stated_size(content, tmp_path, monkeypatch):
    (tmp_path / "bomb").write_bytes(content)
    monkeypatch.setattr("zeropoint.calibration.stats.LARGEST", 1 << 8)
    with pytest.raises(InvalidStats, match=r"bomb unpacks to 0\.0 GB, and the limit is .* GB"):
        Stats.load(tmp_path / "bomb")


def test_the_format_is_named(content, tmp_path):
    (tmp_path / "newer").write_bytes(archive(content, format="zeropoint-stats-9"))
    with pytest.raises(InvalidStats, match=f"'zeropoint-stats-9', this version reads '{FORMAT}'"):
        Stats.load(tmp_path / "newer")


def test_a_flipped_bit_is_noticed_or_harmless(content, tmp_path):
    path = tmp_path / "flipped.stats"
    path.write_bytes(content)
    intact = exact(Stats.load(path))
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        try:
            assert exact(Stats.load(path)) == intact  # a date, say
        except InvalidStats:
            refused += 1
    assert refused > 200


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidStats, match=r"cannot read .*none\.stats: no such file"):
        Stats.load(tmp_path / "none.stats")


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_median_is_that_of_numpy(count):
    values = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    np.testing.assert_array_equal(median(values), np.median(values, axis=0))
    assert median(values[:, 0]) == np.median(values[:, 0])
