"""The table of causes: everything that can be wrong with a quantized model. A new cause is a function and an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from ..bench.latency import TimingOptions, benchmark
from ..display import counted
from ..graph.model import Tensor
from ..ops import CONVERSIONS
from ..ops.execution import execution_of, total_macs
from . import bit_causes, range_causes, weight_causes
from .evidence import Hypothesis, ModelEvidence, numbers
from .sensitive_ops import coarse_weights, sensitive_ops

MUCH = 0.05
"""The share of arithmetic in float, or of converted elements, above which it is reported."""

SLOWER = 1.2
LEAST_SECONDS = 0.001
"""Latency below which models are not compared: the clock is too coarse on a busy machine."""

Stage = Literal["faults", "precision", "rest", "speed"]
FindCause = Callable[[ModelEvidence], Hypothesis | None]


def float_fallback(evidence: ModelEvidence) -> Hypothesis | None:
    """Ops that stayed float although the recipe does not ask for it."""
    graph, quantization = evidence.alignment.quantized, evidence.quantization
    skipped = () if quantization is None else quantization.skipped
    kept = {s.op.name for s in skipped if s.code == "recipe"}
    left = [op for op in graph.ops if execution_of(op, evidence.ops) == "float" and op.name not in kept]
    total = total_macs(graph.ops, evidence.ops)
    share = total_macs(left, evidence.ops) / max(1, total)
    if share < MUCH or not _has_integer_ops(evidence):
        return None
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(op.label for op in left).most_common(5))
    names = {op.name for op in left}
    reasons = list(dict.fromkeys(s.reason for s in skipped if s.op.name in names))
    return Hypothesis(
        f"{counted(len(left), 'op')} left in float",
        (f"{share:.1%} of the multiply-accumulates are float: {kinds}", *reasons[:3]),
        "they run at the speed and with the memory of the float model, behind conversions",
        "see the reasons; other ops in the model, or another mode, may have an integer kernel",
        numbers(ops=len(left), share=share),
        tuple(op.name for op in left),
        fixes=(),
    )


def _has_integer_ops(evidence: ModelEvidence) -> bool:
    return any(execution_of(op, evidence.ops) == "integer" for op in evidence.alignment.quantized.ops)


def costly_conversions(evidence: ModelEvidence) -> Hypothesis | None:
    """Conversions inside the graph, between an op and the op that reads its output."""
    graph = evidence.alignment.quantized
    between: set[Tensor | None] = {t for op in graph.ops for t in op.outputs if t not in graph.outputs}
    inner = [op for op in graph.ops if op.kind in CONVERSIONS and between.issuperset((op.inputs[0], op.outputs[0]))]
    moved = sum(op.outputs[0].size for op in inner)
    computed = sum(t.size for op in graph.ops if op.kind not in CONVERSIONS for t in op.outputs)
    share = moved / max(1, computed)
    if share < 4 * MUCH or not _has_integer_ops(evidence):
        return None
    return Hypothesis(
        f"{counted(len(inner), 'conversion')} between integer and float ops",
        (f"they convert {moved} elements, {share:.0%} of all that the other ops compute",),
        "conversions take time and memory, and each one rounds",
        "keep the ops between two conversions in the form of their neighbours, or leave small integer islands in float",
        numbers(conversions=len(inner), elements=moved, share=share),
        tuple(op.name for op in inner),
        fixes=(),
    )


def undelegated_ops(evidence: ModelEvidence) -> Hypothesis | None:
    """Ops that run on plain kernels, if the quantized model is slower than the float model."""
    if not _has_integer_ops(evidence):
        return None
    models = {"float": evidence.request.model, "quantized": evidence.made}
    timed = benchmark(models, TimingOptions(rounds=3, inside=False)).models
    before, after = (timing.latencies[0].fastest for timing in timed)
    left = timed[1].undelegated
    if before < LEAST_SECONDS or after < SLOWER * before or not left:
        return None
    kinds = ", ".join(f"{n} {kind}" for kind, n in list(left.items())[:5])
    return Hypothesis(
        "the quantized model is slower than the float model",
        (
            f"{1000 * after:.2f} ms instead of {1000 * before:.2f} ms on one thread here",
            f"LiteRT's delegate left {counted(sum(left.values()), 'op')} to plain kernels: {kinds}",
        ),
        "plain kernels are several times slower than the delegate's",
        "int8 has more kernels in the delegate than int16; on other hardware it may be different",
        numbers(before=before, after=after, ops=sum(left.values())),
        fixes=(),
    )


CAUSES: Mapping[Stage, tuple[FindCause, ...]] = {
    "faults": (
        range_causes.swapped_inputs,
        range_causes.unnormalized_input,
        range_causes.unlike_data,
        bit_causes.too_few_bits,
        weight_causes.uneven_channels,
        weight_causes.dead_channels,
        weight_causes.huge_weight,
        weight_causes.drowned_input,
        weight_causes.bias_overflow,
        range_causes.outlier_samples,
        range_causes.outlier_values,
        range_causes.clipping,
        range_causes.extreme_scale,
    ),
    "precision": (bit_causes.float_islands, sensitive_ops, coarse_weights),
    "rest": (bit_causes.other_quantizer, bit_causes.too_few_bits_everywhere),
    "speed": (float_fallback, costly_conversions, undelegated_ops),
}
"""All causes by stage; the name of each function is the code of its cause. Faults are looked for in the model as it is;
a lack of precision, after their fixes; the rest, if the outputs are still far off and none of these was the cause;
speed comes last."""
