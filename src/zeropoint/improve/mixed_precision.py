"""Mixed precision: if few bits are requested, the layers that lose most get 8 bits.

The cost of a layer is measured with it alone in few bits and all others in 8: such errors are small, so they add up.
Layers are widened in the order of what they cost per byte, as many as together gain most beyond what one more bit for
all layers would gain for as many bytes. Without data, the cost is measured on likely inputs (`without_data`); if there
are none, the relative error of a layer's weights is used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..affine import QuantParams
from ..bench.errors import ErrorSum, decibels
from ..calibration.collect import Progress
from ..display import size_text
from ..dtypes import DType
from ..graph.model import Buffer, Graph, Op
from ..graph.query import Use, Uses
from ..ops import OpSpec, spec_of
from ..plan.plan import Form, Plan, Planned
from ..plan.rewrite import rounded
from ..recipe import Recipe

DB_PER_BIT = 6.02
"""One more bit for all weights halves their rounding errors."""

MOST_GROWTH, RESCUE_GROWTH = 0.25, 0.5
"""Maximum growth of the low-bit weights, as a share of their bytes, and that of models which are poor otherwise."""

ENDS_COUNT = 4.0
"""Extra weight of errors of the first and last layers if nothing is measured: no other layer can recover what the first
ones lose, and nothing averages out what the last ones add."""


@dataclass(frozen=True)
class NarrowLayer:
    """Low-bit weights and the ops that read them: their bytes, and how many more in 8 bits."""

    uses: tuple[Use, ...]
    form: QuantParams
    size: int
    growth: int

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(use.op for use in self.uses)


@dataclass(frozen=True)
class Widening:
    """The layers that get 8 bits, the number of all layers, and how they were chosen if not by data."""

    layers: tuple[NarrowLayer, ...]
    of: int
    chosen_by: str = "by the errors of their weights"

    @property
    def ops(self) -> frozenset[Op]:
        return frozenset(op for layer in self.layers for op in layer.ops)

    def text(self, gain: float | None = None) -> str:
        """Return a description: `2 of 28 layers in 8 bits: +3.1 kB, +6.1 dB`. A loss was not clear enough to count."""
        growth = sum(layer.growth for layer in self.layers)
        brought = self.chosen_by if gain is None else f"{gain:+.1f} dB"
        brought += " on the samples that judge, which may be chance" if gain is not None and gain < 0 else ""
        return f"{len(self.layers)} of {self.of} layers in 8 bits: +{size_text(growth)}, {brought}"


def narrow_layers(planned: Planned, recipe: Recipe) -> list[NarrowLayer]:
    """Return the weights of fewer than 8 bits whose width the recipe leaves open."""
    found: dict[tuple[Buffer | None, Form], list[Use]] = {}
    for plan in planned.plans:
        for use, form in _held(plan):
            if isinstance(form, QuantParams) and form.dtype.is_packed and recipe.scheme(use.op).mixed:
                found.setdefault((use.tensor.buffer, form), []).append(use)
    layers = []
    for (_, form), uses in found.items():
        assert isinstance(form, QuantParams)
        bits, elements = form.dtype.bits, uses[0].tensor.size
        layers.append(NarrowLayer((*uses,), form, elements * bits // 8, elements * (DType.INT8.bits - bits) // 8))
    return layers


def _held(plan: Plan) -> Iterator[tuple[Use, Form]]:
    yield from ((use, plan.wanted[use]) for use in plan.constants.grids)
    yield from ((use, packed.form) for use, packed in plan.packed.items())


def measured_harms(
    layers: Sequence[NarrowLayer], rest: float, error: Callable[[NarrowLayer], float], report: Progress
) -> dict[NarrowLayer, float]:
    """Return what each layer alone in few bits adds to the error of the model with all of them in 8, the `rest`."""
    harms = {}
    for done, layer in enumerate(layers, 1):
        harms[layer] = max(0.0, error(layer) - rest)
        report(done)
    return harms


def worth_widening(
    harms: Mapping[NarrowLayer, float],
    rest: float = 0.0,
    db_per_bit: float = DB_PER_BIT,
    most_growth: float = MOST_GROWTH,
) -> Widening | None:
    """Return the layers to widen to 8 bits, given the squared error that each adds to the `rest`; None if there are
    none."""
    size, grown, price, chosen = sum(layer.size for layer in harms), 0, 0.0, list[NarrowLayer]()
    before = error = rest + sum(harms.values())
    best, most = 0, 0.0
    for layer in sorted(harms, key=lambda layer: -harms[layer] / max(1, layer.growth)):
        if grown + layer.growth > most_growth * size:
            continue
        chosen.append(layer)
        grown += layer.growth
        price += db_per_bit * layer.form.dtype.bits * layer.growth / size
        error -= harms[layer] * (1 - 4.0 ** (layer.form.levels.bits - DType.INT8.bits))
        # The less error is left, the more decibels the next layer brings: what counts is the gain of all of them.
        gain = decibels(error) - decibels(before) - price
        if gain > most:
            best, most = len(chosen), gain
    return Widening((*chosen[:best],), len(harms)) if best else None


def weight_errors(
    layers: Iterable[NarrowLayer], planned: Planned, ops: Mapping[str, OpSpec]
) -> dict[NarrowLayer, float]:
    """Return the relative squared errors of weights, those of the first and last layers weighted more."""
    ends = {op for plan in planned.plans for op in first_and_last(plan.graph, ops)}
    errors = {}
    for layer in layers:
        data, total = layer.uses[0].data, ErrorSum()
        total.add(data, rounded(data, layer.form))
        errors[layer] = total.relative * (ENDS_COUNT if ends.intersection(layer.ops) else 1.0)
    return errors


def first_and_last(graph: Graph, ops: Mapping[str, OpSpec]) -> set[Op]:
    """Return the layers before or after which there is no other on some path through the graph."""
    layers = {op for op in graph.ops if spec_of(op, ops).layout is not None}
    uses = Uses(graph)

    def readers(op: Op) -> list[Op]:
        return [use.op for t in op.outputs for use in uses.readers(t)]

    def makers(op: Op) -> list[Op]:
        return [made for t in op.inputs if t is not None and (made := uses.producer(t)) is not None]

    starts = [use.op for t in graph.inputs for use in uses.readers(t)]
    stops = [op for t in graph.outputs if (op := uses.producer(t)) is not None]
    found: set[Op] = set()
    for heads, onwards in ((starts, readers), (stops, makers)):
        seen, todo = set(heads), list(heads)
        while todo:
            op = todo.pop()
            new = [] if op in layers else [other for other in onwards(op) if other not in seen]
            seen.update(new)
            todo += new
        found |= seen & layers
    return found
