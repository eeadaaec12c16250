"""zeropoint quantizes neural networks for LiteRT (TensorFlow Lite): `.tflite` in, `.tflite` out."""

from __future__ import annotations

TYPE_CHECKING = False  # not imported from `typing`: Ctrl-C shows a traceback until the command line has started
if TYPE_CHECKING:
    from typing import Any

    from . import lite as lite
    from . import train as train
    from .affine import QuantParams as QuantParams
    from .bench.judged_outputs import JudgedOutputs as JudgedOutputs
    from .bench.latency import benchmark as benchmark
    from .calibration import Settings as Settings
    from .calibration import Stats as Stats
    from .calibration import calibrate as calibrate
    from .comparison.compare import compare as compare
    from .diagnosis.doctor import doctor as doctor
    from .dtypes import DType as DType
    from .errors import ZeropointError as ZeropointError
    from .graph.model import Model as Model
    from .improve.pipeline import Result as Result
    from .quantization import quantize as quantize
    from .recipe import Recipe as Recipe
    from .recipe_files import load_recipe as load_recipe
    from .report.inspection import inspect as inspect
    from .rescaling import rescale as rescale
    from .simulation.trace import Trace as Trace
    from .simulation.trace import simulate as simulate
    from .sources.conversion import Conversion as Conversion
    from .sources.data import ImageFolder as ImageFolder
    from .sources.data import Normalization as Normalization
    from .sources.models import load as load
    from .tflite.write import save as save
    from .tflite.write import to_bytes as to_bytes
    from .train.distillation import distill as distill
    from .train.network import trainable as trainable
    from .tuning.budget import Budget as Budget
    from .tuning.tune import SearchSettings as SearchSettings
    from .tuning.tune import tune as tune

__version__ = "0.2.0"

# The module of each public name. They are imported on first use, so that `import zeropoint` is almost free.
_HOMES = {
    "affine": ("QuantParams",),
    "bench.judged_outputs": ("JudgedOutputs",),
    "bench.latency": ("benchmark",),
    "calibration": ("Settings", "Stats", "calibrate"),
    "comparison.compare": ("compare",),
    "diagnosis.doctor": ("doctor",),
    "dtypes": ("DType",),
    "errors": ("ZeropointError",),
    "graph.model": ("Model",),
    "improve.pipeline": ("Result",),
    "lite": ("lite",),
    "quantization": ("quantize",),
    "recipe": ("Recipe",),
    "recipe_files": ("load_recipe",),
    "report.inspection": ("inspect",),
    "rescaling": ("rescale",),
    "simulation.trace": ("Trace", "simulate"),
    "sources.conversion": ("Conversion",),
    "sources.data": ("ImageFolder", "Normalization"),
    "sources.models": ("load",),
    "tflite.write": ("save", "to_bytes"),
    "train": ("distill", "train", "trainable"),
    "tuning.budget": ("Budget",),
    "tuning.tune": ("SearchSettings", "tune"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'zeropoint' has no attribute {name!r}")
    home = import_module(f".{_HOME_OF[name]}", __name__)
    value = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
