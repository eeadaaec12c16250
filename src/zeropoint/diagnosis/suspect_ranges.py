"""Ranges that a few samples or a few values stretch; ranges that cut off too much; scales at the edge of float."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..affine import QuantParams
from ..calibration import TensorStats
from ..comparison.values import Finding
from ..graph.model import Tensor
from ..ops import OPS
from .facts import Facts, Suspect, count, dense_span, numbers, seen_span, span, usual_span
from .trial import Fix

STRETCHED = 4.0
"""From this factor on a range is blown up: two bits of eight are lost."""

FEW_RUNS = 4
"""With fewer runs nothing is usual."""

CLIPPED, STEPS = 0.001, 16.0
"""A share of values that is clipped, and by how many steps at most, from which clipping may matter."""

SMALLEST, LARGEST = 1e-30, 1e30
"""Scales beyond these leave no room for products of two of them in float32."""

METHODS = ("mse", "percentile", "average")


@dataclass(frozen=True)
class Stretched:
    """A tensor whose range is wider than most of what it holds."""

    tensor: Tensor
    params: QuantParams
    seen: TensorStats
    usual: float
    samples: tuple[int, ...] = ()

    @property
    def width(self) -> float:
        return span(*self.params.range())

    @property
    def factor(self) -> float:
        return self.width / self.usual


def suspect_ranges(facts: Facts) -> Iterator[Suspect]:
    by_sample, by_value = _stretched(facts)
    if by_sample:
        yield _outlier_samples(by_sample)
    if by_value:
        yield _outlier_values(by_value)
    yield from _clipping(facts)
    yield from _extreme_scales(facts)


def _stretched(facts: Facts) -> tuple[list[Stretched], list[Stretched]]:
    """Tensors stretched by few samples, and those stretched by few values of every sample."""
    by_sample, by_value = [], []
    for _, original, params in facts.held():
        seen = facts.seen(original, calibrated=True)
        if seen is None or _has_fixed_range(facts, original):
            continue
        width, usual, dense = span(*params.range()), usual_span(seen), dense_span(seen)
        if seen.runs >= FEW_RUNS and 0 < usual * STRETCHED < min(width, seen_span(seen)):
            by_sample.append(Stretched(original, params, seen, usual, _extreme_samples(seen)))
        elif 0 < dense * STRETCHED < min(width, seen_span(seen)):
            by_value.append(Stretched(original, params, seen, dense))
    # Conversions make several tensors of one; one of them speaks for all.
    return list({s.tensor: s for s in by_sample}.values()), list({s.tensor: s for s in by_value}.values())


def _has_fixed_range(facts: Facts, original: Tensor) -> bool:
    """Whether the kernel prescribes the scale, as for SOFTMAX."""
    op = facts.makers[0].producer(original)
    spec = None if op is None else OPS.get(op.kind)
    return spec is not None and bool(spec.fixed)


def _extreme_samples(seen: TensorStats) -> tuple[int, ...]:
    """Samples that had the extremes, where these are far from usual."""
    low, high = seen.average.range
    found = []
    if seen.low.value < 0 and seen.low.value < STRETCHED * min(low, 0.0):
        found.append(seen.low.sample)
    if seen.high.value > 0 and seen.high.value > STRETCHED * max(high, 0.0):
        found.append(seen.high.sample)
    return tuple(found or (seen.high.sample if seen.high.value > -seen.low.value else seen.low.sample,))


def _outlier_samples(found: list[Stretched]) -> Suspect:
    found.sort(key=lambda s: -s.factor)
    votes = Counter(sample for s in found for sample in s.samples)
    samples = tuple(sorted(votes))
    worst = found[0]
    listed = ", ".join(f"{sample} ({times} tensors)" for sample, times in votes.most_common(5))
    evidence = (
        f"'{worst.tensor.name}' reaches {worst.seen.low.value:.4g} .. {worst.seen.high.value:.4g}, in an average "
        f"sample {worst.seen.average.range[0]:.4g} .. {worst.seen.average.range[1]:.4g}: its range is "
        f"{worst.factor:.1f} times as wide as usual",
        f"samples with the extremes: {listed}",
    )
    finding = Finding(
        "outlier_samples",
        f"{count(len(samples), 'sample')} {'blows' if len(samples) == 1 else 'blow'} up the ranges of "
        f"{count(len(found), 'tensor')}",
        evidence,
        f"all other samples share {256 / worst.factor:.0f} of the 256 integers of '{worst.tensor.name}'",
        f"look at {_listed(samples)}; leave them out if they are not real, or choose ranges with --range mse",
        ops=tuple(s.tensor.name for s in found),
        samples=samples,
        numbers=numbers(factor=worst.factor, tensors=len(found), samples=len(samples)),
    )
    fixes = tuple(Fix(options={"range": method}) for method in METHODS)
    return Suspect(finding, fixes, without=frozenset(samples))


def _outlier_values(found: list[Stretched]) -> Suspect:
    found.sort(key=lambda s: -s.factor)
    worst = found[0]
    channel = _loudest_channel(worst.seen)
    evidence = (
        f"'{worst.tensor.name}' reaches {worst.seen.low.value:.4g} .. {worst.seen.high.value:.4g}, and 99.99 % of its "
        f"values lie within a range {worst.factor:.1f} times as narrow",
        *(() if channel is None else (channel,)),
        f"{count(len(found), 'tensor')} of this kind: {', '.join(repr(s.tensor.name) for s in found[:3])}"
        f"{' ...' if len(found) > 3 else ''}",
    )
    finding = Finding(
        "outlier_values",
        f"a few values blow up the ranges of {count(len(found), 'tensor')}",
        evidence,
        f"nearly all values of '{worst.tensor.name}' share {256 / worst.factor:.0f} of 256 integers",
        "cut them off with --range mse or percentile, or compute these ops with 16 bits",
        ops=tuple(s.tensor.name for s in found),
        numbers=numbers(factor=worst.factor, tensors=len(found)),
    )
    return Suspect(finding, tuple(Fix(options={"range": method}) for method in METHODS))


def _loudest_channel(seen: TensorStats) -> str | None:
    """The channel with the extremes, if all others are far smaller."""
    if seen.channels is None or seen.channels.low.size < 2:
        return None
    peaks = abs(seen.channels.low).clip(abs(seen.channels.high), None)
    order = peaks.argsort()
    loud, next_loudest = float(peaks[order[-1]]), float(peaks[order[-2]])
    if loud < 2 * next_loudest:
        return None
    return f"channel {int(order[-1])} reaches {loud:.4g}, the next {next_loudest:.4g}"


def _clipping(facts: Facts) -> Iterator[Suspect]:
    """Tensors in which a good part of the values is cut off."""
    cut = [
        row
        for row in facts.comparison.ops
        if row.occupancy is not None and row.own is not None and row.occupancy.clipped > CLIPPED
        if row.own.max_ulp is not None and row.own.max_ulp > STEPS
    ]
    cut = [row for row in cut if not _has_fixed_range(facts, facts.alignment.float.ops[row.float_position].outputs[0])]
    if not cut:
        return
    cut.sort(key=lambda row: -row.occupancy.clipped)  # type: ignore[union-attr]
    worst = cut[0]
    assert worst.occupancy is not None
    assert worst.own is not None
    assert worst.own.max_ulp is not None
    evidence = tuple(
        f"{row.label} '{row.name}': {row.occupancy.clipped:.2%} of the values are cut off, by up to "  # type: ignore[union-attr]
        f"{row.own.max_ulp:.0f} steps"  # type: ignore[union-attr]
        for row in cut[:3]
    )
    finding = Finding(
        "clipping",
        f"the ranges of {count(len(cut), 'tensor')} cut off values that occur",
        evidence,
        f"own signal-to-noise of '{worst.name}' is {worst.own.snr:.1f} dB",
        "give these tensors the whole range that occurs (--range minmax), or calibrate on more data",
        ops=tuple(row.name for row in cut),
        numbers=numbers(clipped=worst.occupancy.clipped, steps=worst.own.max_ulp, tensors=len(cut)),
    )
    yield Suspect(finding, (Fix(options={"range": "minmax"}), Fix(options={"range": "mse"})))


def _extreme_scales(facts: Facts) -> Iterator[Suspect]:
    found = [(t, p) for t, _, p in facts.held() if not SMALLEST < p.scale < LARGEST]
    if found:
        tensor, params = min(found, key=lambda pair: pair[1].scale)
        finding = Finding(
            "extreme_scale",
            f"{count(len(found), 'tensor')} with a scale at the edge of float32",
            (f"'{tensor.name}' has the scale {params.scale:.3g}",),
            "products of such scales are zero or infinite in float32, so kernels compute nonsense or refuse",
            "look for constants or samples that are nearly zero or huge, or keep the op in float",
            rules=(),
            ops=(tensor.name,),
            numbers=numbers(scale=params.scale, tensors=len(found)),
        )
        yield Suspect(finding, (Fix(({"scheme": "float", "name": tensor.name},)),), about_model=False)


def _listed(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:8])) + (" ..." if len(samples) > 8 else "")
    return f"sample{'' if len(samples) == 1 else 's'} {shown}"
