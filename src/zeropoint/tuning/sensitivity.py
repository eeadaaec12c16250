"""Measures in the float model what each form of a layer's weights costs, and derives the order in which to save bytes.

Each layer gets its weights in the candidate form, with everything else in float, and the outputs are compared. Squared
errors of different layers nearly add up, so the choice for all layers at once is a knapsack: of all single moves to
fewer bytes, those on the lower convex hull of (bytes, error) are taken in order of error per byte saved. That is the
path of the Lagrangian relaxation; every position on it is a candidate, and few of them are tried.

Bits and granularity are one choice: a 3 × 3 depthwise convolution has nine 8-bit weights per channel, and its scales
take another 8 bytes, so that one scale for the whole layer can save more than fewer bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..affine import PerBlock, PerTensor, QuantParams
from ..bench.bench import Bench
from ..dtypes import DType
from ..graph.model import Op
from ..graph.query import Use
from ..improve.pipeline import accepted, judged_for, quantize_with
from ..ops import KernelSpec
from ..ops.execution import total_macs
from ..plan.plan import Constants, Packed, Plan, Planned, form_type
from ..plan.planner import plan_model
from ..plan.prepared import prepare_model
from ..plan.request import Request
from ..plan.rewrite import build
from ..recipe import FLOAT16, Recipe, Rule, Scheme
from ..targets import Target
from ..tflite import to_bytes

BITS = (DType.INT8, DType.INT4, DType.INT2)

BLOCK = 32
"""Block size if a kernel supports blocks: the finest."""

SMALLEST = 128
"""Smaller weights stay float: their scales would take as many bytes."""

COARSER = 0.95
"""A per-tensor scale is measured if it takes at most this share of the bytes with per-channel scales."""

SMALL_ERROR = 0.1
"""Relative output error up to which it is proportional to the noise of the weights."""

SAMPLES = 24
"""Maximum number of samples on which layers are tried."""

TRIAL_MACS = 4e11
"""Amount of work for all trials of single layers or ops, in multiply-accumulates; it may limit the samples further."""


@dataclass(frozen=True)
class Choice:
    """One form of a layer's weights: its bytes, and the output error it causes by itself; `noise` is the power of the
    rounding errors of the weights, in the layer's own unit."""

    scheme: Scheme
    bytes: int
    error: float
    noise: float = 0.0


@dataclass(frozen=True)
class Layer:
    """An op with weights, by kind and name, and its choices. If `is_replaced`, the mode computes it with an op of
    another kind, so that only the name identifies it."""

    kind: str
    name: str
    choices: tuple[Choice, ...]
    is_replaced: bool = False

    def hull(self) -> tuple[Choice, ...]:
        """The choices that are optimal for some price per byte, largest first."""
        kept: list[Choice] = []
        for choice in sorted(self.choices, key=lambda c: (-c.bytes, -c.error)):
            while kept and (kept[-1].error >= choice.error or _dearer(kept, choice)):
                kept.pop()
            kept.append(choice)
        return tuple(kept)

    def choice(self, scheme: Scheme) -> Choice:
        return next(c for c in self.choices if c.scheme == scheme)

    @property
    def label(self) -> str:
        return f"{self.kind} '{self.name}'"


def _price(wide: Choice, narrow: Choice) -> float:
    """Return the error per byte that the move saves."""
    return (narrow.error - wide.error) / max(1, wide.bytes - narrow.bytes)


def _dearer(kept: Sequence[Choice], choice: Choice) -> bool:
    """Whether moving to the last one costs more per byte than moving on to `choice`."""
    return len(kept) > 1 and _price(kept[-2], kept[-1]) >= _price(kept[-1], choice)


Config = tuple[Scheme, ...]
"""The form of each layer's weights."""


def path(layers: Sequence[Layer]) -> list[Config]:
    """Return configurations from all layers at their largest to all at their smallest, one move at a time."""
    hulls = [layer.hull() for layer in layers]
    moves = sorted(
        (_price(hull[k], hull[k + 1]), place, k + 1) for place, hull in enumerate(hulls) for k in range(len(hull) - 1)
    )
    at = [hull[0].scheme for hull in hulls]
    found = [tuple(at)]
    for _, place, k in moves:
        at[place] = hulls[place][k].scheme
        found.append(tuple(at))
    return found


def usual_config(layers: Sequence[Layer], base: Scheme) -> Config:
    """Return all layers in the mode's default form; layers without a kernel for that, at their largest."""
    usual = weight_forms(base)[0]
    return tuple(usual if any(c.scheme == usual for c in layer.choices) else layer.hull()[0].scheme for layer in layers)


def config_bytes(layers: Sequence[Layer], config: Config) -> int:
    return sum(layer.choice(scheme).bytes for layer, scheme in zip(layers, config, strict=True))


def config_error(layers: Sequence[Layer], config: Config) -> float:
    """Return the error of all layers together: squared errors of different layers nearly add up."""
    return sum(layer.choice(scheme).error for layer, scheme in zip(layers, config, strict=True))


def weight_forms(base: Scheme) -> tuple[Scheme, ...]:
    """Return the forms of a layer's weights in a mode, the default first."""
    usual = replace(base, min_elements=SMALLEST) if base.activations is None else base
    channels = [replace(usual, weights=dtype) for dtype in BITS]
    others: list[Scheme] = []
    if base.label == "dynamic":  # hybrid kernels need per-channel scales, or blocks
        others.append(replace(channels[1], granularity=PerBlock(1, BLOCK)))
    else:
        # LiteRT's delegate (2.3) dequantizes 8-bit weights with one scale in every run, others only once.
        coarse = channels[1:2] if base.unpacked else channels[:2]
        others += [replace(scheme, granularity=PerTensor()) for scheme in coarse]
    if base.activations is None:
        others.append(replace(FLOAT16, min_elements=SMALLEST))
    return (*channels, *others)


def on_affordable_rows(bench: Bench, macs: int, most: int) -> Bench:
    """Return the bench on at most `most` of its rows, as many as TRIAL_MACS allow if one row takes `macs` in all trials
    together; at least two."""
    return bench.on(bench.rows[: max(2, min(most, int(TRIAL_MACS / max(1, macs))))])


def weight_layers(bench: Bench, calibrated: Callable[[int], Bench], target: Target, base: Scheme) -> tuple[Layer, ...]:
    """Return the layers of the model of `bench`, as prepared for `target`, with the cost of each choice.

    Weights are rounded as they would be in a model of such layers alone, with the samples of `calibrated`.
    """
    plans = {scheme: _uniform(calibrated, bench, scheme, target) for scheme in weight_forms(base)}
    by_name = {scheme: _by_name(planned.plans[0]) for scheme, planned in plans.items()}
    first = next(iter(plans.values())).plans[0]
    ops = [op for op in by_name[next(iter(plans))].values() if _held(first, op)]
    # Blocks are planned for hybrid kernels, other forms in float arithmetic.
    in_mode = next((named for scheme, named in by_name.items() if scheme.block is not None), {})
    macs = total_macs(bench.entry.graph.ops, bench.ops)
    runs = len(ops) * len(plans)
    judge = on_affordable_rows(bench, macs * runs, SAMPLES)

    def choices(op: Op) -> Iterator[Choice]:
        known: dict[DType | None, int] = {}
        kernels = bench.ops[in_mode.get(op.name, op).kind].kernels
        for scheme, planned in plans.items():
            twin = by_name[scheme].get(op.name)
            if twin is None:  # something else replaced it in this form
                continue
            held = _held(planned.plans[0], twin)
            size = _bytes(twin, held, scheme)
            usual = known.setdefault(scheme.weights, size)
            if not _has_kernel(kernels, scheme) or _is_pointless(scheme, held, size / usual):
                continue
            error = judge.error(build(_alone(planned, twin), bench.ops))
            yield Choice(scheme, size, error, _noise(held))

    def layer(op: Op) -> Layer:
        return Layer(op.label, op.name, unsaturated(tuple(choices(op))), in_mode.get(op.name, op).label != op.label)

    return tuple(found for found in map(layer, ops) if found.choices)


def layers_content(layers: Sequence[Layer], base: Scheme) -> list[dict[str, Any]]:
    """Return layers of a mode as JSON values; a scheme is its position among the mode's forms."""
    forms = weight_forms(base)
    return [
        {**asdict(layer), "choices": [[forms.index(c.scheme), c.bytes, c.error, c.noise] for c in layer.choices]}
        for layer in layers
    ]


def layers_from(content: Any, base: Scheme) -> tuple[Layer, ...] | None:
    """Return the layers that `layers_content` wrote, or None if it did not write this."""
    forms = weight_forms(base)
    try:
        return tuple(
            Layer(**{**kept, "choices": tuple(Choice(forms[form], *rest) for form, *rest in kept["choices"])})
            for kept in content
        )
    except (TypeError, ValueError, LookupError):
        return None


def unsaturated(choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return choices with large errors corrected to grow at least as fast as the noise of the weights.

    Outputs that have little in common with the float model's do not get much further away from them, so 2 bits would
    seem to cost no more than 4 once both are useless.
    """
    found, finer = list(choices), None
    for place in sorted((k for k, c in enumerate(choices) if c.noise > 0), key=lambda k: choices[k].noise):
        own = found[place]
        if finer is not None and own.error > SMALL_ERROR:
            own = replace(own, error=max(own.error, finer.error * own.noise / finer.noise))
        found[place] = finer = own
    return tuple(found)


def _noise(held: Mapping[Use, Packed]) -> float:
    """Return a number proportional to the squared steps: no unit is needed to compare choices of one layer."""
    forms = [packed.form for packed in held.values()]
    return sum(float(np.mean(np.square(form.scales))) for form in forms if isinstance(form, QuantParams))


def _has_kernel(kernels: KernelSpec, scheme: Scheme) -> bool:
    """Whether an op's weights can have this form in this kind of arithmetic; otherwise they would be wider."""
    if scheme.activations is not None:
        return scheme.weights in kernels.weights.get(scheme.activations, (DType.INT8,))
    return scheme.unpacked or scheme.weights in kernels.hybrid


def _is_pointless(scheme: Scheme, held: Mapping[Use, Packed], share: float) -> bool:
    """Whether a granularity is not available here, or saves too little to be measured."""
    if scheme.per_tensor:
        return share > COARSER
    forms = [packed.form for packed in held.values()]
    has_blocks = any(isinstance(form, QuantParams) and form.block for form in forms)
    return not forms or (scheme.block is not None and not has_blocks)


def _bytes(op: Op, held: Mapping[Use, Packed], scheme: Scheme) -> int:
    """Return the bytes of the op's constants in this form, including scales; zero points that are all zero are
    shared."""
    forms = {use.slot: packed.form for use, packed in held.items()}
    constants = ((slot, t) for slot, t in enumerate(op.inputs) if t is not None and t.data is not None)
    total = sum(-(-t.size * form_type(forms.get(slot, t.dtype)).bits // 8) for slot, t in constants)
    scales = [form for form in forms.values() if isinstance(form, QuantParams)]
    of_biases = 1 if scheme.activations is None else 2  # in integer arithmetic, biases have scales as well
    return total + sum((2 if form.block else 4 * of_biases) * len(form.scales) for form in scales)


def _request(bench: Bench, scheme: Scheme, target: Target) -> Request:
    """Return the request for all layers in this form, in float arithmetic; blocks exist only for hybrid kernels."""
    measured = scheme if scheme.block is not None else replace(scheme, activations=None, unpacked=True)
    recipe = Recipe((Rule(replace(measured, min_elements=SMALLEST)),))
    return Request(recipe, ops=bench.ops, target=target)


def _uniform(calibrated: Callable[[int], Bench], bench: Bench, scheme: Scheme, target: Target) -> Planned:
    """Return the plan for all layers in this form, with the effort that is spent on candidates."""
    request = accepted(bench.model, _request(bench, scheme, target))
    judged = judged_for(request)
    if not judged:
        return plan_model(prepare_model(bench.model, request), request)
    return quantize_with(calibrated(judged), request).planned


def usual_size(bench: Bench, target: Target, base: Scheme) -> int:
    """Return the bytes of the model with all layers in the default form of `base`, a mode that computes in float."""
    request = Request(Recipe((Rule(weight_forms(base)[0]),)), effort="quick", ops=bench.ops, target=target)
    return len(to_bytes(build(plan_model(prepare_model(bench.model, request), request), bench.ops)))


def _held(plan: Plan, op: Op) -> Mapping[Use, Packed]:
    return {use: packed for use, packed in plan.packed.items() if use.op is op}


def _by_name(plan: Plan) -> dict[str, Op]:
    """Return the ops that a recipe can name."""
    names = Counter(op.name for op in plan.graph.ops)
    return {op.name: op for op in plan.graph.ops if names[op.name] == 1}


def _alone(planned: Planned, op: Op) -> Planned:
    """Return the plan with only the weights of this op in planned form, and its corrected bias."""
    first, *others = planned.plans
    keys = {use: key for use, key in first.constants.keys.items() if use.op is op}
    values = {key: first.constants.values[key] for key in keys.values()}
    own = replace(first, packed=_held(first, op), constants=Constants(values, keys))
    return replace(planned, plans=(own, *(replace(p, packed={}, constants=Constants()) for p in others)))


def narrowed(layers: Sequence[Layer], config: Config) -> Recipe:
    """Return the recipe for this configuration: one rule for all layers, one for each layer that differs."""
    usual = Counter(config).most_common(1)[0][0]
    rules = [Rule(usual)]
    for layer, scheme in zip(layers, config, strict=True):
        if scheme != usual:
            rules.append(Rule(scheme, ops="*" if layer.is_replaced else layer.kind, name=layer.name))
    return Recipe(tuple(rules))


def described(config: Config) -> str:
    """Return a description: of 27 layers 2 in 8 bits, 25 in 4; 3 of them with one scale."""
    widths = Counter(scheme.weights.bits for scheme in config if scheme.weights is not None)
    first, *others = (f"{widths[bits]} in {bits}" for bits in sorted(widths, reverse=True))
    text = f"of {len(config)} layers {', '.join([f'{first} bits', *others])}"
    single, blocks = sum(s.per_tensor for s in config), sum(s.block is not None for s in config)
    text += f"; {single} with one scale" if single else ""
    return f"{text}; {blocks} in blocks of {BLOCK}" if blocks else text
