"""The error of one version of a model, as far as comparisons with others need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.model import Model
from .loaded import Loaded, measured_errors
from .measure import SampledError

if TYPE_CHECKING:
    from .bench import Bench

JUDGED = 24
"""Number of samples on which models are compared."""

CLEARLY, WORSE = 3.0, 0.5
"""Standard errors by which a model has to be better, or worse, on the first samples for these to decide: what would be
a gain on all samples is rarely a loss on the first."""

SHOWN = 0.5
"""The share of a version's error that the first samples have to show for them to decide."""


class Judged:
    """The error of a version of the model, measured on as many samples as comparisons with others need; `count` is how
    many these were so far."""

    def __init__(self, bench: Bench, model: Model, looks: Sequence[int]) -> None:
        self._bench, self._model, self._looks = bench, model, looks
        self._loaded: Loaded | None = None
        self._errors, self.count = bench.known_errors(model), 0
        self._on(looks[0])

    def _on(self, count: int) -> SampledError:
        """Return the error on the first `count` samples."""
        self.count = max(self.count, count)
        if missing := [place for place in range(count) if place not in self._errors]:
            self._errors.update(zip(missing, measured_errors(self._load, missing), strict=True))
        return SampledError(tuple(self._errors[place] for place in range(count)))

    def _load(self) -> Loaded:
        loaded = self._loaded or self._bench.loaded(self._model)
        self._loaded = loaded if self._bench.is_small else None
        return loaded

    @property
    def value(self) -> float:
        """The error relative to what the outputs vary by, on the samples run so far."""
        return self._on(self.count).value

    def value_on(self, count: int) -> float:
        """Return that error on the first `count` samples."""
        return self._on(count).value

    @property
    def on_enough(self) -> float:
        """That error on at least `JUDGED` samples, if there are so many."""
        return self._on(max(self.count, min(JUDGED, self._looks[-1]))).value

    def _is_worse_later(self, count: int) -> bool:
        """Whether most of its error comes from few bad samples after the first: then these do not show what another
        version gains."""
        enough = max(self.count, min(JUDGED, self._looks[-1]))
        return self._on(count).share < SHOWN * self._on(enough).share

    def beats(self, other: Judged) -> bool:
        """Whether this error is smaller than `other` by more than chance; the first samples may decide it."""
        for count in self._looks[:-1]:
            own, its = self._on(count), other._on(count)
            if own.beats(its, CLEARLY):
                return True
            if its.beats(own, WORSE) and not other._is_worse_later(count):
                return False
        return self._on(self._looks[-1]).beats(other._on(self._looks[-1]))
