"""Weights that one scale does not fit; inputs of a sum or a concatenation that drown; biases that overflowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..affine import QuantParams
from ..comparison.values import Finding
from ..dtypes import Array, DType
from ..graph.model import Op, Tensor
from ..ops import OPS, Rescale
from .facts import Facts, Layer, Suspect, count, numbers, seen_span
from .trial import Fix, rule_for

FEW_STEPS = 16.0
"""A channel whose largest weight is so few steps of the scale has lost half of its eight bits."""

UNEVEN_SHARE = 0.25
"""Of the channels, from which on the scale fits none too well."""

HUGE = 16.0
"""A weight so many times the root mean square of the others of its channel is alone. Of normally distributed ones it
is five times, of a thousand with heavy tails up to ten."""

LEAST_WEIGHTS = 16
"""In a channel with fewer weights nothing is huge."""

DROWNED, HEARD = 16.0, 4.0
"""Steps that an input takes of the common scale when it drowns, and how many times as many another takes."""


def suspect_weights(facts: Facts) -> Iterator[Suspect]:
    layers = list(facts.layers())
    yield from filter(None, (_uneven(layers), _dead(layers), _huge(layers)))
    yield from _drowned(facts)
    yield from _overflowed(facts)


def _peaks(layer: Layer) -> Array:
    return np.asarray(np.abs(layer.by_channel(layer.exact)).max(axis=1))


def _uneven(layers: list[Layer]) -> Suspect | None:
    """Layers with one scale for all channels, many of which are far smaller than the largest."""
    found = []
    for layer in layers:
        if layer.params.axis is None and layer.axis is not None:
            peaks = _peaks(layer)
            steps = peaks[peaks > 0] / layer.params.scale
            share = float((steps < FEW_STEPS).mean()) if steps.size else 0.0
            if share >= UNEVEN_SHARE:
                found.append((share, float(peaks.max() / np.median(peaks[peaks > 0])), layer))
    if not found:
        return None
    found.sort(key=lambda f: -f[0])
    share, spread, layer = found[0]
    evidence = tuple(
        f"{item.op.label} '{item.original.name}': in {part:.0%} of {item.channels} channels the largest weight is "
        f"below {FEW_STEPS:.0f} steps of the only scale; the largest channel is {ratio:.3g} times the median one"
        for part, ratio, item in found[:3]
    )
    finding = Finding(
        "uneven_channels",
        f"one scale for channels of very different size in {count(len(found), 'layer')}",
        evidence,
        "weights of the small channels are rounded to a few integers",
        "give each channel a scale of its own, as zeropoint does unless told otherwise, and quantize again",
        ops=tuple(item.original.name for _, _, item in found),
        numbers=numbers(share=share, spread=spread, layers=len(found)),
    )
    rules = tuple(rule_for(item.original, item.scheme, per_tensor=False) for _, _, item in found)
    return Suspect(finding, (Fix(rules),))


def _dead(layers: list[Layer]) -> Suspect | None:
    """Channels whose weights were all rounded to zero."""
    found = []
    for layer in layers:
        if layer.stored.data is None or layer.axis is None:
            continue
        zeros = np.array(layer.params.zero_points).reshape(-1, 1)
        lost = (layer.by_channel(layer.stored.data) == zeros).all(axis=1) & (_peaks(layer) > 0)
        if lost.any():
            found.append((np.flatnonzero(lost), layer))
    if not found:
        return None
    channels = sum(len(lost) for lost, _ in found)
    lost, layer = max(found, key=lambda f: len(f[0]))
    listed = ", ".join(map(str, lost[:5])) + (" ..." if len(lost) > 5 else "")
    finding = Finding(
        "dead_channels",
        f"rounding left nothing of {count(channels, 'channel')}",
        (
            f"{layer.op.label} '{layer.original.name}': all weights of {len(lost)} of {layer.channels} channels "
            f"are zero ({listed}), in the float model they reach {float(_peaks(layer)[lost].max()):.3g}",
        ),
        "these channels are constant whatever the input",
        "give each channel a scale of its own, and quantize again",
        ops=tuple(item.original.name for _, item in found),
        numbers=numbers(channels=channels, layers=len(found)),
    )
    rules = tuple(rule_for(item.original, item.scheme, per_tensor=False) for _, item in found)
    return Suspect(finding, (Fix(rules),))


def _huge(layers: list[Layer]) -> Suspect | None:
    """Channels with one weight that is far larger than all others."""
    found = []
    for layer in layers:
        rows = np.abs(layer.by_channel(layer.exact).astype(np.float64))
        if layer.axis is None or rows.shape[1] < LEAST_WEIGHTS:
            continue
        peaks = rows.max(axis=1)
        rest = np.sqrt(np.maximum((rows**2).sum(axis=1) - peaks**2, 0) / (rows.shape[1] - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where((rest > 0) & (peaks > 0), peaks / rest, 0.0)
        if ratios.max(initial=0) >= HUGE:
            found.append((float(ratios.max()), int(ratios.argmax()), int((ratios >= HUGE).sum()), layer))
    if not found:
        return None
    found.sort(key=lambda f: -f[0])
    ratio, _, _, layer = found[0]
    evidence = tuple(
        f"{item.op.label} '{item.original.name}' channel {channel}: one weight is {r:.0f} times the root mean "
        f"square of the others ({count(alike, 'such channel')})"
        for r, channel, alike, item in found[:3]
    )
    finding = Finding(
        "huge_weight",
        f"single huge weights in {count(len(found), 'layer')}",
        evidence,
        f"the other weights of the channel are rounded to about {127 / ratio * 2:.0f} integers either side of zero",
        "keep these layers in float, or clip the weight and train on",
        ops=tuple(item.original.name for *_, item in found),
        numbers=numbers(ratio=ratio, layers=len(found)),
    )
    return Suspect(finding, (Fix(tuple(rule_for(item.original, "float") for *_, item in found)),), about_model=False)


@dataclass(frozen=True)
class Drowned:
    """An op with the input that takes fewest steps of its output's scale, and the one that takes most."""

    op: Op
    small: Tensor
    fewest: float
    large: Tensor
    most: float

    @property
    def ratio(self) -> float:
        return self.most / self.fewest


def _drowned(facts: Facts) -> Iterator[Suspect]:
    """Concatenations, sums and the like with an input that takes few steps of the scale it ends up in."""
    found = []
    for op in facts.alignment.quantized.ops:
        spec, result = OPS.get(op.kind), op.outputs[0].params if op.outputs else None
        inputs = [t for t in op.inputs if t is not None and t.is_quantized and not t.is_constant]
        if spec is None or spec.weight_slots or len(inputs) < 2 or result is None or result.axis is not None:
            continue
        if result.dtype.bits > 8 or not (spec.tied or spec.rescale is Rescale.SUM):
            continue  # a product has no common scale
        steps = sorted(_steps(facts, inputs, result), key=lambda pair: pair[1])
        if len(steps) < 2:
            continue
        (small, fewest), (large, most) = steps[0], steps[-1]
        if fewest < DROWNED and most > HEARD * fewest and most > DROWNED:
            found.append(Drowned(op, small, fewest, large, most))
    if found:
        yield _drown(facts, sorted(found, key=lambda d: -d.ratio))


def _steps(facts: Facts, inputs: list[Tensor], result: QuantParams) -> Iterator[tuple[Tensor, float]]:
    """Of each input the width of its values in steps of the result."""
    for tensor in inputs:
        original = facts.alignment.partner.get(tensor)
        seen = None if original is None else facts.seen(original)
        if original is not None and seen is not None and seen_span(seen) > 0:
            yield original, seen_span(seen) / result.scale


def _drown(facts: Facts, found: list[Drowned]) -> Suspect:
    worst = found[0]
    names = [facts.name(d.op) for d in found]
    others = f" and {len(found) - 1} more ops drown" if len(found) > 1 else " drowns"
    finding = Finding(
        "drowned_input",
        f"{worst.op.label} '{names[0]}'{others} one of the inputs",
        tuple(
            f"{d.op.label} '{name}': '{d.small.name}' takes {d.fewest:.1f} steps of the output's scale, "
            f"'{d.large.name}' {d.most:.0f} ({d.ratio:.0f} times as many)"
            for d, name in zip(found[:3], names, strict=False)
        ),
        f"of the 256 values that '{worst.small.name}' could have, {max(1.0, worst.fewest):.0f} are left",
        "compute this op and those that read it with 16 bits, or in float; or scale the inputs alike in the model",
        ops=tuple(names),
        numbers=numbers(steps=worst.fewest, ratio=worst.ratio, ops=len(found)),
    )
    return Suspect(finding, tuple(_around(facts, found, scheme) for scheme in ("int16x8", "float")), about_model=False)


def _around(facts: Facts, found: list[Drowned], scheme: str) -> Fix:
    """These ops and all that read them: what is read with 8 bits drowns again."""
    rules = []
    for drowned in found:
        rules.append({"scheme": scheme, "name": facts.name(drowned.op)})
        original = facts.alignment.partner.get(drowned.op.outputs[0])
        readers = [] if original is None else facts.makers[0].readers(original)
        rules += [dict(rule_for(use.op, scheme)) for use in readers]
    return Fix(tuple(rules))


def _overflowed(facts: Facts) -> Iterator[Suspect]:
    """Biases at the end of their integers, and those that the quantizer had to make room for."""
    stuck = [
        t
        for t in facts.alignment.quantized.tensors
        if t.dtype is DType.INT32 and t.is_quantized and t.data is not None
        if DType.INT32.max in t.data or DType.INT32.min in t.data
    ]
    repaired = [line for line in facts.repairs if "bias would overflow" in line]
    if not stuck and not repaired:
        return
    evidence = (
        *(f"'{t.name}' holds {int(np.abs(t.data.astype(np.int64)).max())}" for t in stuck[:3] if t.data is not None),
        *repaired[:3],
    )
    readers = [op for op in facts.alignment.quantized.ops if any(t in stuck for t in op.inputs)]
    originals = [o for o in (facts.original(op) for op in readers) if o is not None]
    finding = Finding(
        "bias_overflow",
        f"{len(stuck) + len(repaired)} biases do not fit into 32 bits at the scale that the weights ask for",
        evidence,
        "the bias is cut off, or the weights of the channel were given a coarser scale to make room for it",
        "compute the layer with 16 bits, whose biases have 64; or look for channels with nearly no weights",
        ops=tuple(o.name for o in originals),
        numbers=numbers(biases=len(stuck) + len(repaired)),
    )
    rules = tuple(rule_for(o, "int16x8") for o in originals)
    yield Suspect(finding, (Fix(rules),), about_model=not rules)
