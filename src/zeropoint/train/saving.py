"""What a trainable graph is made of, as plain values: the `.tflite`, its plan, the recipe and the settings.

Keras writes these into its files, so that `load_model` needs nothing else.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ..errors import InvalidModel, InvalidRecipe
from ..ops import OPS
from ..plan.plan import Plan, Planned
from ..plan.request import Request
from ..plan.saved import plan_text, planned_from_text
from ..recipe_files import plain_rules, recipe_content, recipe_from
from ..sources.ports import entry
from ..targets import TARGETS
from ..tflite import load, to_bytes
from ..train_bits import TrainBits
from .fake_quant import QuantSettings
from .fake_quant_graph import Blueprint, trainable_target


def blueprint_content(blueprint: Blueprint) -> dict[str, Any]:
    """Return `blueprint` as JSON values; `blueprint_from` reads them."""
    request, graph = blueprint.request, blueprint.plan.graph
    if request.ops is not OPS:
        raise InvalidRecipe("a graph with a custom op table cannot be saved as a whole; use save_weights")
    if request.target.name not in TARGETS:
        raise InvalidRecipe(
            f"the target {request.target.name!r} is not one of zeropoint's, so the graph cannot be saved as a whole; "
            "use save_weights"
        )
    places = {tensor: k for k, tensor in enumerate(graph.tensors)}
    return {
        "tflite": base64.b64encode(zlib.compress(to_bytes(blueprint.planned.model))).decode(),
        "plan": plan_text(blueprint.planned) if blueprint.quantize else None,
        "recipe": recipe_content(plain_rules(request.recipe)),
        "target": request.target.name,
        "effort": request.effort,
        "outputs": [places[tensor] for tensor in blueprint.outputs],
        "settings": asdict(blueprint.settings),
        "freeze": list(blueprint.freeze),
        "quantize": blueprint.quantize,
        "stage": None if blueprint.stage is None else str(blueprint.stage),
        "means": {key: means.tolist() for key, means in blueprint.means.items()} if blueprint.has_few_levels else {},
    }


def blueprint_from(content: Mapping[str, Any]) -> Blueprint:
    """Build a blueprint from what `blueprint_content` returned."""
    try:
        model = load(zlib.decompress(base64.b64decode(content["tflite"])))
        target = trainable_target(TARGETS[content["target"]])
        request = Request(recipe_from(content["recipe"]), effort=content["effort"], target=target)
        graph = entry(model).graph
        if content["quantize"]:
            planned = planned_from_text(content["plan"], model)
            plan = next(plan for plan in planned.plans if plan.graph is graph)
        else:
            plan = Plan(graph)
            planned = Planned(model, (plan,))
        outputs = tuple(graph.tensors[k] for k in content["outputs"])
        settings = QuantSettings(**content["settings"])
        stage = None if content["stage"] is None else TrainBits.parse(content["stage"])
        freeze, quantize = tuple(content["freeze"]), content["quantize"]
        means = {key: np.array(values, np.float64) for key, values in content.get("means", {}).items()}
        return Blueprint(planned, plan, request, outputs, settings, freeze, quantize, stage, means)
    except (KeyError, ValueError, TypeError, IndexError, StopIteration, zlib.error) as error:
        raise InvalidModel(f"this is not a saved graph of zeropoint ({type(error).__name__}: {error})") from None
