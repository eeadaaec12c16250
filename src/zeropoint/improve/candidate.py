"""A candidate way to quantize a model, the steps that propose others, and what those steps may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..bench.bench import Bench
from ..calibration.collect import Progress
from ..calibration.loud_samples import LoudSamples
from ..display import counted
from ..graph.model import Model, Op, Tensor
from ..parallel import cached_property
from ..plan.exchange import with_weights_of
from ..plan.parts import part_of
from ..plan.plan import Planned
from ..plan.prepared import Prepared
from ..plan.request import Island, Request
from ..plan.rewrite import Encoder, build
from ..recipe import Effort
from .bias_correction import plan_and_correct
from .mixed_precision import NarrowLayer, Widening
from .refiner import Refiner

Stage = Callable[[str, int], Progress]
"""(description, number of parts) -> a function that reports progress on each."""


def no_progress(what: str, parts: int) -> Progress:  # noqa: ARG001 - one signature for all stages
    """Return a progress function that reports nothing."""
    return lambda _: None


@dataclass(frozen=True)
class Candidate:
    """One way to quantize: a float model that computes the same as the original, and a request with its ranges.

    `equalized` counts tensors whose channels were scaled, `smoothed` those that a 16-bit product scales, `gated` layers
    whose weights a gate multiplies. `refined` is a plan with weights that compensate for each other's rounding, or that
    were `learned` in this many blocks; it `refits` if they are fitted to what the layers before produce. `refiner`
    would round them for all samples, if only some were used. `widening` says which have 8 bits although fewer are
    requested. Ranges leave out the samples in `without_loud`.
    """

    prepared: Prepared
    request: Request
    equalized: int = 0
    smoothed: int = 0
    refined: Planned | None = None
    widening: Widening | None = None
    learned: int = 0
    refits: bool = True
    refiner: Refiner | None = None
    gated: int = 0
    without_loud: LoudSamples | None = None

    @cached_property
    def planned(self) -> Planned:
        return self.refined or plan_and_correct(self.prepared, self.request)

    def model(self, left_float: Collection[Op] = ()) -> Model:
        """Return the model with float inputs and outputs, for comparison. LiteRT has not tried to run it.

        Ops of the first graph that are `left_float` are removed from the plan as it is: planning their neighbours again
        takes longer than running it.
        """
        if not left_float:
            return self._model
        return build(self._leaving(left_float), self.request.ops, self.encoder)

    def part(
        self, ops: Sequence[Op], inputs: Sequence[Tensor], outputs: Sequence[Tensor], left_float: Collection[Op]
    ) -> Model:
        """Return a model of some ops of the first graph, which compute `outputs` from `inputs`; see `model`."""
        planned = part_of(self._leaving(left_float), ops, inputs, outputs)
        return build(planned, self.request.ops, self.encoder)

    def _leaving(self, left_float: Collection[Op]) -> Planned:
        """Return the plan with float inputs and outputs, and with these ops in float."""
        planned = self.planned.with_float_ends()
        first, *others = planned.plans
        return replace(planned, plans=(first.without(left_float), *others))

    @cached_property
    def _model(self) -> Model:
        """Kept, so that a bench recognizes what it has measured."""
        return build(self.planned.with_float_ends(), self.request.ops, self.encoder)

    @cached_property
    def encoder(self) -> Encoder:
        """Has the integers of constants that versions of this candidate, or others of the same model, were built
        with."""
        return Encoder(self.prepared.integers)

    def __str__(self) -> str:
        if not self.request.recipe.has_integer_ops:
            rounding = (
                "nearest rounding" if self.request.effort == "quick" else "rounding that cancels, biases corrected"
            )
            return rounding if self.refined is None else self._refining
        text = f"{self.request.range_method} ranges"
        text += f" without {self.without_loud.names}" if self.without_loud else ""
        others = {key: method for key, method in self.request.methods.items() if key not in self.request.limits}
        if others:
            text += f", of {counted(len(others), 'tensor')} {', '.join(sorted(set(others.values())))}"
        if self.request.limits:
            text += f", outliers of {counted(len(self.request.limits), 'tensor')} cut off"
        if self.equalized:
            text += f", channels of {counted(self.equalized, 'tensor')} equalized"
        left = sum(island.scheme.activations is None for island in self.request.islands.values())
        wide = sum(len(plan.wide_ops) for plan in self.planned.plans)
        text += f", {counted(left, 'op')} left float" if left else ""
        text += f", {counted(wide, 'op')} with 16 bits" if wide else ""
        text += f", {counted(self.smoothed, 'tensor')} smoothed" if self.smoothed else ""
        text += f", gates in the weights of {counted(self.gated, 'layer')}" if self.gated else ""
        return text if self.refined is None else f"{text}, {self._refining}"

    @property
    def _refining(self) -> str:
        learned = f"roundings and ranges of {counted(self.learned, 'block')} learned"
        return learned if self.learned else "weights rounded with compensation"

    def with_islands(self, ops: Sequence[Op], island: Island) -> Candidate:
        """Return the candidate with these ops computed in another way."""
        known = {self.prepared.keys[op.outputs[0]] for op in ops if op.outputs[0] in self.prepared.keys}
        islands = {**self.request.islands, **dict.fromkeys(sorted(known), island)}
        return replace(self, request=replace(self.request, islands=islands))

    def unrefined(self) -> Candidate:
        """Return the candidate with its weights not yet rounded."""
        if self.refined is None and self.widening is None:
            return self
        recipe = replace(self.request.recipe, in_8_bits=frozenset())
        return replace(self, request=replace(self.request, recipe=recipe), refined=None, refiner=None, widening=None)

    def in_8_bits(self) -> Candidate:
        """Return the candidate, not refined, with all weights in 8 bits if activations are integers, so that only these
        matter; itself if no weights have fewer."""
        recipe = self.request.recipe
        return self if not recipe.has_integer_ops or recipe.least_bits >= 8 else self._all_in_8_bits(True)

    def in_asked_bits(self) -> Candidate:
        """Return the candidate with weights in the requested bits."""
        return self._all_in_8_bits(False) if self.request.recipe.all_in_8_bits else self

    def _all_in_8_bits(self, chosen: bool) -> Candidate:
        recipe = replace(self.request.recipe, all_in_8_bits=chosen)
        return replace(self, request=replace(self.request, recipe=recipe), refined=None, widening=None)

    def widened(self, widening: Widening) -> Candidate:
        """Return the candidate, not refined, with these weights in 8 bits."""
        request = replace(self.request, recipe=replace(self.request.recipe, in_8_bits=widening.ops))
        return replace(self, request=request, refined=None, widening=widening)

    def narrow_only_in(self, layer: NarrowLayer, wide: Candidate) -> Candidate:
        """Return `wide`, this candidate with all weights in 8 bits, with the weights that this layer has here."""
        assert wide.widening is not None
        others = tuple(other for other in wide.widening.layers if other is not layer)
        one = self.widened(replace(wide.widening, layers=others))
        return replace(one, refined=with_weights_of(wide.planned, self.planned, layer.ops, self.request.ops))


class ProposalOutcome(NamedTuple):
    """The best candidate so far, and the error of the last proposal."""

    best: Candidate
    error: float


Proposals = Generator[Candidate, ProposalOutcome, None]
"""Yields candidates; after each, its outcome is sent back."""


@dataclass(frozen=True)
class Lab:
    """What steps may use: the samples, the effort, a progress function, and the error of the best so far. `notes` are
    for the user."""

    bench: Bench
    effort: Effort
    stage: Stage = no_progress
    error: float = math.inf
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """An accuracy step. `ranges`: it chooses ranges, so it applies to integer arithmetic whose ranges the user leaves
    to us.

    Steps about `activations` are tried with 8-bit weights, so that the noise of fewer bits does not decide; the result
    is then kept unless it is clearly worse in the requested bits. So are candidates that are `presumed` to be better.
    """

    name: str
    efforts: tuple[Effort, ...]
    propose: Callable[[Lab, Candidate], Proposals]
    ranges: bool = True
    activations: bool = False
    presumed: bool = False
