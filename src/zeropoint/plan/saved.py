"""Plans as JSON. Tensors and ops are their places in the prepared graph, numbers are exact."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..affine import Granularity, PerAxis, PerBlock, PerTensor, QuantParams
from ..dtypes import Array, DType
from ..errors import InvalidRecipe
from ..files import PathLike, describe_os_error, write_whole
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, fingerprint
from ..recipe import Recipe, Rule, plain_rules, recipe_content, recipe_from
from .encode import Form, Packed
from .plan import Constants, Group, Held, Node, Plan, Planned, Repair, Skipped

FORMAT = "zeropoint-plan-1"


def plan_text(planned: Planned) -> str:
    """`planned` as JSON; `planned_from_text` reads it again, given the same prepared model."""
    content = {
        "format": FORMAT,
        "model": fingerprint(planned.model),
        "plans": [_Writer(plan).content() for plan in planned.plans],
        "values": {key: _array(v) for plan in planned.plans for key, v in plan.constants.values.items()},
    }
    return json.dumps(content, indent=1)


def planned_from_text(text: str, model: Model) -> Planned:
    """The plans in `text`, which were made for `model`: a result's `prepared`."""
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
        values = {key: _from_array(v) for key, v in content["values"].items()}
        plans = tuple(_Reader(model.graphs[plan["graph"]], values).plan(plan) for plan in content["plans"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InvalidRecipe(f"the saved plan is damaged ({type(error).__name__}: {error})") from None
    return Planned(model, plans)


def save_plan(planned: Planned, path: PathLike, *, overwrite: bool = False) -> None:
    """Write the plans to one file, whole or not at all."""
    write_whole(path, [plan_text(planned).encode()], overwrite=overwrite)


def load_plan(path: PathLike, model: Model) -> Planned:
    """Plans that were saved, for the prepared model that they were made for."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRecipe(f"cannot read {path}: {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise InvalidRecipe(f"{path} is not a saved plan") from None
    return planned_from_text(text, model)


def _params(params: QuantParams) -> dict[str, Any]:
    content: dict[str, Any] = {"type": params.dtype.label, "scales": params.scales, "zero_points": params.zero_points}
    if not isinstance(params.granularity, PerTensor):
        content["axis"] = params.granularity.axis
    return content | ({} if params.block is None else {"block": params.block})


def _from_params(content: Mapping[str, Any]) -> QuantParams:
    granularity: Granularity = PerTensor() if "axis" not in content else PerAxis(content["axis"])
    if "block" in content:
        granularity = PerBlock(content["axis"], content["block"])
    dtype = DType.parse(content["type"])
    return QuantParams(tuple(content["scales"]), tuple(content["zero_points"]), dtype, granularity)


def _form(form: Form) -> dict[str, Any]:
    return {"type": form.label} if isinstance(form, DType) else _params(form)


def _from_form(content: Mapping[str, Any]) -> Form:
    return _from_params(content) if "scales" in content else DType.parse(content["type"])


def _array(array: Array) -> dict[str, Any]:
    stored = np.ascontiguousarray(array, np.float32)
    return {"shape": stored.shape, "float32": base64.b64encode(stored.tobytes()).decode()}


def _from_array(content: Mapping[str, Any]) -> Array:
    return np.asarray(np.frombuffer(base64.b64decode(content["float32"]), np.float32).reshape(content["shape"]))


class _Writer:
    """One plan, with places for objects."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tensor = {tensor: k for k, tensor in enumerate(plan.graph.tensors)}
        self._op = {op: k for k, op in enumerate(plan.graph.ops)}

    def content(self) -> dict[str, Any]:
        plan = self._plan
        rules = plain_rules(Recipe(tuple(map(Rule, plan.schemes.values()))))
        return {
            "graph": plan.index,
            "schemes": [[self._op[op], dict(rule)] for op, rule in zip(plan.schemes, rules, strict=True)],
            "groups": [self._group(group) for group in plan.groups],
            "grids": [[*self._use(use), _params(p)] for use, p in plan.constants.grids.items()],
            "keys": [[*self._use(use), key] for use, key in plan.constants.keys.items()],
            "stored": self._by_tensor(plan.stored),
            "wanted": [[*self._use(use), _params(p)] for use, p in plan.wanted.items()],
            "inputs": self._by_tensor(plan.inputs),
            "outputs": self._by_tensor(plan.outputs),
            "packed": [[*self._use(use), p.unpacked, _form(p.form)] for use, p in plan.packed.items()],
            "skipped": [[self._op[s.op], s.code, s.reason] for s in plan.skipped],
            "repairs": [[self._tensor[r.tensor], r.code, r.text] for r in plan.repairs],
        }

    def _by_tensor(self, entries: Mapping[Tensor, QuantParams]) -> list[Any]:
        return [[self._tensor[tensor], _params(p)] for tensor, p in entries.items()]

    def _use(self, use: Use) -> tuple[int, int]:
        return self._op[use.op], use.slot

    def _node(self, node: Node) -> list[Any]:
        return [self._tensor[node.tensor], node.dtype.label] if isinstance(node, Held) else [*self._use(node)]

    def _group(self, group: Group) -> dict[str, Any]:
        content = {"nodes": [self._node(n) for n in group.nodes], "params": _params(group.params)}
        flags = {name: True for name in ("fixed", "symmetric", "nonnegative") if getattr(group, name)}
        ends = {"limits": [end if math.isfinite(end) else None for end in group.limits]}
        return {**content, **flags, **(ends if any(map(math.isfinite, group.limits)) else {})}


class _Reader:
    """The inverse of `_Writer`, for a graph."""

    def __init__(self, graph: Graph, values: Mapping[str, Array]) -> None:
        self._graph, self._values = graph, values

    def plan(self, content: Mapping[str, Any]) -> Plan:
        ops = [self._op(place) for place, _ in content["schemes"]]
        rules = recipe_from(recipe_content(tuple(rule for _, rule in content["schemes"]))).rules if ops else ()
        keys = {self._use(*place): key for *place, key in content["keys"]}
        return Plan(
            self._graph,
            content["graph"],
            {op: rule.scheme for op, rule in zip(ops, rules, strict=True)},
            tuple(self._group(group) for group in content["groups"]),
            Constants(
                {key: self._values[key] for key in keys.values()},
                keys,
                {self._use(*place): _from_params(p) for *place, p in content["grids"]},
            ),
            self._by_tensor(content["stored"]),
            {self._use(*place): _from_params(p) for *place, p in content["wanted"]},
            self._by_tensor(content["inputs"]),
            self._by_tensor(content["outputs"]),
            {self._use(*place): Packed(_from_form(form), unpacked) for *place, unpacked, form in content["packed"]},
            tuple(Skipped(self._op(k), reason, code) for k, code, reason in content["skipped"]),
            tuple(Repair(self._graph.tensors[k], text, code) for k, code, text in content["repairs"]),
        )

    def _op(self, place: int) -> Op:
        return self._graph.ops[place]

    def _use(self, op: int, slot: int) -> Use:
        return Use(self._op(op), slot)

    def _by_tensor(self, entries: list[Any]) -> dict[Tensor, QuantParams]:
        return {self._graph.tensors[k]: _from_params(p) for k, p in entries}

    def _node(self, place: int, rest: int | str) -> Node:
        return Held(self._graph.tensors[place], DType.parse(rest)) if isinstance(rest, str) else self._use(place, rest)

    def _group(self, content: Mapping[str, Any]) -> Group:
        flags = {name: name in content for name in ("fixed", "symmetric", "nonnegative")}
        low, high = content.get("limits", (None, None))
        limits = -math.inf if low is None else low, math.inf if high is None else high
        nodes = tuple(self._node(*node) for node in content["nodes"])
        return Group(nodes, _from_params(content["params"]), **flags, limits=limits)
