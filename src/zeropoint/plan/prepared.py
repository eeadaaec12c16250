"""A float model that is ready for planning: copied, folded, rewritten for its target; and its ranges, as requested."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import QuantParams
from ..calibration import Range, Ranges
from ..calibration.range_methods import Bounds
from ..dtypes import Array, DType, Levels
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, argument, names_are_listed
from ..graph.edit import add_constant_input, copy_model, drop_unused, signatures_follow
from ..graph.model import Buffer, Graph, Model, Op, Tensor
from ..graph.names import short_names
from ..graph.query import Use, constants, tensor_keys
from ..ops import OpSpec, spec_of
from ..recipe import Recipe, Scheme
from ..sources.ports import entry_graphs
from ..targets import OpVerdict, Rewrite
from .called import bind_constants, computing_graphs, inline_composites
from .decompose import decompose, has_float_part
from .given import clip_constants
from .linear_layers import merge_linear_layers
from .lookups import gathers_to_lookups
from .masks import limit_to_what_counts
from .new_ops import NewOps
from .pixel_shuffle import shuffle_pixels
from .plan import Form, Skipped
from .prepare import prepare
from .qdq import Trained, implied_ranges
from .request import Request
from .rewrite import EncodedAs
from .saturation import Curve, curves
from .space_to_depth import fold_pixels
from .target_rewrites import fit_to_target, fuse_clamps
from .tensor_ranges import TensorRanges, fused_bounds
from .weight_only import FormKey
from .weights import bias_use, weight_params

MOST_TERMS = 2**31 // (2**15 * 2**7)
"""How many products of 16-bit activations and 8-bit weights can be summed in 32 bits."""


@dataclass(frozen=True)
class Matched:
    """The ops of a graph that compute in integers (`schemes`) or have integer weights with float arithmetic
    (`dynamic`), why others stay float (`skipped`), and where the target demands zero point 0 (`symmetric`).

    `request` and `ranges` are what it was derived from; `before` is what has kernels, regardless of speed. Range
    methods that choose within the observed range make no difference.
    """

    request: Request
    ranges: TensorRanges
    before: tuple[Mapping[Op, Scheme], Sequence[Skipped]]
    schemes: Mapping[Op, Scheme]
    dynamic: Mapping[Op, Scheme]
    skipped: tuple[Skipped, ...]
    symmetric: Collection[Use]

    def holds_for(self, request: Request, ranges: TensorRanges) -> bool:
        limits = [(one.bounded, one.masked, one.unbounded) for one in (self.ranges, ranges)]
        return self.is_for(request) and limits[0] == limits[1]

    def is_for(self, request: Request) -> bool:
        """Whether the request is the same except for ranges."""
        own = self.request
        alike = replace(request, method=own.method, methods=own.methods, effort=own.effort, limits=own.limits)
        return request.stats is own.stats and alike == own


GridKey = tuple[Buffer | None, tuple[int, ...], int | None, Levels]
"""The bytes of weights, their shape, the axis of their scales, and the levels of their integers."""


@dataclass(frozen=True)
class Prepared:
    """A float model that is ready for planning: folded, with biases to correct.

    `keys` are the names by which statistics know the tensors, from before the model was edited; `trained` is what
    quantization-aware training left in it. Candidates with other ranges share it, and everything computed from its
    constants: the parameters of weights of integer ops (`grids`) and of float ops (`forms`), how far their rounding
    shifts the outputs (`shifts`), their integers (`integers`); the `functions` that its graphs compute; which of their
    ops compute in integers, according to the last plan (`matched`); and what the target says about its ops
    (`verdicts`).
    """

    model: Model
    keys: Mapping[Tensor, str]
    trained: Trained
    grids: dict[GridKey, QuantParams] = field(default_factory=dict, compare=False, repr=False)
    forms: dict[FormKey, Form] = field(default_factory=dict, compare=False, repr=False)
    shifts: dict[tuple[Use, Form], Array | None] = field(default_factory=dict, compare=False, repr=False)
    integers: dict[EncodedAs, Tensor] = field(default_factory=dict, compare=False, repr=False)
    functions: dict[Graph, tuple[Curve, ...]] = field(default_factory=dict, compare=False, repr=False)
    matched: dict[Graph, Matched] = field(default_factory=dict, compare=False, repr=False)
    verdicts: dict[tuple[Op, Scheme], OpVerdict] = field(default_factory=dict, compare=False, repr=False)

    def grid(self, tensor: Tensor, axis: int | None, levels: Levels) -> QuantParams:
        """Return the parameters of a constant that is used as weights."""
        key = tensor.buffer, tensor.shape, axis, levels
        if key not in self.grids:
            assert tensor.data is not None
            self.grids[key] = weight_params(tensor.data, axis, levels, tensor.name)
        return self.grids[key]

    def sharing_constants(self, other: Prepared | None) -> Prepared:
        """Return the same model with what was computed from constants that it shares with another version."""
        if other is None:
            return self
        return replace(self, grids=other.grids, forms=other.forms, integers=other.integers)

    def copied(self) -> tuple[Prepared, dict[Tensor, Tensor]]:
        """Return a copy of the model for editing, without what training left, and its tensors by those of this one.

        Caches of its constants are keyed by their bytes, so edited constants get new entries.
        """
        copy = copy_model(self.model)
        pairs = list(zip(self.model.graphs, copy.graphs, strict=True))
        twins = {t: twin for old, new in pairs for t, twin in zip(old.tensors, new.tensors, strict=True)}
        keys = {twins[t]: key for t, key in self.keys.items() if t in twins}
        packed = {twins[t]: packed for t, packed in self.trained.packed.items() if t in twins}
        trained = Trained(implied=self.trained.implied, packed=packed)
        return Prepared(copy, keys, trained).sharing_constants(self), twins

    def with_new(self, made: Mapping[Tensor, Range | Tensor]) -> Prepared:
        """Return the model with the ranges of tensors that edits have added, or other tensors with the same range."""
        implied = self.trained.implied.merge(Ranges({t.name: r for t, r in made.items() if isinstance(r, Range)}))
        known = {t: self.keys.get(r, r.name) if isinstance(r, Tensor) else t.name for t, r in made.items()}
        return replace(self, keys={**self.keys, **known}, trained=replace(self.trained, implied=implied))

    def with_constants(self, made: Mapping[Tensor, Tensor]) -> Prepared:
        """Return the model with constants that edits have made of others, stored like these."""
        packed = dict(self.trained.packed)
        for new, old in made.items():
            if old in packed:
                packed[new] = packed[old]
        return replace(self, trained=replace(self.trained, packed=packed))

    def curves(self, graph: Graph, ops: Mapping[str, OpSpec]) -> tuple[Curve, ...]:
        """Return the functions of one tensor that a graph computes."""
        if graph not in self.functions:
            self.functions[graph] = curves(graph, ops)
        return self.functions[graph]


def prepare_model(model: Model, request: Request) -> Prepared:
    """Return a copy of `model`, ready for planning; raises if the request does not fit it."""
    require_float_part(model, request.recipe, request.ops)
    request.require_consistent()
    if request.stats is not None:
        request.stats.require(model)
    request.ranges.require(model)
    copy = copy_model(model)
    keys = tensor_keys(copy)  # as in the statistics: preparing removes tensors, and names repeat
    keys |= {new: keys[old] for new, old in inline_composites(copy, request.recipe).items()}
    bind_constants(copy)
    with signatures_follow(copy):
        made = fit_to_target(copy, request.target, request.ops)
        trained = prepare(copy, request.recipe, request.ops)
        fuse_clamps(copy, request.target)
        lookups = gathers_to_lookups(copy, request.recipe)
        clip_constants(copy, request, keys)
        measured = () if request.stats is None else entry_graphs(copy)
        for graph in copy.graphs:
            _give_biases(graph, request, graph in measured)
    implied = implied_ranges(copy, request.ops, keys, request.ranges.entries)
    trained = replace(trained, implied=implied.merge(trained.implied))
    return _decomposed(Prepared(copy, keys, trained).with_new({**made, **lookups}), request)


def _decomposed(prepared: Prepared, request: Request) -> Prepared:
    """Replace ops that have no integer kernels by ops that do; the model is edited in place."""
    given = prepared.trained.ranges.merge(request.ranges)
    ranges = None if request.stats is None and given.is_empty else ranges_of(prepared, request)

    def bounds(tensor: Tensor) -> Bounds | None:
        return None if ranges is None or not ranges.knows(tensor) else ranges.bounds(tensor)

    made = [decompose(graph, request, bounds) for graph in computing_graphs(prepared.model)]
    prepared = prepared.with_new({t: span for spans in made for t, span in spans.items()})
    for rewrite, edit in LAYER_REWRITES.items():
        if rewrite in request.target.rewrites:
            prepared = _with_rewritten_layers(prepared, request, edit)
    return prepared


LAYER_REWRITES = {
    Rewrite.LINEAR_LAYERS: merge_linear_layers,
    Rewrite.PIXEL_SHUFFLE: shuffle_pixels,
    Rewrite.SPACE_TO_DEPTH: fold_pixels,
}
"""Rewrites that give layers other weights, in order."""


def _with_rewritten_layers(
    prepared: Prepared, request: Request, edit: Callable[[Graph, Recipe, Collection[Tensor | None]], NewOps]
) -> Prepared:
    """Replace float layers, unless their weights or what they compute have integers or ranges already."""
    packed, known = prepared.trained.packed, {*request.ranges.entries, *prepared.trained.ranges.entries}
    fixed = {*prepared.trained.constants, *(t for t, held in packed.items() if isinstance(held.form, QuantParams))}
    fixed |= {t for t, key in prepared.keys.items() if key in known}
    for graph in computing_graphs(prepared.model):
        integers = {t for t in graph.tensors if t.dtype is not DType.FLOAT32}  # the file may be partly quantized
        new = edit(graph, request.recipe, fixed | integers)
        drop_unused(graph)
        prepared = prepared.with_new(new.made).with_constants(new.constants)
    return prepared


def require_float_part(model: Model, recipe: Recipe, ops: Mapping[str, OpSpec]) -> None:
    """Raise if there is nothing to do: the model is already quantized, or none of its ops has an integer kernel."""
    if recipe.has_integer_ops and not has_float_part(model, ops):
        raise InvalidModel(
            "the model has no float arithmetic that LiteRT could do in integers; "
            "if it is quantized already, give the float model instead"
        )
    if not recipe.has_integer_ops and not any(t.dtype.is_float for g in model.graphs for t in constants(g)):
        raise InvalidModel("the model has no float weights; if it is quantized already, give the float model instead")


def with_matched_rules(model: Model, request: Request) -> Request:
    """Return `request` with full op names in rules that use the short names shown to users.

    Raises for rules that match no op, unless these are allowed: most likely they are misspelled.
    """
    ops = [op for graph in model.graphs for op in graph.ops]
    if request.recipe.unmatched(ops):
        request = replace(request, recipe=request.recipe.spelled_out(ops, short_names(model)))
    if request.allow_unmatched or not request.recipe.unmatched(ops):
        return request
    prepared = prepare_model(model, replace(request, stats=None)).model  # a plan shows the names of its ops
    both = [*ops, *(op for graph in prepared.graphs for op in graph.ops)]
    if missing := request.recipe.unmatched(both):
        near = missing[0].nearest(both)
        raise InvalidRecipe(
            f"no op matches the rule {missing[0]}; {'' if near is None else f'did you mean {near}? '}"
            f"{names_are_listed()}; {argument('allow_unmatched', True)} lets rules match nothing"
        )
    return request


def _give_biases(graph: Graph, request: Request, is_measured: bool) -> None:
    """Add a bias of zeros to layers without one: if statistics tell how to correct it, or if the kernel then sums
    products in 64 bits, and 32 may overflow."""
    for op in graph.ops:
        spec, scheme, weights = spec_of(op, request.ops), request.recipe.scheme(op), op.input(1)
        if spec.bias_slot is None or bias_use(op, spec) is not None:
            continue
        rounds = scheme.weights is not None and scheme.weights.is_integer
        if not rounds or weights is None or weights.data is None or not op.outputs[0].shape:
            continue
        is_corrected = is_measured and request.recipe.effort(op, request.effort) != "quick"
        overflows = scheme.activations in spec.kernels.sums_32 and weights.shape[-1] > MOST_TERMS
        if is_corrected or overflows:
            zeros = np.zeros(op.outputs[0].shape[-1], np.float32)
            add_constant_input(graph, op, spec.bias_slot, Tensor.constant(f"{op.name}/bias", zeros, DType.FLOAT32))


def ranges_of(prepared: Prepared, request: Request) -> TensorRanges:
    """Return the range of every tensor, as requested."""
    given = prepared.trained.ranges.merge(request.ranges)
    if request.recipe.has_integer_ops and request.stats is None and given.is_empty:
        raise InvalidSample(
            f"the ranges of the tensors are not known; give representative data ({argument('data')}), statistics of it "
            f"({argument('stats')}), or the ranges themselves ({argument('ranges')})"
        )
    prescribed = frozenset(name for name, entry in request.ranges.entries.items() if entry.params is not None)
    method, bounded = request.range_method, fused_bounds(prepared.model)
    ranges = TensorRanges(
        prepared.keys, request.stats, given, method, bounded, prepared.trained, request.methods, prescribed
    )
    ranges = replace(ranges, percentile=request.percentile)
    ranges = ranges.limited({t: request.limits[key] for t, key in prepared.keys.items() if key in request.limits})
    return limit_to_what_counts(prepared.model, ranges, request.ops)
