"""real = scale * (q - zero_point): the laws of the mapping, and that LiteRT's kernels agree."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zeropoint import affine
from zeropoint.affine import SMALLEST_SCALE, PerAxis, PerTensor, QuantParams, dequantize, quantize, round_half_away
from zeropoint.dtypes import DType
from zeropoint.errors import InvalidRange
from zeropoint.runtime import Session

from .build import act, one_op

TYPES = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT4, DType.UINT4, DType.INT2)
LARGEST = float(np.float32(1e38))

floats = st.floats(-LARGEST, LARGEST, width=32)
ends = st.tuples(floats, floats).map(sorted)
kinds = st.tuples(st.sampled_from(TYPES), st.booleans(), st.booleans()).map(
    lambda kind: (kind[0], kind[1] and kind[0].kind == "int", kind[2])
)

DEGENERATE = {
    "all zero": (0.0, 0.0),
    "equal": (2.5, 2.5),
    "equal and negative": (-2.5, -2.5),
    "all positive": (1.0, 3.0),
    "all negative": (-3.0, -1.0),
    "subnormal": (-1e-45, 1e-45),
    "below float32": (1e-300, 1e-290),
    "huge": (-1e38, 1e38),
    "huge and positive": (1e38, 1e38),
    "wider than float32": (-3.4e38, 3.4e38),
    "float64": (-1.7e308, 1.7e308),
    "lopsided": (-1e-30, 1e30),
}


def tolerance(params: QuantParams, span: float) -> float:
    """Half a step, and what float32 loses on the way: in the scale, in the division and in the product."""
    return params.scale / 2 + 2.0**-22 * span


@given(ends, kinds)
def test_zero_is_exact(ends, kind):
    dtype, symmetric, narrow = kind
    params = QuantParams.from_range(*ends, dtype, symmetric, narrow)
    q = quantize(0.0, params, narrow=narrow)
    assert q == params.zero_point
    assert dequantize(q, params) == 0
    assert dtype.min + narrow <= params.zero_point <= dtype.max


@given(ends, kinds, st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_error_in_range_is_half_a_step(ends, kind, parts):
    dtype, symmetric, narrow = kind
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    params = QuantParams.from_range(*ends, dtype, symmetric, narrow)
    x = np.float32([low + part * (high - low) for part in parts])
    restored = dequantize(quantize(x, params, narrow=narrow), params).astype(np.float64)
    assert (np.abs(restored - x) <= tolerance(params, high - low)).all()


@given(ends, kinds)
def test_what_lies_outside_is_clamped(ends, kind):
    dtype, symmetric, narrow = kind
    params = QuantParams.from_range(*ends, dtype, symmetric, narrow)
    low, high = params.range()
    step = 2.0**-20 * (high - low) + params.scale
    assert (quantize([low - step, 2 * low - step, -math.inf], params, narrow=narrow) == dtype.min + narrow).all()
    assert (quantize([high + step, 2 * high + step, math.inf], params, narrow=narrow) == dtype.max).all()


@given(st.lists(floats, min_size=2, max_size=20), ends, kinds)
def test_order_is_kept(values, ends, kind):
    dtype, symmetric, narrow = kind
    params = QuantParams.from_range(*ends, dtype, symmetric, narrow)
    q = quantize(np.sort(np.float32(values)), params, narrow=narrow).astype(np.int64)
    assert (np.diff(q) >= 0).all()


@given(ends, st.sampled_from([t for t in TYPES if t.kind == "int"]), st.booleans())
def test_symmetric_means_zero_point_zero(ends, dtype, narrow):
    params = QuantParams.from_range(*ends, dtype, symmetric=True, narrow=narrow)
    mirrored = QuantParams.from_range(-ends[1], -ends[0], dtype, symmetric=True, narrow=narrow)
    assert params.zero_points == (0,)
    assert params.is_symmetric
    assert params == mirrored


def test_symmetric_needs_a_sign():
    with pytest.raises(ValueError, match="signed"):
        QuantParams.from_range(-1, 1, DType.UINT8, symmetric=True)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.label)
@pytest.mark.parametrize("ends", DEGENERATE.values(), ids=DEGENERATE.keys())
def test_every_finite_range_has_parameters(ends, dtype):
    for symmetric in {False, dtype.kind == "int"}:
        for narrow in (False, True):
            params = QuantParams.from_range(*ends, dtype, symmetric, narrow)
            assert SMALLEST_SCALE <= params.scale <= np.finfo(np.float32).max
            assert params.scale == float(np.float32(params.scale))
            assert dtype.min + narrow <= params.zero_point <= dtype.max
            assert dequantize(quantize(0.0, params), params) == 0


@pytest.mark.parametrize("bad", [(math.nan, 1), (0, math.nan), (-math.inf, 0), (0, math.inf), (2, 1)], ids=str)
def test_what_no_scale_can_represent_is_refused_by_name(bad):
    with pytest.raises(InvalidRange, match="'conv/weights' has"):
        QuantParams.from_range(*bad, DType.INT8, name="conv/weights")
    with pytest.raises(InvalidRange, match="'conv/weights' channel 1 has"):
        QuantParams.from_range([0, bad[0]], [1, bad[1]], DType.INT8, axis=0, name="conv/weights")


@given(st.data(), kinds, st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_per_axis_is_per_tensor_slice_by_slice(data, kind, shape):
    dtype, symmetric, narrow = kind
    axis = data.draw(st.integers(0, len(shape) - 1))
    pairs = data.draw(st.lists(ends, min_size=shape[axis], max_size=shape[axis]))
    values = data.draw(st.lists(floats, min_size=math.prod(shape), max_size=math.prod(shape)))
    x = np.float32(values).reshape(shape)
    lows, highs = zip(*pairs, strict=True)
    params = QuantParams.from_range(lows, highs, dtype, symmetric, narrow, axis=axis)
    q = quantize(x, params, narrow=narrow)
    restored = dequantize(q, params)
    for k, pair in enumerate(pairs):
        alone = QuantParams.from_range(*pair, dtype, symmetric, narrow)
        assert alone == QuantParams((params.scales[k],), (params.zero_points[k],), dtype)
        part = quantize(x.take(k, axis), alone, narrow=narrow)
        assert np.array_equal(q.take(k, axis), part)
        assert np.array_equal(restored.take(k, axis), dequantize(part, alone))


KNOWN = [
    (-1.6488090753555298, 1.5555250644683838, DType.INT8, 0.012566016986966133, 3),
    (-0.5, 254.5, DType.UINT8, 1.0, 1),  # halves away from zero, here
    (-0.5, 254.5, DType.INT8, 1.0, -128),  # and here
    (0.0, 255.0, DType.UINT8, 1.0, 0),
    (-255.0, 0.0, DType.INT8, 1.0, 127),
]


@pytest.mark.parametrize(("low", "high", "dtype", "scale", "zero_point"), KNOWN)
def test_known_cases(low, high, dtype, scale, zero_point):
    assert QuantParams.from_range(low, high, dtype) == QuantParams((scale,), (zero_point,), dtype)


def classical_zero_point(low: float, high: float, dtype: DType) -> int:
    """By the published rule for uint8 and int8, in Python's double precision, one number at a time."""
    low, high = min(low, 0.0), max(high, 0.0)
    step = (high - low) / (dtype.max - dtype.min)
    from_low, from_high = dtype.min - low / step, dtype.max - high / step
    low_error, high_error = abs(dtype.min) + abs(low / step), abs(dtype.max) + abs(high / step)
    chosen = from_low if low_error < high_error else from_high
    return min(dtype.max, max(dtype.min, math.floor(abs(chosen) + 0.5) * (1 if chosen >= 0 else -1)))


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
def test_zero_points_are_those_of_the_classical_rule(dtype):
    """Over ten thousand ranges, a third of them symmetric, where the zero point would lie between two integers."""
    rng = np.random.default_rng(7)
    sizes = np.exp(rng.uniform(-12, 12, (10_000, 2))).astype(np.float32).astype(np.float64)
    sizes[::3, 1] = sizes[::3, 0]
    sizes[1::30, 0] = 0
    lows, highs = -sizes[:, 0], sizes[:, 1]
    params = QuantParams.from_range(lows, highs, dtype, axis=0)
    expected = [classical_zero_point(low, high, dtype) for low, high in zip(lows, highs, strict=True)]
    assert list(params.zero_points) == expected
    assert np.allclose(params.scales, (highs - lows) / 255, rtol=2**-22, atol=0)


@pytest.mark.parametrize(("dtype", "zero_point"), [(DType.INT8, -1), (DType.UINT8, 128)])
def test_symmetric_ranges_have_the_classical_zero_point(dtype, zero_point):
    assert QuantParams.from_range(-1.0, 1.0, dtype).zero_point == zero_point


@given(ends, st.sampled_from(TYPES))
def test_the_end_with_the_smaller_error_stays_in_place(ends, dtype):
    """The scale is a float32: over many steps its error adds up, and one of the ends has to give."""
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    params = QuantParams.from_range(low, high, dtype)
    assume(abs(low + high) > 2 * params.scale)  # a clear decision
    first, last = params.range()
    off = first - low if dtype.min == 0 or -low < high else last - high
    assert abs(off) <= params.scale * (0.5 + 2.0**-18)


def test_parameters_without_an_axis_are_single():
    with pytest.raises(ValueError, match="axis"):
        QuantParams((1.0, 2.0), (0, 0), DType.INT8)
    with pytest.raises(ValueError, match="zero points"):
        QuantParams((1.0,), (0, 0), DType.INT8, PerAxis(0))


@given(st.floats(-(2.0**40), 2.0**40) | st.integers(-(2**20), 2**20).map(lambda k: k + 0.5))
def test_rounding_is_half_away_from_zero(x):
    assert round_half_away(np.float64(x)) == int(Decimal(x).quantize(Decimal(1), ROUND_HALF_UP))


@given(st.floats(-(2.0**30), 2.0**30, width=32) | st.integers(-(2**22), 2**22).map(lambda k: k + 0.5))
def test_rounding_is_exact_in_single_precision_too(x):
    for value in (np.float32(x), *np.nextafter(np.float32(x), np.float32([-1e9, 1e9]))):
        found = round_half_away(np.asarray(value))
        assert found.dtype == np.float32
        assert found == int(Decimal(float(value)).quantize(Decimal(1), ROUND_HALF_UP))


@given(st.lists(ends, max_size=6), st.sampled_from([DType.INT8, DType.UINT8, DType.INT16]), st.booleans())
def test_parameters_made_together_are_those_made_one_by_one(ranges, dtype, symmetric):
    symmetric = symmetric and dtype.kind == "int"
    names = [f"t{k}" for k in range(len(ranges))]
    alone = [QuantParams.from_range(*r, dtype, symmetric) for r in ranges]
    assert QuantParams.each_from_range(ranges, dtype, symmetric, names) == alone


def test_of_several_ranges_the_wrong_one_is_named():
    with pytest.raises(InvalidRange, match=r"'second' has the range \[0.0, inf\]"):
        QuantParams.each_from_range([(0.0, 1.0), (0.0, math.inf)], DType.INT8, False, ["first", "second"])


@pytest.mark.parametrize(
    "dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64], ids=lambda d: d.label
)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    axis=st.integers(0, 3) | st.none(),
    seed=st.integers(0, 9),
)
def test_going_block_by_block_changes_nothing(dtype, shape, axis, seed):
    rng = np.random.default_rng(seed)
    axis = None if axis is None or axis >= len(shape) else axis
    channels = 1 if axis is None else shape[axis]
    params = QuantParams(
        tuple(map(float, rng.uniform(0.01, 1, channels).astype(np.float32))),
        tuple(int(z) for z in rng.integers(max(dtype.min, -9), 9, channels)),
        dtype,
        PerTensor() if axis is None else PerAxis(axis),
    )
    x = rng.normal(size=shape).astype(np.float32)
    whole = quantize(x, params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affine, "BLOCK", 3)
        np.testing.assert_array_equal(quantize(x, params), whole)
    assert whole.dtype == dtype.storage


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16], ids=lambda d: d.label)
@pytest.mark.parametrize("seed", range(4))
def test_litert_quantizes_and_dequantizes_to_the_same_bits(dtype, seed):
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.normal(size=2) * 10.0 ** rng.integers(-6, 6))
    params = QuantParams.from_range(low, high, dtype, symmetric=dtype is DType.INT16)
    span = params.scale * (dtype.max - dtype.min)
    halves = (rng.integers(dtype.min, dtype.max, 500) - params.zero_point + 0.5) * params.scale
    x = np.float32(np.concatenate([rng.uniform(low - span, high + span, 1500), halves]))

    down = one_op("QUANTIZE", [act("x", x.size)], act("q", x.size, dtype=dtype, params=params))
    (q,) = Session(down, kernels="reference").run([x])
    assert np.array_equal(q, quantize(x, params))

    up = one_op("DEQUANTIZE", [act("q", x.size, dtype=dtype, params=params)], act("x", x.size))
    (restored,) = Session(up, kernels="reference").run([q])
    assert np.array_equal(restored, dequantize(q, params))


def test_parameters_have_the_same_hash_in_other_processes():
    """A copy that was pickled with its hash finds what an equal one stored."""
    params = QuantParams((0.5, 0.25), (0, 0), DType.INT8, PerAxis(0))
    assert hash(params) == hash(replace(params))
    assert {params: 1}[pickle.loads(pickle.dumps(params))] == 1
    assert hash(params) == hash(((0.5, 0.25), (0, 0)))  # nothing in it depends on the process
