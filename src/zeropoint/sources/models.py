"""Loads a model from any source. Frameworks are recognized by class names, so that none has to be imported for that."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidModel
from ..files import PathLike
from ..graph.model import Model
from ..tflite.read import load as load_tflite
from ..tflite.write import to_bytes
from .conversion import Conversion, converting, require_library
from .jax import from_jax
from .onnx import from_onnx
from .tensorflow import (
    KERAS_SUFFIXES,
    from_frozen_graph,
    from_functions,
    from_keras_model,
    from_saved_model,
    read_keras_file,
)

ModelSource = Any
"""A path, the bytes of a `.tflite`, a `Model`, or a model of Keras, TensorFlow, PyTorch or JAX."""

KINDS = (
    "a .tflite, a .keras, .h5 or .onnx file, a SavedModel folder, a Keras model, a tf.function, a PyTorch module or a "
    "function that jax.jit returned"
)

FRAMEWORKS = (
    ("keras", ("keras", "tf_keras"), ("Model", "Layer")),
    ("function", ("tensorflow",), ("ConcreteFunction", "PolymorphicFunction")),
    ("torch", ("torch",), ("Module", "ExportedProgram")),
    ("jitted", ("jax", "jaxlib"), ("PjitFunction", "Exported")),
)
"""Framework objects that are converted, most specific first: their packages and class names."""

ADVICE = {
    "tensorflow": "give a tf.function of it with an input_signature",
    "jax": "give a function of it that jax.jit returned",
}


def load(source: ModelSource, sample_inputs: Any = None, conversion: Conversion | None = None) -> Model:
    """Load a model from a file, from bytes, or from a framework's object.

    Everything but a `.tflite` is converted by the framework's own converter.

    Args:
        source: A `.tflite` (path or bytes), a `.keras`, `.h5` or `.onnx` file, a SavedModel folder, a Keras model, a
            `tf.function`, concrete functions, a PyTorch module or a jitted JAX function.
        sample_inputs: Inputs on which a PyTorch module or a JAX function is traced.
        conversion: Options of the converter.

    Returns:
        The model, which the other functions accept in place of the source.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return load_tflite(bytes(source))
    asked = conversion or Conversion()
    if hasattr(source, "__fspath__") or isinstance(source, str):
        return _load_path(Path(source), asked)
    return _load_object(source, sample_inputs, asked)


def _load_object(source: Any, sample_inputs: Any, asked: Conversion) -> Model:
    """Load a framework's object in memory: one object, or several functions."""
    functions = source if isinstance(source, list | tuple) else [source]
    frameworks = {_framework(f) for f in functions}
    framework = next(iter(frameworks)) if len(frameworks) == 1 else None
    if framework == "function":
        return from_functions(functions, None, asked)
    match framework if functions == [source] else None:
        case "keras":
            return from_keras_model(source, asked)
        case "torch":
            return from_torch(source, sample_inputs, asked)
        case "jitted":
            return from_jax(source, sample_inputs, asked)
    advice = ADVICE.get(str(framework), f"give {KINDS}")
    raise InvalidModel(f"an object of type {type(source).__name__} is not a model that can be read; {advice}")


def _load_path(path: Path, asked: Conversion) -> Model:
    if path.is_dir():
        return from_saved_model(path, asked)
    if asked.ends is not None:
        return from_frozen_graph(path, asked.ends, asked)
    if path.suffix.lower() == ".onnx" and path.is_file():
        return from_onnx(path, asked)
    if path.suffix.lower() in KERAS_SUFFIXES:
        return from_keras_model(read_keras_file(path, asked), asked)
    return load_tflite(path)


def _framework(value: Any) -> str | None:
    """Return the framework of an object, trying the most specific first: Keras builds on the other two."""
    classes = [(c.__module__.split(".")[0], c.__name__) for c in type(value).__mro__]
    for framework, packages, names in FRAMEWORKS:
        if any(package in packages and name in names for package, name in classes):
            return framework
    return next((name for name in ADVICE if any(package.startswith(name) for package, _ in classes)), None)


def size_of(path: PathLike | None, model: Model) -> int:
    """Return the size of a model's `.tflite`: that of its file, or what it would be if it came from something else."""
    size = size_of_file(path)
    return len(to_bytes(model)) if size is None else size


def size_of_file(source: ModelSource) -> int | None:
    """Return the size of the `.tflite` that a model is read from, a file or bytes; None if it comes from something
    else."""
    if isinstance(source, bytes | bytearray | memoryview):
        return memoryview(source).nbytes
    if not (isinstance(source, str) or hasattr(source, "__fspath__")):
        return None
    is_tflite = Path(source).is_file() and Path(source).suffix.lower() not in (*KERAS_SUFFIXES, ".onnx")
    return Path(source).stat().st_size if is_tflite else None


def from_torch(module: Any, sample_inputs: Any, conversion: Conversion) -> Model:
    """Convert a PyTorch module or exported program with litert-torch.

    It is traced on `sample_inputs`: a tensor, a tuple of them, or a dict by argument name.
    """
    if sample_inputs is None and hasattr(module, "example_inputs"):
        placed, named = module.example_inputs or (None, None)
        if placed and named:
            raise InvalidModel("the exported program takes arguments by position and by name; choose one of these")
        sample_inputs = named or placed
    if sample_inputs is None:
        raise InvalidModel("a PyTorch module needs inputs to be traced on: zeropoint.load(module, sample_inputs=(x,))")
    if isinstance(sample_inputs, Mapping):
        inputs: tuple[Any, Any] = (None, dict(sample_inputs))
    else:
        inputs = (tuple(sample_inputs) if isinstance(sample_inputs, tuple | list) else (sample_inputs,), None)
    remedy = "litert-torch: pip install 'zeropoint[torch]'. A .tflite does not need it"
    with converting("litert-torch", conversion):
        litert_torch = require_library("litert_torch", "converting a PyTorch module", remedy)
        callee = module.module() if hasattr(module, "graph_module") else module  # an exported program
        with contextlib.ExitStack() as stack:
            if getattr(module, "training", False):
                with contextlib.suppress(NotImplementedError):  # exported graphs, as from PT2E, have only one mode
                    module.eval()
                    stack.callback(module.train)
            converted = litert_torch.convert(callee, *inputs)
        content = getattr(converted, "model_content", None) or converted.tflite_model  # the older name
        return load_tflite(content())
