"""Models that Keras 3 saved, for tools that were written for Keras 2."""

from __future__ import annotations

import inspect
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .apart import Failed

Reference = tuple[str, int, int]
"""A tensor between layers: the layer's name, which call of it, which of its outputs."""

FOR_TRAINING = ("_initializer", "_regularizer", "_constraint", "dtype")
"""Ends of the names of settings that mean nothing once weights are loaded. (Types are those of the weights.)"""


def rebuilt(path: Path, keras: Any) -> Any:
    """The functional model in a `.keras` file, made of another Keras's layers, with the same weights."""
    with zipfile.ZipFile(path) as archive:
        model = json.loads(archive.read("config.json"))
        weights = _weights(archive.read("model.weights.h5"))
    if model["class_name"] != "Functional":
        raise Failed(f"a {model['class_name']} model; only functional ones are rebuilt for Keras 2")
    tensors: dict[Reference, Any] = {}
    layers = {}
    for layer in model["config"]["layers"]:
        name = layer["name"]
        if layer["class_name"] == "InputLayer":
            tensors[name, 0, 0] = keras.Input(shape=layer["config"]["batch_shape"][1:], name=name)
            continue
        layers[name] = _layer(layer, keras)
        for call, node in enumerate(layer["inbound_nodes"]):
            made = layers[name](*(_operand(value, tensors) for value in node["args"]))
            for place, tensor in enumerate(made if isinstance(made, (list, tuple)) else [made]):
                tensors[name, call, place] = tensor
    ends = (_ends(model["config"][f"{side}_layers"]) for side in ("input", "output"))
    built = keras.Model(*([tensors[end] for end in side] for side in ends))
    for name, layer in layers.items():
        layer.set_weights(weights.get(name, []))
    return built


def _layer(saved: Mapping[str, Any], keras: Any) -> Any:
    """A layer of the same kind, with those of its settings that this Keras knows and that matter after training."""
    kind = getattr(keras.layers, saved["class_name"], None)
    if kind is None:
        raise Failed(f"Keras {keras.__version__} has no layer {saved['class_name']}")
    known = {name for base in kind.__mro__ for name in inspect.signature(base.__init__).parameters}
    settings = {"name": saved["name"]}
    for key, value in saved["config"].items():
        if key in known and not key.endswith(FOR_TRAINING):
            if isinstance(value, dict):
                raise Failed(f"{saved['name']}: its {key} is an object of its own, which is not rebuilt for Keras 2")
            settings[key] = value
    return kind(**settings)


def _operand(value: Any, tensors: Mapping[Reference, Any]) -> Any:
    if isinstance(value, list):
        return [_operand(part, tensors) for part in value]
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        return tensors[_reference(value["config"]["keras_history"])]
    return value


def _ends(saved: Any) -> list[Reference]:
    """Inputs or outputs; a single one may stand by itself."""
    return [_reference(saved)] if saved and isinstance(saved[0], str) else [_reference(end) for end in saved]


def _reference(saved: Any) -> Reference:
    name, call, place = saved
    return str(name), int(call), int(place)


def _weights(content: bytes) -> dict[str, list[Any]]:
    """Arrays by name of their layer: Keras writes it beside them."""
    import h5py

    found = {}

    def visit(_: str, group: Any) -> None:
        if "name" in group.attrs and len(group):
            found[str(group.attrs["name"])] = [group[str(k)][()] for k in range(len(group))]

    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(visit)
    return found
