"""The columns of the op table. Rows are facts about LiteRT's kernels; behaviour lives elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import Literal

from ..affine import QuantParams
from ..dtypes import DType
from ..graph.model import Op, Tensor
from ..parallel import cached_property
from .batch import BatchRule, broadcasts, pointwise
from .interpolation import Function, FunctionOf
from .layout import Layout
from .recurrent import macs_recurrent

# Roles of inputs and outputs.


@dataclass(frozen=True)
class Weight:
    """Trained weights: symmetric, narrow range, one scale per slice along `axis` if the kernels support that.

    Negative axes count from the end; if the option called `swapped` is set, the last two axes are swapped.
    """

    axis: int | None
    swapped: str | None = None

    def axis_of(self, op: Op, rank: int) -> int | None:
        """Return the channel axis in weights of this rank that `op` reads."""
        if self.axis is None or self.axis >= 0:
            return self.axis
        axis = -3 - self.axis if self.swapped is not None and op.option(self.swapped) else self.axis
        return rank + axis


@dataclass(frozen=True)
class Activation:
    """An activation: real numbers with one scale and zero point.

    `symmetric_constant`: if it is a constant, its zero point must be 0. `constant` is how a constant is stored if only
    weights are quantized. `pole`: the op may turn its zeros into infinity. `symmetric`: its zero point must be 0.
    """

    symmetric_constant: bool = False
    symmetric: bool = False
    constant: Weight | None = None
    pole: bool = False


@dataclass(frozen=True)
class Bias:
    """Added to the products of inputs `of`: scale = product of their scales, zero point 0.

    If the input `gain` is present, the bias is added after multiplying by it: scale = 2**-10 of the gain's.
    """

    of: tuple[int, int]
    gain: int | None = None


BIAS_TYPE = {DType.INT8: DType.INT32, DType.UINT8: DType.INT32, DType.INT16: DType.INT64}
"""The type of biases by activation type."""


@dataclass(frozen=True)
class Untouched:
    """Indices, shapes, conditions: not quantized."""


@dataclass(frozen=True)
class FloatConstant:
    """A parameter of the function that the op computes, such as an exponent: not data, and not quantized."""


@dataclass(frozen=True)
class ShapeOnly:
    """Only the tensor's shape is read, so any type is accepted."""


@dataclass(frozen=True)
class Coefficients:
    """Trained weights stored in 16 bits, symmetric: they apply to a state, not to the input. `hybrid`: kernels with
    float activations take them as integers."""

    hybrid: bool = True


@dataclass(frozen=True)
class OutputState:
    """The last output, kept for the next step: it has the output's parameters."""


@dataclass(frozen=True)
class CellState:
    """A recurrent layer's cell state: int16 with a power-of-two scale, 2**least up to 2**greatest.

    `summed` is the input whose products with it are accumulated in 32 bits, so that some of its bits must stay unused.
    """

    least: int
    greatest: int
    summed: int | None = None


Role = Activation | Weight | Bias | Untouched | FloatConstant | ShapeOnly | Coefficients | OutputState | CellState


# How an integer kernel converts its inputs' scales to its output's.


class Rescale(Enum):
    NONE = "integers pass through, or a table is looked up"
    PRODUCT = "first input's scale * second input's scale / output's scale"
    RATIO = "input's scale / output's scale"
    SUM = "both inputs to a common scale, then to the output's"
    SQUARE = "both inputs to a common scale, its square to the output's scale"
    ROOT = "1 / (square root of the input's scale * output's scale); limits are those of its inverse"


RESCALE_LIMITS: Mapping[Rescale, Mapping[DType, float]] = {
    # XNNPACK refuses the whole graph; int16 kernels wrap if results exceed 32 bits.
    Rescale.PRODUCT: {DType.INT8: 256.0, DType.UINT8: 256.0, DType.INT16: 16.0},
    # Integers are shifted left beyond 32 bits.
    Rescale.RATIO: {DType.INT8: 2.0**20, DType.UINT8: 2.0**20, DType.INT16: 2.0**14},
    # Kernels abort the process, or wrap.
    Rescale.SUM: {DType.INT8: 2.0**14, DType.UINT8: 2.0**14, DType.INT16: 2.0**13},
    # (2 * scale)**2 / (2**14 * output's scale) reaches 1, and the kernel aborts the process.
    Rescale.SQUARE: {DType.INT8: 2.0**12},
    # Right shifts exceed 31 bits.
    Rescale.ROOT: {DType.INT8: 2.0**11},
}
"""Kernels in LiteRT 2.3 fail if their factors reach these limits, as found by tests/conformance/sweep.py.

An output scale that fine is useless: its steps are fractions of one step of the inputs.
"""


class Need(Enum):
    """What an integer kernel demands of its operands beyond their types; the text says what goes wrong otherwise."""

    NONNEGATIVE = "its integer kernel fails on negative values, and the input goes below zero, or might"
    CONSTANT_DIVISOR = (
        "its integer kernel garbles small numbers; only a divisor far from zero, best a constant, makes it a product"
    )
    CONSTANT_EXPONENT = "only a constant exponent, one for all numbers, makes it a table"
    RELU = "its integer kernel takes no other activation than RELU"
    DISTINCT_INDICES = "its integer kernel adds up what falls on one place; only constant indices are known to differ"
    CONSTANT_WEIGHTS = "its weights are not constant"
    HAS_STATES = "its integer kernel keeps what it remembers in inputs of the op, which it does not name"
    NO_PROJECTION_BIAS = "the scale of its projection's bias follows from numbers inside the op, which have none here"
    NO_PROJECTED_PEEPHOLES = "its integer kernel computes peepholes wrongly where there is a projection (LiteRT 2.3)"
    FAR_FROM_POLE = "its int16 kernel interpolates between 256 points above zero, and the input goes below the fourth"
    SUM_FITS = "its int16 kernel sums in 32 bits, which this many elements overflow"
    SHORT_ROWS = (
        "its int16 kernel makes about 2/32768 of every number that is far below the greatest in its row, which adds up "
        "to more than 1 % in rows this long"
    )


@dataclass(frozen=True)
class Fixed:
    """Output parameters that the kernels demand."""

    scale: float
    zero_point: int

    def params(self, dtype: DType) -> QuantParams:
        return QuantParams((self.scale,), (self.zero_point,), dtype)


Probabilities = Literal["each", "row"]


class Trait(Flag):
    """Properties of an op that do not follow from its operands and kernels."""

    NONE = 0
    VARIADIC = auto()  # the role of its last input or output also applies to all further ones
    TIED = auto()  # needs one scale and zero point for all its activations
    AVERAGES = auto()  # computes new values, although it is tied
    FUSES = auto()  # can have a fused activation
    HOMOGENEOUS = auto()  # f(s * x) = s * f(x) for every s > 0, channel by channel along the last axis
    HAS_POLES = auto()  # maps some finite numbers to NaN or infinity
    KEEPS_ZERO = auto()  # f(0) = 0, as for all tied, homogeneous and multiplying ops
    NEVER_NEGATIVE = auto()  # no result is below zero
    KEEPS_SIGN = auto()  # no result is below zero if no input is, as for all ops that are tied, add or sum
    NO_LARGER = auto()  # no result is farther from zero than all inputs, by more than 1
    GREATEST = auto()  # no result is below any of its inputs
    LEAST = auto()  # no result is above any of its inputs
    ADDS = auto()  # element by element
    SUBTRACTS = auto()
    MULTIPLIES = auto()
    SUMS = auto()  # adds up inputs along axes
    RANKS = auto()  # only the order of its inputs matters, not their distance
    RECURRENT = auto()  # computes step by step, keeping a state
    CASTS = auto()  # converts between types
    VIEW = auto()  # its output has the bytes of its input, in another shape
    RISES = auto()  # a function of its only input, element by element, with f(x) <= f(y) for x < y


@dataclass(frozen=True)
class KernelSpec:
    """The kernels that LiteRT has for an op.

    `types` are those of activations, `weights` the weight types for each of them, `hybrid` the weight types with float
    activations, `blockwise` those of them that may have a scale for each block, except in LiteRT's reference kernel of
    dense layers. `versions` maps a type to the lowest op version that has it (1 if absent); `options` are option values
    that an activation type needs, float32 standing for hybrid kernels. Without what it `needs`, a kernel fails; without
    what it `prefers`, it is imprecise, so that the op stays float where floats are an option. `intermediates` are
    tensors in which an integer kernel keeps values: "gate" for the sums of each gate before its layer normalization,
    "hidden" for the output before its projection. `note` says why a type is not claimed although LiteRT has a kernel
    for it. `table` is the element-wise function of an op without a kernel: its results are then gathered from a table
    of 256 entries. `in_place` are the inputs whose memory LiteRT may reuse for the first output, outside its delegate.
    `sums_32` are the types of activations other than 8-bit ones that are summed in 32 bits, although not if there is a
    bias.
    """

    types: tuple[DType, ...] = ()
    weights: Mapping[DType, tuple[DType, ...]] = field(default_factory=dict)
    hybrid: tuple[DType, ...] = ()
    blockwise: tuple[DType, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[DType, Mapping[str, object]] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    prefers: tuple[Need, ...] = ()
    intermediates: tuple[str, ...] = ()
    note: str = ""
    table: Callable[[Op], Function | None] | None = None
    in_place: tuple[int, ...] = ()
    sums_32: tuple[DType, ...] = ()


@dataclass(frozen=True)
class OpSpec:
    """One row of the op table.

    `inputs` and `outputs` give the role of each slot. `layout` is the weight layout of an op that multiplies by
    weights. `batch` says when the op treats the samples of a batch independently; never if absent. `fixed` maps an
    activation type to the output parameters that its kernel demands. Kernels wrap, abort or are refused by the delegate
    if a `rescale` factor reaches `max_rescale` (RESCALE_LIMITS by default), or an input's scale is outside
    `input_scales`, a half-open interval. `saturates` is the interval of inputs outside of which the integer result no
    longer changes, by type. Inputs more than `negligible` below the maximum do not affect the result. `own_activation`
    is a fused activation that is part of what the op computes anyway. `probabilities` are what the op computes from its
    inputs: from "each" by itself, or from a whole "row" along the last axis (possibly log-probabilities). `optional`
    are the inputs that may be absent, besides biases. `interpolated` is the function for which an int16 kernel has a
    lookup table.
    """

    kind: str
    inputs: tuple[Role, ...]
    kernels: KernelSpec = KernelSpec()
    traits: Trait = Trait.NONE
    outputs: tuple[Role, ...] = (Activation(),)
    layout: Layout | None = None
    batch: BatchRule | None = None
    rescale: Rescale = Rescale.NONE
    max_rescale: Mapping[DType, float] = field(default_factory=dict)
    input_scales: Mapping[DType, tuple[float, float]] = field(default_factory=dict)
    fixed: Mapping[DType, Fixed] = field(default_factory=dict)
    saturates: Mapping[DType, tuple[float, float]] = field(default_factory=dict)
    negligible: float | None = None
    own_activation: str = "NONE"
    probabilities: Probabilities | None = None
    optional: tuple[int, ...] = ()
    interpolated: FunctionOf | None = None

    def input_role(self, slot: int) -> Role:
        return self.inputs[slot] if slot < len(self.inputs) else self._further(self.inputs)

    def output_role(self, slot: int) -> Role:
        return self.outputs[slot] if slot < len(self.outputs) else self._further(self.outputs)

    def _further(self, roles: tuple[Role, ...]) -> Role:
        """Return the role of slots beyond those listed in the row."""
        return roles[-1] if Trait.VARIADIC in self.traits and roles else Untouched()

    def is_optional(self, slot: int) -> bool:
        """Whether an input may be absent. Inputs beyond those with a role may."""
        return slot in self.optional or isinstance(self.input_role(slot), Bias)

    def rescale_limit(self, dtype: DType) -> float:
        """Return `max_rescale` for an activation type."""
        usual = RESCALE_LIMITS.get(self.rescale, {})
        return self.max_rescale.get(dtype, usual.get(dtype, math.inf))

    def held(self, slot: int) -> Weight | None:
        """Return how a constant at `slot` is stored if only weights are quantized; None if it stays float."""
        role = self.input_role(slot)
        if isinstance(role, Activation):
            return role.constant
        if isinstance(role, Coefficients):
            return Weight(None) if role.hybrid else None
        return role if isinstance(role, Weight) else None

    def held_tensors(self, op: Op) -> list[Tensor]:
        """Return the operands of `op` that are stored as weights if they are constant."""
        return [t for k, t in enumerate(op.inputs) if t is not None and self.held(k) is not None]

    def negligible_in(self, op: Op) -> float | None:
        """Return `negligible` for the inputs of `op`, which it may multiply by a factor first; None if that hides how
        far they matter."""
        factor = float(op.option("beta", 1.0))
        return None if self.negligible is None or not factor > 0 else self.negligible / factor

    def read_activations(self, op: Op) -> Iterator[Tensor]:
        """Yield the operands that are activations of `op`."""
        return (t for k, t in enumerate(op.inputs) if t is not None and isinstance(self.input_role(k), Activation))

    def made_activations(self, op: Op) -> Iterator[Tensor]:
        return (t for k, t in enumerate(op.outputs) if isinstance(self.output_role(k), Activation))

    def weight_tensors(self, op: Op) -> list[Tensor]:
        """Return the weights of `op` that are present, constant or not."""
        return [t for k in self.weight_slots if (t := op.input(k)) is not None]

    @cached_property
    def weight_slots(self) -> tuple[int, ...]:
        return tuple(k for k, role in enumerate(self.inputs) if isinstance(role, Weight))

    @cached_property
    def bias_slot(self) -> int | None:
        """The slot of a layer's bias, for ops that multiply data by one weight tensor and add it."""
        found = [k for k, role in enumerate(self.inputs) if isinstance(role, Bias)]
        return found[0] if len(found) == 1 and self.layout is not None else None

    @property
    def is_pointwise(self) -> bool:
        """Whether each output element depends only on the input elements at the same position."""
        return self.batch in (pointwise, broadcasts)

    @property
    def reads_shapes_only(self) -> bool:
        return all(isinstance(role, ShapeOnly) for role in self.inputs) and bool(self.inputs)

    @property
    def macs(self) -> Callable[[Op], int] | None:
        """The function that counts the multiply-accumulates of one run; None for ops that only move, add or map
        values."""
        if self.layout is not None:
            return self.layout.macs
        return macs_recurrent if Trait.RECURRENT in self.traits else None

    @property
    def tied(self) -> bool:
        return Trait.TIED in self.traits

    @property
    def moves_values(self) -> bool:
        """Whether the results are values of its inputs, and no others."""
        return self.tied and Trait.AVERAGES not in self.traits

    @property
    def plain_layout(self) -> Layout | None:
        """The layout of a layer whose first inputs are data, weights and a bias, in this order; None for others."""
        layout = self.layout if self.bias_slot == 2 else None
        return None if layout is None or (layout.data, layout.weights) != (0, 1) else layout

    @property
    def types(self) -> tuple[DType, ...]:
        return self.kernels.types

    @property
    def weights(self) -> Mapping[DType, tuple[DType, ...]]:
        return self.kernels.weights

    @property
    def hybrid(self) -> tuple[DType, ...]:
        return self.kernels.hybrid

    @property
    def table(self) -> Callable[[Op], Function | None] | None:
        return self.kernels.table


UNKNOWN = OpSpec("UNKNOWN", (Activation(),), traits=Trait.VARIADIC)
"""The row of ops that the table lacks: it claims nothing, and all that they read and make may be activations."""


def spec_of(op: Op, ops: Mapping[str, OpSpec]) -> OpSpec:
    """Return the row of an op."""
    return ops.get(op.kind, UNKNOWN)


# Fused activation functions, by their code in the schema.


@dataclass(frozen=True)
class FusedActivation:
    """A fused activation function. `bounds` are the limits of a function that only clamps."""

    name: str
    bounds: tuple[float, float] | None = None


FUSED_ACTIVATIONS: tuple[FusedActivation, ...] = (
    FusedActivation("NONE"),
    FusedActivation("RELU", (0.0, math.inf)),
    FusedActivation("RELU_N1_TO_1", (-1.0, 1.0)),
    FusedActivation("RELU6", (0.0, 6.0)),
    FusedActivation("TANH"),
    FusedActivation("SIGN_BIT"),
)
FUSED_CODES = {fused.name: code for code, fused in enumerate(FUSED_ACTIVATIONS)}

CLAMPS = {fused.name: fused.bounds for fused in FUSED_ACTIVATIONS if fused.bounds is not None}
"""The limits of functions that only clamp, fused or as ops of the same name."""


def fused_activation(op: Op) -> FusedActivation:
    code = int(op.option("fusedActivationFunction", 0))
    return FUSED_ACTIVATIONS[code] if 0 <= code < len(FUSED_ACTIVATIONS) else FusedActivation(f"UNKNOWN_{code}")
