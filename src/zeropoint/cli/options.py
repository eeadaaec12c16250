"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..errors import InvalidRecipe, InvalidSample

if TYPE_CHECKING:
    from ..graph.model import Model
    from ..plan.pipeline import RangeChoice
    from ..recipe import Effort
    from ..report.progress import SampledModel
    from ..sources.data import Normalization
    from .screen import Screen

Choice = TypeVar("Choice", bound=str)

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A .tflite file; with TensorFlow also .keras, .h5 or a SavedModel folder.",
        show_default=False,
    ),
]
DATA = typer.Option("--data", metavar="DATA", help="Samples: .npz, .npy, a folder of images, or file.py:function.")
DataOption = Annotated[str, DATA]
RangeOption = Annotated[
    str,
    typer.Option(
        "--range",
        metavar="METHOD",
        help="auto, minmax, average, percentile, mse or entropy.",
        autocompletion=lambda: list(range_methods()),
    ),
]
EffortOption = Annotated[
    str,
    typer.Option(
        "--effort",
        metavar="EFFORT",
        help="quick, standard or high (compensated rounding).",
        autocompletion=lambda: list(efforts()),
    ),
]
RecipeOption = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="Rules in JSON or TOML.", show_default=False)
]
WeightBitsOption = Annotated[
    int, typer.Option("--weight-bits", metavar="BITS", help="8; or 4 or 2, where LiteRT has a kernel.")
]
TYPES = ("float32", "int8", "uint8", "int16")
InputTypeOption = Annotated[
    str,
    typer.Option(
        "--input-type", metavar="TYPE", help="float32, int8, uint8 or int16.", autocompletion=lambda: list(TYPES)
    ),
]
OutputTypeOption = Annotated[
    str,
    typer.Option(
        "--output-type", metavar="TYPE", help="float32, int8, uint8 or int16.", autocompletion=lambda: list(TYPES)
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Use at most N samples.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, metavar="N", help="Threads; by default one for each core.")
]
SignatureOption = Annotated[
    str | None, typer.Option("--signature", metavar="KEY", help="Which signature the samples are for.")
]
KeepStateOption = Annotated[
    bool, typer.Option("--keep-state", help="Recurrent models: do not reset the state before each sample.")
]
NonfiniteOption = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Go on without values that are NaN or infinite.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]


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


def load_model(path: Path, screen: Screen) -> Model:
    from ..sources.conversion import Conversion
    from ..sources.models import load

    return load(path, conversion=Conversion(verbose=screen.verbose))


@dataclass(frozen=True)
class ImageOptions:
    """How pixels become what a model takes."""

    scale: Annotated[float | None, typer.Option("--scale", help="Images: multiply pixels (0 to 255) by this.")] = None
    offset: Annotated[float | None, typer.Option("--offset", help="Images: then add this.")] = None
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="M[,M,M]", help="Images: then subtract this, for each channel.")
    ] = None
    std: Annotated[str | None, typer.Option("--std", metavar="S[,S,S]", help="Images: then divide by this.")] = None

    @property
    def normalization(self) -> Normalization | None:
        """None if nothing was said."""
        from ..sources.data import Normalization

        if self == NO_IMAGE_OPTIONS:
            return None
        return Normalization(
            1.0 if self.scale is None else self.scale,
            0.0 if self.offset is None else self.offset,
            _channels(self.mean, 0.0),
            _channels(self.std, 1.0),
        )


NO_IMAGE_OPTIONS = ImageOptions()


def _channels(text: str | None, default: float) -> tuple[float, ...]:
    try:
        return (default,) if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidSample(f"{text!r} is not a number, or numbers with commas between them") from None


def samples_of(model: Model, data: str, images: ImageOptions, signature: str | None = None) -> SampledModel:
    from ..report.progress import SampledModel
    from ..sources.data import load_data
    from ..sources.ports import entry

    return SampledModel(model, load_data(data, entry(model, signature), images.normalization), signature)
