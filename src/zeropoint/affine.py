"""The affine mapping between real numbers and integers: real = scale * (q - zero_point).

Rounding is half away from zero, as in the LiteRT kernels. Real 0 is always represented exactly, because padding and
ReLU produce it everywhere; that is why the zero point is rounded ("nudged") to an integer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .display import Brief, counted
from .dtypes import Array, DType, Levels
from .errors import InvalidRange
from .parallel import cached_property

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales are stored as float32; smaller ones would be subnormal, which kernels flush to zero."""


@dataclass(frozen=True)
class PerTensor:
    """One scale for all elements."""


@dataclass(frozen=True)
class PerAxis:
    """One scale for each slice along `axis`."""

    axis: int


@dataclass(frozen=True)
class PerBlock:
    """One scale for every `size` consecutive elements along `axis`, the last axis. Scales are in block order."""

    axis: int
    size: int


Granularity = PerTensor | PerAxis | PerBlock
"""Which elements share a scale."""


@dataclass(frozen=True, repr=False)
class QuantParams(Brief):
    """How a tensor's integers map to reals, with one scale and zero point for each unit of `granularity`.

    `narrowed` is the number of bits in use, if fewer than the type has.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dtype: DType
    granularity: Granularity = PerTensor()
    narrowed: int | None = None

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.zero_points):
            raise ValueError(f"{len(self.scales)} scales but {len(self.zero_points)} zero points")
        if isinstance(self.granularity, PerTensor) and len(self.scales) != 1:
            raise ValueError(f"{len(self.scales)} scales need an axis")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once, because parameters with many scales are part of many keys; the same in every process."""
        return hash((self.scales, self.zero_points))

    @property
    def axis(self) -> int | None:
        """The axis of per-axis parameters; None for other granularities."""
        return self.granularity.axis if isinstance(self.granularity, PerAxis) else None

    @property
    def block(self) -> int | None:
        """The block size of blockwise parameters; None for other granularities."""
        return self.granularity.size if isinstance(self.granularity, PerBlock) else None

    @property
    def scale(self) -> float:
        """The scale of per-tensor parameters; raises if there are several."""
        (scale,) = self.scales
        return scale

    @property
    def zero_point(self) -> int:
        """The zero point of per-tensor parameters; raises if there are several."""
        (zero_point,) = self.zero_points
        return zero_point

    @property
    def levels(self) -> Levels:
        """The integers that values are rounded to."""
        return Levels(self.dtype, self.narrowed or self.dtype.bits)

    @property
    def is_symmetric(self) -> bool:
        return not any(self.zero_points)

    def range(self) -> tuple[float, float]:
        """The smallest and largest representable real numbers, over all channels."""
        pairs = list(zip(self.scales, self.zero_points, strict=True))
        low, high = self.levels.min, self.levels.max
        return min(s * (low - z) for s, z in pairs), max(s * (high - z) for s, z in pairs)

    @cached_property
    def arrays(self) -> tuple[Array, Array]:
        """Scales as float32 and zero points as int64."""
        return np.array(self.scales, np.float32), np.array(self.zero_points, np.int64)

    def along(self, rank: int) -> tuple[Array, Array]:
        """Return scales and zero points shaped to broadcast against a tensor of this rank; raises for blocks."""
        scales, zero_points = self.arrays
        if self.axis is None:
            self.scale  # noqa: B018 - raises if there are several
            return scales[0], zero_points[0]
        shape = broadcast_shape(self.axis, rank)
        return scales.reshape(shape), zero_points.reshape(shape)

    def __str__(self) -> str:
        label = self.dtype.label if self.narrowed is None else f"{self.dtype.label} ({self.narrowed} bits used)"
        if self.block is not None:
            return f"{label} in blocks of {self.block}"
        if self.axis is None:
            return f"{label} {self.scale:.6g} * (q - {self.zero_point})"
        spread = f"{min(self.scales):.4g} .. {max(self.scales):.4g}"
        return f"{label} {counted(len(self.scales), 'channel')} on axis {self.axis}, scale {spread}"

    @classmethod
    def from_range(
        cls,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        levels: DType | Levels,
        symmetric: bool = False,
        narrow: bool = False,
        *,
        axis: int | None = None,
        name: str = "tensor",
    ) -> QuantParams:
        """Return parameters that cover [low, high]; with `axis`, one range for each channel.

        The range is extended to include zero. With q in [qmin, qmax] (qmin one higher if `narrow`):

            scale      = (high - low) / (qmax - qmin),   symmetric: max(-low, high) / qmax
            zero_point = round(qmin - low / scale)  or  round(qmax - high / scale)

        whichever end has the smaller rounding error, clamped to [qmin, qmax]. The scale is stored as float32, but the
        zero point is computed from the quotient in double precision, so that [-1, 1] has zero point -1 in int8 and 128
        in uint8.
        """
        lows, highs = np.atleast_1d(np.asarray(low, np.float64)), np.atleast_1d(np.asarray(high, np.float64))
        _require_range(lows, highs, name)
        levels = levels.levels if isinstance(levels, DType) else levels
        dtype = levels.dtype
        if symmetric and dtype.kind != "int":
            raise ValueError(f"symmetric parameters need a signed type, not {dtype.label}")
        qmin, qmax = levels.min + int(narrow), levels.max
        lows, highs = np.minimum(lows, 0.0), np.maximum(highs, 0.0)
        if symmetric:
            scales = _storable(np.maximum(-lows, highs) / qmax)
            zero_points: Array = np.zeros(lows.shape, np.int64)
        else:
            scales = _storable(_span(lows, highs) / (qmax - qmin))
            steps = _unrounded(scales, lows, highs, qmax - qmin)
            below, above = -lows / steps, highs / steps
            from_low = abs(qmin) + below < abs(qmax) + above
            nudged = round_half_away(np.where(from_low, qmin + below, qmax - above))
            zero_points = np.clip(nudged, qmin, qmax).astype(np.int64)
            # An empty range only says that zero is in it: map it to integer 0 if the type allows.
            zero_points[(lows == 0) & (highs == 0)] = max(qmin, 0)
        granularity = PerTensor() if axis is None else PerAxis(axis)
        return cls((*scales.tolist(),), (*zero_points.tolist(),), dtype, granularity, levels.narrowed)

    @classmethod
    def each_from_range(
        cls, ranges: Sequence[tuple[float, float]], dtype: DType, symmetric: bool, names: Sequence[str]
    ) -> list[QuantParams]:
        """Apply `from_range` to several tensors at once, which is faster than one by one."""
        lows, highs = np.array(ranges, np.float64).reshape(-1, 2).T
        try:
            together = cls.from_range(lows, highs, dtype, symmetric, axis=0)
        except InvalidRange:  # raise the error again, with the tensor's name
            return [cls.from_range(*r, dtype, symmetric, name=name) for r, name in zip(ranges, names, strict=True)]
        return [cls((s,), (z,), dtype) for s, z in zip(together.scales, together.zero_points, strict=True)]


def broadcast_shape(axis: int, rank: int) -> list[int]:
    """Return the shape in which numbers for each slice along `axis` broadcast against a tensor of this rank."""
    shape = [1] * rank
    shape[axis] = -1
    return shape


def _require_range(lows: Array, highs: Array, name: str) -> None:
    if lows.shape != highs.shape or lows.ndim != 1:
        raise ValueError(f"{lows.shape} minima but {highs.shape} maxima")
    bad = ~(np.isfinite(lows) & np.isfinite(highs) & (lows <= highs))
    if bad.any():
        k = int(np.argmax(bad))
        where = f"'{name}'" if lows.size == 1 else f"'{name}' channel {k}"
        raise InvalidRange(
            f"{where} has the range [{lows[k]}, {highs[k]}], which no scale can represent; "
            "look for NaN or infinity in the weights or in the calibration data"
        )


def _span(lows: Array, highs: Array) -> Array:
    """Return high - low in float32, as TensorFlow computes it; in float64 where float32 would overflow."""
    with np.errstate(over="ignore"):
        span = (highs.astype(np.float32) - lows.astype(np.float32)).astype(np.float64)
        return np.where(np.isfinite(span), span, highs - lows)


def _storable(scales: Array) -> Array:
    """Return scales as a file can hold them: float32, neither zero nor subnormal nor infinite."""
    limit = np.finfo(np.float32)
    stored = np.clip(scales, limit.tiny, limit.max).astype(np.float32).astype(np.float64)
    return np.where(scales == 0, 1.0, stored)


def _unrounded(scales: Array, lows: Array, highs: Array, levels: int) -> Array:
    """Return the double-precision quotients that `scales` are rounded from, so that halves stay halves. `scales`
    themselves are returned where they differ by more than rounding, and for types with so many levels that the
    difference would add up."""
    with np.errstate(over="ignore"):
        exact = (highs - lows) / levels
    is_close = np.isclose(exact, scales, rtol=1e-6, atol=0.0) & (levels < 1 << 16)
    return np.where(is_close, exact, scales)


def round_half_away(x: Array) -> Array:
    """Round finite numbers to the nearest integer, halves away from zero: trunc(2 x) - trunc(x).

    The difference is trunc(x), plus one where the doubled fraction reaches one. It is exact, because doubling is;
    adding one half before truncating would round 0.49999997 up.
    """
    rounded = np.asarray(x + x)
    np.trunc(rounded, out=rounded)
    rounded -= np.trunc(x)
    return rounded


BLOCK = 1 << 17
"""Elements processed at a time: with two temporary copies they fit in a core's cache, which is several times as fast as
passing over the whole array for each step."""


def blocks(array: Array) -> Iterator[slice]:
    """Yield slices along the first axis, of about BLOCK elements each."""
    rows = array.shape[0]
    step = max(1, rows * BLOCK // max(1, array.size))
    return (slice(start, start + step) for start in range(0, rows, step))


def quantize(x: npt.ArrayLike, params: QuantParams, *, narrow: bool = False) -> Array:
    """Return q = clamp(round(x / scale) + zero_point), in the storage type of `params.dtype`."""
    real = np.asarray(x)
    if not real.ndim:
        return quantize(real.reshape(1), params, narrow=narrow).reshape(())
    if params.block is not None:
        return quantize(real.reshape(-1, params.block), _by_row(params), narrow=narrow).reshape(real.shape)
    scales, zero_points = params.along(real.ndim)
    # float32 is accurate enough for up to 16 bits, and is what the QUANTIZE kernel computes in.
    work = np.dtype(np.float32 if params.dtype.bits <= 16 else np.float64)
    scales, shifts = scales.astype(work), 0 if params.is_symmetric else zero_points.astype(work)
    low, high = params.levels.min + int(narrow), params.levels.max
    assert params.dtype.storage is not None
    result = np.empty(real.shape, params.dtype.storage)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is out of range and clamped like any other value
        for rows in blocks(real):
            own = rows if params.axis == 0 else ...
            shift = shifts[own] if isinstance(shifts, np.ndarray) else shifts
            q = real[rows].astype(work, copy=False) / scales[own]
            # Clamping to integer bounds before rounding gives the same result as clamping after it.
            np.maximum(q, low - shift, out=q)  # faster than np.clip on the short vectors of biases
            q = round_half_away(np.minimum(q, high - shift, out=q))
            if not params.is_symmetric:
                q += shift
            result[rows] = _saturated(q) if params.dtype.bits == 64 else q
    return result


def _by_row(params: QuantParams) -> QuantParams:
    """Return blockwise parameters as per-axis parameters of the same elements, with one block in each row."""
    return replace(params, granularity=PerAxis(0))


def _saturated(q: Array) -> Array:
    """Convert to int64, saturating: the largest int64 is no float64, and the next larger float64 would overflow."""
    limit = math.ldexp(1.0, 63)
    return np.where(q >= limit, np.iinfo(np.int64).max, np.minimum(q, np.nextafter(limit, 0.0)).astype(np.int64))


def dequantize(q: npt.ArrayLike, params: QuantParams) -> Array:
    """Return real = scale * (q - zero_point), as float32."""
    integers = np.asarray(q)
    if params.block is not None:
        return dequantize(integers.reshape(-1, params.block), _by_row(params)).reshape(integers.shape)
    scales, zero_points = params.along(integers.ndim)
    if params.dtype.bits <= 16:  # exact in float32, and half the memory
        real = np.asarray(integers.astype(np.float32))
        if not params.is_symmetric:
            real -= zero_points.astype(np.float32)
        real *= scales
        return real
    return ((integers.astype(np.float64) - zero_points) * scales.astype(np.float64)).astype(np.float32)
