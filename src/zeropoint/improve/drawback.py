"""What is worse about a result than about the model that it was made from: it is larger, or slower on its target.

This can be right for all that, for example because a device has only integers. But it is said, with the reason and with
what would avoid it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..display import Brief, counted, size_text
from ..dtypes import DType
from ..errors import ZeropointError, argument
from ..graph.model import Buffer, Model, Op, Tensor
from ..graph.query import constants
from ..ops import CONVERSIONS
from ..ops.execution import execution_of
from ..parallel import cached_property
from ..runtime import within
from ..targets import CPU, Check, check_model
from ..tflite.write import chunks

SLOWER = 0.9
"""Relative speed below which a result is called slower. Nearer to 1, other work on the machine could decide."""

LARGER, RECORD_BYTES = 1.005, 512
"""The relative size above which a result is called larger, after the bytes of the record of how it was made. Below, two
digits would show the same size."""

WORTH_NAMING = 0.25
"""Share of the bytes that a result is larger by, from which on something is a reason for it."""

FEWEST_MACS, MOST_MACS = 500_000, 2_000_000_000
"""Multiply-accumulates of models that are timed. With fewer, a run is mostly the call; with more, one takes 0.1 s in
float, and a second on slow kernels."""

MOST_BYTES = 1 << 27
"""Size above which nothing is timed, because both models would be in memory together, as LiteRT packs them."""

ALTERNATIVES = ("dynamic", "weights")
"""Modes that need no data and almost no time, the preferred one first."""


@dataclass(frozen=True)
class SourceModel:
    """The model that a result was made from. `file_bytes` is the size of its file, None if it was not read from one;
    `time_limit` is what `runtime.within` takes, None if the model is trusted."""

    model: Model
    file_bytes: int | None = None
    time_limit: float | None = None

    @cached_property
    def bytes(self) -> int:
        return written_bytes(self.model) if self.file_bytes is None else self.file_bytes


@dataclass(frozen=True)
class Drawback(Brief):
    """What is worse about a result: `size` and `speed` are relative to those of the model that it was made from.

    `speed` is that on the `target`, None if it is not known: only this machine is timed. `is_slower` may be known from
    the target's table all the same. `reasons` say why, `alternative` what would be better, None if nothing is known.
    """

    size: float
    speed: float | None
    target: str
    is_larger: bool
    is_slower: bool
    reasons: tuple[str, ...] = ()
    alternative: str | None = None

    @property
    def title(self) -> str:
        return "Larger" if self.is_larger else "Slower"

    def __str__(self) -> str:
        size = f"{self.size:.2f} x the size of the original"
        speed = None if self.speed is None else f"{self.speed:.2g} x its speed on {self.target}"
        if self.is_slower and self.speed is None:
            speed = f"slower on {self.target}"
        joint = " and " if self.is_larger == self.is_slower else ", but "
        compared = size if speed is None else f"{size}{joint}{speed}"
        why = f": {', '.join(self.reasons)}" if self.reasons else ""
        return compared + why + (f"; {self.alternative}" if self.alternative else "")


@dataclass(frozen=True)
class Weighing:
    """A result beside its origin: what a drawback follows from."""

    origin: SourceModel
    made: Model
    check: Check

    @property
    def before(self) -> Model:
        return self.origin.model

    @cached_property
    def bytes(self) -> int:
        return written_bytes(self.made)

    @cached_property
    def source_check(self) -> Check:
        return check_model(self.before, self.check.target)

    @property
    def size(self) -> float:
        return self.bytes / self.origin.bytes

    @property
    def is_larger(self) -> bool:
        return self.bytes > LARGER * self.origin.bytes + RECORD_BYTES

    def is_slower(self, speed: float | None) -> bool:
        """Whether the result is slower, given its relative speed. If that is unknown, the target's table says whether
        most of the work runs slowly that did not before; only for `cpu` are both models meant for the target."""
        if speed is not None or self.check.target.name != CPU.name:
            return speed is not None and speed < SLOWER
        shares = [check.macs["slow"] / max(1, sum(check.macs.values())) for check in (self.source_check, self.check)]
        return shares[0] < 0.5 < shares[1]

    def measured_speed(self) -> float | None:
        """Return the speed of the result, relative to the origin's. None if it is unknown: for devices other than this
        machine, and for models that are too small, take too long or do not run on made-up inputs."""
        is_timed = FEWEST_MACS <= sum(self.source_check.macs.values()) <= MOST_MACS
        if self.check.target.name != CPU.name or not is_timed or self.origin.bytes > MOST_BYTES:
            return None
        from ..bench.relative_speed import relative_speeds  # only who asks for a drawback pays for timing

        speeds = relative_speeds([self.before, self.made])
        return None if speeds is None else speeds[0]


def written_bytes(model: Model) -> int:
    """Return the size of a model's file without putting the file together."""
    return sum(memoryview(chunk).nbytes for chunk in chunks(model, checked=True))


def drawback_of(weighing: Weighing, of_weights: Callable[[str], Model]) -> Drawback | None:
    """Return what is worse about a result than about its origin, if anything. `of_weights` makes a model in one of the
    modes in `ALTERNATIVES`; it is called only if there is something."""
    with within(weighing.origin.time_limit):
        return judged(weighing, weighing.measured_speed(), of_weights)


def judged(weighing: Weighing, speed: float | None, of_weights: Callable[[str], Model]) -> Drawback | None:
    """Return the drawback of a result with this relative speed."""
    is_slower = weighing.is_slower(speed)
    if not weighing.is_larger and not is_slower:
        return None
    found = Drawback(weighing.size, speed, weighing.check.target.name, weighing.is_larger, is_slower)
    reasons = [*(_why_larger(weighing) if found.is_larger else ()), *(_why_slower(weighing) if is_slower else ())]
    return replace(found, reasons=tuple(reasons), alternative=_alternative(weighing, found, of_weights))


def _alternative(weighing: Weighing, found: Drawback, of_weights: Callable[[str], Model]) -> str | None:
    """Return what is neither larger nor slower than the origin; None if nothing else runs on the target as well."""
    if not _runs_as_well(weighing.source_check, weighing.check):
        return None
    for mode in ALTERNATIVES:
        try:
            other = of_weights(mode)
        except ZeropointError:  # such as a model whose weights are integers already
            continue
        beside = Weighing(weighing.origin, other, check_model(other, weighing.check.target))
        is_smaller = beside.size < (min(1, weighing.size) if found.is_larger else 1)
        if not is_smaller or not _runs_as_well(beside.check, weighing.check):
            continue
        speed = beside.measured_speed() if found.is_slower else None
        if not found.is_slower or not beside.is_slower(speed):
            timed = "" if speed is None else f" and {speed:.2g} x the speed"
            return f"{argument('mode', mode)} is {beside.size:.2f} x the size{timed}"
    better = " and ".join(["smaller"] * found.is_larger + ["faster"] * found.is_slower)
    return f"the original is {better}, and storing only its weights in 8 bits does not help"


def _runs_as_well(check: Check, other: Check) -> bool:
    return not check.having("refused") and len(check.having("slow")) <= len(other.having("slow"))


def _why_larger(weighing: Weighing) -> Iterator[str]:
    """Yield what takes more bytes than in the origin: the most first."""
    before, after = bytes_by_type(weighing.before), bytes_by_type(weighing.made)
    added = max(1, weighing.bytes - weighing.origin.bytes)
    reasons = {}
    floats = after[DType.FLOAT32] - before[DType.FLOAT32]
    narrow = {t: held - after[t] for t, held in before.items() if t is not DType.FLOAT32 and after[t] < held}
    if floats > 0 and narrow:
        users = counted(sum(map(_reads_floats, _ops(weighing.made))), "op")
        dtype = max(narrow, key=narrow.__getitem__)
        wider = floats - floats * dtype.bits // DType.FLOAT32.bits
        reasons[wider] = f"constants of {users} in float32, which the original holds in {dtype.label}"
    if forms := constants_in_several_forms(weighing.before, weighing.made):
        shared = counted(len(forms), "constant")
        reasons[sum(forms)] = f"{shared} read as integers by some ops and as floats by others, stored for each"
    rest = (weighing.bytes - sum(after.values())) - (weighing.origin.bytes - sum(before.values()))
    conversions = _conversions(weighing.made)
    converting = f" and {counted(conversions, 'conversion')}" if conversions else ""
    reasons[rest] = f"scales{converting}, beside constants of only {size_text(sum(after.values()))}"
    if max(reasons) < WORTH_NAMING * added:  # such as kernels that were rewritten for the target
        reasons = {sum(after.values()) - sum(before.values()): "larger constants"}
    for size, reason in sorted(reasons.items(), reverse=True):
        if size >= WORTH_NAMING * added:
            yield f"{reason} (+{size_text(size)})"


def _why_slower(weighing: Weighing) -> Iterator[str]:
    """Yield what takes time that the origin does not need."""
    slow, conversions = weighing.check.having("slow"), _conversions(weighing.made)
    if len(slow) > len(weighing.source_check.having("slow")):
        (label, verdict), _ = Counter((c.op.label, c.verdict) for c in slow).most_common(1)[0]
        many = f"{len(slow)} of {counted(len(weighing.check.ops), 'op')}"
        yield f"{many} on {verdict.place}, such as {label}, which {verdict.reason}"
    elif conversions > len(weighing.made.main.inputs) + len(weighing.made.main.outputs):
        left = sum(map(_computes_in_float, _ops(weighing.made)))
        yield f"{counted(conversions, 'conversion')} between integers and the {counted(left, 'op')} in float"
    elif hybrid := sum(execution_of(op) == "hybrid" for op in _ops(weighing.made)):
        yield f"{counted(hybrid, 'layer')} quantizing their inputs in every run, longer than they save by that here"
    else:
        yield "integers are no faster than floats on this processor"


def bytes_by_type(model: Model) -> Counter[DType]:
    """Return the bytes of a model's constants by type; those that tensors share count once."""
    sizes = Counter[DType]()
    for buffer, dtype in {buffer: tensor.dtype for tensor, buffer in _stored(model)}.items():
        sizes[dtype] += buffer.raw.size
    return sizes


def constants_in_several_forms(before: Model, after: Model) -> list[int]:
    """Return the bytes that each constant takes in addition because its readers want it in different types."""
    forms: dict[str, dict[Buffer, DType]] = {}
    for tensor, buffer in _stored(after):
        name = tensor.name.removesuffix(f"/{tensor.dtype.label}")  # which rewriting adds where a constant is split
        forms.setdefault(name, {})[buffer] = tensor.dtype
    now: dict[Buffer, dict[Buffer, DType]] = {}
    for tensor, buffer in _stored(before):
        if tensor.dtype.is_float:
            now.setdefault(buffer, {}).update(forms.get(tensor.name, {}))
    split = {old: new for old, new in now.items() if len(set(new.values())) > 1}
    return [sum(buffer.raw.size for buffer in new) - old.raw.size for old, new in split.items()]


def _stored(model: Model) -> Iterator[tuple[Tensor, Buffer]]:
    return ((t, t.buffer) for graph in model.graphs for t in constants(graph) if t.buffer is not None)


def _ops(model: Model) -> Iterator[Op]:
    return (op for graph in model.graphs for op in graph.ops)


def _computes_in_float(op: Op) -> bool:
    return execution_of(op) == "float"


def _reads_floats(op: Op) -> bool:
    return any(t is not None and t.has_data and t.dtype is DType.FLOAT32 for t in op.inputs)


def _conversions(model: Model) -> int:
    """Return how many values are converted in every run; constants are unpacked once."""
    sources = (op.inputs[0] for op in _ops(model) if op.kind in CONVERSIONS and op.inputs)
    return sum(source is not None and not source.is_constant for source in sources)
