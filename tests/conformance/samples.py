"""One-op float models for every row of the op table, and how near its integer kernels come to the float ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Op, Tensor
from zeropoint.ops import OPS, Activation, Bias, OpSpec
from zeropoint.runtime import Session
from zeropoint.tflite.schema import default_options, dtype_code, option_types

from .. import build

INT8, INT16, INT32, INT64 = DType.INT8, DType.INT16, DType.INT32, DType.INT64
SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6, TANH = range(5)

# Operands. An object that stands in two places of an op is one tensor in both.


@dataclass(frozen=True, eq=False)
class Fed:
    """An input of the model, drawn anew for each run."""

    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]

    def tensor(self, name: str) -> Tensor:
        drawn = self.draw(np.random.default_rng(0), self.shape)
        return build.act(name, *self.shape, dtype=DType.parse(drawn.dtype.name))


@dataclass(frozen=True, eq=False)
class Held:
    """A constant of the model."""

    data: Array

    def tensor(self, name: str) -> Tensor:
        return build.const(name, self.data)


@dataclass(frozen=True, eq=False)
class State:
    """Kept from one run to the next."""

    shape: tuple[int, ...]

    def tensor(self, name: str) -> Tensor:
        return replace(build.act(name, *self.shape), is_variable=True)


Operand = Fed | Held | State | None


def x(*shape: int, low: float = -2.0, high: float = 3.0) -> Fed:
    """Reals, by default such that zero is not in the middle. Where they may be zero, a few are, or nearly so."""

    def draw(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
        values = rng.uniform(low, high, size)
        small = values * rng.choice([0.0, 1e-4, 1e-2], size)
        return np.where((rng.random(size) < 0.1) & (low <= 0 <= high), small, values).astype(np.float32)

    return Fed(shape, draw)


LEVEL = 16
"""Such that int8 and int16 kernels alike can compare levels: both have limits."""


def levels(*shape: int, low: int = -7, high: int = 8) -> Fed:
    """Whole numbers, often equal: neighbours are many quantization steps apart."""
    return Fed(shape, lambda rng, size: LEVEL * rng.integers(low, high, size, endpoint=True).astype(np.float32))


def powers(*shape: int) -> Fed:
    """Reals whose int16 scale, and that of the sum of two such, is a power of two."""
    peak = 32767 / 2**14
    return Fed(shape, lambda rng, size: (peak * rng.choice([-1, -0.3, 0.2, 1], size)).astype(np.float32))


def ranks(*shape: int) -> Fed:
    """Whole numbers, no two of them equal."""
    return Fed(shape, lambda rng, size: rng.permutation(np.prod(size)).reshape(size).astype(np.float32) - 3)


def truths(*shape: int) -> Fed:
    return Fed(shape, lambda rng, size: rng.random(size) < 0.5)


def indices(*shape: int, below: int) -> Fed:
    return Fed(shape, lambda rng, size: rng.integers(0, below, size).astype(np.int32))


def w(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> Held:
    """Weights."""
    rng = np.random.default_rng((seed, *shape))
    return Held(rng.uniform(low, high, shape).astype(np.float32))


def ints(values: Any) -> Held:
    return Held(np.array(values, np.int32))


def reals(values: Any) -> Held:
    return Held(np.array(values, np.float32))


# Models.

IRREGULAR = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "SUM": "ReducerOptions",
}
"""Tables of options that are not called as their op is."""

REGULAR = {name.lower(): name for name in option_types()}


@dataclass(frozen=True)
class Loose:
    """More than the usual number of units in the last place, and what takes them."""

    units: float
    reason: str


@dataclass(frozen=True, eq=False)
class Sample:
    """A model of one op. `types` are those of its outputs; `becomes` is the kind that it is turned into, if it is;
    `loose` is what its results may be off by if that is more than for others of the kind."""

    kind: str
    name: str
    operands: tuple[Operand, ...]
    types: tuple[DType, ...] = (DType.FLOAT32,)
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    becomes: str | None = None
    loose: Loose | None = None

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"

    def model(self) -> Model:
        """The float model."""
        model = self._shapeless()
        for output, shape in zip(model.main.outputs, self._shapes, strict=True):
            output.shape = shape
        return model

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the outputs. LiteRT itself tells them."""
        details = Session(self._shapeless(), kernels="optimized").outputs
        return [tuple(map(int, detail["shape"])) for detail in details]

    def _shapeless(self) -> Model:
        made: dict[Operand, Tensor | None] = {None: None}
        for k, operand in enumerate(self.operands):
            if operand is not None and operand not in made:
                made[operand] = operand.tensor(f"in{k}")
        inputs = [made[operand] for operand in self.operands]
        outputs = [build.act(f"out{k}", dtype=dtype) for k, dtype in enumerate(self.types)]
        table = IRREGULAR.get(self.kind) or REGULAR.get(f"{self.kind.replace('_', '')}Options".lower())
        options = default_options(table, **self.options) if table else None
        op = Op(self.kind, inputs, outputs, options, self.version)
        fed = [tensor for operand, tensor in made.items() if isinstance(operand, Fed) and tensor is not None]
        return Model([build.graph("main", fed, outputs, op)])

    def scaled(self, first: float, others: float) -> Sample:
        """The same op on numbers that are so many times as large: the first that flow through it, and all others."""
        spec, made = OPS[self.becomes or self.kind], dict[Operand, Operand]()
        flowing = [k for k in range(len(self.operands)) if isinstance(spec.input_role(k), Activation)]
        for slot, operand in enumerate(self.operands):
            factor = first if slot in flowing[:1] else others
            if isinstance(spec.input_role(slot), Bias):
                factor = first * others
            made.setdefault(operand, _scaled(operand, factor))
        return replace(self, operands=tuple(made[operand] for operand in self.operands))

    def draw(self, count: int) -> list[tuple[Array, ...]]:
        """Inputs for `count` runs, always the same."""
        rng = np.random.default_rng(len(self.name))
        fed = [o for o in dict.fromkeys(self.operands) if isinstance(o, Fed)]
        return [tuple(o.draw(rng, o.shape) for o in fed) for _ in range(count)]


def _scaled(operand: Operand, factor: float) -> Operand:
    if isinstance(operand, Held) and operand.data.dtype == np.float32:
        return Held((operand.data * np.float64(factor)).astype(np.float32))
    if isinstance(operand, Fed) and operand.tensor("").dtype is DType.FLOAT32:
        drawn = operand.draw
        return replace(operand, draw=lambda rng, size: (drawn(rng, size) * np.float64(factor)).astype(np.float32))
    return operand


def sample(kind: str, name: str, *operands: Operand, version: int = 1, fused: int = NONE, **options: Any) -> Sample:
    """A sample with one float output."""
    applied = {"fusedActivationFunction": fused} if fused else {}
    return Sample(kind, name, operands, version=version, options={**options, **applied})


def unary(kind: str, low: float = -4.0, high: float = 7.0, **options: Any) -> Sample:
    """A function of one value, over [low, high]."""
    return sample(kind, "values", x(2, 5, 4, 7, low=low, high=high), **options)


def arithmetic(kind: str) -> tuple[Sample, ...]:
    one = x(1, 3, 4, 5)
    return (
        sample(kind, "two", x(1, 3, 4, 5), x(1, 3, 4, 5, low=-1, high=9)),
        sample(kind, "broadcast", x(2, 3, 4, 5), x(1, 1, 5, low=0, high=0.5)),
        sample(kind, "twice", one, one),
        sample(kind, "powers_of_two", powers(1, 3, 4, 5), powers(1, 3, 4, 5)),
        sample(kind, "constant", x(1, 3, 4, 5), w(1, 3, 4, 5)),
        sample(kind, "constant_first", w(5, low=0.5, high=4), x(1, 3, 4, 5)),
        sample(kind, "channels", x(1, 3, 4, 5), w(5, low=-3, high=-1)),
        sample(kind, "scalar", x(1, 3, 4, 5), reals(-1.3)),
        sample(kind, "scalar_first", reals(0.7), x(1, 3, 4, 5)),
        sample(kind, "relu", x(2, 9), x(2, 9), fused=RELU),
        sample(kind, "relu6", x(2, 9, high=6), x(2, 9, high=6), fused=RELU6),
        sample(kind, "relu_n1_to_1", x(2, 9), w(9), fused=RELU_N1_TO_1),
    )


def divisions() -> tuple[Sample, ...]:
    """By constants, which makes them products."""
    made = (
        sample("DIV", "channels", x(1, 3, 4, 5), w(5, low=0.5, high=4)),
        sample("DIV", "negative", x(1, 3, 4, 5), reals([-2, 0.7, 3, -0.5, 1.1])),
        sample("DIV", "spread", x(1, 3, 4, 5), reals([100, 0.01, 1, 30, -0.3])),
        sample("DIV", "scalar", x(1, 3, 4, 5), reals(1.7)),
        sample("DIV", "relu", x(2, 9), reals(-3), fused=RELU),
    )
    return tuple(replace(each, becomes="MUL") for each in made)


def extremes(kind: str) -> tuple[Sample, ...]:
    return (
        sample(kind, "two", x(2, 3, 4), x(2, 3, 4, low=0, high=9)),
        sample(kind, "broadcast", x(2, 3, 4), x(3, 1)),
        sample(kind, "scalar", x(2, 3, 4), reals(0.4)),
        sample(kind, "constant_first", w(4), x(2, 3, 4)),
    )


def reductions(kind: str) -> tuple[Sample, ...]:
    return (
        sample(kind, "image", x(2, 5, 6, 3), ints([1, 2]), keepDims=True),
        sample(kind, "image_flat", x(2, 5, 6, 3), ints([1, 2])),
        sample(kind, "last", x(2, 5, 6), ints([-1]), keepDims=True),
        sample(kind, "last_flat", x(2, 5, 6), ints(-1)),
        sample(kind, "middle", x(2, 5, 6), ints([1])),
        sample(kind, "all", x(2, 5, 6), ints([0, 1, 2])),
    )


def searches(kind: str) -> tuple[Sample, ...]:
    return (
        Sample(kind, "last", (ranks(3, 12), ints(-1)), (INT32,), options={"outputType": dtype_code(INT32)}),
        Sample(kind, "first", (ranks(3, 4, 2), ints([0])), (INT64,), options={"outputType": dtype_code(INT64)}),
    )


def pools(kind: str) -> tuple[Sample, ...]:
    window = {"strideW": 2, "strideH": 1, "filterWidth": 3, "filterHeight": 2}
    whole = {"strideW": 1, "strideH": 1, "filterWidth": 4, "filterHeight": 3}
    return (
        sample(kind, "same", x(2, 6, 7, 5), padding=SAME, **window),
        sample(kind, "valid", x(2, 6, 7, 5), padding=VALID, **window),
        sample(kind, "relu6", x(1, 6, 7, 5, high=9), padding=SAME, fused=RELU6, **window),
        replace(
            sample(kind, "whole", x(2, 3, 4, 5), padding=VALID, **whole),
            becomes="MEAN" if kind == "AVERAGE_POOL_2D" else None,
        ),
    )


def resizes(kind: str) -> tuple[Sample, ...]:
    return (
        sample(kind, "larger", x(1, 3, 4, 2), ints([7, 8])),
        sample(kind, "half_pixel", x(1, 3, 4, 2), ints([6, 8]), version=3, halfPixelCenters=True),
        sample(kind, "align_corners", x(1, 5, 5, 2), ints([9, 3]), version=3, alignCorners=True),
    )


def paddings(kind: str, *more: Operand) -> tuple[Sample, ...]:
    return (
        sample(kind, "image", x(1, 3, 4, 2), ints([[0, 0], [1, 2], [2, 1], [0, 0]]), *more),
        sample(kind, "matrix", x(3, 4, low=1, high=2), ints([[2, 0], [0, 1]]), *more),
    )


def comparisons(kind: str) -> tuple[Sample, ...]:
    pairs = {
        "two": (levels(3, 40), levels(3, 40, low=-3, high=4)),
        "broadcast": (levels(2, 3, 40), levels(40, low=0, high=5)),
        "constant": (levels(3, 40), reals(LEVEL * (np.arange(40) % 7))),
        "scalar_first": (reals(3 * LEVEL), levels(3, 40)),
    }
    return tuple(Sample(kind, name, pair, (DType.BOOL,)) for name, pair in pairs.items())


def selections(kind: str) -> tuple[Sample, ...]:
    return (
        sample(kind, "elements", truths(2, 3, 4), x(2, 3, 4), x(2, 3, 4, low=0, high=9)),
        sample(kind, "rows", truths(2), x(2, 3, 4), x(2, 3, 4, low=0, high=9))
        if kind == "SELECT"
        else sample(kind, "broadcast", truths(3, 1), x(2, 3, 4), w(4)),
        sample(kind, "scalar", truths(), x(2, 3, 4), x(2, 3, 4, low=0, high=9)),
    )


def lstm(
    name: str,
    *,
    coupled: bool = False,
    peephole: bool = False,
    projection: bool = False,
    normalized: bool = False,
    loose: Loose | None = None,
    **options: Any,
) -> Sample:
    """Two sequences of 6 steps: 5 inputs, 4 cells, which a projection makes 3 outputs of."""
    outputs = 3 if projection else 4
    gates = range(1 if coupled else 0, 4)
    shape = (6, 2, 5) if options.get("timeMajor") else (2, 6, 5)
    operands: list[Operand] = [None] * (24 if normalized else 20)
    # Next to nothing, normalized, is noise: the sums of few cells must not come near it.
    operands[0] = x(*shape, low=1, high=3) if normalized else x(*shape)
    for gate in gates if normalized else ():
        operands[20 + gate] = w(4, low=0.5, high=1.5, seed=20 + gate)
    for gate in gates:
        operands[1 + gate] = w(4, 5, seed=gate)
        operands[5 + gate] = w(4, outputs, seed=gate)
        operands[12 + gate] = w(4, seed=gate)
    # Hidden values are rounded to 8 bits before a projection: one that hardly mixes them adds up few of these errors.
    operands[16] = reals(np.eye(3, 4) + w(3, 4, seed=16).data / 10) if projection else None
    for slot, gate in ((9, 0), (10, 1), (11, 3)):
        operands[slot] = w(4, seed=slot) if peephole and gate in gates else None
    operands[18:20] = [State((2, outputs)), State((2, 4))]
    made = sample("UNIDIRECTIONAL_SEQUENCE_LSTM", name, *operands, fused=TANH, **options)
    return replace(made, loose=loose)


def both_ways(name: str, *, peephole: bool = False, projection: bool = False, **options: Any) -> Sample:
    """Two sequences of 6 steps: 5 inputs, 4 cells, forwards and backwards.

    With the sequences first and merged outputs, LiteRT 2.3 reads memory that was never written, in float as well.
    """
    outputs, merged = 3 if projection else 4, bool(options.get("mergeOutputs"))
    operands: list[Operand] = [x(6, 2, 5) if merged else x(2, 6, 5)] + [None] * 47
    for first in (1, 18):
        for gate in range(4):
            operands[first + gate] = w(4, 5, seed=first + gate)
            operands[first + 4 + gate] = w(4, outputs, seed=first + gate)
            operands[first + 11 + gate] = w(4, seed=first + gate)
        for slot in range(first + 8, first + 11):
            operands[slot] = w(4, seed=slot) if peephole else None
        operands[first + 15] = w(outputs, 4, seed=first) if projection else None
    operands[35:39] = [State((2, size)) for size in (outputs, 4, outputs, 4)]
    types = (DType.FLOAT32,) if merged else (DType.FLOAT32, DType.FLOAT32)
    options = {"timeMajor": merged, "fusedActivationFunction": TANH, **options}
    return Sample("BIDIRECTIONAL_SEQUENCE_LSTM", name, tuple(operands), types, options=options)


STEP = {"strideW": 1, "strideH": 1}
STRIDE = {"strideW": 2, "strideH": 2}
DILATED = {**STEP, "dilationWFactor": 2, "dilationHFactor": 2}

COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")

# fmt: off
SAMPLES: tuple[Sample, ...] = (
    sample("CONV_2D", "same", x(1, 7, 6, 3), w(4, 3, 3, 3), w(4), padding=SAME, **STEP),
    sample("CONV_2D", "pointwise", x(2, 5, 5, 8), w(3, 1, 1, 8), w(3), padding=VALID, **STEP),
    sample("CONV_2D", "stride", x(1, 9, 8, 3), w(4, 3, 2, 3), w(4), padding=VALID, fused=RELU, **STRIDE),
    sample("CONV_2D", "relu6", x(1, 9, 8, 3), w(4, 3, 3, 3), w(4), padding=SAME, fused=RELU6, **STEP),
    sample("CONV_2D", "dilated", x(1, 9, 8, 3), w(4, 3, 3, 3), w(4), padding=SAME, **DILATED),
    sample("CONV_2D", "grouped", x(1, 6, 6, 4), w(6, 3, 3, 2), w(6), version=6, padding=SAME, **STEP),
    sample("DEPTHWISE_CONV_2D", "same", x(1, 7, 6, 5), w(1, 3, 3, 5), w(5), padding=SAME, depthMultiplier=1, **STEP),
    sample("DEPTHWISE_CONV_2D", "multiplier", x(1, 9, 8, 3), w(1, 3, 3, 6), w(6), padding=VALID, depthMultiplier=2,
           fused=RELU, **STRIDE),
    sample("DEPTHWISE_CONV_2D", "dilated", x(1, 9, 8, 4), w(1, 3, 3, 4), w(4), version=2, padding=SAME,
           depthMultiplier=1, fused=RELU6, **DILATED),
    sample("TRANSPOSE_CONV", "bare", ints([1, 8, 8, 3]), w(3, 3, 3, 2), x(1, 4, 4, 2), padding=SAME, **STRIDE),
    sample("TRANSPOSE_CONV", "bias", ints([1, 9, 9, 3]), w(3, 3, 3, 2), x(1, 4, 4, 2), w(3), version=3, padding=VALID,
           **STRIDE),
    sample("TRANSPOSE_CONV", "relu", ints([1, 4, 4, 3]), w(3, 3, 3, 2), x(1, 4, 4, 2), w(3), version=4, padding=SAME,
           fused=RELU, **STEP),
    sample("FULLY_CONNECTED", "bias", x(4, 9), w(6, 9), w(6)),
    sample("FULLY_CONNECTED", "relu", x(4, 8), w(6, 8), w(6), fused=RELU),
    sample("FULLY_CONNECTED", "keep_num_dims", x(2, 3, 8), w(6, 8), w(6), version=5, keepNumDims=True),
    sample("FULLY_CONNECTED", "no_bias", x(4, 8), w(6, 8), version=6),
    sample("FULLY_CONNECTED", "no_bias_either", x(2, 3, 8), w(6, 8), None, version=6),
    sample("BATCH_MATMUL", "two", x(2, 3, 4), x(2, 4, 5, low=-1, high=9)),
    sample("BATCH_MATMUL", "left_transposed", x(2, 4, 3), x(2, 4, 5), adjX=True),
    sample("BATCH_MATMUL", "right_transposed", x(2, 3, 4), x(2, 5, 4), adjY=True),
    sample("BATCH_MATMUL", "broadcast", x(2, 3, 3, 4), x(1, 3, 4, 5)),
    sample("BATCH_MATMUL", "broadcast_transposed", x(2, 3, 5, 4), x(2, 1, 6, 4), adjY=True),
    sample("BATCH_MATMUL", "constant", x(2, 3, 4), w(2, 4, 5)),
    sample("BATCH_MATMUL", "constant_transposed", x(2, 3, 4), w(5, 4, low=0), adjY=True),
    sample("BATCH_MATMUL", "constant_first", w(2, 3, 4), x(2, 4, 5)),
    lstm("plain"),
    lstm("clip", cellClip=0.5),
    lstm("coupled", coupled=True),
    lstm("peephole", peephole=True),
    lstm("coupled_peephole", coupled=True, peephole=True),
    lstm("time_major", timeMajor=True),
    lstm("projection", projection=True),
    lstm("projection_clip", projection=True, projClip=0.7),
    lstm("projection_coupled", projection=True, coupled=True),
    lstm("normalized", normalized=True),
    lstm("normalized_coupled_peephole", normalized=True, coupled=True, peephole=True),
    lstm("normalized_projection", normalized=True, projection=True, loose=Loose(2, "hidden values of 8 bits")),
    sample("SVDF", "two", x(2, 5), w(6, 5), w(6, 4), w(3), State((2, 24)), rank=2, fused=RELU),
    sample("SVDF", "relu", x(2, 5), w(6, 5), w(6, 4), None, State((2, 24)), rank=1, fused=RELU),
    *arithmetic("ADD"),
    *arithmetic("SUB"),
    *arithmetic("MUL"),
    *divisions(),
    sample("SQUARED_DIFFERENCE", "two", x(1, 3, 4, 5), x(1, 3, 4, 5, low=-1, high=9)),
    sample("SQUARED_DIFFERENCE", "broadcast", x(2, 3, 4, 5), x(2, 3, 4, 1)),
    sample("SQUARED_DIFFERENCE", "constant", x(1, 3, 4, 5), w(5)),
    *extremes("MAXIMUM"),
    *extremes("MINIMUM"),
    *(unary(kind) for kind in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "HARD_SWISH", "ABS")),
    unary("LEAKY_RELU", alpha=0.3),
    sample("PRELU", "channels", x(1, 3, 4, 5), w(1, 1, 5)),
    sample("PRELU", "elements", x(2, 3, 5), w(3, 5, low=0.1)),
    unary("GELU"),
    sample("GELU", "approximate", x(2, 90, low=-4, high=7), approximate=True),
    unary("LOGISTIC"),
    unary("TANH"),
    unary("RSQRT", 0.3, 5),
    unary("SQRT", 0, 5),
    unary("EXP", -3, 2),
    unary("LOG", 0.3, 5),
    unary("SIN"),
    unary("COS"),
    sample("POW", "cube", x(2, 5, 4, 7), reals(3)),
    sample("POW", "negative", x(2, 5, 4, 7, low=0.3, high=5), reals([-0.7])),
    sample("SOFTMAX", "rows", x(4, 11, low=-5, high=5), beta=1.0),
    sample("SOFTMAX", "pixels", x(1, 3, 4, 9), beta=0.7),
    sample("LOG_SOFTMAX", "rows", x(4, 11, low=-5, high=5)),
    sample("L2_NORMALIZATION", "rows", x(4, 11)),
    sample("L2_NORMALIZATION", "pixels", x(1, 3, 4, 9)),
    *reductions("MEAN"),
    *reductions("REDUCE_MAX"),
    *reductions("REDUCE_MIN"),
    *searches("ARG_MAX"),
    *searches("ARG_MIN"),
    Sample("TOPK_V2", "rows", (ranks(3, 12), ints(4)), (DType.FLOAT32, INT32)),
    *pools("AVERAGE_POOL_2D"),
    *pools("MAX_POOL_2D"),
    *resizes("RESIZE_BILINEAR"),
    *resizes("RESIZE_NEAREST_NEIGHBOR"),
    sample("RESHAPE", "matrix", x(2, 3, 4), ints([6, -1]), newShape=(6, -1)),
    sample("RESHAPE", "option", x(2, 3, 4), newShape=(4, 6)),
    sample("TRANSPOSE", "image", x(2, 3, 4, 5), ints([0, 3, 1, 2])),
    sample("TRANSPOSE", "matrix", x(4, 5), ints([1, 0])),
    sample("EXPAND_DIMS", "last", x(2, 3), ints(-1)),
    sample("SQUEEZE", "named", x(2, 1, 3, 1), squeezeDims=(1,)),
    sample("PACK", "first", x(2, 3), x(2, 3, low=0, high=9), valuesCount=2),
    sample("PACK", "constant", x(2, 3), w(2, 3), valuesCount=2, axis=-1),
    Sample("UNPACK", "middle", (x(2, 3, 4),), (DType.FLOAT32,) * 3, options={"num": 3, "axis": 1}),
    sample("CONCATENATION", "two", x(2, 3, 4), x(2, 1, 4, low=0, high=9), axis=1),
    sample("CONCATENATION", "constant", w(2, 3, 2), x(2, 3, 4), x(2, 3, 1), axis=-1),
    Sample("SPLIT", "last", (ints(-1), x(2, 3, 4)), (DType.FLOAT32,) * 2, options={"numSplits": 2}),
    Sample("SPLIT_V", "middle", (x(2, 6, 4), ints([1, 3, 2]), ints(1)), (DType.FLOAT32,) * 3, options={"numSplits": 3}),
    sample("SLICE", "rest", x(2, 5, 4), ints([0, 2, 1]), ints([2, -1, 2])),
    sample("STRIDED_SLICE", "backwards", x(2, 5, 4), ints([0, 4, 0]), ints([2, 0, 4]), ints([1, -2, 1])),
    sample("STRIDED_SLICE", "masks", x(2, 5, 4), ints([1, 2, 3]), ints([2, 0, 1]), ints([1, 1, 2]), beginMask=4,
           endMask=6, shrinkAxisMask=1),
    sample("STRIDED_SLICE", "offset", x(2, 5, 4), ints([0, 1, -3]), ints([2, 3, 2]), ints([1, 1, 1]), offset=True),
    sample("STRIDED_SLICE", "offset to the end", x(2, 5, 4), ints([0, 3, -3]), ints([2, -2, 3]), ints([1, -1, 1]),
           offset=True, beginMask=1),
    sample("GATHER", "rows", x(7, 4), indices(2, 3, below=7)),
    sample("GATHER", "axis", x(2, 7, 4), indices(3, below=7), axis=1),
    sample("GATHER", "batch", x(2, 7, 4), indices(2, 3, below=7), version=5, axis=1, batchDims=1),
    sample("GATHER", "table", w(7, 4, low=-3), indices(5, below=7)),
    sample("GATHER_ND", "rows", x(4, 5, 3), indices(6, 2, below=4)),
    sample("EMBEDDING_LOOKUP", "table", indices(5, below=7), w(7, 4, low=-3)),
    sample("DYNAMIC_UPDATE_SLICE", "inside", x(4, 5), x(2, 3, low=0, high=9), ints([1, 2])),
    sample("DYNAMIC_UPDATE_SLICE", "constant", w(4, 5), x(2, 3), indices(2, below=5)),
    *paddings("PAD"),
    *paddings("PADV2", reals([-1.5])),
    *paddings("MIRROR_PAD"),
    sample("MIRROR_PAD", "symmetric", x(3, 4), ints([[1, 2], [0, 3]]), mode=1),
    sample("FILL", "scalar", ints([2, 3]), x()),
    sample("MATRIX_SET_DIAG", "square", x(2, 3, 3), x(2, 3, low=0, high=9)),
    sample("DILATE", "rows", x(3, 4), ints([1, 2]), reals(0.5)),
    sample("ONE_HOT", "rows", indices(4, below=5), ints(5), reals(2.5), x()),
    sample("SCATTER_ND", "rows", ints([[3], [0], [5]]), x(3, 4), ints([7, 4])),
    sample("SPARSE_TO_DENSE", "matrix", ints([[0, 1], [1, 2], [2, 0]]), ints([3, 4]), x(3), reals(0.5)),
    sample("TILE", "image", x(1, 2, 3, 2), ints([2, 1, 2, 3])),
    sample("BROADCAST_TO", "rows", x(3, 1), ints([2, 3, 4]), version=2),
    sample("REVERSE_V2", "middle", x(2, 3, 4), ints([1])),
    *selections("SELECT"),
    *selections("SELECT_V2"),
    sample("SPACE_TO_DEPTH", "image", x(2, 4, 6, 3), blockSize=2),
    sample("DEPTH_TO_SPACE", "image", x(2, 2, 3, 12), blockSize=2),
    sample("SPACE_TO_BATCH_ND", "image", x(1, 4, 5, 3), ints([2, 2]), ints([[0, 0], [1, 0]])),
    sample("BATCH_TO_SPACE_ND", "image", x(4, 2, 3, 3), ints([2, 2]), ints([[0, 0], [1, 0]])),
    *(each for kind in COMPARISONS for each in comparisons(kind)),
)
# fmt: on

LONG = w(6, 64)

# Of which LiteRT has kernels for integer weights and float activations alone, or that matter for these only.
# fmt: off
HYBRID_SAMPLES: tuple[Sample, ...] = (
    sample("FULLY_CONNECTED", "long", x(3, 64), LONG, w(6)),
    sample("FULLY_CONNECTED", "long_relu", x(3, 64), LONG, w(6), fused=RELU),
    sample("BATCH_MATMUL", "long", x(2, 3, 64), w(64, 5)),
    sample("EMBEDDING_LOOKUP", "long", indices(5, below=7), w(7, 64, low=-3)),
    sample("SVDF", "linear", x(2, 5), w(6, 5), w(6, 4), w(3), State((2, 24)), rank=2),
    both_ways("merged", mergeOutputs=True),
    both_ways("apart"),
    both_ways("peephole", peephole=True, mergeOutputs=True),
    both_ways("projection", projection=True),
)
# fmt: on


# How near is near.


TABLE = "interpolated between 513 entries of a table"

LOOSE: Mapping[tuple[str, DType], Loose] = {
    ("GELU", INT16): Loose(3, TABLE),
    ("TANH", INT16): Loose(3, "interpolated between 256 entries of a table"),
    ("SOFTMAX", INT16): Loose(3, TABLE),
    ("LOG_SOFTMAX", INT8): Loose(6, "the reference kernel makes the least integer of logarithms just above it"),
    ("LOG", INT16): Loose(13, f"{TABLE}, where it is steep"),
    ("EXP", INT16): Loose(90, f"{TABLE}; the one after the greatest input lies beyond the output's range"),
    ("RSQRT", INT16): Loose(300, f"{TABLE}; the one before the least input lies beyond the output's range"),
    ("RESIZE_BILINEAR", INT16): Loose(40, "positions are rounded to 1/1024 of a pixel"),
}
ROUNDED = 1.5
"""Units that kernels may be off which compute something: half of one for rounding, more where they round twice."""

MOVED = 0.0
"""Kernels that only choose among their inputs are exact."""

TIED_BUT_COMPUTING = frozenset({"AVERAGE_POOL_2D", "MAX_POOL_2D", "RESIZE_BILINEAR"})
"""They have one scale for inputs and outputs, and compute all the same: averages, the 6 of a fused ReLU6."""


def tolerance(spec: OpSpec, activations: DType) -> float:
    """How far the result may be off what the float op makes of the rounded operands, in units of the last place."""
    loose = LOOSE.get((spec.kind, activations))
    if loose is not None:
        return loose.units
    return MOVED if spec.tied and spec.kind not in TIED_BUT_COMPUTING else ROUNDED
