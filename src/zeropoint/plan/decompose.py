"""Replaces ops without integer kernels by ops that have them: the model computes the same as before.

Other ops have a kernel or a lookup table (`OpSpec.table`), or stay float for the reason given in their row.
docs/modes.md lists the loss of each rewrite.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..calibration import Range
from ..calibration.range_methods import Bounds
from ..dtypes import DType
from ..graph.edit import drop_unused, recast, replace_op
from ..graph.model import Graph, Model, Op, Tensor
from ..ops import REWRITTEN, OpSpec, fused_activation, spec_of
from ..ops.interpolation import constant_exponent
from ..ops.layout import SAME, VALID
from ..ops.recurrent import BOTH_WAYS, LSTM, LstmSlot, one_way
from ..targets import TypedOp
from ..tflite.schema import default_options
from .new_ops import NewOps
from .request import Request

LONGEST_SUM = 512
"""Maximum length of a running sum: for n elements it becomes a product with n * n weights."""

MOST_SPREAD = 16.0
"""Maximum ratio of the largest divisor to the smallest: the smallest reciprocal then still has 16 of 256 steps."""


def decompose(
    graph: Graph, request: Request, bounds: Callable[[Tensor], Bounds | None]
) -> dict[Tensor, Range | Tensor]:
    """Edit `graph` in place, where `bounds` gives the range of a tensor; return the ranges of new tensors."""
    edit = _Decomposition(graph, request, bounds, NewOps(graph))
    for op in list(graph.ops):
        scheme = request.recipe.scheme(op)
        if op.label == TRANSPOSED_WITH_BIAS and (scheme.activations or scheme.weights):
            edit.transposed_convolution(op)
        elif op.kind in DECOMPOSED and scheme.activations is not None and _is_plain(op):
            DECOMPOSED[op.kind](edit, op)
    drop_unused(graph)
    return edit.new.made


def _is_plain(op: Op) -> bool:
    """Whether the op produces floats from floats or booleans."""
    read = op.inputs[0]
    return read is not None and op.outputs[0].dtype is DType.FLOAT32


@dataclass
class _Decomposition:
    graph: Graph
    request: Request
    bounds: Callable[[Tensor], Bounds | None]
    new: NewOps

    def negation(self, op: Op) -> None:
        """-x = (-1) * x: LiteRT's kernel negates the integers themselves, ignoring the scales."""
        self._times(op, self.new.constant(f"{op.name}/minus_one", -1))

    def square(self, op: Op) -> None:
        self._times(op, op.inputs[0])

    def power(self, op: Op) -> None:
        """Replace powers by products or roots; others become lookup tables."""
        exponent, base = constant_exponent(op), op.inputs[0]
        assert base is not None
        if exponent == 2:
            self._times(op, base)
        elif exponent in (0.5, -0.5):
            recast(self.graph, op, "SQRT" if exponent > 0 else "RSQRT", [base], None)

    def _times(self, op: Op, factor: Tensor | None) -> None:
        base = op.inputs[0]
        assert base is not None
        assert factor is not None
        recast(self.graph, op, "MUL", [base, factor], default_options("MulOptions"))

    def truth(self, op: Op) -> None:
        """Replace a CAST of booleans by a choice between 1 and 0. Other CASTs do not depend on scales."""
        condition = op.inputs[0]
        if condition is not None and condition.dtype is DType.BOOL:
            ends = [self.new.constant(f"{op.name}/{name}", end) for name, end in (("one", 1), ("zero", 0))]
            recast(self.graph, op, "SELECT_V2", [condition, *ends], default_options("SelectV2Options"))

    def total(self, op: Op) -> None:
        """Replace a sum by a multiple of the mean: LiteRT's sets of kernels do not agree on the integers of SUM."""
        source, axes = op.inputs
        result = op.outputs[0]
        spans = self.bounds(result)
        if source is None or axes is None or axes.data is None or spans is None:
            return
        count = math.prod(source.dynamic_shape[int(axis)] for axis in axes.data.reshape(-1))
        if count < 1:
            return
        mean = self.new.like(result, "mean", (spans[0] / count, spans[1] / count))
        self.new.insert(op, "MEAN", [source, axes], mean, op.options)
        recast(
            self.graph, op, "MUL", [mean, self.new.constant(f"{op.name}/count", count)], default_options("MulOptions")
        )

    def running_sum(self, op: Op) -> None:
        """Replace a running sum by a product with a triangular matrix of ones, along the last axis."""
        source, axis, result = op.inputs[0], op.inputs[1], op.outputs[0]
        if source is None or axis is None or axis.data is None or len(source.shape) < 2 or source.is_dynamic:
            return
        rank, along = len(source.shape), int(axis.data.item()) % len(source.shape)
        size = source.shape[along]
        if size > LONGEST_SUM:
            return
        ones = np.tril(np.ones((size, size)), -1 if op.option("exclusive", False) else 0)
        weights = self.new.constant(f"{op.name}/triangle", ones.T if op.option("reverse", False) else ones)
        options = default_options("FullyConnectedOptions", keepNumDims=True)
        if along == rank - 1:
            recast(self.graph, op, "FULLY_CONNECTED", [source, weights], options)
            return
        order = [*range(along), *range(along + 1, rank), along]
        shape = tuple(source.shape[k] for k in order)
        turned, summed = (self.new.tensor(t, "turned", shape, t) for t in (source, result))
        there = self.new.integers(f"{op.name}/order", order)
        back = self.new.integers(f"{op.name}/order", np.argsort(order))
        self.new.insert(op, "TRANSPOSE", [source, there], turned, default_options("TransposeOptions"))
        self.new.insert(op, "FULLY_CONNECTED", [turned, weights], summed, options)
        recast(self.graph, op, "TRANSPOSE", [summed, back], default_options("TransposeOptions"))

    def pooled_norm(self, op: Op) -> None:
        """Replace L2_POOL_2D by the root of the mean of squares."""
        source, result = op.inputs[0], op.outputs[0]
        spans = None if source is None else self.bounds(source)
        if source is None or spans is None or fused_activation(op).name not in ("NONE", "RELU"):
            return
        peak = (0.0, max(map(abs, spans)) ** 2)
        squares, means = self.new.like(source, "squared", peak), self.new.like(result, "mean", peak)
        self.new.insert(op, "MUL", [source, source], squares, default_options("MulOptions"))
        options = None if op.options is None else op.options.replace(fusedActivationFunction=0)
        self.new.insert(op, "AVERAGE_POOL_2D", [squares], means, options)
        recast(self.graph, op, "SQRT", [means], None)

    def quotient(self, op: Op) -> None:
        """x / y = x * (1 / y), if y stays away from zero."""
        source, divisor = op.inputs
        spans = None if divisor is None else self.bounds(divisor)
        if source is None or divisor is None or spans is None or divisor.dtype is not DType.FLOAT32:
            return
        low, high = sorted(map(abs, spans))
        if spans[0] * spans[1] <= 0 or high > MOST_SPREAD * low or self.bounds(op.outputs[0]) is None:
            return
        inverse = self._reciprocal(op, divisor, spans)
        if inverse is not None:
            fused = op.option("fusedActivationFunction", 0)
            options = default_options("MulOptions", fusedActivationFunction=fused)
            recast(self.graph, op, "MUL", [source, inverse], options)

    def _reciprocal(self, op: Op, divisor: Tensor, spans: Bounds) -> Tensor | None:
        """Return the reciprocal by lookup table, or in 16 bits as the square of RSQRT, which has an int16 kernel."""
        inverse = 1 / spans[1], 1 / spans[0]
        if self.request.recipe.scheme(op).activations is not DType.INT16:
            return self._power(op, divisor, -1.0, inverse)
        if spans[0] < 0:
            return None
        root = self.new.like(divisor, "root", (math.sqrt(inverse[0]), math.sqrt(inverse[1])))
        square = self.new.like(divisor, "reciprocal", inverse)
        self.new.insert(op, "RSQRT", [divisor], root)
        self.new.insert(op, "MUL", [root, root], square, default_options("MulOptions"))
        return square

    def response_norm(self, op: Op) -> None:
        """LOCAL_RESPONSE_NORMALIZATION: x * (bias + alpha * sum of squares of neighbours) ** -beta.

        The sum over neighbouring channels is a convolution with a band matrix.
        """
        source = op.inputs[0]
        spans = None if source is None else self.bounds(source)
        radius, bias, alpha, beta = (op.option(name) for name in ("radius", "bias", "alpha", "beta"))
        if source is None or spans is None or len(source.shape) != 4 or bias <= 0 or alpha <= 0 or beta <= 0:
            return
        channels, peak = source.shape[3], max(map(abs, spans)) ** 2
        places = np.arange(channels)
        band = alpha * (np.abs(places[:, None] - places) <= radius)
        most = bias + float(band.sum(1).max()) * peak
        squares = self.new.like(source, "squared", (0.0, peak))
        sums = self.new.like(source, "neighbours", (bias, most))
        inverse = self._power(op, sums, -beta, (most**-beta, bias**-beta))
        if inverse is None:
            return
        power = next(o for o in self.graph.ops if inverse in o.outputs)
        self.new.insert(power, "MUL", [source, source], squares, default_options("MulOptions"))
        weights = self.new.constant(f"{op.name}/band", band.reshape(channels, 1, 1, channels))
        biases = self.new.constant(f"{op.name}/bias", np.full(channels, bias))
        options = default_options("Conv2DOptions", padding=VALID, strideW=1, strideH=1)
        self.new.insert(power, "CONV_2D", [squares, weights, biases], sums, options)
        recast(self.graph, op, "MUL", [source, inverse], default_options("MulOptions"))

    def _power(self, op: Op, base: Tensor, exponent: float, spans: Bounds) -> Tensor | None:
        """Return a power by lookup table, if the target runs that as well as it runs `op` in float."""
        scheme = self.request.recipe.scheme(op)
        constant = Tensor.constant(f"{op.name}/exponent", np.array(exponent, np.float32), DType.FLOAT32)
        power = Op("POW", [base, constant], [replace(base)], default_options("PowOptions"))
        ops, target, plain = self.request.ops, self.request.target, replace(scheme, activations=None, weights=None)
        if "POW" not in ops or scheme.activations not in ops["POW"].types:
            return None
        in_float = target.verdict(TypedOp.of_scheme(op, plain, ops))
        if target.verdict(TypedOp.of_scheme(power, scheme, ops)).is_slower_than(in_float):
            return None
        power.outputs[0] = self.new.like(base, "power", spans)
        self.graph.tensors.append(constant)
        self.graph.ops.insert(self.graph.ops.index(op), power)
        return power.outputs[0]

    def both_ways(self, op: Op) -> None:
        """Replace a bidirectional LSTM by two LSTMs, one on the reversed sequence: LiteRT has no bidirectional integer
        kernel."""
        found = (one_way(op, backward=backward) for backward in (False, True))
        ways = [way for way in found if way is not None and way.inputs[LstmSlot.PROJECTION_BIAS] is None]
        source, merged = op.inputs[0], bool(op.option("mergeOutputs", False))
        if source is None or len(ways) < 2 or self.request.recipe.scheme(op).activations is not DType.INT8:
            return
        names = ("fusedActivationFunction", "cellClip", "projClip", "timeMajor")
        options = default_options("UnidirectionalSequenceLSTMOptions", **{name: op.option(name) for name in names})
        time = self.new.integers(f"{op.name}/time", [0 if op.option("timeMajor") else 1])
        turned = self.new.like(source, "turned", source)
        shape = (*source.shape[:-1], op.outputs[0].shape[-1] // (2 if merged else 1))
        made = [op.outputs[0], op.outputs[-1]]
        if merged:
            made = [self.new.tensor(op.outputs[0], name, shape, op.outputs[0]) for name in ("forward", "backward")]
        back = self.new.like(made[1], "turned", op.outputs[-1])
        steps = [Op("REVERSE_V2", [source, time], [turned], default_options("ReverseV2Options"))]
        for way, read, result in zip(ways, (source, turned), (made[0], back), strict=True):
            steps.append(Op(LSTM, [read, *way.inputs[1:]], [result], options))
        steps.append(Op("REVERSE_V2", [back, time], [made[1]], default_options("ReverseV2Options")))
        if merged:
            joined = default_options("ConcatenationOptions", axis=len(shape) - 1)
            steps.append(Op("CONCATENATION", [*made], [op.outputs[0]], joined))
        replace_op(self.graph, op, steps)

    def transposed_convolution(self, op: Op) -> None:
        """Replace MediaPipe's transposed convolution with a bias; its options are LiteRT's own struct of three
        numbers."""
        packed = b"" if op.custom_options is None else op.custom_options.tobytes()
        source, weights, bias = (*op.inputs, None, None, None)[:3]
        constants = [t for t in (weights, bias) if t is not None and t.data is not None]
        if len(packed) < 12 or source is None or len(constants) < 2 or source.is_dynamic:
            return
        padding, width, height = struct.unpack("<3i", packed[:12])
        shape = self.new.integers(f"{op.name}/shape", op.outputs[0].shape)
        padded = SAME if padding == PADDED_SAME else VALID
        options = default_options("TransposeConvOptions", padding=padded, strideW=width, strideH=height)
        recast(self.graph, op, "TRANSPOSE_CONV", [shape, constants[0], source, constants[1]], options)
        op.version, op.custom_code, op.custom_options = SINCE_BIAS, None, None


TRANSPOSED_WITH_BIAS = "Convolution2DTransposeBias"
PADDED_SAME = 1  # kTfLitePaddingSame
SINCE_BIAS = 3
"""The first version of TRANSPOSE_CONV with a bias."""

DECOMPOSED: Mapping[str, Callable[[_Decomposition, Op], None]] = {
    BOTH_WAYS: _Decomposition.both_ways,
    "CAST": _Decomposition.truth,
    "CUMSUM": _Decomposition.running_sum,
    "DIV": _Decomposition.quotient,
    "L2_POOL_2D": _Decomposition.pooled_norm,
    "LOCAL_RESPONSE_NORMALIZATION": _Decomposition.response_norm,
    "NEG": _Decomposition.negation,
    "POW": _Decomposition.power,
    "SQUARE": _Decomposition.square,
    "SUM": _Decomposition.total,
}


def has_float_part(model: Model, ops: Mapping[str, OpSpec]) -> bool:
    """Whether some op that could compute in integers still computes in float."""
    for graph in model.graphs:
        for op in graph.ops:
            if op.label not in REWRITTEN and not spec_of(op, ops).types:
                continue
            if any(t is not None and t.dtype is DType.FLOAT32 for t in (*op.inputs, *op.outputs)):
                return True
    return False
