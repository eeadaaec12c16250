"""From a model file to a trainable graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..calibration import Ranges, Stats
from ..errors import InvalidModel, InvalidRecipe, UnsupportedOp
from ..files import PathLike
from ..graph.edit import copy_model
from ..graph.model import Graph, Model, Tensor
from ..graph.query import Uses
from ..ops import OPS
from ..plan.pipeline import Planned, Request, plan_model
from ..plan.plan import Plan
from ..plan.prepare import prepare
from ..recipe import FLOAT, Recipe, Rule, preset
from ..sources.ports import entry, entry_graphs
from ..tflite.read import load
from .constants import unmatched
from .network import Trainable
from .parts import Blueprint
from .settings import QuantSettings


def trainable(
    model: Model | PathLike | bytes,
    recipe: Recipe | str = "int8",
    stats: Stats | None = None,
    *,
    ranges: Ranges | None = None,
    weight_bits: int = 8,
    settings: QuantSettings | None = None,
    freeze: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    logits: bool = False,
    quantize: bool = True,
) -> Trainable:
    """`model` as a Keras model that computes what its quantized form will, ready for `compile` and `fit`.

    `recipe` is a mode ("int8", "int16x8") or rules; `stats` of a calibration, or `ranges`, tell where ranges start.
    `freeze` are patterns of op kinds, op names or constants that are not trained. `outputs` names inner tensors to
    compute instead of the model's own; `logits` stops in front of a final softmax or sigmoid, where losses are
    steadier. Without `quantize` it is the float model.
    """
    source = model if isinstance(model, Model) else load(model)
    rules = preset(recipe, weight_bits) if isinstance(recipe, str) else recipe
    if isinstance(recipe, Recipe) and weight_bits != 8:
        raise InvalidRecipe("give a recipe, or a mode and the bits of the weights, not both")
    if quantize:
        request = Request(rules, stats, ranges or Ranges({}))
        planned = plan_model(source, request)
    else:
        request = Request(Recipe((Rule(FLOAT),)))
        planned = float_plan(source)
    chosen = Ends(tuple(outputs) if outputs is not None else None, logits)
    return from_plan(planned, request, settings or QuantSettings(), chosen, freeze, quantize=quantize)


def float_plan(model: Model) -> Planned:
    """A plan that quantizes nothing, for a copy of the model whose weights are plainly float."""
    copy = copy_model(model)
    prepare(copy, Recipe((Rule(FLOAT),)))
    return Planned(copy, tuple(Plan(graph) for graph in entry_graphs(copy)))


@dataclass(frozen=True)
class Ends:
    """Which tensors to compute: by name (None: the graph's outputs), and whether to stop before a final softmax."""

    names: tuple[str, ...] | None = None
    logits: bool = False

    def of(self, graph: Graph) -> tuple[Tensor, ...]:
        uses = Uses(graph)
        found = []
        for tensor in graph.outputs if self.names is None else [_tensor(graph, name) for name in self.names]:
            producer = uses.producer(tensor)
            spec = None if producer is None else OPS.get(producer.kind)
            is_head = self.logits and spec is not None and spec.probabilities is not None
            before = producer.inputs[0] if producer is not None and is_head else None
            found.append(tensor if before is None else before)
        return tuple(found)


def _tensor(graph: Graph, name: str) -> Tensor:
    try:
        return graph.tensor(name)
    except KeyError:
        raise InvalidModel(f"the model has no tensor {name!r} to train for; `zeropoint inspect` lists them") from None


def from_plan(
    planned: Planned,
    request: Request,
    settings: QuantSettings,
    ends: Ends,
    freeze: Sequence[str] = (),
    *,
    quantize: bool = True,
) -> Trainable:
    plan = _the_plan(planned)
    if plan.packed:
        raise InvalidRecipe(
            "training is for integer arithmetic; the recipe only stores weights in fewer bits, which needs none"
        )
    if unknown := unmatched(freeze, plan.graph):
        raise InvalidRecipe(f"nothing fits the pattern {unknown[0]!r}; `zeropoint inspect --ops` lists names")
    return Trainable(Blueprint(planned, plan, request, ends.of(plan.graph), settings, tuple(freeze), quantize))


def _the_plan(planned: Planned) -> Plan:
    graph = entry(planned.model).graph  # raises where there are several
    for plan in planned.plans:
        if plan.graph is graph:
            return plan
    raise UnsupportedOp(f"the graph '{graph.name}' is run by other graphs and cannot be trained by itself")
