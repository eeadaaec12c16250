"""What the op table says about an op. Rows are facts about LiteRT's kernels; behaviour lives elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from ..affine import QuantParams
from ..dtypes import DType
from ..graph.model import Op, Tensor
from .layout import Layout

# Roles of inputs and outputs.


@dataclass(frozen=True)
class Weight:
    """Trained parameters: symmetric, narrow range, one scale per slice along `axis` where the kernels have that.

    `inputs` is the axis along which they meet the channels of the op's input, where there is one. Axes below zero
    count from the end; where the option called `swapped` is set, the last two axes have changed places.
    """

    axis: int | None
    inputs: int | None = None
    swapped: str | None = None

    def axis_of(self, op: Op, rank: int) -> int | None:
        """`axis`, in weights of this rank that `op` reads."""
        if self.axis is None or self.axis >= 0:
            return self.axis
        axis = -3 - self.axis if self.swapped is not None and op.option(self.swapped) else self.axis
        return rank + axis


@dataclass(frozen=True)
class Activation:
    """Data that flows: real numbers with one scale and zero point.

    `symmetric_constant`: if it is a constant, its zero point must be 0. `constant` is how it is held where it is one
    and only weights are quantized.
    """

    symmetric_constant: bool = False
    constant: Weight | None = None


@dataclass(frozen=True)
class Bias:
    """Added to the products of inputs `of`: scale = product of their scales, zero point 0."""

    of: tuple[int, int]


@dataclass(frozen=True)
class Untouched:
    """Holds indices, shapes, conditions: no quantization."""


@dataclass(frozen=True)
class ShapeOnly:
    """Only the tensor's shape is read, so any type does."""


@dataclass(frozen=True)
class Coefficients:
    """Trained parameters that are kept in 16 bits, symmetric: they act on a state, not on the input."""


@dataclass(frozen=True)
class OutputState:
    """The last output, kept for the next step: it has the output's parameters."""


@dataclass(frozen=True)
class CellState:
    """A recurrent layer's memory: int16 with a scale that is a power of two, 2**least up to 2**greatest."""

    least: int
    greatest: int


Role = Activation | Weight | Bias | Untouched | ShapeOnly | Coefficients | OutputState | CellState


def act(*, symmetric_constant: bool = False, constant: Weight | None = None) -> Activation:
    return Activation(symmetric_constant, constant)


def weight(axis: int | None, inputs: int | None = None, swapped: str | None = None) -> Weight:
    return Weight(axis, inputs, swapped)


def bias(*of: int) -> Bias:
    first, second = of
    return Bias((first, second))


def index() -> Untouched:
    return Untouched()


def shape_of() -> ShapeOnly:
    return ShapeOnly()


# How an integer kernel goes from its inputs' scales to its output's.


class Rescale(Enum):
    NONE = "integers pass through, or a table is looked up"
    PRODUCT = "first input's scale * second input's scale / output's scale"
    RATIO = "input's scale / output's scale"
    SUM = "both inputs to a common scale, then to the output's"


class Need(Enum):
    """What an integer kernel demands of its operands beyond their types; the text says what it would do otherwise."""

    NONNEGATIVE = "its integer kernel fails on negative values, and the input goes below zero"
    CONSTANT_DIVISOR = "its integer kernel garbles small numbers; only a constant without zeros makes it a product"
    CONSTANT_WEIGHTS = "its weights are not constant"
    NO_NORMALIZATION = "layer normalization and projection inside the op are not supported in integers"
    SUM_FITS = "its int16 kernel adds up in 32 bits, which so many elements overflow"


@dataclass(frozen=True)
class Fixed:
    """Output parameters that the kernels demand."""

    scale: float
    zero_point: int

    def params(self, dtype: DType) -> QuantParams:
        return QuantParams((self.scale,), (self.zero_point,), dtype)


Probabilities = Literal["each", "row"]


@dataclass(frozen=True)
class OpSpec:
    """One row of the op table.

    `inputs` and `outputs` give the role of each slot; with `variadic` the last role repeats. `tied` ops need one
    scale and zero point for all their activations. `fixed` maps an activation type to the output parameters that
    its kernel demands. `types` are the activation types that LiteRT has a kernel for, `weights` the weight types
    beside each of them, `hybrid` the weight types beside float activations, `blockwise` those of them that may have a
    scale for each block. `versions` maps a type to the lowest op version that has it (1 where absent); `options` are
    option values that an activation type needs, float32 standing for hybrid kernels. Kernels or
    the delegate refuse, or abort, where a `rescale` factor reaches `max_rescale`. `intermediates` are tensors that an
    integer kernel keeps values in: "float" ones it does not read, "output" ones with the output's parameters. Inputs
    that lie further than `negligible` below the greatest leave no trace in the result. `own_activation` is a fused
    activation that is part of what the op computes anyway; with `fuses` it can apply one that limits its output.
    A `homogeneous` op has f(s * x) = s * f(x) for every s > 0, channel by channel along the last axis. `saturates` is
    the interval of inputs outside of which the integer result no longer changes, by type. `probabilities` are what the
    op makes of its inputs: of "each" by itself, or of a whole "row" along the last axis (perhaps their logarithms).
    An op that `averages` makes new numbers, tied though it is; one that `has_poles` makes NaN or infinity of some
    finite ones.
    `note` says why a type is not claimed although LiteRT has a kernel for it.
    """

    kind: str
    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...] = (Activation(),)
    variadic: bool = False
    tied: bool = False
    rescale: Rescale = Rescale.NONE
    fixed: Mapping[DType, Fixed] = field(default_factory=dict)
    types: tuple[DType, ...] = ()
    weights: Mapping[DType, tuple[DType, ...]] = field(default_factory=dict)
    hybrid: tuple[DType, ...] = ()
    blockwise: tuple[DType, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[DType, Mapping[str, object]] = field(default_factory=dict)
    macs: Callable[[Op], int] | None = None
    needs: tuple[Need, ...] = ()
    max_rescale: float | Mapping[DType, float] = math.inf
    intermediates: tuple[str, ...] = ()
    negligible: float | None = None
    own_activation: str = "NONE"
    saturates: Mapping[DType, tuple[float, float]] = field(default_factory=dict)
    fuses: bool = False
    homogeneous: bool = False
    probabilities: Probabilities | None = None
    averages: bool = False
    has_poles: bool = False
    note: str = ""
    layout: Layout | None = None

    def input_role(self, slot: int) -> Role:
        return _role(self.inputs, slot, self.variadic)

    def output_role(self, slot: int) -> Role:
        return _role(self.outputs, slot, self.variadic)

    def rescale_limit(self, dtype: DType) -> float:
        """`max_rescale` for an activation type."""
        return self.max_rescale if isinstance(self.max_rescale, float) else self.max_rescale[dtype]

    def held(self, slot: int) -> Weight | None:
        """How a constant at `slot` is held where only weights are quantized; None if it stays float."""
        role = self.input_role(slot)
        if isinstance(role, Activation):
            return role.constant
        if isinstance(role, Coefficients):
            return Weight(None)
        return role if isinstance(role, Weight) else None

    def read_activations(self, op: Op) -> Iterator[Tensor]:
        """The operands that hold the data that flow through `op`."""
        return (t for k, t in enumerate(op.inputs) if t is not None and isinstance(self.input_role(k), Activation))

    def made_activations(self, op: Op) -> Iterator[Tensor]:
        return (t for k, t in enumerate(op.outputs) if isinstance(self.output_role(k), Activation))

    @property
    def weight_slots(self) -> tuple[int, ...]:
        return tuple(k for k, role in enumerate(self.inputs) if isinstance(role, Weight))

    @property
    def bias_slot(self) -> int | None:
        """Where a layer takes its bias: an op that multiplies data with one tensor of weights and adds it."""
        found = [k for k, role in enumerate(self.inputs) if isinstance(role, Bias)]
        return found[0] if len(found) == 1 and len(self.weight_slots) == 1 else None

    @property
    def reads_shapes_only(self) -> bool:
        return all(isinstance(role, ShapeOnly) for role in self.inputs) and bool(self.inputs)


def _role(roles: tuple[Role, ...], slot: int, variadic: bool) -> Role:
    if slot < len(roles):
        return roles[slot]
    return roles[-1] if variadic and roles else Untouched()


# Activation functions that an op applies to its output, by their code in the schema.


@dataclass(frozen=True)
class FusedActivation:
    """`bounds` is what the function limits its values to, if that is all it does."""

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


def fused_activation(op: Op) -> FusedActivation:
    code = int(op.option("fusedActivationFunction", 0))
    return FUSED_ACTIVATIONS[code] if 0 <= code < len(FUSED_ACTIVATIONS) else FusedActivation(f"UNKNOWN_{code}")


# Multiply-accumulates. Each takes an op of which it knows the layout.


def macs_per_output(op: Op) -> int:
    """Every output element sums over one channel's weights."""
    weights = op.inputs[1]
    if weights is None or not weights.shape:
        return 0
    return op.outputs[0].size * weights.size // max(1, op.outputs[0].shape[-1])


def macs_transposed(op: Op) -> int:
    """TRANSPOSE_CONV: every input element is spread over the weights of its channel."""
    weights, source = op.inputs[1], op.inputs[2]
    if weights is None or source is None or not weights.shape:
        return 0
    return source.size * weights.size // max(1, weights.shape[-1])


def macs_matmul(op: Op) -> int:
    """BATCH_MATMUL: every output element sums over the inner dimension."""
    left = op.inputs[0]
    if left is None or len(left.shape) < 2:
        return 0
    return op.outputs[0].size * left.shape[-2 if op.option("adjX") else -1]


def macs_recurrent(op: Op) -> int:
    """Recurrent layers: every step multiplies with every weight matrix."""
    source = op.inputs[0]
    if source is None or not source.shape:
        return 0
    steps = math.prod(source.shape[:-1])
    matrices = (t.size for t in op.inputs[1:] if t is not None and t.is_constant and len(t.shape) == 2)
    return steps * sum(matrices)
