"""The results of `compare` and `doctor` as plain values: printed by commands, drawn by the report, saved as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..bench.errors import decibels
from ..bench.judged_outputs import OutputKind
from ..bench.measure import SampledError
from ..bench.verdict import UNKNOWN, Level, Verdict
from ..display import Brief, Displayed
from ..json_values import json_values
from ..ops.execution import Execution
from ..recipe import Recipe
from ..recipe_files import PlainRules, recipe_content, recipe_from

SCORE_LOSS, MOST_LOST = 0.01, 0.05
"""The shares of its score that a quantized model may lose and still be close to the float model, or usable."""

SCHEMA_VERSION = 1
"""Schema version of `Comparison.to_json` and `Diagnosis.to_json`; docs/compare.md describes them."""


@dataclass(frozen=True)
class Deviation:
    """How far values are from the float model's, over all samples.

    `snr` is in dB; `mean_ulp` and `max_ulp` are in integer steps, None for float values; `cosine` is the cosine
    similarity, None if one side is zero throughout.
    """

    snr: float
    cosine: float | None
    mean_ulp: float | None = None
    max_ulp: float | None = None

    @property
    def error(self) -> float:
        """The power of the difference relative to the power of the signal."""
        return float(10.0 ** (-self.snr / 10))


@dataclass(frozen=True)
class Occupancy:
    """How a tensor uses its integer range: the shares of values clipped at the lowest and the highest integer, and the
    share of all integers between the observed minimum and maximum."""

    clipped_low: float
    clipped_high: float
    used: float

    @property
    def clipped(self) -> float:
        return self.clipped_low + self.clipped_high


@dataclass(frozen=True)
class OpRow:
    """One op in both models. Positions count the ops of the first graph, from 0.

    `accumulated` compares the models as they run; `own` feeds this op alone with the float model's values, so that only
    its own rounding and clipping remain. Either is None if it cannot be measured; `note` then says why.
    """

    label: str
    name: str  # of the first output in the float model
    position: int  # in the quantized model
    float_position: int
    quantized_name: str  # of the first output in the quantized model
    dtype: str  # of that output
    execution: Execution
    macs: int
    accumulated: Deviation | None
    own: Deviation | None
    occupancy: Occupancy | None  # None for float outputs
    parameters: str | None = None  # scale and zero point of the output
    note: str = ""

    @property
    def blame(self) -> float:
        """The sort key of rows: the op's own relative squared error."""
        return 0.0 if self.own is None else self.own.error


@dataclass(frozen=True)
class OutputRow:
    """One output of the model. `agreement` is the share of samples with the same largest element; None unless the
    output looks like class scores. The SNR of `deviation` is measured at `where`: the output itself, or the input of
    the softmax or sigmoid that produces it. `tensor` is its name in the file."""

    name: str  # in the signature, if there is one
    deviation: Deviation
    largest: float  # absolute error
    mean: float  # absolute error
    agreement: float | None = None
    where: str = ""
    tensor: str = ""
    kind: OutputKind | None = None
    text: str = ""  # the difference in the words of that kind
    weight: float = 1.0  # of its error among those of all outputs


def error_of_outputs(outputs: Sequence[OutputRow]) -> float:
    """Return the error of several outputs relative to what they vary by: that of the weighted mean of their shares."""
    weights = sum(row.weight for row in outputs)
    shares = (row.weight * row.deviation.error / (1 + row.deviation.error) for row in outputs)
    return SampledError((sum(shares) / weights,)).value if weights else 0.0


@dataclass(frozen=True)
class MetricRow:
    """The scores of both models by the user's own metric; higher is better."""

    name: str
    before: float
    after: float

    @property
    def lost(self) -> float:
        """The share of the float model's score that is lost."""
        return (self.before - self.after) / abs(self.before) if self.before else 0.0

    @property
    def level(self) -> Level:
        """What the metric says of the quantized model."""
        return "good" if self.lost <= SCORE_LOSS else "doubtful" if self.lost <= MOST_LOST else "broken"

    def beside(self, said: Level) -> str:
        """Return how far the metric agrees with a verdict by the error of the outputs."""
        words = {"good": "good", "doubtful": "worth a look", "broken": "broken", "unknown": "unknown"}
        if said == "unknown":
            return f"{words[self.level]} by it; the error of the outputs says nothing certain"
        other = f"the error of the outputs says {words[said]}"
        both = "as the error of the outputs says" if said == self.level else other
        return f"{words[self.level]} by it, {both}"

    def __str__(self) -> str:
        return f"{self.name}: {self.before:.6g} float, {self.after:.6g} quantized"


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """A float model and a quantized model, compared on the same samples. Rows are in the quantized model's order."""

    samples: int
    ops: tuple[OpRow, ...]
    outputs: tuple[OutputRow, ...]
    metric: MetricRow | None = None
    unaligned: tuple[str, ...] = ()  # float ops without a counterpart, as "KIND 'name'"
    notes: tuple[str, ...] = ()
    float_bytes: int | None = None
    quantized_bytes: int | None = None

    @property
    def error(self) -> float:
        """The error relative to what the outputs vary by: that of the mean share over outputs."""
        return error_of_outputs(self.outputs)

    @property
    def snr(self) -> float:
        return decibels(self.error)

    @property
    def agreement(self) -> float | None:
        """The share of samples with the same class, by the first output that looks like class scores."""
        return next((o.agreement for o in self.outputs if o.agreement is not None), None)

    @property
    def where(self) -> str:
        """Where the SNR of the first outputs is measured; empty if that is at the outputs themselves."""
        return " and ".join(dict.fromkeys(o.where for o in self.outputs[:2]))

    @property
    def by_blame(self) -> tuple[OpRow, ...]:
        """The rows sorted by their own error, largest first."""
        return tuple(sorted(self.ops, key=lambda row: -row.blame))

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA_VERSION, **json_values(self), "snr": self.snr}


@dataclass(frozen=True, repr=False)
class Finding(Brief):
    """One cause of lost accuracy or time, with the numbers that show it, and what to do about it.

    `gain` is the improvement of the outputs in dB, measured if `is_measured` and otherwise estimated; None for causes
    that cost only time. `rules` are recipe rules (see `recipe_from`) that fix it, to be appended to the ones in use;
    `options` are arguments of `quantize` that do. Samples are numbered as in the data.
    """

    cause: str  # the name of a function in `diagnosis.causes.CAUSES`; docs/compare.md explains each
    title: str
    evidence: tuple[str, ...]
    effect: str
    advice: str
    gain: float | None = None
    is_measured: bool = False
    rules: PlainRules | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    ops: tuple[str, ...] = ()  # names of the ops' first outputs in the float model
    samples: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)  # the numbers in the evidence, machine-readable


@dataclass(frozen=True)
class Score:
    """How good a model is: the SNR of its outputs in dB, and the user's metric if there is one."""

    snr: float
    metric: float | None = None
    agreement: float | None = None
    bytes: int | None = None

    @property
    def rank(self) -> float:
        """What it is judged by: the metric, if there is one."""
        return self.snr if self.metric is None else self.metric

    @property
    def unit(self) -> str:
        return "dB" if self.metric is None else "by the metric"


@dataclass(frozen=True, repr=False)
class Remedy(Brief):
    """The complete proposed recipe, with the score measured with it."""

    rules: PlainRules
    options: Mapping[str, Any]
    before: Score
    after: Score
    moved: float  # share of multiply-accumulates that no longer use the requested integers
    float_metric: float | None = None  # of the float model

    @property
    def recovered(self) -> float:
        """The share of the squared error that it removes."""
        return 1 - float(10.0 ** ((self.before.snr - self.after.snr) / 10))

    @property
    def recipe(self) -> Recipe:
        return recipe_from(recipe_content(self.rules))


@dataclass(frozen=True, repr=False)
class Diagnosis(Displayed):
    """Findings, largest gain first; none for a healthy model."""

    findings: tuple[Finding, ...]
    comparison: Comparison
    remedy: Remedy | None = None  # None if no finding can be fixed by a recipe
    notes: tuple[str, ...] = ()
    verdict: Verdict = UNKNOWN

    @property
    def level(self) -> Level:
        """How good the model is: by the user's metric, if there is one, otherwise by the verdict."""
        metric = self.comparison.metric
        return self.verdict.level if metric is None else metric.level

    @property
    def is_close(self) -> bool:
        """Whether the model is good."""
        return self.level == "good"

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found and the outputs are in fact close to the float model's."""
        return not self.findings and self.is_close

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA_VERSION, **json_values(self)}
