"""--report and --model-explorer, which several commands have."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from ..calibration import Stats
    from ..comparison.values import Comparison
    from ..graph.model import Model
    from ..report.page_build import Evidence
    from ..report.progress import SampledModel

ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="OUT.html", help="Write a page that shows graph, ranges and errors."),
]
ModelExplorerOption = Annotated[
    Path | None,
    typer.Option("--model-explorer", metavar="OUT.json", help="Write errors by op, for Google's Model Explorer."),
]

COMPARED = 16
"""Samples on which a report compares models that no command compared yet."""


@dataclass(frozen=True)
class Reports:
    """What to write besides the command's own output."""

    page: Path | None = None
    node_data: Path | None = None
    overwrite: bool = False

    @property
    def wanted(self) -> bool:
        return self.page is not None or self.node_data is not None

    def require(self, *others: Path | None, inputs: Iterable[str | Path | None]) -> None:
        """Raise before any work is done if one of them could not be written in the end; `others` are written too.

        No option allows to write over what is read: a float model that its quantized version replaces is gone.
        """
        from ..files import refuse_existing

        outputs = [path for path in (*others, self.page, self.node_data) if path is not None]
        read = {Path(path).resolve() for path in inputs if path is not None}
        for path in outputs:
            if outputs.count(path) > 1:
                raise InvalidRecipe(f"{path} was given for two different outputs; choose another name for one of them")
            if path.resolve() in read:
                raise InvalidRecipe(
                    f"{path} is one of the inputs and would be lost; choose another name for the output"
                )
            refuse_existing(path, self.overwrite)
        if self.page is not None:
            from ..report.page import require_report

            require_report()

    def write(self, evidence: Evidence, console: Console) -> None:
        from ..report.terminal import Printer

        printer = Printer(console)
        if self.node_data is not None:
            from ..report.model_explorer import save_node_data

            save_node_data(evidence, self.node_data, overwrite=self.overwrite)
            printer.line(("Node data   ", "bold"), str(self.node_data))
        if self.page is not None:
            from ..report.page import save_report

            save_report(evidence, self.page, overwrite=self.overwrite)
            printer.line(("Report      ", "bold"), str(self.page))


def compared(wanted: SampledModel, made: Model, console: Console, limit: int | None = None) -> Comparison:
    """Both models on the first samples, with a progress bar."""
    from ..comparison.compare import Asked, compare_models
    from ..report.progress import progress_bar

    most = COMPARED if limit is None else min(limit, COMPARED)
    with progress_bar("comparing", wanted.total(most), "samples", console) as report:
        asked = Asked(most, progress=report, signature=wanted.signature)
        return compare_models(wanted.model, made, wanted.data.samples, asked)


def seen(source: SampledModel, limit: int | None, console: Console) -> Stats:
    """Statistics of the float model's tensors, for the histograms of a page."""
    from ..calibration import Settings
    from ..report.progress import calibrate_with_progress

    return calibrate_with_progress(source, Settings(limit, allow_nonfinite=True), console)


def command_line() -> str:
    """What was typed, as a shell would take it again."""
    return shlex.join(["zeropoint", *sys.argv[1:]])
