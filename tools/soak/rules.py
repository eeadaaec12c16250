"""How a random graph grows: one rule for each op that the op table claims, and for some that stay float."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests import build
from zeropoint.dtypes import DType
from zeropoint.graph import Tensor

from .graphs import Growing, Shape, Spread

SAME, VALID = 0, 1
FUSED = (0, 0, 0, 1, 2, 3)
BOOL, INT32 = DType.BOOL, DType.INT32


@dataclass(frozen=True)
class Rule:
    """`grow` adds an op, or a few that belong together; or nothing, where no activation fits."""

    grow: Callable[[Growing], object]
    weight: float = 1.0


# One value.


def unary(kind: str, **values: Any) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value()) is not None:
            g.add(kind, [x], x.shape, **values)

    return grow


def positive(g: Growing, x: Tensor) -> Tensor:
    """The same numbers, away from zero."""
    least = g.constant((1,), Spread(0.1, 0.0))
    return g.add("ADD", [g.add("ABS", [x], x.shape), least], x.shape)


def of_positive(kind: str) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value()) is not None:
            g.add(kind, [positive(g, x)], x.shape)

    return grow


def exponential(g: Growing) -> None:
    if (x := g.value()) is not None:
        small = g.add("MINIMUM", [x, g.constant((1,), Spread(4.0, 0.0))], x.shape)
        g.add("EXP", [small], x.shape)


def leaky(g: Growing) -> None:
    if (x := g.value()) is not None:
        g.add("LEAKY_RELU", [x], x.shape, alpha=float(g.rng.uniform(0, 1)))


def prelu(g: Growing) -> None:
    if (x := g.value(4)) is not None:
        g.add("PRELU", [x, g.constant((1, 1, x.shape[-1]), Spread(0.0, 0.5))], x.shape)


def softmax(g: Growing) -> None:
    if (x := g.value(2, 3, 4)) is not None:
        g.add("SOFTMAX", [x], x.shape, beta=float(g.pick([1.0, 1.0, 0.5])))


def rowwise(kind: str) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value(2, 4)) is not None:
            g.add(kind, [x], x.shape)

    return grow


# Two values.


def partner(g: Growing, x: Tensor) -> Tensor:
    """Something to combine `x` with: of the same shape, a constant of it, of its channels, a single number, itself."""
    way = g.rng.random()
    alike = [t for t in g.values if t.shape == x.shape and t is not x]
    if alike and way < 0.6:
        return g.pick(alike)
    if way > 0.97:
        return x
    return g.constant(g.pick([x.shape, x.shape[-1:], (1,), ()]))


def binary(kind: str, *, fuses: bool = False) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value()) is None:
            return
        y = partner(g, x)
        pair = [y, x] if g.chance(0.3) else [x, y]
        g.add(kind, pair, x.shape, **({"fusedActivationFunction": g.pick(FUSED)} if fuses else {}))

    return grow


def division(g: Growing) -> None:
    if (x := g.value()) is None:
        return
    y = positive(g, partner(g, x)) if g.chance(0.5) else g.constant((x.shape[-1],), Spread(g.pick([3.0, 40.0]), 0.5))
    if len(y.shape) <= len(x.shape):
        g.add("DIV", [x, y], x.shape)


def comparison(g: Growing) -> None:
    if (x := g.value()) is not None:
        kind = g.pick(["GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "EQUAL", "NOT_EQUAL"])
        g.conditions.append(g.add(kind, [x, partner(g, x)], x.shape, dtype=BOOL))


def logic(g: Growing) -> None:
    if g.conditions:
        x = g.pick(g.conditions)
        alike = [t for t in g.conditions if t.shape == x.shape]
        operands = [x] if g.chance(0.5) else [x, g.pick(alike)]
        kind = "LOGICAL_NOT" if len(operands) == 1 else g.pick(["LOGICAL_AND", "LOGICAL_OR"])
        g.conditions.append(g.add(kind, operands, x.shape, dtype=BOOL))


def selection(g: Growing) -> None:
    if not g.conditions:
        comparison(g)
    if g.conditions:
        condition = g.conditions[-1]
        alike = [t for t in g.values if t.shape == condition.shape]
        if alike:
            x = g.pick(alike)
            g.add("SELECT_V2", [condition, x, partner(g, x)], x.shape)


# Layers.


def window(size: int, filter: int, stride: int, padding: int) -> int:
    return math.ceil(size / stride) if padding == SAME else max(0, (size - filter) // stride + 1)


def convolution(g: Growing) -> None:
    if (x := g.value(4)) is None:
        return
    n, h, w, c = x.shape
    side, stride, padding, made = g.pick([1, 3]), g.pick([1, 1, 2]), g.pick([SAME, VALID]), g.between(1, 6)
    shape = (n, window(h, side, stride, padding), window(w, side, stride, padding), made)
    if math.prod(shape):
        operands = [x, g.kernel(made, side, side, c, fan_in=side * side * c), g.constant((made,))]
        steps = {"strideW": stride, "strideH": stride, "padding": padding}
        g.add("CONV_2D", operands, shape, fusedActivationFunction=g.pick(FUSED), **steps)


def depthwise(g: Growing) -> None:
    if (x := g.value(4)) is None:
        return
    n, h, w, c = x.shape
    stride, times = g.pick([1, 1, 2]), g.pick([1, 1, 2])
    shape = (n, window(h, 3, stride, SAME), window(w, 3, stride, SAME), c * times)
    operands = [x, g.kernel(1, 3, 3, c * times, fan_in=9), g.constant((c * times,))]
    steps = {"strideW": stride, "strideH": stride, "depthMultiplier": times}
    g.add("DEPTHWISE_CONV_2D", operands, shape, fusedActivationFunction=g.pick(FUSED), **steps)


def transposed(g: Growing) -> None:
    if (x := g.value(4)) is not None:
        n, h, w, c = x.shape
        shape = (n, 2 * h, 2 * w, g.between(1, 3))
        kernel = g.kernel(shape[3], 3, 3, c, fan_in=9 * c)
        g.add("TRANSPOSE_CONV", [shape, kernel, x], shape, strideW=2, strideH=2, padding=SAME)


def dense(g: Growing) -> None:
    if (x := g.value(2, 3)) is None:
        return
    made, depth = g.between(1, 12), x.shape[-1]
    bias = g.constant((made,)) if g.chance(0.8) else None
    keeps = {"keepNumDims": True} if len(x.shape) == 3 else {}
    operands = [x, g.kernel(made, depth, fan_in=depth), bias]
    g.add("FULLY_CONNECTED", operands, (*x.shape[:-1], made), fusedActivationFunction=g.pick(FUSED), **keeps)


def matrix_product(g: Growing) -> None:
    if (x := g.value(3)) is None:
        return
    others = [t for t in g.values if len(t.shape) == 3 and t.shape[0] == x.shape[0] and t.shape[1] == x.shape[2]]
    made = g.between(1, 6)
    y = g.pick(others) if others else g.kernel(x.shape[0], x.shape[2], made, fan_in=x.shape[2])
    g.add("BATCH_MATMUL", [x, y], (*x.shape[:2], y.shape[2]))


def recurrent(g: Growing) -> None:
    """A layer of 4 cells that keeps its state from run to run."""
    if (x := g.value(3)) is None:
        return
    batch, steps, depth = x.shape
    operands: list[Tensor | None] = [x, *[None] * 19]
    for gate in range(4):
        operands[1 + gate] = g.kernel(4, depth, fan_in=depth)
        operands[5 + gate] = g.kernel(4, 4, fan_in=4)
        operands[12 + gate] = g.constant((4,), Spread(0.0, 0.5))
    for slot in (18, 19):
        state = build.act(f"state{len(g.ops)}_{slot}", batch, 4)
        state.is_variable = True
        operands[slot] = state
    g.add("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (batch, steps, 4), fusedActivationFunction=4)


# Pooling and reduction.


def pool(kind: str) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value(4)) is None:
            return
        n, h, w, c = x.shape
        side, stride = min(g.pick([2, 3]), h, w), g.pick([1, 2])
        shape = (n, window(h, side, stride, VALID), window(w, side, stride, VALID), c)
        steps = {"strideW": stride, "strideH": stride, "filterWidth": side, "filterHeight": side, "padding": VALID}
        g.add(kind, [x], shape, fusedActivationFunction=g.pick(FUSED), **steps)

    return grow


def resize(kind: str) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value(4)) is not None:
            size = [g.between(1, 7), g.between(1, 7)]
            corners = {"alignCorners": True} if g.chance(0.2) else {"halfPixelCenters": g.chance(0.5)}
            g.add(kind, [x, size], (x.shape[0], *size, x.shape[3]), **corners)

    return grow


def reduction(kind: str) -> Callable[[Growing], object]:
    def grow(g: Growing) -> None:
        if (x := g.value(2, 3, 4)) is None:
            return
        rank, keeps = len(x.shape), g.chance(0.5)
        axes = g.pick([[rank - 1], [1], list(range(1, rank))]) if rank > 2 or keeps else [1]
        kept = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
        flat = tuple(d for k, d in enumerate(x.shape) if k not in axes)
        g.add(kind, [x, axes], kept if keeps else flat, keepDims=keeps)

    return grow


def accumulated(g: Growing) -> None:
    if (x := g.value(2, 3)) is not None:
        g.add("CUMSUM", [x, np.int32(len(x.shape) - 1)], x.shape)


def search(g: Growing) -> None:
    if (x := g.value(2, 3)) is not None:
        g.add(g.pick(["ARG_MAX", "ARG_MIN"]), [x, np.int32(-1)], x.shape[:-1], dtype=INT32, outputType=2)


def greatest(g: Growing) -> None:
    if (x := g.value(1, 2)) is not None:
        most = g.between(1, x.shape[-1])
        shape = (*x.shape[:-1], most)
        made = g.add("TOPK_V2", [x, np.int32(most)], shape)
        g.ops[-1].outputs.append(build.act(f"{made.name}:1", *shape, dtype=INT32))


# Moving data.


def reshaped(g: Growing) -> None:
    if (x := g.value()) is not None:
        shapes: list[Shape] = [(1, x.size), (x.size,)]
        shapes += [(1, x.size // k, k) for k in (2, 3, 4) if x.size % k == 0]
        shapes += [(1, a, a, x.size // a**2) for a in (2, 3, 4) if x.size % a**2 == 0]
        shape = g.pick(shapes)
        g.add("RESHAPE", [x, list(shape)], shape, newShape=shape)


def permuted(g: Growing) -> None:
    if (x := g.value(2, 3, 4)) is not None:
        order = [0, *(1 + g.rng.permutation(len(x.shape) - 1))] if len(x.shape) > 2 else [1, 0]
        g.add("TRANSPOSE", [x, order], tuple(x.shape[k] for k in order))


def expanded(g: Growing) -> None:
    if (x := g.value(1, 2, 3)) is not None:
        axis = g.below(len(x.shape) + 1)
        g.add("EXPAND_DIMS", [x, np.int32(axis)], (*x.shape[:axis], 1, *x.shape[axis:]))


def squeezed(g: Growing) -> None:
    x = g.value(2, 3, 4)
    if x is not None and 1 in x.shape:
        axis = x.shape.index(1)
        g.add("SQUEEZE", [x], (*x.shape[:axis], *x.shape[axis + 1 :]), squeezeDims=(axis,))


def joined(g: Growing) -> None:
    if (x := g.value()) is not None:
        axis = len(x.shape) - 1
        fitting = [t for t in g.values if len(t.shape) == len(x.shape) and t.shape[:-1] == x.shape[:-1]]
        parts = [x, *(g.pick(fitting) for _ in range(g.between(0, 2)))]
        parts += [g.constant(x.shape)] if len(parts) == 1 or g.chance(0.1) else []
        g.add("CONCATENATION", parts, (*x.shape[:-1], sum(t.shape[-1] for t in parts)), axis=axis)


def stacked(g: Growing) -> None:
    if (x := g.value(1, 2, 3)) is not None:
        g.add("PACK", [x, partner_alike(g, x)], (2, *x.shape), valuesCount=2, axis=0)


def partner_alike(g: Growing, x: Tensor) -> Tensor:
    alike = [t for t in g.values if t.shape == x.shape and t is not x]
    return g.pick(alike) if alike else g.constant(x.shape)


def unstacked(g: Growing) -> None:
    x = g.value(2, 3, 4)
    if x is not None and x.shape[0] <= 4:
        g.add("UNPACK", [x], *[x.shape[1:]] * x.shape[0], num=x.shape[0], axis=0)


def split(g: Growing) -> None:
    x = g.value()
    if x is not None and x.shape[-1] % 2 == 0:
        half = (*x.shape[:-1], x.shape[-1] // 2)
        g.add("SPLIT", [np.int32(len(x.shape) - 1), x], half, half, numSplits=2)


def split_unevenly(g: Growing) -> None:
    x = g.value()
    if x is not None and x.shape[-1] > 2:
        sizes = [1, x.shape[-1] - 1]
        shapes = [(*x.shape[:-1], s) for s in sizes]
        g.add("SPLIT_V", [x, sizes, np.int32(len(x.shape) - 1)], *shapes, numSplits=2)


def sliced(g: Growing) -> None:
    x = g.value()
    if x is not None and x.shape[-1] > 1:
        begin = g.below(x.shape[-1] - 1)
        size = g.between(1, x.shape[-1] - begin)
        starts = [0] * (len(x.shape) - 1)
        if g.chance(0.5):
            g.add("SLICE", [x, [*starts, begin], [*x.shape[:-1], size]], (*x.shape[:-1], size))
        else:
            ends, steps = [*x.shape[:-1], begin + size], [1] * len(x.shape)
            g.add("STRIDED_SLICE", [x, [*starts, begin], ends, steps], (*x.shape[:-1], size))


def gathered(g: Growing) -> None:
    if (x := g.value()) is not None:
        axis = g.below(len(x.shape))
        wanted = [g.below(x.shape[axis]) for _ in range(g.between(1, 5))]
        g.add("GATHER", [x, wanted], (*x.shape[:axis], len(wanted), *x.shape[axis + 1 :]), axis=axis)


def padded(g: Growing) -> None:
    if (x := g.value(2, 3, 4)) is not None:
        widths = [[0, 0], *([g.below(2), g.below(2)] for _ in x.shape[1:])]
        shape = tuple(d + a + b for d, (a, b) in zip(x.shape, widths, strict=True))
        kind = g.pick(["PAD", "PADV2", "MIRROR_PAD"])
        if kind == "MIRROR_PAD" and min(x.shape[1:]) < 2:
            kind = "PAD"
        more = [g.constant(())] if kind == "PADV2" else []
        g.add(kind, [x, widths, *more], shape)


def repeated(g: Growing) -> None:
    if (x := g.value(2, 3)) is not None:
        times = [1] * (len(x.shape) - 1) + [2]
        g.add("TILE", [x, times], (*x.shape[:-1], 2 * x.shape[-1]))


def broadcast(g: Growing) -> None:
    if (x := g.value(1, 2)) is not None:
        shape = (2, *x.shape)
        g.add("BROADCAST_TO", [x, list(shape)], shape)


def reversed_(g: Growing) -> None:
    if (x := g.value(2, 3, 4)) is not None:
        g.add("REVERSE_V2", [x, [len(x.shape) - 1]], x.shape)


def blocks(g: Growing) -> None:
    """Between space and depth, or space and batch, in blocks of two by two."""
    if (x := g.value(4)) is None:
        return
    n, h, w, c = x.shape
    if h % 2 == 0 and w % 2 == 0 and g.chance(0.5):
        if g.chance(0.5):
            g.add("SPACE_TO_DEPTH", [x], (n, h // 2, w // 2, 4 * c), blockSize=2)
        else:
            apart = g.add("SPACE_TO_BATCH_ND", [x, [2, 2], [[0, 0], [0, 0]]], (4 * n, h // 2, w // 2, c))
            if g.chance(0.5):
                g.add("BATCH_TO_SPACE_ND", [apart, [2, 2], [[0, 0], [0, 0]]], x.shape)
    elif c % 4 == 0:
        g.add("DEPTH_TO_SPACE", [x], (n, 2 * h, 2 * w, c // 4), blockSize=2)
    elif n % 4 == 0:
        g.add("BATCH_TO_SPACE_ND", [x, [2, 2], [[0, 0], [0, 0]]], (n // 4, 2 * h, 2 * w, c))


# Other graphs.


def branch(g: Growing) -> None:
    """One of two graphs, by an input."""
    if (x := g.value()) is None or len(g.bodies) >= 4:
        return
    choices = [t for t in g.inputs if t.dtype is BOOL]
    choice = choices[0] if choices else g.input((), BOOL)
    sides = []
    for kind in ("ADD", "MUL"):
        name = f"{kind.lower()}_{len(g.bodies)}"
        a, b = build.act(f"{name}/x", *x.shape), build.act(f"{name}/y", *x.shape)
        weights = Tensor.constant(f"{name}/c", g.spread().draw(g.rng, x.shape), DType.FLOAT32)
        options = {"ADD": "AddOptions", "MUL": "MulOptions"}[kind]
        sides.append(build.graph(name, [a], [b], build.op(kind, [a, weights], b, options=options)))
    g.bodies += sides
    g.add("IF", [choice, x], x.shape, thenSubgraphIndex=sides[0], elseSubgraphIndex=sides[1])


FLOAT_ONLY = ("NEG", "SIGN", "SIN", "COS", "FLOOR", "CEIL", "ROUND", "SQUARE", "ZEROS_LIKE")
ANYWHERE = ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "HARD_SWISH", "ABS", "GELU", "LOGISTIC", "TANH")

RULES: tuple[Rule, ...] = (
    *(Rule(unary(kind), 0.5) for kind in ANYWHERE),
    *(Rule(unary(kind), 0.08) for kind in FLOAT_ONLY),
    *(Rule(of_positive(kind), 0.3) for kind in ("SQRT", "RSQRT", "LOG")),
    *(Rule(rowwise(kind), 0.4) for kind in ("LOG_SOFTMAX", "L2_NORMALIZATION")),
    *(Rule(binary(kind, fuses=True), 1.5) for kind in ("ADD", "SUB", "MUL")),
    *(Rule(binary(kind), 0.7) for kind in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")),
    *(Rule(pool(kind), 0.8) for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D")),
    *(Rule(resize(kind), 0.5) for kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")),
    *(Rule(reduction(kind), 0.6) for kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")),
    *(Rule(grow, 0.4) for grow in (exponential, leaky, prelu, softmax, division, comparison, logic, accumulated)),
    *(Rule(grow, 3.0) for grow in (convolution, dense)),
    *(Rule(grow, 1.5) for grow in (depthwise, transposed, matrix_product, reshaped)),
    *(Rule(grow, 0.6) for grow in (permuted, expanded, squeezed, stacked, unstacked, split, split_unevenly, sliced)),
    *(Rule(grow, 0.4) for grow in (gathered, padded, repeated, broadcast, reversed_, blocks, search, greatest)),
    *(Rule(grow, 1.0) for grow in (joined, selection)),
    *(Rule(grow, 0.1) for grow in (recurrent, branch)),
)
