"""The op table: one row for each known op, with the facts about LiteRT's kernels.

Every claim about kernels is run in LiteRT by tests/conformance. An op without a row, or without the requested type,
stays float. To add an op, add a row, and a sample in tests/conformance/samples.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..dtypes import DType
from . import batch, spec
from .batch import along, broadcasts, by_sample, joined, only, pointwise
from .calls import COMPOSITE
from .interpolation import always, gelu, power_of, reciprocal_root
from .layout import CONVOLUTION, DENSE, DEPTHWISE, MATRIX_PRODUCT, TRANSPOSED
from .recurrent import BOTH_WAYS, LSTM
from .spec import Activation, Bias, Fixed, KernelSpec, Need, OpSpec, Rescale, Trait, Weight

INT8, INT16, INT4, INT2, UINT8 = DType.INT8, DType.INT16, DType.INT4, DType.INT2, DType.UINT8
Fact = TypeVar("Fact")
BOTH = (INT8, INT16)
PRODUCT, RATIO, SUM, SQUARE, ROOT = Rescale.PRODUCT, Rescale.RATIO, Rescale.SUM, Rescale.SQUARE, Rescale.ROOT
VARIADIC, TIED, AVERAGES, FUSES = Trait.VARIADIC, Trait.TIED, Trait.AVERAGES, Trait.FUSES
HOMOGENEOUS, HAS_POLES, RANKS, RECURRENT = Trait.HOMOGENEOUS, Trait.HAS_POLES, Trait.RANKS, Trait.RECURRENT
KEEPS_ZERO, NO_LARGER, VIEW, RISES = Trait.KEEPS_ZERO, Trait.NO_LARGER, Trait.VIEW, Trait.RISES
NEVER_NEGATIVE = Trait.NEVER_NEGATIVE

ACT, INDEX, MATRIX, COEFFICIENTS = Activation(), spec.Untouched(), Weight(axis=None), spec.Coefficients()
GAINS = spec.Coefficients(hybrid=False)
ONE, TWO = (ACT,), (ACT, ACT)
POLE = Activation(pole=True)
Options = Mapping[DType, Mapping[str, object]]


def since(
    int8: int, int16: int | None = None, *needs: Need, options: Options | None = None, in_place: tuple[int, ...] = ()
) -> KernelSpec:
    """Return integer kernels for int8, and for int16 if given, from these op versions on."""
    versions = {"int8": int8} if int16 is None else {"int8": int8, "int16": int16}
    types = (INT8,) if int16 is None else BOTH
    return KernelSpec(types, versions=versions, needs=needs, options=options or {}, in_place=in_place)


# A probability in [0, 1) and a value in [-1, 1): the kernels hard-code these output parameters.
UNIT = {INT8: Fixed(1 / 256, -128), INT16: Fixed(1 / 32768, 0)}
SIGNED_UNIT = {INT8: Fixed(1 / 128, 0), INT16: Fixed(1 / 32768, 0)}

# Inputs beyond these give the same integers as the limits do.
SIGMOID_ENDS = {INT8: (-6.5, 6.5), INT16: (-11.0, 11.0)}
TANH_ENDS = {INT8: (-3.5, 3.5), INT16: (-6.5, 6.5)}


def ends(low: float, high: float) -> Mapping[DType, tuple[float, float]]:
    return dict.fromkeys(BOTH, (low, high))


# The weights of one direction of a recurrent layer: gate weights on input and state; peepholes; biases; projection.
DIRECTION = (*(MATRIX,) * 8, *(COEFFICIENTS,) * 3, *(INDEX,) * 4, MATRIX, INDEX)
# The optional ones: all of the input gate, peepholes, the projection. Then the weights of an auxiliary input.
SPARE = (0, 4, 8, 9, 10, 11, 15, 16)
SPARE_BOTH_WAYS = (*(1 + k for k in SPARE), *(18 + k for k in SPARE), *range(39, 48))

# Hybrid kernels then quantize their inputs to the full range [-128, 127], which halves the error.
ASYMMETRIC_INPUTS: Options = {DType.FLOAT32: {"asymmetricQuantizeInputs": True}}
# int16 sums otherwise require power-of-two scales.
ANY_SCALE: Options = {INT16: {"potScaleInt16": False}}

# The optimized kernel of ADD, and the delegate, hold sums in 16 bits: 2 * 255 * 64.
ADDED = {INT8: 64.0}
# The kernels of MEAN in the delegate and in LiteRT (optimized) subtract zero points in float32: too coarse beyond 2**18.
AVERAGED = {INT8: 2.0**15}
# Beyond 255, the delegate's int8 kernel for a constant matrix crashes.
MULTIPLIED = {INT8: 254.0, INT16: 1.0}
# From here on, the kernels of MUL shift products left beyond 32 bits.
WRAPS = {INT8: 2.0**15, INT16: 1.0}

# Limits of input scales, as tests/conformance/sweep.py found them in LiteRT 2.3.
# Comparisons compute 256 * scale * (q - zero_point) as integers, so they confuse neighbours below the limits, and shift
# by negative amounts, or abort, above. int16 kernels except those for equality compare the integers as they are.
COMPARED = (2.0**-8, 1.0)
ORDERED, EQUATED = {INT8: COMPARED}, dict.fromkeys(BOTH, COMPARED)
# Sigmoid and tanh index a table with shifts that are too long beyond. Only a few steps of tanh's output would remain.
SIGMOID, HYPERBOLIC = {INT16: (2.0**-32, 2.0)}, {INT8: (2.0**-12, math.inf), INT16: (2.0**-28, 2.0)}
# int8 kernels abort the process if 2**26 * scale * beta is below 1; 2**6 of that is headroom for beta. int16 kernels wrap
# from 4 on; in int8, values that rounding makes equal there may differ by a factor of e**4 in probability.
EXPONENTIALS = {INT8: (2.0**-20, 4.0), INT16: (0.0, 4.0)}
# LOG_SOFTMAX adds the logarithm to 128 * scale in float32, which is too coarse beyond.
LOGARITHMS = {INT8: (2.0**-20, 2.0**11)}
# In float the norm is at least 1e-6, and squares must be finite; integer kernels have neither limit.
NORMALIZED = {INT8: (2.0**-20, 2.0**48)}

# Steps of more than a sixteenth of a radian would leave a sine less than 35 dB of SNR.
ANGLES = {INT8: (0.0, 2.0**-4)}

# With smaller states, biases would not fit into 32 bits.
REMEMBERED = {INT8: (2.0**-40, math.inf)}

JUMPS = "it jumps: rounding what it reads may move what it makes by as much as it ever changes"
CONSTANT = (Need.CONSTANT_WEIGHTS,)
INT8_WEIGHTS: Mapping[DType, tuple[DType, ...]] = {INT8: (INT8,), INT16: (INT8,)}
NARROW_WEIGHTS: Mapping[DType, tuple[DType, ...]] = {INT8: (INT8, INT4), INT16: (INT8, INT4)}

# fmt: off
CONV_2D_KERNELS = KernelSpec(BOTH, NARROW_WEIGHTS, hybrid=(INT8, INT4), needs=CONSTANT,
                             versions={"int8": 3, "int16": 4, "hybrid": 5, "int4": 7})
DEPTHWISE_KERNELS = KernelSpec(BOTH, INT8_WEIGHTS, hybrid=(INT8,), needs=CONSTANT,
                               versions={"int8": 3, "int16": 5, "hybrid": 6})
TRANSPOSED_KERNELS = KernelSpec(BOTH, INT8_WEIGHTS, hybrid=(INT8,), needs=CONSTANT,
                                versions={"int8": 3, "int16": 3, "hybrid": 3})
DENSE_KERNELS = KernelSpec(BOTH, NARROW_WEIGHTS, hybrid=(INT8, INT4, INT2), blockwise=(INT4,), needs=CONSTANT,
                           versions={"int8": 4, "int16": 7, "hybrid": 12, "int4": 10, "int2": 14},
                           options=ASYMMETRIC_INPUTS, sums_32=(INT16,))
MATRIX_KERNELS = KernelSpec(BOTH, hybrid=(INT8,), versions={"int8": 2, "int16": 3, "hybrid": 4}, options=ASYMMETRIC_INPUTS)
LSTM_KERNELS = KernelSpec((INT8,), {INT8: (INT8,)}, hybrid=(INT8,), versions={"hybrid": 3}, options=ASYMMETRIC_INPUTS,
                          needs=(Need.HAS_STATES, Need.NO_PROJECTION_BIAS, Need.NO_PROJECTED_PEEPHOLES, Need.CONSTANT_WEIGHTS),
                          intermediates=("gate", "gate", "gate", "gate", "hidden"))
BOTH_WAYS_KERNELS = KernelSpec(hybrid=(INT8,), versions={"hybrid": 3}, options=ASYMMETRIC_INPUTS)
SVDF_KERNELS = KernelSpec((INT8,), {INT8: (INT8,)}, hybrid=(INT8,), versions={"int8": 3, "hybrid": 4},
                          options=ASYMMETRIC_INPUTS, needs=(*CONSTANT, Need.RELU))
SOFTMAX_KERNELS = KernelSpec(BOTH, versions={"int8": 2, "int16": 3}, prefers=(Need.SHORT_ROWS,), in_place=(0,))
POWERS = KernelSpec((INT8,), needs=(Need.CONSTANT_EXPONENT,), table=power_of)
LOOKUP_KERNELS = KernelSpec(BOTH, hybrid=(INT8, INT4, INT2), blockwise=(INT4,), versions={"hybrid": 4, "int2": 5})

ROWS: tuple[OpSpec, ...] = (
    # Ops with weights.
    OpSpec("CONV_2D", (ACT, Weight(axis=0), Bias((0, 1))), CONV_2D_KERNELS, FUSES, layout=CONVOLUTION,
           batch=only(0), rescale=PRODUCT),
    OpSpec("DEPTHWISE_CONV_2D", (ACT, Weight(axis=3), Bias((0, 1))), DEPTHWISE_KERNELS, FUSES, layout=DEPTHWISE,
           batch=only(0), rescale=PRODUCT),
    OpSpec("TRANSPOSE_CONV", (INDEX, Weight(axis=0), ACT, Bias((2, 1))), TRANSPOSED_KERNELS, layout=TRANSPOSED,
           batch=only(2), rescale=PRODUCT),
    OpSpec("FULLY_CONNECTED", (ACT, Weight(axis=0), Bias((0, 1))), DENSE_KERNELS, FUSES, layout=DENSE,
           batch=only(0), rescale=PRODUCT),
    OpSpec("BATCH_MATMUL", (ACT, Activation(symmetric_constant=True, constant=Weight(axis=-1, swapped="adjY"))), MATRIX_KERNELS,
           layout=MATRIX_PRODUCT, batch=batch.matrix_product, rescale=PRODUCT, max_rescale=MULTIPLIED),
    # Recurrent: the input; weights of the gates i, f, c, o on it and on the state; peepholes; biases; projection; states;
    # layer normalization gains.
    OpSpec(LSTM, (ACT, *(MATRIX,) * 8, *(COEFFICIENTS,) * 3, *(Bias((0, 1 + k), gain=20 + k) for k in range(4)),
                  MATRIX, INDEX, spec.OutputState(), spec.CellState(least=-15, greatest=-9), *(GAINS,) * 4),
           LSTM_KERNELS, RECURRENT, batch=batch.steps_second, own_activation="TANH", input_scales={INT8: (0.0, 2.0**7)},
           optional=(*(1 + k for k in SPARE), 20, 21, 22, 23)),
    # The same forwards and backwards; then four states, the auxiliary input and its weights.
    OpSpec(BOTH_WAYS, (ACT, *DIRECTION, *DIRECTION, *(INDEX,) * 4, ACT, *(MATRIX,) * 8),
           BOTH_WAYS_KERNELS, RECURRENT, outputs=TWO, optional=SPARE_BOTH_WAYS),
    # The input; feature weights on it, and time weights on their results of the last steps, which are the state.
    OpSpec("SVDF", (ACT, MATRIX, COEFFICIENTS, Bias((4, 2)), spec.CellState(least=-110, greatest=110, summed=2)),
           SVDF_KERNELS, RECURRENT | FUSES, input_scales=REMEMBERED),
    # Arithmetic.
    OpSpec("ADD", TWO, since(2, 3, options=ANY_SCALE, in_place=(0, 1)), FUSES | Trait.ADDS, batch=broadcasts, rescale=SUM, max_rescale=ADDED),
    OpSpec("SUB", TWO, since(2, 5, options=ANY_SCALE, in_place=(0, 1)), FUSES | Trait.SUBTRACTS, batch=broadcasts, rescale=SUM),
    OpSpec("MUL", TWO, since(2, 4, in_place=(0, 1)), FUSES | Trait.MULTIPLIES, batch=broadcasts, rescale=PRODUCT, max_rescale=WRAPS),
    OpSpec("DIV", (ACT, POLE), since(1, 1, Need.CONSTANT_DIVISOR, in_place=(0, 1)), HAS_POLES | KEEPS_ZERO, batch=broadcasts),
    OpSpec("SQUARED_DIFFERENCE", TWO, since(2), NEVER_NEGATIVE, batch=broadcasts, rescale=SQUARE),
    OpSpec("MAXIMUM", TWO, since(2, 4), TIED | Trait.GREATEST, batch=broadcasts),
    OpSpec("MINIMUM", TWO, since(2, 4), TIED | Trait.LEAST, batch=broadcasts),
    OpSpec("FLOOR_DIV", (ACT, POLE), traits=HAS_POLES, batch=broadcasts),
    OpSpec("FLOOR_MOD", (ACT, POLE), traits=HAS_POLES, batch=broadcasts),
    OpSpec("POW", (POLE, spec.FloatConstant()), POWERS, HAS_POLES, batch=broadcasts),
    OpSpec("ATAN2", TWO, batch=broadcasts),
    # Functions of one value.
    OpSpec("RELU", ONE, since(2, 3), HOMOGENEOUS | NEVER_NEGATIVE | RISES, batch=pointwise, rescale=RATIO, saturates=ends(0, math.inf)),
    OpSpec("RELU6", ONE, since(2, 3), NEVER_NEGATIVE | RISES, batch=pointwise, rescale=RATIO, saturates=ends(0, 6)),
    OpSpec("RELU_N1_TO_1", ONE, since(1), RISES, batch=pointwise, rescale=RATIO, saturates=ends(-1, 1)),
    OpSpec("RELU_0_TO_1", ONE, since(1), NEVER_NEGATIVE | RISES, batch=pointwise, rescale=RATIO, saturates=ends(0, 1)),
    OpSpec("LEAKY_RELU", ONE, since(2, 2), HOMOGENEOUS, batch=pointwise, rescale=RATIO),
    OpSpec("PRELU", (ACT, MATRIX), KernelSpec(BOTH, INT8_WEIGHTS, needs=CONSTANT), HOMOGENEOUS, batch=only(0), rescale=RATIO),
    OpSpec("ELU", ONE, since(1), batch=pointwise, saturates=ends(-8, math.inf)),
    OpSpec("GELU", ONE, since(2, 2), batch=pointwise, saturates=ends(-6, math.inf), interpolated=gelu),
    OpSpec("HARD_SWISH", ONE, since(1), batch=pointwise, rescale=RATIO, max_rescale={INT8: 128.0},
           saturates=ends(-3, math.inf), input_scales={INT8: (0.0, 2.0**16)}),
    OpSpec("LOGISTIC", ONE, since(2, 3), NEVER_NEGATIVE | RISES, batch=pointwise, fixed=UNIT, saturates=SIGMOID_ENDS, probabilities="each",
           input_scales=SIGMOID),
    OpSpec("TANH", ONE, since(2, 3), RISES, batch=pointwise, fixed=SIGNED_UNIT, saturates=TANH_ENDS, input_scales=HYPERBOLIC),
    OpSpec("ABS", ONE, since(2, 3), HOMOGENEOUS | NEVER_NEGATIVE, batch=pointwise, rescale=RATIO),
    OpSpec("RSQRT", (POLE,), since(2, 3, Need.NONNEGATIVE, Need.FAR_FROM_POLE), HAS_POLES | NEVER_NEGATIVE, batch=pointwise,
           rescale=ROOT, interpolated=always(reciprocal_root)),
    OpSpec("SQRT", ONE, since(2, 2, Need.NONNEGATIVE), HAS_POLES | KEEPS_ZERO | NEVER_NEGATIVE, batch=pointwise),
    OpSpec("EXP", ONE, since(2, 2), NEVER_NEGATIVE, batch=pointwise, interpolated=always(np.exp)),
    OpSpec("LOG", (POLE,), since(2, 2, Need.FAR_FROM_POLE), HAS_POLES, batch=pointwise, interpolated=always(np.log)),
    OpSpec("NEG", ONE, traits=KEEPS_ZERO | NO_LARGER, batch=pointwise),
    OpSpec("SQUARE", ONE, traits=KEEPS_ZERO | NEVER_NEGATIVE, batch=pointwise),
    OpSpec("SIN", ONE, KernelSpec((INT8,), table=always(np.sin)), batch=pointwise, input_scales=ANGLES),
    OpSpec("COS", ONE, KernelSpec((INT8,), table=always(np.cos)), batch=pointwise, input_scales=ANGLES),
    OpSpec("SIGN", ONE, KernelSpec(note=JUMPS), batch=pointwise),
    *(OpSpec(kind, ONE, KernelSpec(note=JUMPS), NO_LARGER, batch=pointwise) for kind in ("FLOOR", "CEIL", "ROUND")),
    OpSpec("CAST", ONE, KernelSpec(note="it makes floats of other numbers, or others of floats"), Trait.CASTS,
           batch=pointwise),
    # Normalizations.
    OpSpec("SOFTMAX", ONE, SOFTMAX_KERNELS, NEVER_NEGATIVE, batch=along(batch.last_axis), fixed=UNIT, negligible=20.0, probabilities="row",
           input_scales=EXPONENTIALS),
    OpSpec("LOG_SOFTMAX", ONE, since(2), batch=along(batch.last_axis), fixed={INT8: Fixed(16 / 256, 127)}, probabilities="row",
           input_scales=LOGARITHMS),
    OpSpec("L2_NORMALIZATION", ONE, since(2), batch=along(batch.last_axis), fixed={INT8: Fixed(1 / 128, 0)},
           input_scales=NORMALIZED),
    # Reductions.
    OpSpec("MEAN", (ACT, INDEX), since(2, 3, Need.SUM_FITS), NO_LARGER | Trait.KEEPS_SIGN, batch=along(batch.axes_at(1)), rescale=RATIO,
           max_rescale=AVERAGED),
    OpSpec("SUM", (ACT, INDEX), KernelSpec(note="LiteRT's reference kernel adds integers up whatever their scales are"),
           Trait.SUMS, batch=along(batch.axes_at(1))),
    OpSpec("REDUCE_PROD", (ACT, INDEX), KernelSpec(note="its integer kernel is wrong for products of many numbers"),
           batch=along(batch.axes_at(1))),
    OpSpec("REDUCE_MAX", (ACT, INDEX), since(2, 3), TIED, batch=along(batch.axes_at(1))),
    OpSpec("REDUCE_MIN", (ACT, INDEX), since(2, 3), TIED, batch=along(batch.axes_at(1))),
    OpSpec("REDUCE_ANY", (INDEX, INDEX), outputs=(INDEX,), batch=along(batch.axes_at(1))),
    OpSpec("REDUCE_ALL", (INDEX, INDEX), outputs=(INDEX,), batch=along(batch.axes_at(1))),
    OpSpec("CUMSUM", (ACT, INDEX), traits=Trait.SUMS, batch=along(batch.axes_at(1))),
    OpSpec("ARG_MAX", (ACT, INDEX), since(2), RANKS, outputs=(INDEX,), batch=along(batch.axes_at(1))),
    OpSpec("ARG_MIN", (ACT, INDEX), since(2), RANKS, outputs=(INDEX,), batch=along(batch.axes_at(1))),
    OpSpec("TOPK_V2", (ACT, INDEX), since(2, 3), TIED, outputs=(ACT, INDEX), batch=along(batch.last_axis)),
    # Pooling and resizing.
    OpSpec("AVERAGE_POOL_2D", ONE, since(2, 3), TIED | HOMOGENEOUS | AVERAGES, batch=by_sample),
    OpSpec("MAX_POOL_2D", ONE, since(2, 3), TIED | HOMOGENEOUS, batch=by_sample),
    OpSpec("L2_POOL_2D", ONE, traits=NO_LARGER, batch=by_sample),
    OpSpec("RESIZE_BILINEAR", (ACT, INDEX), since(2, 4), TIED | HOMOGENEOUS | AVERAGES, batch=only(0)),
    OpSpec("RESIZE_NEAREST_NEIGHBOR", (ACT, INDEX), since(2, 4), TIED | HOMOGENEOUS, batch=only(0)),
    # Moving data.
    OpSpec("RESHAPE", (ACT, INDEX), since(1, 1, in_place=(0,)), TIED | VIEW, batch=by_sample, optional=(1,)),
    OpSpec("TRANSPOSE", (ACT, INDEX), since(2, 5), TIED, batch=along(batch.transposed)),
    OpSpec("EXPAND_DIMS", (ACT, INDEX), since(1, 1, in_place=(0,)), TIED | VIEW, batch=along(batch.inserted)),
    OpSpec("SQUEEZE", ONE, since(1, 1, in_place=(0,)), TIED | VIEW, batch=along(batch.squeezed)),
    OpSpec("PACK", ONE, since(2, 3), VARIADIC | TIED, batch=joined(batch.axis_of_output)),
    OpSpec("UNPACK", ONE, since(2, 4), VARIADIC | TIED, batch=along(batch.axis_of_input)),
    OpSpec("CONCATENATION", ONE, since(2, 3), VARIADIC | TIED, batch=joined(batch.axis_of_output)),
    OpSpec("SPLIT", (INDEX, ACT), since(2, 4), VARIADIC | TIED, batch=along(batch.axes_at(0, data=1))),
    OpSpec("SPLIT_V", (ACT, INDEX, INDEX), since(2, 2), VARIADIC | TIED, batch=along(batch.axes_at(2))),
    OpSpec("SLICE", (ACT, INDEX, INDEX), since(2, 4), TIED, batch=along(batch.sliced)),
    OpSpec("STRIDED_SLICE", (ACT, INDEX, INDEX, INDEX), since(2, 4), TIED, batch=along(batch.sliced_in_steps)),
    OpSpec("GATHER", (Activation(constant=MATRIX), INDEX), since(2, 4), TIED, batch=batch.gathers),
    OpSpec("GATHER_ND", (ACT, INDEX), since(1, 3), TIED, batch=only(1)),
    OpSpec("EMBEDDING_LOOKUP", (INDEX, Activation(constant=Weight(axis=0))), LOOKUP_KERNELS, TIED, batch=only(0)),
    OpSpec("DYNAMIC_UPDATE_SLICE", (ACT, ACT, INDEX), since(1, 4, in_place=(0,)), TIED),
    OpSpec("PAD", (ACT, INDEX), since(2, 3), TIED | HOMOGENEOUS, batch=along(batch.padded)),
    OpSpec("PADV2", (ACT, INDEX, ACT), since(2, 3), TIED, batch=along(batch.padded)),
    OpSpec("MIRROR_PAD", (ACT, INDEX), since(2, 3), TIED, batch=along(batch.padded)),
    OpSpec("FILL", (INDEX, ACT), since(3, 3), TIED),
    OpSpec("ZEROS_LIKE", ONE, batch=by_sample),
    OpSpec("MATRIX_SET_DIAG", TWO, since(1, 1), TIED),
    OpSpec("DILATE", (ACT, INDEX, ACT), since(1, 1), TIED),
    OpSpec("ONE_HOT", (INDEX, INDEX, ACT, ACT), since(1), TIED),
    OpSpec("SCATTER_ND", (INDEX, Activation(symmetric=True), INDEX), since(1, None, Need.DISTINCT_INDICES), TIED),
    OpSpec("SPARSE_TO_DENSE", (INDEX, INDEX, ACT, ACT), since(3), TIED),
    OpSpec("TILE", (ACT, INDEX), since(2, 2), TIED, batch=along(batch.repeated)),
    OpSpec("BROADCAST_TO", (ACT, INDEX), since(3, 3), TIED),
    OpSpec("REVERSE_V2", (ACT, INDEX), since(3, 3), TIED, batch=along(batch.axes_at(1))),
    OpSpec("SELECT", (INDEX, ACT, ACT), since(1, 1), TIED),
    OpSpec("SELECT_V2", (INDEX, ACT, ACT), since(1, 1), TIED, batch=broadcasts),
    OpSpec("SPACE_TO_DEPTH", ONE, since(2), TIED, batch=by_sample),
    OpSpec("DEPTH_TO_SPACE", ONE, since(1), TIED, batch=by_sample),
    OpSpec("SPACE_TO_BATCH_ND", (ACT, INDEX, INDEX), since(2, 4), TIED),
    OpSpec("BATCH_TO_SPACE_ND", (ACT, INDEX, INDEX), since(2, 4), TIED),
    # Comparisons: integers in, booleans out. With one scale for both sides, equal values stay equal.
    OpSpec("EQUAL", TWO, since(2, 5), TIED, outputs=(INDEX,), batch=broadcasts, input_scales=EQUATED),
    OpSpec("NOT_EQUAL", TWO, since(2, 4), TIED, outputs=(INDEX,), batch=broadcasts, input_scales=EQUATED),
    OpSpec("GREATER", TWO, since(2, 2), TIED, outputs=(INDEX,), batch=broadcasts, input_scales=ORDERED),
    OpSpec("GREATER_EQUAL", TWO, since(2, 3), TIED, outputs=(INDEX,), batch=broadcasts, input_scales=ORDERED),
    OpSpec("LESS", TWO, since(2, 3), TIED, outputs=(INDEX,), batch=broadcasts, input_scales=ORDERED),
    OpSpec("LESS_EQUAL", TWO, since(2, 2), TIED, outputs=(INDEX,), batch=broadcasts, input_scales=ORDERED),
    OpSpec("LOGICAL_AND", (INDEX, INDEX), outputs=(INDEX,), batch=broadcasts),
    OpSpec("LOGICAL_OR", (INDEX, INDEX), outputs=(INDEX,), batch=broadcasts),
    OpSpec("LOGICAL_NOT", (INDEX,), outputs=(INDEX,), batch=by_sample),
    # Only a shape is read: any type is accepted, and no value is quantized.
    OpSpec("SHAPE", (spec.ShapeOnly(),), outputs=(INDEX,)),
    OpSpec("RANK", (spec.ShapeOnly(),), outputs=(INDEX,)),
    # MediaPipe's custom ops, of which only the float arithmetic is known.
    OpSpec("Convolution2DTransposeBias", (ACT, ACT, ACT), batch=only(0)),
)
# fmt: on

SIGNED_ONLY = frozenset(
    {LSTM, "SCATTER_ND", "SVDF", "BATCH_MATMUL", "SQUARED_DIFFERENCE", "ELU", "ABS", "RSQRT", "SQRT", "EXP", "LOG"}
)
"""Ops that have int8 kernels but no uint8 kernels."""


def also_unsigned(row: OpSpec) -> OpSpec:
    """Return the row with the older uint8 kernels: everything as in int8, with zero points higher by 128.

    Weights are uint8 as well, with one scale and zero point for all of them.
    """
    if INT8 not in row.types or row.kind in SIGNED_ONLY:
        return row

    def both(facts: Mapping[DType, Fact]) -> Mapping[DType, Fact]:
        return {**facts, UINT8: facts[INT8]} if INT8 in facts else facts

    weights = {**row.weights, UINT8: (UINT8,)} if INT8 in row.weights else row.weights
    kernels = replace(row.kernels, types=(*row.types, UINT8), weights=weights)
    fixed = {UINT8: Fixed(f.scale, f.zero_point + 128)} if (f := row.fixed.get(INT8)) is not None else {}
    return replace(
        row,
        kernels=kernels,
        max_rescale=both(row.max_rescale),
        input_scales=both(row.input_scales),
        saturates=both(row.saturates),
        fixed={**row.fixed, **fixed},
    )


class OpTable(dict[str, OpSpec]):
    """Rows by op kind. `OPS | {"MY_OP": row}` is a table with one more."""

    def __repr__(self) -> str:
        """Return a short text, because the table is the default of many parameters and `help` shows defaults."""
        return f"<op table: {len(self)} kinds>"


OPS: Mapping[str, OpSpec] = OpTable({row.kind: also_unsigned(row) for row in ROWS})

UNPACKING = frozenset({"DEQUANTIZE", "DENSIFY"})
"""Ops that convert constants to the form they are used in."""

REWRITTEN = frozenset(
    {
        BOTH_WAYS,
        "CAST",
        "CUMSUM",
        "DIV",
        "L2_POOL_2D",
        "LOCAL_RESPONSE_NORMALIZATION",
        "NEG",
        "POW",
        "SQUARE",
        COMPOSITE,
        "SUM",
        "Convolution2DTransposeBias",
    }
)
"""Ops that plan/decompose.py and plan/called.py may replace by ops with integer kernels."""

CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE"})
"""Ops that only change how values are stored."""

UNPACKED_SINCE = {"uint8": 1, "int8": 2, "int16": 3, "float16": 3, "per_axis": 5, "int4": 6, "int2": 7}
"""The lowest version of DEQUANTIZE that supports a type, or per-channel scales."""
