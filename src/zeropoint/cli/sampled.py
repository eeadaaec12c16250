"""A model with samples to run it on: long-running jobs of commands, with a progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rich.console import Console

from ..bench.bench import Bench
from ..bench.judged_outputs import PLAIN, JudgedOutputs
from ..calibration import Settings, Stats
from ..calibration.collect import Progress
from ..comparison.compare import ComparisonOptions, compare_models
from ..comparison.metrics import NamedMetric
from ..comparison.values import Comparison
from ..errors import ZeropointError
from ..graph.model import Model
from ..improve.pipeline import Result, quantize_on
from ..ops.execution import execution_of
from ..plan.request import Request
from ..report.progress import progress_bar
from ..report.terminal import Printer
from ..runtime import Runtime
from ..simulation.trace import SimulationOptions, Trace, simulate_all
from ..sources.data import Data
from ..sources.ports import entry
from ..sources.samples import Samples

COMPARED = 16
"""Number of samples on which models are compared if only a report needs it."""


@dataclass(frozen=True)
class SampledModel:
    """A model, and the data to run it on."""

    model: Model
    data: Data
    signature: str | None = None

    @property
    def samples(self) -> Samples | Mapping[str, Samples]:
        return self.data.samples if self.signature is None else {self.signature: self.data.samples}

    def total(self, limit: int | None) -> int | None:
        """Return how many runs to expect, if known."""
        return min((n for n in (self.data.count, limit) if n is not None), default=None)

    def measured(self, settings: Settings, console: Console) -> Bench:
        """Return a bench with the model's statistics."""
        with progress_bar("calibrating", self.total(settings.limit), "samples", console) as progress:
            bench = Bench(self.model, self.samples, settings, judged=0, progress=progress)
            _ = bench.stats
            return bench

    def calibrate(self, settings: Settings, console: Console) -> Stats:
        return self.measured(settings, console).stats

    def quantize(self, request: Request, settings: Settings, console: Console) -> Result:
        with ExitStack() as bars:

            def next_bar(title: str, total: int | None, unit: str = "steps") -> Progress:
                bars.close()  # one bar at a time
                return bars.enter_context(progress_bar(title, total, unit, console))

            progress = next_bar("calibrating", self.total(settings.limit), "samples")
            return quantize_on(self.model, request, self.samples, settings, progress, next_bar)

    def compare(
        self,
        quantized: Model,
        console: Console,
        settings: Settings,
        metric: NamedMetric | None = None,
        runtime: Runtime = "delegate",
        outputs: JudgedOutputs = PLAIN,
    ) -> Comparison:
        limit = settings.limit
        with progress_bar("comparing", self.total(limit), "samples", console) as progress:
            options = ComparisonOptions(limit, metric, progress, self.signature, settings.keep_state, runtime=runtime)
            options = replace(options, outputs=outputs)
            return compare_models(self.model, quantized, self.data.samples, options)

    def traced(self, quantized: Model, console: Console) -> Trace | None:
        """Simulate the first sample, for the numbers that a report explains; None if nothing computes in integers."""
        executions = {execution_of(op) for op in entry(quantized, self.signature).graph.ops}
        if not executions.intersection(("integer", "hybrid")):
            return None
        options = SimulationOptions("reference", self.signature, float_rest=True, float_model=self.model)
        try:
            return next(simulate_all(quantized, self.data.samples, options), None)
        except ZeropointError as error:  # the rest of the report does not depend on it
            Printer(console).entry("Numbers", f"not explained in the report: {error}")
            return None

    def compare_briefly(self, quantized: Model, console: Console, settings: Settings | None = None) -> Comparison:
        """Compare the models on a few samples, for a report of a command that does not compare them itself."""
        settings = settings or Settings()
        return self.compare(quantized, console, replace(settings, limit=min(settings.limit or COMPARED, COMPARED)))
