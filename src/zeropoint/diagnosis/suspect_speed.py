"""What makes a quantized model slower than it has to be. None of it costs accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..bench.latency import Trial, benchmark
from ..comparison.values import Finding
from ..graph.model import Op
from ..graph.query import Uses
from ..ops import CONVERSIONS
from ..ops.execution import execution_of, macs_of
from .facts import Facts, numbers

MUCH = 0.05
"""Of the arithmetic in float, or of the elements converted, from which on it is worth saying."""

SLOWER = 1.2
LEAST_SECONDS = 0.001
"""Models that take less are not compared: the clock is too coarse on a busy machine."""


def suspect_speed(facts: Facts) -> Iterator[Finding]:
    graph = facts.alignment.quantized
    executions = {op: execution_of(op) for op in graph.ops}
    if "integer" not in executions.values():
        return
    left = [op for op, how in executions.items() if how == "float" and op.name not in facts.kept]
    yield from _float_ops(facts, left, sum(map(macs_of, graph.ops)))
    yield from _conversions(facts)
    yield from _undelegated(facts)


def _float_ops(facts: Facts, left: list[Op], total: int) -> Iterator[Finding]:
    share = sum(map(macs_of, left)) / total if total else 0.0
    if share < MUCH:
        return
    kinds = Counter(op.label for op in left)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
    reasons = dict.fromkeys(facts.reasons[op.name] for op in left if op.name in facts.reasons)
    yield Finding(
        "float_fallback",
        f"{len(left)} ops were left in float",
        (f"{share:.1%} of the multiply-accumulates are float: {listed}", *list(reasons)[:3]),
        "they run at the speed and with the memory of the float model, behind conversions",
        "see the reasons; other ops in the model, or another mode, may have an integer kernel",
        ops=tuple(op.name for op in left),
        numbers=numbers(ops=len(left), share=share),
    )


def _conversions(facts: Facts) -> Iterator[Finding]:
    """Conversions inside of the graph, which convert what an op has just made for the op that reads it."""
    graph = facts.alignment.quantized
    uses, ends = Uses(graph), {*graph.inputs, *graph.outputs}
    inner = [
        op
        for op in graph.ops
        if op.kind in CONVERSIONS and not ends.intersection((op.inputs[0], op.outputs[0]))
        if op.inputs[0] is not None and uses.producer(op.inputs[0]) is not None
    ]
    moved = sum(op.outputs[0].size for op in inner)
    made = sum(t.size for op in graph.ops if op.kind not in CONVERSIONS for t in op.outputs)
    if not made or moved / made < 4 * MUCH:
        return
    yield Finding(
        "costly_conversions",
        f"{len(inner)} conversions between integer and float ops",
        (f"they convert {moved} elements, {moved / made:.0%} of all that the other ops compute",),
        "conversions take time and memory, and each one rounds",
        "keep the ops between two conversions in the form of their neighbours, or leave small integer islands in float",
        ops=tuple(op.name for op in inner),
        numbers=numbers(conversions=len(inner), elements=moved, share=moved / made),
    )


def _undelegated(facts: Facts) -> Iterator[Finding]:
    """Ops that run on plain kernels, if the quantized model is slower than the float one."""
    quick = benchmark({"float": facts.wanted, "quantized": facts.made}, Trial(rounds=3, inside=False))
    before, after = (timing.latencies[0].fastest for timing in quick.models)
    left = quick.models[1].undelegated
    if before < LEAST_SECONDS or after < SLOWER * before or not left:
        return
    listed = ", ".join(f"{count} {kind}" for kind, count in list(left.items())[:5])
    yield Finding(
        "undelegated_ops",
        "the quantized model is slower than the float model",
        (
            f"{1000 * after:.2f} ms instead of {1000 * before:.2f} ms on one thread here",
            f"LiteRT's delegate left {sum(left.values())} ops to plain kernels: {listed}",
        ),
        "plain kernels are several times slower than the delegate's",
        "int8 has more kernels in the delegate than int16; on other hardware it may be different",
        numbers=numbers(before=before, after=after, ops=sum(left.values())),
    )
