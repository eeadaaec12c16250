"""Converts JAX functions with LiteRT's own converter: jax.export produces StableHLO, litert-converter a `.tflite`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ..errors import InvalidModel
from ..graph.model import Model
from ..tflite.read import load as load_tflite
from .conversion import Conversion, converting, require_library

SIGNATURE = "serving_default"


def from_jax(function: Any, sample_inputs: Any, conversion: Conversion) -> Model:
    """Convert a function returned by `jax.jit`, or one exported with `jax.export`.

    A jitted function is exported for `sample_inputs`: an array (or a ShapeDtypeStruct), a tuple of them, or a dict by
    argument name.
    """
    is_exported = hasattr(function, "mlir_module")
    if sample_inputs is None and not is_exported:
        raise InvalidModel("a JAX function needs inputs to be traced on: zeropoint.load(function, sample_inputs=(x,))")
    remedy = "LiteRT's converter: pip install litert-converter. A .tflite does not need it"
    with converting("litert-converter", conversion):
        require_library("litert_converter", "converting a JAX function", remedy)
        mlir = import_module("litert_converter.mlir")
        api = import_module("litert_converter.mlir._mlir_libs.converter_api_ext")
        import_module("litert_converter.mlir.passmanager")
        exported = function if is_exported else _exported(function, sample_inputs)
        return load_tflite(_converted(exported, _argument_names(function), mlir, api))


def _exported(function: Any, sample_inputs: Any) -> Any:
    from jax import export

    make = export.export(function, platforms=["cpu"])
    if isinstance(sample_inputs, Mapping):
        return make(**sample_inputs)
    return make(*sample_inputs) if isinstance(sample_inputs, tuple | list) else make(sample_inputs)


def _argument_names(function: Any) -> list[str]:
    """Return the names of a function's arguments, if known."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _converted(exported: Any, arguments: list[str], mlir: Any, api: Any) -> bytes:
    """Convert with the same steps that litert-torch (0.10) uses with this converter."""
    context = mlir.ir.Context()
    api.prepare_mlir_context(context)
    with context:
        module = mlir.ir.Module.parse(exported.mlir_module())
        inputs, outputs = _names(exported.in_tree, arguments), _names(exported.out_tree, None)
        api.set_signature(module.operation, signature_name=SIGNATURE, input_names=inputs, output_names=outputs)
        module = api.merge_modules([module])
        config = api.ConvertToTFLConfig()
        config.model_origin_framework = "JAX"
        config.unsafe_fuse_dynamic_shaped_broadcast = True
        api.run_convert_to_tfl_passes(module, mlir.passmanager.PassManager(), config)
        return bytes(api.export_flatbuffer_to_bytes(module.operation))


def _names(tree: Any, arguments: list[str] | None) -> list[str]:
    """Return a name for each leaf: the argument's name, if `arguments` are given, and the path of keys below it."""
    from jax import tree_util

    paths = tree_util.tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))[0]
    found = []
    for place, (path, _) in enumerate(paths):
        keys = [tree_util.keystr((key,), simple=True) for key in path]
        if arguments is not None:  # ((by position ...), {by name ...})
            kind, first = keys[0], keys[1]
            known = kind == "0" and int(first) < len(arguments)
            keys = [arguments[int(first)] if known else f"args_{first}" if kind == "0" else first, *keys[2:]]
        elif len(keys) < 1 or all(key.isdigit() for key in keys):
            keys = [f"output_{place}"]
        found.append("_".join(keys))
    return found
