"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidSample

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.model import Model
    from ..report.progress import SampledModel
    from ..sources.data import Normalization

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A .tflite file; with TensorFlow also .keras, .h5 or a SavedModel folder.",
        show_default=False,
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Keras and SavedModel: show what TensorFlow's converter prints.")
]
DataOption = Annotated[
    str, typer.Option("--data", metavar="DATA", help="Samples: .npz, .npy, a folder of images, or file.py:function.")
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
ScaleOption = Annotated[float | None, typer.Option("--scale", help="Images: multiply pixels (0 to 255) by this.")]
OffsetOption = Annotated[float | None, typer.Option("--offset", help="Images: then add this.")]
MeanOption = Annotated[
    str | None, typer.Option("--mean", metavar="M[,M,M]", help="Images: then subtract this, for each channel.")
]
StdOption = Annotated[str | None, typer.Option("--std", metavar="S[,S,S]", help="Images: then divide by this.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(soft_wrap=True, stderr=stderr)


def load_model(path: Path, verbose: bool) -> Model:
    from ..sources.conversion import Conversion
    from ..sources.models import load

    return load(path, conversion=Conversion(verbose=verbose))


def normalization_of(
    scale: float | None, offset: float | None, mean: str | None, std: str | None
) -> Normalization | None:
    from ..sources.data import Normalization

    if scale is None and offset is None and mean is None and std is None:
        return None

    def channels(text: str | None, default: float) -> tuple[float, ...]:
        try:
            return (default,) if text is None else tuple(float(part) for part in text.split(","))
        except ValueError:
            raise InvalidSample(f"{text!r} is not a number, or numbers with commas between them") from None

    return Normalization(
        1.0 if scale is None else scale, 0.0 if offset is None else offset, channels(mean, 0.0), channels(std, 1.0)
    )


def samples_of(model: Model, data: str, signature: str | None, normalization: Normalization | None) -> SampledModel:
    from ..report.progress import SampledModel
    from ..sources.data import load_data
    from ..sources.ports import entry

    return SampledModel(model, load_data(data, entry(model, signature), normalization), signature)
