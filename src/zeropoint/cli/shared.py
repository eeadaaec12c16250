"""Option groups that several commands share: a command that takes a group has all of its options."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from ..errors import InvalidRecipe, InvalidSample, shorten
from ..files import refuse_existing
from .command import argument, flag, option

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.judged_outputs import JudgedOutputs
    from ..calibration import Ranges, Settings
    from ..dtypes import DType
    from ..graph.model import Model
    from ..plan.request import Interface, RangeChoice
    from ..recipe import Effort
    from ..runtime import Runtime
    from ..sources.conversion import GraphEnds
    from ..sources.data import Normalization
    from .command import Screen
    from .sampled import SampledModel

Choice = TypeVar("Choice", bound=str)

ALLOW_UNMATCHED_HELP = "Accept patterns and rules that match no op."
DATA_HELP = "Samples: .npz, .npy, a folder of images, or file.py:name."
JSON_HELP = "Print JSON: see docs/compare.md."
KEEP_FLOAT_HELP = "Keep ops of this kind or name in float (repeatable)."
LIMIT_HELP = "Use at most N samples."
METRIC_HELP = "A function that scores the outputs of all samples."
MODEL_HELP = "A .tflite file; also .keras, .h5, .onnx, .pb or a SavedModel folder (docs/front-doors.md)."
OVERWRITE_HELP = "Replace the output file if it exists."
RECIPE_HELP = "Rules in JSON or TOML."
SIGNATURE_HELP = "The signature to run, if there are several."
STRICT_HELP = "Fail if an op would stay float."
WEIGHT_BITS_HELP = "2 to 8."
MIXED_BITS_HELP = "2 to 8. With 4 or fewer, layers that need 8 keep them; a recipe applies to all."
TARGET_HELP = "What the model is made for: cpu, integer, ... (zeropoint targets)."
TYPES = ("float32", "int8", "uint8", "int16")
TYPES_HELP = "float32, int8, uint8 or int16."

ModelArgument = Annotated[Path, argument("MODEL", MODEL_HELP)]


def ranges() -> tuple[str, ...]:
    from ..calibration import METHODS

    return ("auto", *METHODS)


def efforts() -> tuple[str, ...]:
    from ..recipe import EFFORTS

    return EFFORTS


def modes() -> tuple[str, ...]:
    from ..recipe import MODES

    return MODES


def targets() -> tuple[str, ...]:
    from ..targets import TARGETS

    return tuple(TARGETS)


def target_option(default: str | None = None) -> Any:
    """Return the option --target, for commands that make or examine models for one."""
    return option(default, "NAME", TARGET_HELP, autocompletion=targets)


def known(what: str, name: str, choices: Sequence[Choice]) -> Choice:
    """Return the choice with this name; raises if there is none."""
    for choice in choices:
        if choice == name:
            return choice
    raise InvalidRecipe(f"unknown {what} {name!r}; choose from {', '.join(choices)}")


def load_model(path: Path, screen: Screen, ends: GraphEnds | None = None) -> Model:
    from ..graph.names import short_names
    from ..sources.conversion import Conversion
    from ..sources.models import load

    model = load(path, conversion=Conversion(verbose=screen.verbose, ends=ends))
    shorten(short_names(model))
    if path.suffix.lower() == ".onnx":
        from ..report.terminal import Printer
        from ..sources.onnx import layout_notes

        for note in layout_notes(path, model):
            Printer(screen.remarks).entry("Layout", note)
    return model


@dataclass(frozen=True)
class FrozenGraphOptions:
    """The inputs and outputs of a TensorFlow 1 frozen graph, which the file does not state."""

    inputs: str | None = option(None, "NAME[,NAME]", "A frozen graph (.pb): the tensors that are its inputs.")
    outputs: str | None = option(None, "NAME[,NAME]", "A frozen graph (.pb): the tensors that are its outputs.")

    def ends(self, model: Path) -> GraphEnds | None:
        from ..sources.conversion import GraphEnds

        is_graph = model.suffix.lower() == ".pb" and model.is_file()
        if (self.inputs is None) != (self.outputs is None) or is_graph != (self.inputs is not None):
            raise InvalidRecipe("a frozen graph (.pb) needs --inputs and --outputs, and nothing else takes them")
        if not (self.inputs and self.outputs):
            return None
        return GraphEnds(tuple(self.inputs.split(",")), tuple(self.outputs.split(",")))


def require_runnable(model: Model) -> None:
    """Raise unless LiteRT runs `model`."""
    from ..runtime import Session, run_on_zeros

    run_on_zeros(Session(model))


RUNTIMES: dict[str, Runtime] = {"litert": "delegate", "tflm": "tflm"}


def runtime_option() -> Any:
    """Return the option for the runtime of the quantized model."""
    return option("litert", "NAME", "litert, or tflm: TensorFlow Lite Micro.", autocompletion=lambda: tuple(RUNTIMES))


def known_runtime(name: str) -> Runtime:
    return RUNTIMES[known("runtime", name, tuple(RUNTIMES))]


def require_runtime(runtime: Runtime, model: Model) -> None:
    """Raise unless the runtime accepts `model`. A file that may crash its process is first tried in another one."""
    if runtime == "tflm":
        from ..runtime.tflm import measure_arena
        from ..tflite import to_bytes

        measure_arena(to_bytes(model))


@dataclass(frozen=True)
class EffortOptions:
    """How much effort is spent on accuracy."""

    effort: str = option(
        "standard", "EFFORT", "quick, standard, high (minutes) or max (learns, needs Keras).", autocompletion=efforts
    )

    def chosen_effort(self) -> Effort:
        from ..recipe import EFFORTS

        return known("effort", self.effort, EFFORTS)


@dataclass(frozen=True)
class SearchOptions(EffortOptions):
    """How much effort is spent on accuracy, and how ranges are chosen."""

    range: str = option("auto", "METHOD", "auto, minmax, average, percentile, mse or entropy.", autocompletion=ranges)

    def chosen_range(self) -> RangeChoice:
        from ..calibration import METHODS

        return known("range method", self.range, ("auto", *METHODS))


@dataclass(frozen=True)
class InterfaceOptions:
    """The types of the model's inputs and outputs."""

    input_type: str = option("float32", "TYPE", TYPES_HELP, autocompletion=lambda: TYPES)
    output_type: str = option("float32", "TYPE", TYPES_HELP, autocompletion=lambda: TYPES)

    def checked(self) -> Interface:
        from ..plan.request import interface_of

        return interface_of(self.input_type, self.output_type)


@dataclass(frozen=True)
class ImageOptions:
    """How pixels are converted to the model's input."""

    scale: str | None = option(None, "NUMBER", "Images: multiply pixels (0 to 255) by this, such as 1/255.")
    offset: str | None = option(None, "NUMBER", "Images: then add this.")
    mean: str | None = option(None, "M[,M,M]", "Images: then subtract this, for each channel; see --std.")
    std: str | None = option(None, "S[,S,S]", "Images: then divide by this. Integer inputs: (q - mean) / std.")
    transpose: bool = flag("Arrays: move channels from first to last, or the reverse.")

    def sampled(self, model: Model, data: str, signature: str | None = None) -> SampledModel:
        """Return `model` with the samples that `data` names."""
        from ..sources.data import Preparation, load_data
        from ..sources.ports import entry
        from .sampled import SampledModel

        how = Preparation(self._normalization(), self.transpose, self.most)
        return SampledModel(model, load_data(data, entry(model, signature), how), signature)

    @property
    def most(self) -> int | None:
        """The maximum number of samples, if there is an option for it."""
        return None

    @property
    def describes_integers(self) -> bool:
        """Whether only mean and std are given, so that they define the integers of an input."""
        return None not in (self.mean, self.std) and self.scale is None and self.offset is None

    def input_ranges(self, model: Model, dtype: DType) -> Ranges:
        """Return the range of the model's only input, where real = (q - mean) / std."""
        from ..calibration import ranges_from_input_stats
        from ..graph.query import tensor_keys
        from ..sources.ports import entry

        inputs = [t for t in entry(model).graph.inputs if t.dtype.is_float]
        if len(inputs) != 1:
            raise InvalidRecipe(
                f"--mean and --std describe one input, and the model has {len(inputs)}; give their ranges (--ranges)"
            )
        mean, std = channels(self.mean or ""), channels(self.std or "")
        if len(mean) != 1 or len(std) != 1:
            raise InvalidRecipe("an integer input has one scale, so --mean and --std take one number each")
        return ranges_from_input_stats({tensor_keys(model)[inputs[0]]: (mean[0], std[0])}, dtype)

    def _normalization(self) -> Normalization | None:
        """Return the normalization; None if none of these options was given."""
        from ..sources.data import Normalization

        numbers, lists = {"scale": self.scale, "offset": self.offset}, {"mean": self.mean, "std": self.std}
        given: dict[str, Any] = {key: number(text) for key, text in numbers.items() if text is not None}
        given |= {key: channels(text) for key, text in lists.items() if text is not None}
        return Normalization(**given) if given else None


def number(text: str) -> float:
    """Parse a number or a quotient of two, such as 1/255."""
    dividend, slash, divisor = text.partition("/")
    try:
        return float(dividend) / float(divisor) if slash else float(dividend)
    except (ValueError, ZeroDivisionError):
        raise InvalidSample(f"{text!r} is not a number, or a quotient such as 1/255") from None


def channels(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    try:
        return tuple(map(number, text.split(",")))
    except InvalidSample:
        raise InvalidSample(f"{text!r} is not a number, or numbers separated by commas") from None


@dataclass(frozen=True)
class JudgedOutputOptions:
    """What the outputs of the model are, and how much each counts."""

    output_kind: list[str] | None = option(
        None, "NAME=KIND", "What an output is: classes, points, mask ... (docs/error.md; repeatable)."
    )
    output_weight: list[str] | None = option(
        None, "NAME=W", "How much an output counts; 0 for not at all (repeatable)."
    )

    def judged(self) -> JudgedOutputs:
        from ..bench.judged_outputs import JudgedOutputs

        kinds: dict[str, Any] = dict(_named("--output-kind", given, "KIND") for given in self.output_kind or ())
        weights = (_named("--output-weight", given, "W") for given in self.output_weight or ())
        return JudgedOutputs(kinds, {name: number(text) for name, text in weights})


def _named(option: str, given: str, what: str) -> tuple[str, str]:
    """Parse NAME=VALUE; names of tensors may contain equals signs, values do not."""
    name, _, value = given.rpartition("=")
    if not name or not value:
        raise InvalidRecipe(f"{option} takes NAME={what}, with the name of an output, not {given!r}")
    return name, value


SEQUENCE_HELP = "Samples are frames; states (auto, or INPUT=OUTPUT[,...]) are fed back."


@dataclass(frozen=True)
class SampleOptions(ImageOptions):
    """Which samples are run."""

    limit: int | None = option(None, "N", LIMIT_HELP, min=1)
    keep_state: bool = flag("Start each sample from the state of the previous one.")
    reset_state: bool = flag("Start each sample from the initial state (default: by model).")

    @property
    def state_is_kept(self) -> bool | None:
        """Whether the state is kept between samples; None to decide from the model."""
        if self.keep_state and self.reset_state:
            raise InvalidRecipe("--keep-state and --reset-state contradict each other; give one of them")
        return self.keep_state if self.keep_state or self.reset_state else None

    @property
    def most(self) -> int | None:
        return self.limit


@dataclass(frozen=True)
class CalibrationOptions(SampleOptions):
    """Which samples are run, and how they are measured."""

    workers: int | None = option(None, "N", "Threads; by default one for each core.", min=1)
    signature: str | None = option(None, "KEY", SIGNATURE_HELP)
    allow_nonfinite: bool = flag("Ignore values that are NaN or infinite.")
    decay: float = option(0.99, "D", "Decay of the moving average, for --range average: 1 is a plain mean.")
    sequence: str | None = option(None, "STATES", SEQUENCE_HELP)

    def sampled(self, model: Model, data: str, signature: str | None = None) -> SampledModel:
        """Return `model` with samples; with --sequence, these are frames to which the states are added."""
        from ..sources.data import Data
        from ..sources.sequence import sequence_of
        from .sampled import SampledModel

        if self.sequence is None:
            return super().sampled(model, data, signature)
        if self.transpose or self._normalization() is not None:
            raise InvalidRecipe("--sequence takes frames as they are; omit image options and --transpose")
        pairs = [pair.partition("=") for pair in self.sequence.split(",")]
        if self.sequence != "auto" and not all(name and output for name, _, output in pairs):
            raise InvalidRecipe(f"--sequence takes auto, or pairs INPUT=OUTPUT, not {self.sequence!r}")
        asked = True if self.sequence == "auto" else {name: output for name, _, output in pairs}
        return SampledModel(model, Data(sequence_of(model, data, asked, signature), None), signature)

    def settings(self, histograms: bool = True) -> Settings:
        from ..calibration import Settings

        return Settings(self.limit, self.workers, histograms, self.state_is_kept, self.allow_nonfinite, self.decay)


@dataclass(frozen=True)
class PageOptions:
    """What to write in addition to the command's own output, and whether files may be replaced."""

    report: Path | None = option(None, "OUT.html", "Write a page that shows graph, ranges and errors.")
    overwrite: bool = flag(OVERWRITE_HELP)

    @property
    def model_explorer(self) -> Path | None:
        """The output file for Model Explorer, for commands that have an option for it."""
        return None

    @property
    def wanted(self) -> bool:
        return self.report is not None or self.model_explorer is not None

    def require(self, *others: Path | None, inputs: Iterable[str | Path | None]) -> None:
        """Raise before any work is done if an output file could not be written at the end; `others` are written too.

        An output never replaces an input: a float model overwritten by its quantized version would be lost.
        """
        outputs = [path for path in (*others, self.report, self.model_explorer) if path is not None]
        read = {os.path.realpath(path) for path in inputs if path is not None}
        for path in outputs:
            if outputs.count(path) > 1:
                raise InvalidRecipe(f"{path} was given for two different outputs; choose another name for one of them")
            if os.path.realpath(path) in read:
                raise InvalidRecipe(
                    f"{path} is one of the inputs and would be lost; choose another name for the output"
                )
            refuse_existing(path, self.overwrite)
        if self.report is not None:
            from ..report.page_picture import require_report

            require_report()

    def explained(self, source: SampledModel, model: Model, command: str | None, console: Console) -> dict[str, Any]:
        """Return what `write` needs to explain numbers of `model`; nothing if no page is written."""
        if self.report is None:
            return {}
        return {"trace": source.traced(model, console), "trace_command": command}

    def write(self, console: Console, title: str, model: Model, size: int, **known: Any) -> None:
        """Write the requested files about `model`; `known` are other fields of `Evidence`."""
        from ..report.model_explorer import save_node_data
        from ..report.page import save_report
        from ..report.page_build import Evidence
        from ..report.terminal import Printer

        shown = Evidence(title, model, size, **known, command=shlex.join(["zeropoint", *sys.argv[1:]]))
        if self.model_explorer is not None:
            save_node_data(shown, self.model_explorer, overwrite=self.overwrite)
            Printer(console).entry("Node data", str(self.model_explorer))
        if self.report is not None:
            save_report(shown, self.report, overwrite=self.overwrite)
            Printer(console).entry("Report", str(self.report))


def trace_command(model: Path, data: str | None, original: Path, signature: str | None = None) -> str | None:
    """Return the command that explains any number of a model."""
    if data is None:
        return None
    words = ["zeropoint", "trace", str(model), "--data", data, "--float", str(original)]
    return shlex.join(words if signature is None else [*words, "--signature", signature])


@dataclass(frozen=True)
class ReportOptions(PageOptions):
    """What to write in addition to the command's own output, including a file for Model Explorer."""

    model_explorer: Path | None = option(None, "OUT.json", "Write errors by op, for Google's Model Explorer.")
