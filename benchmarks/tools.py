"""The tools that take part. Each adapter imports what it needs when asked to, and times its own stages."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .apart import Failed, apart, elsewhere
from .inference import Judgement
from .measure import peak, processor_time
from .modes import MODES, VARIANTS, Mode
from .orders import Job, Made, Order, Outcome, Prepare
from .rivals import judge_openvino, mct_job, nncf_job
from .rows import NO_MODE
from .zoo import Place, Task, source_of

OURS = "zeropoint"


def make(order: Order, target: str) -> Made:
    """Fill an order and write the model to `target`."""
    task = order.place.task
    samples = task.calibration(order.samples) if wants_data(order) else []
    job = TOOLS[order.tool].prepare(order, task, samples)
    before, start = peak(), processor_time()
    found = job()
    seconds, added = processor_time() - start, peak() - before
    Path(target).write_bytes(found.content)
    calibration = found.calibration
    if order.tool == OURS and samples:
        calibration = min(seconds, _our_calibration(task, samples))
    return Made(seconds, calibration, added, found.note)


def wants_data(order: Order) -> bool:
    return MODES[order.mode].has_data or (order.variant is not None and VARIANTS[order.variant].has_data)


# zeropoint


def zeropoint_job(order: Order, task: Task, samples: list[Any]) -> Job:
    import ai_edge_litert.interpreter  # noqa: F401 (imported on first use otherwise)

    import zeropoint
    import zeropoint.quantization
    import zeropoint.tflite.write

    options = dict(MODES[order.mode].options)
    if order.variant is not None:
        options |= VARIANTS[order.variant].options
    data = samples or None
    return lambda: Outcome(zeropoint.to_bytes(zeropoint.quantize(str(task.model), data=data, **options).model))


def _our_calibration(task: Task, samples: list[Any]) -> float:
    """Seconds that collecting statistics takes by itself, from the file to the statistics."""
    import zeropoint

    start = processor_time()
    zeropoint.calibrate(str(task.model), samples)
    return processor_time() - start


# TensorFlow, and the same script through zeropoint.lite


def tensorflow_job(order: Order, task: Task, samples: list[Any]) -> Job:
    import tensorflow

    source = source_of(task)
    if source is None:
        return _tensorflow_internal_job(order, task, samples)
    watched = _watch_calibration()

    def convert() -> Outcome:
        if source.is_dir():
            # The newer entry point restores Keras objects, and TensorFlow 2.21 no longer reads those of Keras 2.
            converter = tensorflow.compat.v1.lite.TFLiteConverter.from_saved_model(str(source))
        else:
            converter = _from_keras(tensorflow.lite, source)
        content = _converted(converter, tensorflow.lite, order.mode, samples)
        return Outcome(content, sum(watched) if samples else None)

    return convert


def lite_job(order: Order, task: Task, samples: list[Any]) -> Job:
    import tensorflow  # noqa: F401 (neither door pays for imports, which take longer than the work)

    import zeropoint.lite
    import zeropoint.quantization

    source = source_of(task)
    if source is None:
        raise Failed("needs the Keras model or SavedModel; there is none")

    def convert() -> Outcome:
        door = zeropoint.lite.TFLiteConverter
        converter = door.from_saved_model(str(source)) if source.is_dir() else _from_keras(zeropoint.lite, source)
        return Outcome(_converted(converter, zeropoint.lite, order.mode, samples))

    return convert


def _from_keras(lite: Any, source: Path) -> Any:
    import keras

    return lite.TFLiteConverter.from_keras_model(keras.models.load_model(source, compile=False))


def _converted(converter: Any, lite: Any, mode: str, samples: list[Any]) -> bytes:
    converter.optimizations = [lite.Optimize.DEFAULT]
    if samples:
        converter.representative_dataset = lambda: map(list, samples)
    if mode == "int16x8":
        integer = lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [integer, lite.OpsSet.TFLITE_BUILTINS]
    if mode == "float16":
        import tensorflow

        converter.target_spec.supported_types = [tensorflow.float16]
    content: bytes = converter.convert()
    return content


def _watch_calibration() -> list[float]:
    """Seconds that TensorFlow's calibration takes from now on: from the float model to one that holds ranges."""
    from tensorflow.lite.python.optimize import calibrator

    found: list[float] = []

    class Watched(calibrator.Calibrator):  # type: ignore[misc]
        def _feed_tensors(self, *arguments: Any, **options: Any) -> None:
            start = processor_time()
            super()._feed_tensors(*arguments, **options)
            found.append(processor_time() - start)

    calibrator.Calibrator = Watched
    return found


INTERNAL = "from the .tflite, through the converter's internal calibrator and quantizer; there is no Keras model"


def _tensorflow_internal_job(order: Order, task: Task, samples: list[Any]) -> Job:
    """The second half of TFLiteConverter by itself: what it does to the float `.tflite` that it makes first."""
    if not samples:
        raise Failed("needs the Keras model or SavedModel; there is none")
    from tensorflow.lite.python.convert import mlir_quantize
    from tensorflow.lite.python.optimize import calibrator
    from tensorflow.python.framework import dtypes

    def feed() -> Any:
        return map(list, samples)

    watched = _watch_calibration()

    def quantize() -> Outcome:
        model = calibrator.Calibrator(calibrator.add_intermediate_tensors(Path(task.model).read_bytes()))
        if order.mode == "int8":
            content = mlir_quantize(model.calibrate(feed))
        else:
            types = (dtypes.float32, dtypes.float32, True, dtypes.int16, dtypes.int64)
            content = model.calibrate_and_quantize(feed, *types)
        return Outcome(bytes(content), sum(watched), INTERNAL)

    return quantize


# ai-edge-quantizer


def ai_edge_job(order: Order, task: Task, samples: list[Any], *, is_fast: bool = False) -> Job:
    """Its fast mode has LiteRT's own hook track minima and maxima; its default reads every tensor in Python."""
    from ai_edge_quantizer import algorithm_manager, calibrator, qtyping, quantizer, recipe_manager

    modes = calibrator.CalibrationMode
    calibration = modes.CALIBRATION_PROFILER_BASED if is_fast else modes.CALIBRATION_PRESERVE_ALL_TENSORS
    wish = dict(MODES[order.mode].ai_edge or {})
    kind = wish.pop("kind")
    if "algorithm_key" in wish:
        wish["algorithm_key"] = getattr(algorithm_manager.AlgorithmName, wish["algorithm_key"])
    recipe = recipe_manager.RecipeManager()
    add = getattr(recipe, f"add_{kind}_config")
    add(regex=".*", operation_name=qtyping.TFLOperationName.ALL_SUPPORTED, **wish)
    data = _by_name(task, samples) if samples else None

    def quantize() -> Outcome:
        tool = quantizer.Quantizer(str(task.model), recipe.get_quantization_recipe())
        start = processor_time()
        # It takes 16 threads otherwise; time is that of processors, and threads that wait for others keep them busy.
        found = None if data is None else tool.calibrate(data, num_threads=1, mode=calibration)
        seconds = processor_time() - start
        made = tool.quantize(found, enable_progress_bar=False, enable_progress_report=False)
        return Outcome(bytes(made.quantized_model), None if data is None else seconds)

    return quantize


def _by_name(task: Task, samples: list[Any]) -> dict[str | None, list[dict[str, Any]]]:
    """Samples as ai-edge-quantizer wants them: by signature, then by input name. It refuses where there is none."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(task.model))
    order = [d["index"] for d in interpreter.get_input_details()]
    key = next(iter(interpreter.get_signature_list()), None)
    if key is None:
        names = [d["name"] for d in interpreter.get_input_details()]
    else:
        details = interpreter.get_signature_runner(key).get_input_details()
        names = sorted(details, key=lambda name: order.index(details[name]["index"]))
    return {key: [dict(zip(names, sample, strict=True)) for sample in samples]}


# Who there is.


Judge = Callable[[Place, str, int | None], Judgement]
"""A task, a file and on how many samples: see `inference.judge`."""


@dataclass(frozen=True)
class Tool:
    title: str
    package: str
    distribution: str
    prepare: Prepare
    has: Callable[[Mode], bool] = lambda _: True
    has_environment: bool = False
    """Whether it runs in an environment of its own."""
    judge: Judge | None = None
    """Scores its models, in its environment, where LiteRT does not run them; these have no latency."""

    @property
    def is_installed(self) -> bool:
        return self.has_environment or importlib.util.find_spec(self.package) is not None


TOOLS: Mapping[str, Tool] = {
    OURS: Tool("zeropoint", "zeropoint", "zeropoint", zeropoint_job),
    "tf": Tool("TensorFlow", "tensorflow", "tensorflow", tensorflow_job, lambda mode: mode.tensorflow),
    "aeq": Tool(
        "ai-edge-quantizer",
        "ai_edge_quantizer",
        "ai-edge-quantizer",
        ai_edge_job,
        lambda mode: mode.ai_edge is not None,
    ),
    "aeq-fast": Tool(
        "ai-edge-quantizer, fast calibration",
        "ai_edge_quantizer",
        "ai-edge-quantizer",
        partial(ai_edge_job, is_fast=True),
        lambda mode: mode.ai_edge is not None and mode.has_data,
    ),
    "lite": Tool("zeropoint.lite, from Keras", "tensorflow", "tensorflow", lite_job, lambda mode: mode.tensorflow),
    "mct": Tool(
        "Sony MCT",
        "model_compression_toolkit",
        "model-compression-toolkit",
        mct_job,
        lambda mode: mode is MODES["int8"],
        has_environment=True,
    ),
    "nncf": Tool(
        "NNCF",
        "nncf",
        "nncf",
        nncf_job,
        lambda mode: mode is MODES["int8"],
        has_environment=True,
        judge=judge_openvino,
    ),
}
DEFAULT_RIVALS = ("tf", "aeq", "aeq-fast")


def obstacle(order: Order) -> str | None:
    """Why a tool cannot even try."""
    tool = TOOLS[order.tool]
    if not tool.has(MODES[order.mode]):
        return NO_MODE
    if not tool.is_installed:
        return f"not installed: pip install {tool.distribution}"
    if tool.has_environment and order.python is None:
        return f"has no environment: python -m benchmarks.environments FOLDER {order.tool}, then --environments FOLDER"
    return None


def in_its_environment(order: Order, function: Callable[..., Any], *arguments: Any, timeout: float | None) -> Any:
    """The result of a function in a process of its own, where the order's tool is installed."""
    if order.python is None:
        return apart(function, *arguments, timeout=timeout)
    return elsewhere(order.python, function, *arguments, timeout=timeout)
