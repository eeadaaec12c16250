"""Causes in the weights: a scale that does not fit all channels, inputs that vanish in a sum, biases that overflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..calibration.stats import median
from ..comparison.sums import unit_of
from ..display import counted
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..ops import Rescale, spec_of
from ..plan.swamped import rounded_snr
from ..recipe import PRESETS, Rule
from .evidence import Fix, Hypothesis, ModelEvidence, QuantizedWeights, listed, numbers, rule_for, seen_span

FEW_STEPS = 16.0
"""A channel whose largest weight is at most this many steps has lost half of its eight bits."""

UNEVEN_SHARE = 0.25
"""The share of such channels above which the scale is reported as unsuitable."""

HUGE = 16.0
"""A weight this many times the root mean square of the others in its channel is an outlier. For a normal distribution
the maximum is about five times, for a thousand weights with heavy tails up to ten."""

LEAST_WEIGHTS = 16
"""Channels with fewer weights are not checked for outliers."""

DROWNED, HEARD = 16.0, 4.0
"""An input vanishes if it spans at most this many steps of the common scale, and another this many times as many."""


def _per_channel(layers: Sequence[QuantizedWeights]) -> tuple[Fix, ...]:
    """Return a fix that gives these layers per-channel scales, in the same scheme."""
    return (Fix(tuple(rule_for(layer.original, layer.scheme) for layer in layers)),)


def uneven_channels(evidence: ModelEvidence) -> Hypothesis | None:
    """Layers with per-tensor weights in which many channels are far smaller than the largest."""
    found = []
    for layer in evidence.weights:
        peaks = layer.peaks[layer.peaks > 0]
        if layer.params.axis is None and peaks.size:
            share = float((peaks / layer.params.scale < FEW_STEPS).mean())
            if share >= UNEVEN_SHARE:
                found.append((share, float(peaks.max() / median(peaks)), layer))
    if not found:
        return None
    found.sort(key=lambda f: -f[0])
    layers = [layer for *_, layer in found]
    return Hypothesis(
        f"one scale for channels of very different size in {counted(len(found), 'layer')}",
        tuple(
            f"{layer.label}: {share:.0%} of {len(layer.peaks)} channels stay below {FEW_STEPS:.0f} steps of the scale; "
            f"the largest is {spread:.3g} times the median one"
            for share, spread, layer in found[:3]
        ),
        "weights of the small channels are rounded to a few integers",
        "use per-channel scales, the default of zeropoint, and quantize again",
        numbers(share=found[0][0], spread=found[0][1], layers=len(found)),
        tuple(layer.original.name for layer in layers),
        fixes=_per_channel(layers),
    )


def dead_channels(evidence: ModelEvidence) -> Hypothesis | None:
    """Channels whose weights were all rounded to zero."""
    lost = {}
    for layer in evidence.weights:
        zeros = np.array(layer.params.zero_points).reshape(-1, 1)
        is_lost = (layer.stored == zeros).all(axis=1) & (layer.peaks > 0)
        if is_lost.any():
            lost[layer] = np.flatnonzero(is_lost)
    if not lost:
        return None
    worst, channels = max(lost.items(), key=lambda item: len(item[1]))
    total = sum(map(len, lost.values()))
    return Hypothesis(
        f"all weights of {counted(total, 'channel')} were rounded to zero",
        (f"{worst.label}: {len(channels)} of {len(worst.peaks)} channels hold only zeros ({listed(channels, 5)})",),
        f"these channels are constant, though their weights reach {float(worst.peaks[channels].max()):.3g} in float",
        "use per-channel scales, and quantize again",
        numbers(channels=total, layers=len(lost)),
        tuple(layer.original.name for layer in lost),
        fixes=_per_channel(list(lost)),
    )


def huge_weight(evidence: ModelEvidence) -> Hypothesis | None:
    """Channels with a single weight that is far larger than all others."""
    found = []
    for layer in evidence.weights:
        size = layer.exact.shape[1]
        if size < LEAST_WEIGHTS:
            continue
        peaks = layer.peaks.astype(np.float64)
        rest = np.sqrt(np.maximum((layer.exact.astype(np.float64) ** 2).sum(axis=1) - peaks**2, 0) / (size - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where((rest > 0) & (peaks > 0), peaks / rest, 0.0)
        if ratios.max(initial=0) >= HUGE:
            found.append((float(ratios.max()), int(ratios.argmax()), int((ratios >= HUGE).sum()), layer))
    if not found:
        return None
    found.sort(key=lambda f: -f[0])
    ratio = found[0][0]
    layers = [layer.original for *_, layer in found]
    return Hypothesis(
        f"single huge weights in {counted(len(found), 'layer')}",
        tuple(
            f"{layer.label} channel {channel}: a weight {times:.0f} times the RMS of the others ({alike} such channels)"
            for times, channel, alike, layer in found[:3]
        ),
        f"the other weights of the channel are rounded to about {127 / ratio * 2:.0f} integers either side of zero",
        "keep these layers in float, or clip the weight and continue training",
        numbers(ratio=ratio, layers=len(found)),
        tuple(op.name for op in layers),
        fixes=(Fix(tuple(rule_for(op, "float") for op in layers)),),
        in_recipe=True,
    )


@dataclass(frozen=True)
class DrownedInput:
    """An op with the input that spans the fewest steps of its output's scale, and the one that spans the most."""

    op: Op
    small: Tensor
    fewest: float
    large: Tensor
    most: float

    @property
    def ratio(self) -> float:
        return self.most / self.fewest


def drowned_input(evidence: ModelEvidence) -> Hypothesis | None:
    """Concatenations, sums and similar ops with an input that spans only a few steps of the output's scale."""
    found = []
    for op in evidence.alignment.quantized.ops:
        steps = sorted(_steps(evidence, op), key=lambda pair: pair[1])
        if len(steps) > 1:
            drowned = DrownedInput(op, *steps[0], *steps[-1])
            if drowned.fewest < DROWNED < drowned.most and drowned.ratio > HEARD:
                found.append(drowned)
    if not found:
        return None
    found.sort(key=lambda drowned: -drowned.ratio)
    worst, names = found[0], [evidence.name(drowned.op) for drowned in found]
    return Hypothesis(
        f"'{worst.small.name}' is drowned out in {worst.op.label} '{names[0]}'",
        tuple(
            f"{d.op.label} '{name}': '{d.small.name}' takes {d.fewest:.1f} steps of the output's scale, "
            f"'{d.large.name}' {d.most:.0f} ({d.ratio:.0f} times as many); that leaves it {_snr(evidence, d):.1f} dB"
            for d, name in zip(found[:3], names, strict=False)
        ),
        f"of the 256 values that '{worst.small.name}' could have, {max(1.0, worst.fewest):.0f} are left",
        "compute this op and those that read it with 16 bits, or in float; or scale the inputs alike in the model",
        numbers(steps=worst.fewest, ratio=worst.ratio, ops=len(found)),
        tuple(names),
        fixes=tuple(_with_readers(evidence, found, scheme) for scheme in ("int16x8", "float")),
        in_recipe=True,
    )


def _snr(evidence: ModelEvidence, drowned: DrownedInput) -> float:
    """Return the SNR of the small input alone when rounded to the output's scale."""
    seen, scale = evidence.seen(drowned.small), unit_of(drowned.op.outputs[0])
    assert seen is not None
    assert scale is not None
    return rounded_snr(drowned.small, scale, seen, seen.range)


def _steps(evidence: ModelEvidence, op: Op) -> Iterator[tuple[Tensor, float]]:
    """Yield each input with its width in steps of the output's scale, for ops whose inputs are rescaled to a common
    8-bit scale."""
    spec = spec_of(op, evidence.ops)
    if spec.weight_slots or not (spec.tied or spec.rescale is Rescale.SUM) or not op.outputs:
        return  # a product has no common scale
    scale, narrow = unit_of(op.outputs[0]), op.outputs[0].dtype.bits <= 8
    inputs = [t for t in op.inputs if t is not None and t.is_quantized and not t.is_constant]
    for original in (evidence.alignment.partner[t] for t in inputs if t in evidence.alignment.partner):
        seen = evidence.seen(original)
        if scale is not None and narrow and seen is not None and seen_span(seen) > 0:
            yield original, seen_span(seen) / scale


def _with_readers(evidence: ModelEvidence, found: Sequence[DrownedInput], scheme: str) -> Fix:
    """Return a fix that widens these ops and all their readers, because an 8-bit reader would lose the input again."""
    rules = []
    for drowned in found:
        rules.append(Rule(PRESETS[scheme], name=evidence.name(drowned.op)))
        original = evidence.alignment.partner.get(drowned.op.outputs[0])
        readers = [] if original is None else evidence.float_uses.readers(original)
        rules += [rule_for(use.op, scheme) for use in readers]
    return Fix(tuple(rules))


def bias_overflow(evidence: ModelEvidence) -> Hypothesis | None:
    """Biases that saturate, and those for which the quantizer had to make the weights coarser."""
    ends = DType.INT32.min, DType.INT32.max
    biases = [t for t in evidence.alignment.quantized.tensors if t.dtype is DType.INT32 and t.is_quantized]
    saturated = [t for t in biases if t.data is not None and np.isin(t.data, ends).any()]
    repairs = () if evidence.quantization is None else evidence.quantization.repairs
    repaired = [str(repair) for repair in repairs if repair.code == "bias_overflow"]
    total = len(saturated) + len(repaired)
    if not total:
        return None
    readers = [op for op in evidence.alignment.quantized.ops if any(t in saturated for t in op.inputs)]
    originals = [original for op in readers if (original := evidence.original(op)) is not None]
    return Hypothesis(
        f"{total} biases do not fit into 32 bits at the scale that the weights ask for",
        (*(f"'{t.name}' is clipped at the limit of its integers" for t in saturated[:3]), *repaired[:3]),
        "the bias is clipped, or the weights of the channel got a coarser scale to make room for it",
        "compute the layer with 16 bits, where biases have 64; or look for channels whose weights are nearly zero",
        numbers(biases=total),
        tuple(op.name for op in originals),
        fixes=(Fix(tuple(rule_for(op, "int16x8") for op in originals)),),
        in_recipe=bool(originals),
    )
