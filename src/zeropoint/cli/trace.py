"""The command `trace`, which shows a quantized model's integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..display import counted
from ..errors import InvalidRecipe, InvalidSample
from . import shared
from .command import Screen, flag, option

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.model import Model
    from ..simulation.trace import SimulationOptions, Trace
    from ..sources.samples import Samples
    from .sampled import SampledModel


def kernel_sets() -> tuple[str, ...]:
    from ..simulation.rules import KERNEL_SETS

    return KERNEL_SETS


@dataclass(frozen=True)
class TraceOptions:
    """What to run, and which number to explain."""

    data: str = option(..., "DATA", shared.DATA_HELP)
    tensor: str | None = option(None, "NAME", "The tensor of the number to explain (zeropoint inspect lists them).")
    at: str | None = option(None, "I,J,...", "The number's index in that tensor.")
    sample: int = option(0, "N", "Which sample, from 0.", min=0)
    kernels: str = option("reference", "NAME", "reference, xnnpack or tflm.", autocompletion=kernel_sets)
    float_model: Path | None = option(None, "MODEL", "The float model, to compare with.", "--float")
    float_rest: bool = flag("Let LiteRT compute integer ops that cannot be simulated.")
    signature: str | None = option(None, "KEY", shared.SIGNATURE_HELP)
    as_json: bool = flag("Print JSON (docs/integers.md).", "--json")

    def place(self) -> tuple[str, tuple[int, ...]] | None:
        """Return the tensor and index of the number to explain."""
        if self.tensor is None and self.at is None:
            return None
        if self.tensor is None or self.at is None:
            raise InvalidRecipe("--tensor NAME and --at I,J,... go together: they say which number to explain")
        parts = [part.strip() for part in self.at.split(",") if part.strip()]
        if not all(part.isdecimal() for part in parts):
            raise InvalidRecipe(f"--at {self.at}: give whole numbers separated by commas, such as 0,12,7,3")
        return self.tensor, tuple(map(int, parts))

    def chosen(self, screen: Screen) -> SimulationOptions:
        from ..simulation.rules import KERNEL_SETS
        from ..simulation.trace import SimulationOptions

        original = None if self.float_model is None else shared.load_model(self.float_model, screen)
        kernels = shared.known("set of kernels", self.kernels, KERNEL_SETS)
        return SimulationOptions(kernels, self.signature, self.float_rest, original)


@dataclass(frozen=True)
class VectorOptions:
    """Golden vectors: files with the values of all tensors."""

    export: Path | None = option(None, "DIR", "Write the inputs and outputs of every op to this folder.")
    format: str = option("npy", "FORMAT", "npy, or hex: one element per line.")
    ops: str | None = option(None, "KIND[,KIND]", "Only ops of these kinds, such as CONV_2D.")
    limit: int | None = option(None, "N", "Samples to write; by default the one chosen.", min=1)
    overwrite: bool = flag("Replace files in the folder.")

    def require(self) -> None:
        """Refuse options that do not go together, and a folder that holds vectors already."""
        from ..files import refuse_existing
        from ..simulation.vectors import FORMATS, INDEX

        shared.known("format", self.format, FORMATS)
        if self.export is None and (self.ops is not None or self.limit is not None):
            raise InvalidRecipe("--ops and --limit need --export DIR; name a folder")
        if self.export is not None and self.export.exists():
            refuse_existing(self.export / INDEX, self.overwrite)

    def write(self, traces: Iterator[Trace], folder: Path, console: Console) -> None:
        from ..report.terminal import Printer
        from ..simulation.vectors import FORMATS, export_vectors

        kinds = [] if self.ops is None else [kind.strip() for kind in self.ops.split(",")]
        format = shared.known("format", self.format, FORMATS)
        wanted = islice(traces, self.limit or 1)
        files = export_vectors(wanted, folder, format=format, ops=kinds, overwrite=self.overwrite)
        Printer(console).entry("Vectors", f"{counted(len(files), 'file')} in {folder}")


def trace(
    screen: Screen,
    model: shared.ModelArgument,
    options: TraceOptions,
    vectors: VectorOptions,
    images: shared.ImageOptions,
) -> None:
    """Run a quantized model in integers, bit for bit as LiteRT does, and show how a number is computed.

    Without --tensor, the integers of every op are summarized. --export writes them as golden vectors for testbenches:
    arrays or hex text, with an index of ops, shapes, scales and multipliers.

    Examples:
      zeropoint trace model_int8.tflite --data samples.npz
      zeropoint trace model_int8.tflite --data samples.npz --float model.tflite \\
        --tensor residual_1/Add --at 0,3,4,2
      zeropoint trace model_int8.tflite --data samples.npz --export vectors \\
        --format hex --ops CONV_2D --limit 2
    """
    from ..report.simulation import print_explanation, print_trace

    place = options.place()
    vectors.require()
    source = images.sampled(shared.load_model(model, screen), options.data, options.signature)
    traces = _traces(source.model, source.data.samples, options, screen)
    first = next(traces, None)
    if first is None:
        raise InvalidSample(f"--sample {options.sample}: {options.data} has fewer samples; they are counted from 0")
    found = None if place is None else first.explain(*place)
    if vectors.export is not None:
        vectors.write(chain([first], traces), vectors.export, screen.beside(options.as_json))
    if options.as_json:
        screen.json(first.to_json() if found is None else found.to_json())
    elif found is not None:
        print_explanation(found, screen.results)
    elif vectors.export is None:
        print_trace(first, screen.results)


def show_kernels(screen: Screen, source: SampledModel, names: str, limit: int | None, as_json: bool) -> None:
    """Run `compare --kernels`: show where runtimes disagree."""
    from ..comparison.kernels import compare_kernels
    from ..report.simulation import print_kernels
    from ..simulation.rules import KERNEL_SETS

    kernels = [shared.known("set of kernels", name.strip(), KERNEL_SETS) for name in names.split(",")]
    found = compare_kernels(source.model, source.data.samples, kernels, signature=source.signature, limit=limit)
    if as_json:
        screen.json(found.to_json())
    else:
        print_kernels(found, screen.results)


def _traces(model: Model, samples: Samples, options: TraceOptions, screen: Screen) -> Iterator[Trace]:
    """Yield traces from the chosen sample on."""
    from ..simulation.trace import simulate_all
    from ..sources.samples import iterate

    return simulate_all(model, islice(iterate(samples), options.sample, None), options.chosen(screen))
