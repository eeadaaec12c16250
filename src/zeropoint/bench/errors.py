"""What is compared between versions of a model, and errors in decibels, larger is better.

Outputs are compared by `measure`; tensors inside a model by the power of the difference relative to that of the float
values (`ErrorSum`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..affine import dequantize, quantize
from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Uses
from ..ops import CONVERSIONS, OpSpec, spec_of
from .alignment import source
from .judged_outputs import PLAIN, JudgedOutputs
from .measure import dot

EXACT = 200.0
"""SNR in dB assigned to equal values. Float32 itself reaches about 150 dB."""

SQUASHED = 8.0
"""Values this far below the maximum before a softmax, or this far from zero before a sigmoid, make no difference: a
probability of 0.0003."""

LEAST_LOGIT, LEAST_PROBABILITY = 1.0, 1e-5
"""Variances of logits, and of probabilities by themselves, below which an output hardly says anything."""

Decides = Literal["each", "row", "logits"]
"""What probabilities an output holds, if any: of each value by itself, of a whole row, or logits of each."""

TRANSPARENT = (*CONVERSIONS, "FAKE_QUANT")
"""Ops whose output holds the values of their input."""


def decibels(relative_error: float) -> float:
    """Return the SNR in dB of a relative squared error: 0 dB is noise as strong as the signal. Clamped to ±EXACT."""
    if not math.isfinite(relative_error):
        return -EXACT
    floor = 10 ** (-EXACT / 10)
    return -10 * math.log10(min(max(relative_error, floor), 1 / floor))


def snr_text(snr: float | None, unit: str = " dB") -> str:
    """Format a signal-to-noise ratio; "-" if unknown."""
    if snr is None:
        return "-"
    return "exact" if snr >= EXACT else f"{snr:.1f}{unit}"


def from_decibels(snr: float) -> float:
    """Return the relative squared error of an SNR in dB."""
    return float(10 ** (-snr / 10))


def real(values: Array, tensor: Tensor) -> Array:
    """Return the real values that a tensor's numbers represent."""
    return values if tensor.params is None or not tensor.is_quantized else dequantize(values, tensor.params)


def encoded(real: Array, tensor: Tensor) -> Array:
    """Return real numbers, or indices, as `tensor` stores them."""
    if tensor.params is not None:
        return quantize(real, tensor.params)
    assert tensor.dtype.storage is not None
    return real.astype(tensor.dtype.storage, copy=False)


def as_floats(values: Array) -> Array:
    """Return numbers that can be subtracted: truth values cannot, and integers wrap."""
    numbers = np.asarray(values)
    return numbers if numbers.dtype.kind == "f" else numbers.astype(np.float64)


@dataclass
class ErrorSum:
    """Squared differences and squared values, summed over samples."""

    error: float = 0.0
    power: float = 0.0

    def add(self, wanted: Array, found: Array) -> Array:
        """Add one run's values; return the differences, flattened."""
        flat, own = (as_floats(values).reshape(-1) for values in (wanted, found))
        with np.errstate(invalid="ignore"):
            gap: Array = own - flat
        if np.isinf(flat).any():  # equal infinities are no error, and do not count as power
            agree = np.isinf(flat) & (own == flat)
            gap, flat = np.where(agree, 0, gap), np.where(agree, 0, flat)
        self.error += dot(gap, gap)
        self.power += dot(flat, flat)
        return gap

    def __add__(self, other: ErrorSum) -> ErrorSum:
        return ErrorSum(self.error + other.error, self.power + other.power)

    @property
    def relative(self) -> float:
        """The relative squared error; infinite if any value was NaN."""
        found = self.error / self.power if self.power > 0 else self.error
        return found if math.isfinite(found) else math.inf


@dataclass(frozen=True)
class Compared:
    """What is compared of the output at `place`, and how much it counts among the others.

    Of an output that an op of `kind` computes from a whole "row", that is what it computes it from: probabilities near
    0 and 1 hide the differences before them, so that a few uncertain samples would dominate the error. A version of the
    model without that op, which some tools drop, outputs the compared tensor itself. Of "logits", it is the probability
    of each by itself: a score of -30 says the same as one of -10.
    """

    place: int
    decides: Decides | None = None
    kind: str | None = None
    weight: float = 1.0
    scored_by: int | None = None  # the place of an output that says at which positions this one counts

    @property
    def least(self) -> float:
        """The variance that counts at least: what is less in a logit or a probability decides nothing."""
        return {"row": LEAST_LOGIT, None: 0.0}.get(self.decides, LEAST_PROBABILITY)

    @property
    def is_other(self) -> bool:
        """Whether what is compared is not the output as it is."""
        return self.decides in ("row", "logits") or self.scored_by is not None

    def tensor(self, graph: Graph) -> Tensor:
        """Return the compared tensor in any version of the model."""
        output = graph.outputs[self.place]
        maker = None if self.kind is None else _maker(Uses(graph), output)
        source = maker.inputs[0] if maker is not None and maker.kind == self.kind else None
        return output if source is None else source

    def label(self, graph: Graph) -> str:
        """Return where the SNR is measured, as text."""
        maker = None if self.kind is None else _maker(Uses(graph), graph.outputs[self.place])
        return f"'{self.tensor(graph).name}'{f' before {maker.label}' if maker is not None else ''}"

    def is_in(self, graph: Graph, other: Graph) -> bool:
        """Whether another version of `graph` computes its probabilities in the same way."""
        makers = [_maker(Uses(g), g.outputs[self.place]) for g in (graph, other)]
        return self.kind is None or len({None if op is None else op.kind for op in makers}) == 1

    def judged(self, values: Array) -> Array:
        """Return the values without differences that do not matter."""
        if self.decides == "logits":
            with np.errstate(over="ignore"):
                return np.asarray(1 / (1 + np.exp(-values)))
        if self.decides != "row":
            return values
        # A softmax is invariant to a common offset of its inputs.
        below = values.astype(np.float64)
        below -= np.maximum.reduce(values, axis=-1, keepdims=True)  # for few values, half the time of `max` and `mean`
        np.maximum(below, -SQUASHED, out=below)
        below -= np.add.reduce(below, axis=-1, keepdims=True) / below.shape[-1]
        return below


def where_measured(compared: Sequence[Compared], graph: Graph) -> str:
    """Return where the SNR of all compared outputs is measured, as text."""
    labels = [one.label(graph) for one in compared]
    return labels[0] if len(labels) == 1 else f"{len(labels)} outputs ({', '.join(labels[:2])} ...)"


def compared_outputs(graph: Graph, ops: Mapping[str, OpSpec], outputs: JudgedOutputs = PLAIN) -> Iterator[Compared]:
    """Yield the float outputs of the float model that count."""
    found = list(_compared(graph, ops, outputs))
    scores = {graph.outputs[one.place].shape[:-1]: one.place for one in found if _is_score(graph, one)}
    for one in found:
        shape = graph.outputs[one.place].shape
        is_scored = one.decides is None and len(shape) >= 3 and shape[-1] > 1
        yield replace(one, scored_by=scores.get(shape[:-1])) if is_scored else one


def _compared(graph: Graph, ops: Mapping[str, OpSpec], outputs: JudgedOutputs) -> Iterator[Compared]:
    uses = Uses(graph)
    for place, tensor in enumerate(graph.outputs):
        weight = outputs.weight(tensor.name)
        if tensor.dtype is not DType.FLOAT32 or not weight:
            continue
        maker = _maker(uses, tensor)
        known = None if maker is None else spec_of(maker, ops).probabilities
        if maker is not None and known == "row":
            yield Compared(place, known, maker.kind, weight)
        elif known is None and _is_logit_for_each(place, graph, outputs):
            yield Compared(place, "logits", weight=weight)
        else:
            yield Compared(place, known, weight=weight)


def _is_score(graph: Graph, one: Compared) -> bool:
    """Whether an output has one decision for each of several positions."""
    tensor = graph.outputs[one.place]
    return one.decides in ("each", "logits") and tensor.shape[-1:] == (1,) and tensor.size > 1


def _is_logit_for_each(place: int, graph: Graph, outputs: JudgedOutputs) -> bool:
    """Whether an output holds a score for each of the positions of a wider output beside it: the threshold that decides
    on them is in the program behind the model, and is 0 unless the output is a probability."""
    shape, kind = graph.outputs[place].shape, outputs.kind(graph.outputs[place].name)
    if kind is not None:
        return kind == "scores"
    others = (other.shape for k, other in enumerate(graph.outputs) if k != place)
    is_score = len(shape) >= 3 and shape[-1] == 1 and math.prod(shape) > 1
    return is_score and any(other[:-1] == shape[:-1] and other[-1] > 1 for other in others)


def _maker(uses: Uses, tensor: Tensor) -> Op | None:
    """Return the op that computes the tensor, looking through conversions."""
    return uses.producer(source(tensor, uses, TRANSPARENT))
