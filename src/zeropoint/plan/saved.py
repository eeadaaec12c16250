"""Plans as JSON. Tensors and ops are stored as positions in the prepared graph; numbers are exact.

Every value is written by class and fields, so that a new field of a plan needs no change here.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..affine import PerAxis, PerBlock, PerTensor, QuantParams
from ..dtypes import DType
from ..errors import InvalidRecipe
from ..files import PathLike, reading, write_whole
from ..graph.model import Model
from ..graph.query import Use, fingerprint
from ..recipe import PerChannel, Scheme
from ..targets import OpVerdict
from .plan import Constants, Group, Held, Origin, Packed, Plan, Planned, Repair, Skipped

FORMAT = "zeropoint-plan-1"

RECORDS = (Plan, Group, Constants, Origin, Skipped, Repair, Packed, Scheme, QuantParams, OpVerdict)
CLASSES = {c.__name__: c for c in (*RECORDS, PerTensor, PerAxis, PerBlock, PerChannel, Held, Use)}


def plan_text(planned: Planned) -> str:
    """Return `planned` as JSON; `planned_from_text` reads it again, given the same prepared model."""
    plans = []
    for plan in planned.plans:
        tensors = {tensor: k for k, tensor in enumerate(plan.graph.tensors)}
        ops = {op: k for k, op in enumerate(plan.graph.ops)}
        placed: Any = plan.mapped
        plans.append(_encoded(placed(None, tensors.__getitem__, ops.__getitem__)))
    return json.dumps({"format": FORMAT, "model": fingerprint(planned.model), "plans": plans}, indent=1)


def planned_from_text(text: str, model: Model) -> Planned:
    """Return the plans in `text`, which were made for `model`: a result's `prepared`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or "format" not in content:
        raise InvalidRecipe("this is not a saved plan")
    if content["format"] != FORMAT:
        raise InvalidRecipe(f"a saved plan of the format {content['format']!r}; this version reads {FORMAT!r}")
    if content.get("model") != fingerprint(model):
        raise InvalidRecipe("the plan was made for another model; give the prepared model that it was saved with")
    try:
        return Planned(model, tuple(_placed(_decoded(plan), model) for plan in content["plans"]))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InvalidRecipe(f"the saved plan is damaged ({type(error).__name__}: {error})") from None


def _placed(plan: Any, model: Model) -> Plan:
    """Return a plan with positions resolved to the objects of its graph."""
    graph = model.graphs[plan.index]
    made: Plan = plan.mapped(graph, graph.tensors.__getitem__, graph.ops.__getitem__)
    return made


def _encoded(value: Any) -> Any:
    if isinstance(value, DType):
        return {"@": "DType", "name": value.label}
    if isinstance(value, np.ndarray):
        stored = np.ascontiguousarray(value, np.float32)
        return {"@": "float32", "shape": stored.shape, "data": base64.b64encode(stored.tobytes()).decode()}
    if isinstance(value, Use | Held):
        return {"@": type(value).__name__, **{k: _encoded(v) for k, v in value._asdict().items()}}
    if is_dataclass(value):
        return {"@": type(value).__name__, **{f.name: _encoded(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {"@": "map", "items": [[_encoded(k), _encoded(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return [_encoded(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"@": "float", "text": str(value)}
    return value


def _decoded(content: Any) -> Any:
    if isinstance(content, list):
        return tuple(map(_decoded, content))
    if not isinstance(content, dict):
        return content
    kind, rest = content["@"], {name: value for name, value in content.items() if name != "@"}
    if kind == "DType":
        return DType.parse(rest["name"])
    if kind == "float32":
        return np.frombuffer(base64.b64decode(rest["data"]), np.float32).reshape(rest["shape"])
    if kind == "map":
        return {_decoded(key): _decoded(value) for key, value in rest["items"]}
    if kind == "float":
        return float(rest["text"])
    return CLASSES[kind](**{name: _decoded(value) for name, value in rest.items()})


def save_plan(planned: Planned, path: PathLike, *, overwrite: bool = False) -> None:
    """Write the plans to one file, completely or not at all."""
    write_whole(path, [plan_text(planned).encode()], overwrite=overwrite)


def load_plan(path: PathLike, model: Model) -> Planned:
    """Load saved plans for the prepared model that they were made for."""
    with reading(path, "a saved plan", InvalidRecipe):
        text = Path(path).read_text(encoding="utf-8")
    return planned_from_text(text, model)
