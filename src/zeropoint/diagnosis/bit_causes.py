"""Causes: too few bits for weights, for a stretch of ops, or everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..bench.errors import decibels
from ..display import counted
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..graph.query import Uses
from ..improve.float_islands import GOOD_ENOUGH, FloatShare, find_island
from ..ops import CONVERSIONS
from ..ops.execution import macs_of
from ..recipe import DYNAMIC, INT8, INT16X8, WEIGHTS, Rule, Scheme
from .evidence import Fix, Hypothesis, ModelEvidence, listed, numbers, rule_for
from .sensitive_ops import HEALTHY

SEARCHED = 0.25
"""The share of the samples on which stretches of ops are compared."""


def too_few_bits(evidence: ModelEvidence) -> Hypothesis | None:
    """Weights with fewer than 8 bits."""
    layers = dict(_narrow_layers(evidence))
    if not layers:
        return None
    bits = Counter(weights.dtype.label for weights in layers.values())
    floats = [op for op in layers if op.outputs[0].dtype.is_float]
    originals = {op: original for op in layers if (original := evidence.original(op)) is not None}
    if floats:  # then all layers are dynamic, which a recipe for integers would change
        unpacked = any(weights not in op.inputs for op, weights in layers.items())
        fix = Fix((Rule(WEIGHTS if unpacked else DYNAMIC),))
    else:
        fix = Fix(tuple(Rule(_wider(op), ops=o.label, name=o.name) for op, o in originals.items()))
    return Hypothesis(
        f"the weights of {counted(len(layers), 'layer')} have fewer than 8 bits",
        (
            ", ".join(f"{counted(n, 'layer')} with {label} weights" for label, n in bits.most_common()),
            f"such as {listed((f'{op.label} {op.name!r}' for op in layers), 3)}",
        ),
        f"a channel has at most {2 ** min(w.dtype.bits for w in layers.values()) - 1} different weights",
        "hold them in 8 bits (weight_bits 8), or train with few bits (zeropoint train)",
        numbers(layers=len(layers), bits=min(w.dtype.bits for w in layers.values())),
        tuple(original.name for original in originals.values()),
        fixes=(fix,),
        is_choice=True,
    )


def _narrow_layers(evidence: ModelEvidence) -> Iterator[tuple[Op, Tensor]]:
    """Yield ops with the constant of fewer than 8 bits that they read, directly or through DEQUANTIZE."""
    graph = evidence.alignment.quantized
    uses = Uses(graph)
    for tensor in graph.tensors:
        if tensor.is_constant and tensor.dtype.is_integer and tensor.dtype.bits < 8:
            for use in uses.readers(tensor):
                if use.op.kind in CONVERSIONS:
                    yield from ((behind.op, tensor) for behind in uses.readers(use.op.outputs[0]) if behind.op.outputs)
                elif use.op.outputs:
                    yield use.op, tensor


def _wider(op: Op) -> Scheme:
    return INT16X8 if op.outputs[0].dtype is DType.INT16 else INT8


def float_islands(evidence: ModelEvidence) -> Hypothesis | None:
    """A stretch of ops, or all ops without multiplications, that causes most of the error."""
    trials, request = evidence.trials.on_fewer(SEARCHED), evidence.request
    before = decibels(trials.error())
    plan = trials.candidate(Fix()).planned.plans[0]
    work = {op: macs_of(op, evidence.ops) for op in plan.graph.ops if op in plan.schemes}
    if before >= GOOD_ENOUGH or not work:
        return None

    def fix(ops: tuple[Op, ...]) -> Fix:
        return Fix(tuple(rule_for(op, "float") for op in ops))

    def snr_without(ops: tuple[Op, ...]) -> float:
        return before if trials.is_late else decibels(trials.error_without(ops))

    def report(tried: int) -> None:
        request.report(f"leaving stretches of ops float, {tried}")

    allowed = FloatShare() if request.most is None else FloatShare(request.most)
    island = find_island(work, snr_without, before, report, allowed)
    if not island:
        return None
    after, share = snr_without(island), sum(work[op] for op in island) / max(1, sum(work.values()))
    kinds = ", ".join(f"{n} {label}" for label, n in Counter(op.label for op in island).most_common(4))
    return Hypothesis(
        f"{counted(len(island), 'op')} of {len(work)} cause most of the error",
        (
            f"outputs at {before:.1f} dB; with these ops in float at {after:.1f} dB",
            f"they hold {share:.1%} of the multiply-accumulates: {kinds}, "
            f"from '{island[0].name}' to '{island[-1].name}'",
        ),
        "no later op can recover what they lose",
        "leave them in float, or give them 16 bits where there is no float",
        numbers(before=before, after=after, share=share, ops=len(island)),
        tuple(op.name for op in island),
        fixes=(fix(island), Fix(tuple(rule_for(op, "int16x8") for op in island))),
        in_recipe=True,
    )


def other_quantizer(evidence: ModelEvidence) -> Hypothesis | None:
    """A given model that is worse than quantizing the float model again, for no known reason."""
    if evidence.request.quantized is None:
        return None
    return Hypothesis(
        "quantizing the float model again does better",
        (f"the given model is at {evidence.comparison.snr:.1f} dB, for none of the other reasons",),
        "its ranges, weights or biases do not match the float model, or it was made from another one",
        "quantize again, and compare the two op by op (zeropoint compare)",
        numbers(before=evidence.comparison.snr),
    )


def too_few_bits_everywhere(evidence: ModelEvidence) -> Hypothesis | None:
    """Activations that need more than 8 bits throughout the graph, where no small set of ops is the cause."""
    is_wide = evidence.request.recipe.has_wide_activations
    if is_wide or (before := decibels(evidence.trials.error())) >= HEALTHY:
        return None
    return Hypothesis(
        "8 bits are too few for the activations, all over the graph",
        (f"outputs at {before:.1f} dB, and no small set of ops is the cause",),
        "each tensor loses a little, and together that is too much",
        "compute with 16-bit activations (mode int16x8), quantize the weights alone (mode dynamic), or train",
        numbers(before=before),
        fixes=(Fix((Rule(INT16X8),)), Fix((Rule(DYNAMIC),))),
        in_recipe=True,
    )
