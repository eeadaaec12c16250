"""Ops on windows and images: pooling and resizing; and reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..affine import round_half_away
from ..dtypes import Array, DType
from ..fixedpoint import divided, multiply, wrapped
from ..ops.layout import pooling_windows, sliding
from .call import Computed, Interim, KernelCall
from .rescaling import fixed_points

F32 = np.float32


def _windows(call: KernelCall, x: Array) -> Array:
    """Return windows as [positions, taps, channels], with zeros for padding."""
    return sliding(pooling_windows(call.op), x)


def average_pool(call: KernelCall) -> Computed:
    return call.rules.average(call)


def average_of_integers(call: KernelCall) -> Computed:
    """Simulate AVERAGE_POOL_2D: the mean of the integers inside the image, halves away from zero. The zero point
    cancels out."""
    x = call.value(0).astype(np.int64)
    total = _windows(call, x).sum(axis=1)
    count = _windows(call, np.ones_like(x)).sum(axis=1)
    mean = divided(total + np.where(total > 0, count // 2, -(count // 2)), count)
    shape = call.op.outputs[0].shape
    steps = (Interim("sum", total.reshape(shape)), Interim("elements", count.reshape(shape)))
    return Computed((call.stored(np.clip(mean, *call.bounds())),), steps)


def max_pool(call: KernelCall) -> Computed:
    x = call.value(0).astype(np.int64)
    least = call.output.dtype.min
    greatest = _windows(call, x - least).max(axis=1) + least
    return Computed((call.stored(np.clip(greatest, *call.bounds())),))


# Images.


Places = TypeVar("Places")


def _along_each_side(call: KernelCall, places: Callable[[int, int, bool, bool], Places]) -> tuple[Places, Places]:
    """Return `places` along height and width, given the length before and after resizing, and the op's options."""
    corners, centers = bool(call.option("alignCorners")), bool(call.option("halfPixelCenters"))
    lengths = zip(call.value(0).shape[1:3], np.ravel(call.value(1)).tolist(), strict=True)
    rows, columns = (places(source, size, corners, centers) for source, size in lengths)
    return rows, columns


def resize_nearest_neighbor(call: KernelCall) -> Computed:
    rows, columns = _along_each_side(call, _nearest)
    return Computed((call.stored(call.value(0)[:, rows][:, :, columns]),))


def _nearest(source: int, size: int, corners: bool, centers: bool) -> Array:
    one = np.float32(1)
    scale = (source - 1) * one / np.float32(size - 1) if corners and size > 1 else source * one / np.float32(size)
    places = (np.arange(size, dtype=np.float32) + np.float32(0.5 if centers else 0)) * scale
    chosen = round_half_away(places) if corners else np.floor(places)
    return np.asarray(np.clip(chosen.astype(np.int64), 0, source - 1))


def resize_bilinear(call: KernelCall) -> Computed:
    return call.rules.bilinear(call)


def bilinear(in_float: Callable[[Corners], Array]) -> Callable[[KernelCall], Computed]:
    """Simulate RESIZE_BILINEAR in integers; uint8 in float32, adding one half and truncating."""

    def resized(call: KernelCall) -> Computed:
        if call.output.dtype is not DType.UINT8:
            return bilinear_in_integers(call)
        total = in_float(_corners(call))
        return Computed((call.stored(np.trunc(total + F32(0.5))),), (Interim("weighted sum", total),))

    return resized


@dataclass(frozen=True)
class Corners:
    """For each output, the four surrounding pixels by row and column, and its distance from the first."""

    pixels: tuple[tuple[Array, Array], tuple[Array, Array]]
    down: Array
    right: Array


def _corners(call: KernelCall) -> Corners:
    x = call.value(0).astype(F32)
    (y0, y1, v), (x0, x1, u) = _along_each_side(call, _real_neighbours)
    rows = ((x[:, y][:, :, x0], x[:, y][:, :, x1]) for y in (y0, y1))
    return Corners((next(rows), next(rows)), v[:, None, None], u[:, None])


def _real_neighbours(source: int, size: int, corners: bool, centers: bool) -> tuple[Array, Array, Array]:
    scale = F32(source) / F32(size)
    if corners and size > 1:
        scale = F32(source - 1) / F32(size - 1)
    places = np.arange(size, dtype=F32)
    places = (places + F32(0.5)) * scale - F32(0.5) if centers else places * scale
    before = np.maximum(np.floor(places).astype(np.int64), 0)
    after = np.minimum(np.ceil(places).astype(np.int64), source - 1)
    return before, after, places - before.astype(F32)


def pixel_by_pixel(found: Corners) -> Array:
    """Multiply each pixel by one weight, then by the other; column by column, as LiteRT's reference kernel does."""
    down, right = found.down, found.right
    up, left = F32(1) - down, F32(1) - right
    (a, b), (c, d) = found.pixels
    return np.asarray(a * up * left + c * down * left + b * up * right + d * down * right)


def weight_by_weight(found: Corners) -> Array:
    """Multiply each pixel by the product of its weights; row by row, as LiteRT's optimized kernel does."""
    down, right = found.down, found.right
    up, left = F32(1) - down, F32(1) - right
    (a, b), (c, d) = found.pixels
    return np.asarray(a * (up * left) + b * (up * right) + c * (down * left) + d * (down * right))


def bilinear_in_integers(call: KernelCall) -> Computed:
    """Interpolate with positions in 1/1024 of a pixel; the mean of four neighbours is rounded half away from zero."""
    x = call.value(0).astype(np.int64)
    (y0, y1, v), (x0, x1, u) = _along_each_side(call, neighbours)
    v, u = v[:, None, None], u[:, None]
    total = (
        x[:, y0][:, :, x0] * (1024 - v) * (1024 - u)
        + x[:, y1][:, :, x0] * v * (1024 - u)
        + x[:, y0][:, :, x1] * (1024 - v) * u
        + x[:, y1][:, :, x1] * v * u
    )
    mean = divided(total + np.where(total > 0, 1 << 19, -(1 << 19)), 1 << 20)
    return Computed((call.stored(mean),), (Interim("weighted sum", total),))


def neighbours(source: int, size: int, corners: bool, centers: bool) -> tuple[Array, Array, Array]:
    """Return, for each output, the pixels on both sides, and the weight of the second in 1/1024."""
    scale = (1024 * source + size // 2) // size
    if corners and size > 1:
        scale = (1024 * (source - 1) + (size - 1) // 2) // (size - 1)
    places = np.arange(size) * scale
    if centers:
        places = places + scale // 2 - 512
    before = np.maximum(divided(places, 1024), 0)
    after = np.minimum(divided(places + 1023, 1024), source - 1)
    return before, after, places - 1024 * before


def bilinear_in_11_bits(call: KernelCall) -> Computed:
    """Interpolate as XNNPACK does: weights in 1/2048, rounded to nearest, and the mean rounded half up."""
    x = call.value(0).astype(np.int64)
    (y0, y1, v), (x0, x1, u) = _along_each_side(call, weighted_neighbours)
    v, u = v[:, None, None], u[:, None]
    top = (x[:, y0][:, :, x0] << 11) + (x[:, y0][:, :, x1] - x[:, y0][:, :, x0]) * u
    bottom = (x[:, y1][:, :, x0] << 11) + (x[:, y1][:, :, x1] - x[:, y1][:, :, x0]) * u
    total = (top << 11) + (bottom - top) * v
    return Computed((call.stored((total + (1 << 21)) >> 22),), (Interim("weighted sum", total),))


def weighted_neighbours(source: int, size: int, corners: bool, centers: bool) -> tuple[Array, Array, Array]:
    """Return, for each output, the pixels on both sides, and the weight of the second in 1/2048."""
    less = int(corners and size != 1)
    scale = np.float32(source - less) / np.float32(size - less)
    places = np.arange(size, dtype=np.float32) * scale
    if centers and not corners:
        places = places + (np.float32(0.5) * scale - np.float32(0.5))
    places = np.clip(places, np.float32(0), np.float32(source - 1))
    before = places.astype(np.int64)
    weight = np.rint((places - before.astype(np.float32)) * np.float32(2048)).astype(np.int64)
    return before, np.minimum(before + 1, source - 1), weight


# Reductions.


def axes_of(call: KernelCall) -> tuple[int, ...]:
    rank = call.value(0).ndim
    return tuple(dict.fromkeys(int(axis) % rank for axis in np.ravel(call.value(1)))) if rank else ()


def _sum_and_count(call: KernelCall, x: Array) -> tuple[Array, int]:
    """Return sums over the axes of a reduction in 32 bits, and the number of elements of each."""
    axes = axes_of(call)
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    return wrapped(x.sum(axis=axes)).reshape(call.op.outputs[0].shape), count


def mean(call: KernelCall) -> Computed:
    return call.rules.mean(call)


def mean_in_fixed_point(call: KernelCall) -> Computed:
    """Simulate MEAN: the division by the number of elements is part of the multiplier."""
    total, count = _sum_and_count(call, call.centered(0))
    multipliers, shifts = fixed_points(np.float64(call.scale(0)) / np.float64(call.output_scale))
    multiplier, shift = int(multipliers), int(shifts)
    more = min(count.bit_length() - 1, 32, 31 + shift)
    multiplier, shift = (multiplier << more) // count, shift - more
    steps = [Interim("sum", total), Interim("elements", np.asarray(count))]
    steps += [Interim("multiplier", np.asarray(multiplier)), Interim("shift", np.asarray(shift))]
    return call.finished(multiply(total, multiplier, shift), steps)


def mean_in_float32(call: KernelCall) -> Computed:
    """Simulate XNNPACK's MEAN: the sum of the raw integers times a float32, plus a float32 for the zero points."""
    total, count = _sum_and_count(call, call.value(0).astype(np.int64))
    made = call.output
    ratio = np.float32(call.scale(0)) / np.float32(call.output_scale)
    factor = ratio * (np.float32(1) / np.float32(count))
    offset = np.float32(made.zero_point) - np.float32(count * call.params(0).zero_point) * factor
    rounded = np.rint(total.astype(np.float32) * factor + offset).astype(np.int64)
    steps = (Interim("sum", total), Interim("factor", np.asarray(factor)), Interim("offset", np.asarray(offset)))
    return Computed((call.stored(np.clip(rounded, made.dtype.min, made.dtype.max)),), steps)


def reduce_max(call: KernelCall) -> Computed:
    return Computed((call.stored(call.value(0).max(axis=axes_of(call))),))


def reduce_min(call: KernelCall) -> Computed:
    return Computed((call.stored(call.value(0).min(axis=axes_of(call))),))


def arg_max(call: KernelCall) -> Computed:
    return Computed((call.stored(np.argmax(call.value(0), axis=axes_of(call)[0])),))


def arg_min(call: KernelCall) -> Computed:
    return Computed((call.stored(np.argmin(call.value(0), axis=axes_of(call)[0])),))


def top_k(call: KernelCall) -> Computed:
    """Simulate TOPK_V2: the k largest elements of each row, the first among equals."""
    x, count = call.value(0), int(np.ravel(call.value(1))[0])
    order = np.argsort(-x.astype(np.int64), axis=-1, kind="stable")[..., :count]
    return Computed((call.stored(np.take_along_axis(x, order, axis=-1)), call.stored(order, 1)))
