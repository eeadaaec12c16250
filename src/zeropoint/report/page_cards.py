"""The figures at the top of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..bench.latency import Benchmark, Latency
from ..comparison.values import EXACT, Comparison, Diagnosis
from .inspection import Inspection
from .page_values import Bar, Card
from .terminal import bytes_text


def cards_of(
    shown: Inspection,
    size_before: int | None,
    compared: Comparison | None,
    diagnosis: Diagnosis | None,
    bars: Sequence[Bar],
) -> Iterator[Card]:
    if shown.file_bytes is not None:
        yield _size(shown.file_bytes, size_before)
    yield from _latency(bars)
    if compared is not None:
        yield from _accuracy(compared)
    yield _integers(shown)
    if diagnosis is not None:
        yield from _health(diagnosis)


def _size(size: int, before: int | None) -> Card:
    note = "" if not before else f"{size / before:.0%} of {bytes_text(before)}"
    return Card("Size", bytes_text(size), note)


def latency_bars(benchmark: Benchmark) -> tuple[Bar, ...]:
    """Every model with every number of threads, in milliseconds."""
    return tuple(_bar(timing.name, latency) for timing in benchmark.models for latency in timing.latencies)


def _bar(name: str, latency: Latency) -> Bar:
    median, low, high = (1000 * seconds for seconds in (latency.median, latency.low, latency.high))
    label = f"{name}, {latency.threads} {'thread' if latency.threads == 1 else 'threads'}"
    return Bar(label, median, low, high, latency.threads)


def _latency(bars: Sequence[Bar]) -> Iterator[Card]:
    """The last model is the one that is reported; the first what it is to be held against, on as many threads."""
    alike = [bar for bar in bars if bar.threads == bars[0].threads]
    if not alike:
        return
    note = f"{alike[0].value / alike[-1].value:.2f} × as fast as {alike[0].label}" if len(alike) > 1 else "median"
    yield Card("Latency", f"{alike[-1].value:.3g} ms", note)


def _accuracy(compared: Comparison) -> Iterator[Card]:
    if compared.metric is not None:
        metric = compared.metric
        yield Card(metric.name, f"{metric.after:.4g}", f"float model {metric.before:.4g}")
    for output in compared.outputs:
        if output.agreement is not None:
            yield Card("Same class", f"{output.agreement:.1%}", f"of {compared.samples} samples, as the float model")
            break
    if compared.outputs:
        value = "exact" if compared.snr >= EXACT else f"{compared.snr:.1f} dB"
        largest = max(output.largest for output in compared.outputs)
        yield Card("Signal to noise", value, f"of the outputs; largest error {largest:.3g}")


def _integers(shown: Inspection) -> Card:
    counts = Counter(op.execution for op in shown.ops)
    note = ", ".join(f"{count} {execution}" for execution, count in counts.most_common())
    share = shown.integer_share
    if share is None:
        return Card("Integer ops", f"{counts['integer'] / max(1, len(shown.ops)):.0%}", note)
    return Card("Integer arithmetic", f"{share:.1%}", note)


def _health(diagnosis: Diagnosis) -> Iterator[Card]:
    count = len(diagnosis.findings)
    if diagnosis.remedy is None:
        yield Card("Findings", str(count) if count else "none", "" if count else "nothing to fix")
        return
    before, after = diagnosis.remedy.before, diagnosis.remedy.after
    yield Card("Findings", str(count), f"the remedy brings {before.snr:.1f} dB to {after.snr:.1f} dB")
