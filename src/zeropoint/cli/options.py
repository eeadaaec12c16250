"""Options that several commands share. A command that takes one of the groups (dataclasses) has all of its options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..errors import InvalidRecipe, InvalidSample
from ..files import refuse_existing

if TYPE_CHECKING:
    from rich.console import Console

    from ..calibration import Settings
    from ..graph.model import Model
    from ..plan.pipeline import RangeChoice
    from ..plan.planner import Interface
    from ..recipe import Effort
    from ..sources.data import Normalization
    from .command import Screen
    from .sampled import SampledModel

Choice = TypeVar("Choice", bound=str)


def range_methods() -> tuple[RangeChoice, ...]:
    from ..calibration import METHODS

    return ("auto", *METHODS)


def efforts() -> tuple[Effort, ...]:
    from ..recipe import EFFORTS

    return EFFORTS


def known(what: str, name: str, choices: Sequence[Choice]) -> Choice:
    """The choice with this name."""
    for choice in choices:
        if choice == name:
            return choice
    raise InvalidRecipe(f"unknown {what} {name!r}; choose from {', '.join(choices)}")


MODEL_HELP = "A .tflite file; with TensorFlow also .keras, .h5 or a SavedModel folder."
DATA_HELP = "Samples: .npz, .npy, a folder of images, or file.py:function."
METRIC_HELP = "A score: a function of the outputs of all samples."
TYPES_HELP = "float32, int8, uint8 or int16."

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
DataOption = Annotated[str, typer.Option(metavar="DATA", help=DATA_HELP)]
EffortOption = Annotated[
    str,
    typer.Option(
        metavar="EFFORT", help="quick, standard or high (compensated rounding).", autocompletion=lambda: efforts()
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (docs/compare.md).")]
LimitOption = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use at most N samples.")]
MetricOption = Annotated[str | None, typer.Option(metavar="FILE.py:FUNCTION", help=METRIC_HELP)]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]
RecipeOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Rules in JSON or TOML.", show_default=False)]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="OUT.html", help="Write a page that shows graph, ranges and errors.")
]
SignatureOption = Annotated[str | None, typer.Option(metavar="KEY", help="Which signature the samples are for.")]
TypeOption = Annotated[
    str,
    typer.Option(metavar="TYPE", help=TYPES_HELP, autocompletion=lambda: ("float32", "int8", "uint8", "int16")),
]
WeightBitsOption = Annotated[int, typer.Option(metavar="BITS", help="8; or 4 or 2, where LiteRT has a kernel.")]


def load_model(path: Path, screen: Screen) -> Model:
    from ..sources.conversion import Conversion
    from ..sources.models import load

    return load(path, conversion=Conversion(verbose=screen.verbose))


@dataclass(frozen=True)
class SearchOptions:
    """How ranges are chosen, and how much is tried for the sake of accuracy."""

    range: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="auto, minmax, average, percentile, mse or entropy.",
            autocompletion=lambda: range_methods(),
        ),
    ] = "auto"
    effort: EffortOption = "standard"

    def checked(self) -> tuple[RangeChoice, Effort]:
        return known("range method", self.range, range_methods()), known("effort", self.effort, efforts())


@dataclass(frozen=True)
class InterfaceOptions:
    """The types that a caller of the model sees."""

    input_type: TypeOption = "float32"
    output_type: TypeOption = "float32"

    def checked(self) -> Interface:
        from ..plan.pipeline import interface_of

        return interface_of(self.input_type, self.output_type)


@dataclass(frozen=True)
class ImageOptions:
    """How pixels become what a model takes."""

    scale: Annotated[float | None, typer.Option(help="Images: multiply pixels (0 to 255) by this.")] = None
    offset: Annotated[float | None, typer.Option(help="Images: then add this.")] = None
    mean: Annotated[
        str | None, typer.Option(metavar="M[,M,M]", help="Images: then subtract this, for each channel.")
    ] = None
    std: Annotated[str | None, typer.Option(metavar="S[,S,S]", help="Images: then divide by this.")] = None

    def sampled(self, model: Model, data: str, signature: str | None = None) -> SampledModel:
        """`model` with the samples that `data` names."""
        from ..sources.data import load_data
        from ..sources.ports import entry
        from .sampled import SampledModel

        return SampledModel(model, load_data(data, entry(model, signature), self._normalization()), signature)

    def _normalization(self) -> Normalization | None:
        """None if none of these options was given."""
        from ..sources.data import Normalization

        given = {"scale": self.scale, "offset": self.offset, "mean": _channels(self.mean), "std": _channels(self.std)}
        given = {name: value for name, value in given.items() if value is not None}
        return Normalization(**given) if given else None  # type: ignore[arg-type]  # each is of its field's type


def _channels(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidSample(f"{text!r} is not a number, or numbers with commas between them") from None


@dataclass(frozen=True)
class CalibrationOptions(ImageOptions):
    """Which samples are run, and how."""

    limit: LimitOption = None
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; by default one for each core.")] = (
        None
    )
    signature: SignatureOption = None
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Recurrent models: do not reset the state before each sample.")
    ] = False
    allow_nonfinite: Annotated[
        bool, typer.Option("--allow-nonfinite", help="Go on without values that are NaN or infinite.")
    ] = False

    def settings(self, histograms: bool = True) -> Settings:
        from ..calibration import Settings

        return Settings(self.limit, self.workers, histograms, self.keep_state, self.allow_nonfinite)


@dataclass(frozen=True)
class ReportOptions:
    """What to write besides the command's own output, and whether files may be replaced."""

    report: ReportOption = None
    model_explorer: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Write errors by op, for Google's Model Explorer.")
    ] = None
    overwrite: OverwriteOption = False

    @property
    def wanted(self) -> bool:
        return self.report is not None or self.model_explorer is not None

    def require(self, *others: Path | None, inputs: Iterable[str | Path | None]) -> None:
        """Raise before any work is done if a file could not be written in the end; `others` are written too.

        Nothing allows an output to replace an input: a float model overwritten by its quantized version is lost.
        """
        outputs = [path for path in (*others, self.report, self.model_explorer) if path is not None]
        read = {Path(path).resolve() for path in inputs if path is not None}
        for path in outputs:
            if outputs.count(path) > 1:
                raise InvalidRecipe(f"{path} was given for two different outputs; choose another name for one of them")
            if path.resolve() in read:
                raise InvalidRecipe(
                    f"{path} is one of the inputs and would be lost; choose another name for the output"
                )
            refuse_existing(path, self.overwrite)
        if self.report is not None:
            from ..report.page_picture import require_report

            require_report()

    def write(self, console: Console, **evidence: Any) -> None:
        """Write the files that were asked for; `evidence` are fields of `Evidence`."""
        from ..report.model_explorer import save_node_data
        from ..report.page import save_report
        from ..report.page_build import Evidence
        from ..report.terminal import Printer

        shown = Evidence(**evidence, command=shlex.join(["zeropoint", *sys.argv[1:]]))
        if self.model_explorer is not None:
            save_node_data(shown, self.model_explorer, overwrite=self.overwrite)
            Printer(console).entry("Node data", str(self.model_explorer))
        if self.report is not None:
            save_report(shown, self.report, overwrite=self.overwrite)
            Printer(console).entry("Report", str(self.report))
