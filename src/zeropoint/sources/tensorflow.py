"""Converts Keras models and files, SavedModels and TensorFlow functions with TensorFlow's own converter."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ConversionFailed, InvalidModel
from ..files import reading
from ..graph.model import Model, Signature, Tensor
from ..ops.states import variable_name
from ..tflite.other_files import HEAD, other_file
from ..tflite.read import load
from .conversion import Conversion, GraphEnds, converting, first_relevant_line, require_library

CONVERTER = "TensorFlow's converter"
GRAPH_FILES = ("saved_model.pb", "saved_model.pbtxt")
KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
HDF5_START = b"\x89HDF\r\n\x1a\n"


def require_tensorflow(what: str) -> Any:
    """Import TensorFlow, which `what` needs."""
    remedy = "TensorFlow: pip install 'zeropoint[tensorflow]'. A .tflite does not need it"
    return require_library("tensorflow", what, remedy)


def from_keras_model(model: Any, conversion: Conversion) -> Model:
    """Convert a Keras model: Keras 3 with its TensorFlow backend, or tf_keras."""
    with converting(CONVERTER, conversion):
        tf = require_tensorflow("converting a Keras model")
        _require_tensorflow_backend(model)
        if not getattr(model, "built", True):
            raise InvalidModel(f"the Keras model '{model.name}' has no shapes yet; call it once on a sample first")
        named = getattr(model, "input", None)
        if isinstance(named, Mapping):
            # The converter calls a model with a list of inputs, which a model of dicts rejects (TensorFlow 2.21).
            specs = {name: tf.TensorSpec(tuple(x.shape), x.dtype, name=name) for name, x in named.items()}
            function = tf.function(lambda **arrays: model(arrays, training=False))
            return _of_functions(tf, [function.get_concrete_function(**specs)], conversion)
        return _convert(tf.lite.TFLiteConverter.from_keras_model(model), conversion)


def _require_tensorflow_backend(model: Any) -> None:
    keras = sys.modules.get("keras")
    if keras is None or not any(c.__module__.startswith("keras.") for c in type(model).__mro__):
        return
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise InvalidModel(
            f"the Keras model computes with {backend}, and the converter needs Keras on TensorFlow; "
            "save it as model.keras, set KERAS_BACKEND=tensorflow, and give the file in a new process"
        )


def from_functions(functions: Sequence[Any], owner: Any, conversion: Conversion) -> Model:
    """Convert `tf.function`s or concrete functions; `owner` keeps their variables alive."""
    with converting(CONVERTER, conversion):
        tf = require_tensorflow("converting a TensorFlow function")
        concrete = [_concrete(f) for f in functions]
        made = None if owner is None else _of_owned(tf, concrete, owner, conversion)
        return made if made is not None and not unwritten(made) else _of_functions(tf, concrete, conversion)


def _of_functions(tf: Any, functions: Sequence[Any], conversion: Conversion) -> Model:
    """Convert concrete functions, with an owner of their variables: without one the converter writes no signatures."""
    owner = tf.Module()
    owner.held = [variable for f in functions for variable in f.graph.variables]
    made = _of_owned(tf, functions, owner, conversion)
    if names := unwritten(made):
        raise ConversionFailed(
            f"{CONVERTER} left out the values of {', '.join(map(repr, names[:3]))}{' ...' if len(names) > 3 else ''}; "
            "turn its variables into constants (convert_variables_to_constants_v2), or give the Keras model itself"
        )
    return made


def _of_owned(tf: Any, functions: Sequence[Any], owner: Any, conversion: Conversion) -> Model:
    return _convert(tf.lite.TFLiteConverter.from_concrete_functions(list(functions), owner), conversion)


def unwritten(model: Model) -> list[str]:
    """Return variables that the model reads but nothing ever writes, so that LiteRT returns uninitialized memory.

    TensorFlow's converter produces such models from Keras 3 models that belong to another module (TensorFlow 2.21).
    """
    ops = [op for graph in model.graphs for op in graph.ops]
    written = {variable_name(ops, op.inputs[0]) for op in ops if op.kind == "ASSIGN_VARIABLE"}
    read = dict.fromkeys(variable_name(ops, op.inputs[0]) for op in ops if op.kind == "READ_VARIABLE")
    return [name for name in read if name is not None and name not in written]


def _concrete(function: Any) -> Any:
    """Return the function with fixed input types."""
    if not hasattr(function, "get_concrete_function"):
        return function
    try:
        return function.get_concrete_function()
    except (TypeError, ValueError) as error:
        raise InvalidModel(
            f"the inputs of the tf.function are not known ({str(error).splitlines()[0]}); "
            "give it an input_signature, or give function.get_concrete_function(tf.TensorSpec(...))"
        ) from None


def from_saved_model(folder: Path, conversion: Conversion, tags: Sequence[str] = ("serve",)) -> Model:
    require_saved_model(folder)
    with converting(CONVERTER, conversion):
        tf = require_tensorflow("converting a SavedModel")
        offered = _signatures(folder, tags)
        keys = conversion.signatures or tuple(offered)
        if unknown := [key for key in keys if key not in offered]:
            has = ", ".join(map(repr, offered)) or "none at all"
            raise InvalidModel(f"{folder} has no signature {', '.join(map(repr, unknown))}; it has {has}")
        if not keys:
            raise InvalidModel(f"{folder} has no signatures; save it with `signatures=`, or convert a function of it")
        try:
            # Given no keys, it drops the second name that Keras exports the same function under.
            asked = list(conversion.signatures) or None
            converter = tf.lite.TFLiteConverter.from_saved_model(str(folder), asked, set(tags))
        except Exception:
            if len(keys) > 1:
                raise
            # It restores Keras objects first, and fails on those of Keras 2 (TensorFlow 2.21). The graph is enough.
            old_converter = tf.compat.v1.lite.TFLiteConverter
            old = old_converter.from_saved_model(str(folder), tag_set=set(tags), signature_key=keys[0])
            return _with_signature(_convert(old, conversion), keys[0], offered[keys[0]])
        made = _convert(converter, conversion)
        return made if not unwritten(made) else _restored(tf, folder, keys, conversion, tags)


def _restored(tf: Any, folder: Path, keys: Sequence[str], conversion: Conversion, tags: Sequence[str]) -> Model:
    """Convert a SavedModel through its functions, for cases in which its variables would otherwise be lost."""
    whole = tf.saved_model.load(str(folder), list(tags))
    made = _of_functions(tf, [whole.signatures[key] for key in keys], conversion)
    made.signatures[:] = [replace(s, key=key) for s, key in zip(made.signatures, keys, strict=True)]
    return made


def from_frozen_graph(path: Path, ends: GraphEnds, conversion: Conversion) -> Model:
    """Convert a `.pb` of TensorFlow 1, whose variables are constants."""
    if not path.is_file():
        raise InvalidModel(f"there is no file {path}")
    with converting(CONVERTER, conversion):
        tf = require_tensorflow("converting a frozen graph")
        graph = tf.compat.v1.GraphDef()
        try:
            graph.ParseFromString(path.read_bytes())
        except Exception:
            raise InvalidModel(f"{path} is not a frozen graph of TensorFlow (a GraphDef in binary form)") from None
        nodes = {node.name for node in graph.node}
        if unknown := [n for n in (*ends.inputs, *ends.outputs) if n.removesuffix(":0") not in nodes]:
            placeholders = ", ".join(node.name for node in graph.node if node.op == "Placeholder")
            last = graph.node[-1].name if graph.node else "none"
            raise InvalidModel(
                f"{path} has no tensor {', '.join(map(repr, unknown))}; "
                f"its placeholders are {placeholders or 'none'}, its last op is {last}"
            )
        old = tf.compat.v1.lite.TFLiteConverter
        names = [n.removesuffix(":0") for n in ends.inputs], [n.removesuffix(":0") for n in ends.outputs]
        shapes = {name.removesuffix(":0"): list(shape) for name, shape in ends.shapes.items()}
        return _convert(old.from_frozen_graph(str(path), *names, input_shapes=shapes or None), conversion)


def from_session(session: Any, inputs: Sequence[Any], outputs: Sequence[Any], conversion: Conversion) -> Model:
    """Convert a session of `tf.compat.v1` with the current values of its variables."""
    with converting(CONVERTER, conversion):
        tf = require_tensorflow("converting a session")
        return _convert(
            tf.compat.v1.lite.TFLiteConverter.from_session(session, list(inputs), list(outputs)), conversion
        )


def require_saved_model(folder: Path) -> None:
    if any((folder / name).is_file() for name in GRAPH_FILES):
        return
    inside = sorted(p.parent.name for name in GRAPH_FILES for p in folder.glob(f"*/{name}"))
    hint = f"; did you mean {folder / inside[0]}?" if inside else ""
    raise InvalidModel(f"{folder} is a folder without {GRAPH_FILES[0]}, so it is not a SavedModel{hint}")


def _signatures(folder: Path, tags: Sequence[str]) -> dict[str, Any]:
    """Return the signatures of a SavedModel, read without restoring it."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    binary = folder / GRAPH_FILES[0]
    try:
        if binary.is_file():
            content.ParseFromString(binary.read_bytes())
        else:
            from google.protobuf import text_format

            text_format.Parse((folder / GRAPH_FILES[1]).read_text("utf-8"), content)
    except Exception as error:
        raise InvalidModel(f"{folder} holds a damaged SavedModel: {error}") from None
    for graph in content.meta_graphs:
        if set(graph.meta_info_def.tags) == set(tags):
            return {key: graph.signature_def[key] for key in sorted(graph.signature_def) if not key.startswith("__")}
    has = " or ".join("+".join(g.meta_info_def.tags) for g in content.meta_graphs) or "none"
    raise InvalidModel(f"{folder} has no graph with the tags {', '.join(tags)}; it has {has}")


def _with_signature(model: Model, key: str, definition: Any) -> Model:
    """Add a signature, which the older converter does not write; its tensors keep the names in the definition."""

    def named(infos: Mapping[str, Any], ends: Sequence[Tensor]) -> dict[str, Tensor]:
        by_name = {t.name.removesuffix(":0"): t for t in ends}
        return {k: by_name[n] for k, info in infos.items() if (n := info.name.removesuffix(":0")) in by_name}

    inputs, outputs = named(definition.inputs, model.main.inputs), named(definition.outputs, model.main.outputs)
    if not model.signatures and (len(inputs), len(outputs)) == (len(model.main.inputs), len(model.main.outputs)):
        model.signatures.append(Signature(key, model.main, inputs, outputs))
    return model


def _convert(converter: Any, conversion: Conversion) -> Model:
    import tensorflow as tf

    if conversion.select_tf_ops:
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    converter.allow_custom_ops = conversion.custom_ops
    for name, value in conversion.settings.items():
        setattr(converter, name, value)
    content = converter.convert()
    if not isinstance(content, bytes):
        raise ConversionFailed(f"{CONVERTER} gave a {type(content).__name__} where the bytes of a model belong")
    return load(content)


# Keras files: `.keras`, which is a zip archive, and `.h5`.


def read_keras_file(path: Path, conversion: Conversion) -> Any:
    """Read the Keras model in a file. Code contained in the file is not run."""
    _require_keras_file(path)
    with converting("Keras", conversion):
        require_tensorflow("reading a Keras file")
        written_by = _keras_version(path)
        keras = _keras_library(path, written_by)
        try:
            # Lambda layers contain code, which only a user who trusts the file should run.
            return keras.models.load_model(str(path), compile=False, safe_mode=True)
        except Exception as error:
            origin = f"written by Keras {written_by}, read by" if written_by else "read by"
            raise ConversionFailed(
                f"cannot read {path} ({origin} {keras.__name__} {keras.__version__}): {first_relevant_line(error)}",
                "  load it in Python, with the Keras that wrote it and your own classes, and give the model itself",
            ) from error


def _require_keras_file(path: Path) -> None:
    if not path.is_file():
        raise InvalidModel(f"there is no file {path}")
    with reading(path, "a Keras file", InvalidModel), path.open("rb") as file:
        start = file.read(len(HDF5_START))
        known = None if start == HDF5_START or zipfile.is_zipfile(path) else other_file(start + file.read(HEAD))
    if known is not None:
        raise InvalidModel(f"{path} is {known}")
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):
        raise InvalidModel(f"{path} is not a Keras file: it is not the zip archive that model.save('x.keras') writes")
    if path.suffix != ".keras" and start != HDF5_START:
        raise InvalidModel(f"{path} is not a Keras file: it does not start as HDF5 does")


def _keras_version(path: Path) -> str | None:
    """Return the version of Keras that wrote the file, if recorded."""
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                version = json.loads(archive.read("metadata.json")).get("keras_version")
        else:
            import h5py

            with h5py.File(path, "r") as file:
                version = file.attrs.get("keras_version")
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile):
        return None  # reading the model will report what is wrong with it
    return version.decode() if isinstance(version, bytes) else version


def _keras_library(path: Path, written_by: str | None) -> Any:
    """Return Keras 3, or tf_keras for files in the newer format that Keras 2 wrote."""
    if path.suffix == ".keras" and (written_by or "").startswith("2."):
        return require_library("tf_keras", f"{path}, written by Keras {written_by},", "tf_keras: pip install tf_keras")
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # required by its converter
    import keras

    return keras
