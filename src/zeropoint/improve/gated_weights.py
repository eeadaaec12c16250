"""Gates of squeeze-and-excitation blocks multiply the weights of the next layer instead of its input.

A gate g has one factor for each channel of an image x, and the 1x1 convolution that follows sums over channels:

    W (g * x) + b = (W * g) x + b

On the left every pixel of every channel is multiplied, rounded and stored, on the right every weight is. A layer of 16
outputs on 288 pixels has 18 times as many of the former. The product with weights that are computed is a BATCH_MATMUL,
whose kernel has to arrange them first, and which has no bias. The constant b moves on to where it costs nothing: past
sums and means, into the biases of the layers that read them:

    V (y + b) + c = V y + (V b + c)

Where it cannot, it is one more sum over the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import Array, DType
from ..graph.edit import drop_unused
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..ops import spec_of
from ..ops.layout import VALID, strides_of
from ..plan.linear_layers import convolution_bias
from ..plan.new_ops import NewOps
from ..plan.plan import Planned
from ..plan.prepared import Prepared
from ..plan.request import Request
from ..sources.ports import entry_graphs
from ..targets import Rewrite
from ..tflite.schema import default_options

ARRANGING = 3
"""Elements passing through a fast op that take as long as arranging one computed weight for a matrix product, which
kernels do one by one on most processors."""

COARSER = 4
"""How much larger the squared rounding error of weights with one scale may be than with a scale for each output."""


@dataclass(frozen=True)
class Gated:
    """A model with gates in the weights of so many `layers`. The tensors that were `added` have no ranges of their own
    yet, but those of similar ones."""

    prepared: Prepared
    added: tuple[Tensor, ...]
    layers: int


def with_gated_weights(prepared: Prepared, planned: Planned, request: Request) -> Gated | None:
    """Return the model with gates in weights, if its target wants that and its plan has layers of that kind in int8.

    Ops that a rule names, and models with given or trained ranges, stay as they are.
    """
    is_fixed = request.ranges.entries or prepared.trained.has_marks
    first, *_ = planned.plans
    if is_fixed or Rewrite.GATED_WEIGHTS not in request.target.rewrites or not _has_gates(first.graph):
        return None
    copied, _ = prepared.copied()
    graph, *_ = entry_graphs(copied.model)

    def is_free(op: Op) -> bool:
        scheme, is_layer = first.schemes.get(op), spec_of(op, request.ops).macs is not None
        is_int8 = scheme is not None and scheme.activations is scheme.weights is DType.INT8
        is_island = any(prepared.keys.get(t) in request.islands for t in op.outputs)
        return (is_int8 or not is_layer) and not is_island and request.recipe.leaves_free(op, DType.INT8)

    free = {twin for op, twin in zip(first.graph.ops, graph.ops, strict=True) if is_free(op)}
    edit = GatedWeights(graph, free.__contains__)
    new = edit.rewrite()
    drop_unused(graph)
    made = copied.with_new(new.made).with_constants(new.constants)
    return Gated(made, tuple(new.made), edit.layers) if edit.layers else None


def _has_gates(graph: Graph) -> bool:
    """Whether a product is read by a convolution."""
    products = {op.outputs[0] for op in graph.ops if op.kind == "MUL"}
    return any(op.kind == "CONV_2D" and op.inputs[0] in products for op in graph.ops)


@dataclass
class GatedWeights:
    """Edits a graph in place, touching only ops that are `free` to be replaced. `layers` counts what was replaced."""

    graph: Graph
    free: Callable[[Op], bool]
    layers: int = 0
    _offsets: dict[Tensor, Array] = field(default_factory=dict)
    """What tensors lack of their former values, for each channel."""

    def rewrite(self) -> NewOps:
        """Replace gates and layers where fewer elements pass through ops afterwards; return what was added."""
        new, uses = NewOps(self.graph), Uses(self.graph)
        for op in [op for op in self.graph.ops if op.kind == "CONV_2D"]:
            gated = _gated(op, uses)
            if gated is None or not gated.has_even_weights or not all(map(self.free, (op, gated.product))):
                continue
            path = gated.path(uses, self.free)
            if gated.pays(needs_sum=path is None):
                self._replace(gated, path, new)
                self.layers, uses = self.layers + 1, Uses(self.graph)
        for tensor, offset in self._offsets.items():
            if offset.any():
                _substitute(self.graph, tensor, new.like(tensor, "unbiased", tensor))
        return new

    def _replace(self, gated: _Gated, path: _Path | None, new: NewOps) -> None:
        op, made = gated.layer, gated.layer.outputs[0]
        weights, (outputs, channels) = Use(op, 1).tensor, gated.matrix.shape
        matrix = new.constant_from(weights, f"{weights.name}/matrix", gated.matrix.reshape(1, 1, outputs, channels))
        product = new.tensor(gated.gate, "weights", (gated.gate.shape[0], 1, outputs, channels), gated.gate)
        if gated.gate.is_dynamic:
            product.shape_signature = (-1, *product.shape[1:])
        result = made if path is not None else new.like(made, "product", made)
        new.insert(op, "MUL", [matrix, gated.gate], product, default_options("MulOptions"))
        options = default_options("BatchMatMulOptions", adjY=True)
        new.insert(op, "BATCH_MATMUL", [gated.image, product], result, options)
        if path is None:
            fused = default_options("AddOptions", fusedActivationFunction=op.option("fusedActivationFunction"))
            offset = new.constant_from(op.input(2), f"{op.name}/bias", gated.bias)
            new.insert(op, "ADD", [result, offset], made, fused)
        else:
            self._move(gated.bias, path, new)
        for each in (gated.product, op):
            self.graph.ops.remove(each)

    def _move(self, offset: Array, path: _Path, new: NewOps) -> None:
        """Leave `offset` out of all tensors on `path`, and make up for it in the biases at its end."""
        for tensor in path.tensors:
            self._offsets[tensor] = self._offsets.get(tensor, np.zeros(1)) + offset
        for layer in path.layers:
            taps = Use(layer, 1).data.astype(np.float64).sum(axis=(1, 2))
            bias = convolution_bias(layer) + taps @ offset
            layer.inputs = [*layer.inputs[:2], new.constant_from(layer.input(2), f"{layer.name}/bias", bias)]


@dataclass(frozen=True)
class _Gated:
    """A 1x1 convolution, and the product before it of an image and a gate."""

    layer: Op
    product: Op
    image: Tensor
    gate: Tensor

    @property
    def matrix(self) -> Array:
        """The weights [outputs, channels]."""
        return Use(self.layer, 1).data[:, 0, 0]

    @property
    def bias(self) -> Array:
        return convolution_bias(self.layer)

    def path(self, uses: Uses, free: Callable[[Op], bool]) -> _Path | None:
        """Return where the bias goes, if it needs no sum of its own."""
        if self.layer.option("fusedActivationFunction") != 0:
            return None
        return _Path.of(self.layer.outputs[0], uses, free) if self.bias.any() else _Path((), ())

    def pays(self, *, needs_sum: bool) -> bool:
        """Whether fewer elements pass through ops; the multiplications of the layer itself remain."""
        outputs, channels = self.matrix.shape
        pixels = self.image.shape[1] * self.image.shape[2]
        after = (1 + ARRANGING) * outputs * channels + (pixels * outputs if needs_sum else 0)
        return bool(after < pixels * channels)

    @property
    def has_even_weights(self) -> bool:
        """Whether one scale for all weights rounds them about as finely as one for each output."""
        peaks = np.abs(self.matrix.astype(np.float64)).max(axis=1)
        return bool(peaks.max() ** 2 <= COARSER * (peaks**2).mean())


def _gated(op: Op, uses: Uses) -> _Gated | None:
    """Return what `op` reads if it is a plain matrix product on each pixel of a gated image."""
    source = op.inputs[0]
    product = None if source is None else uses.producer(source)
    if source is None or product is None or product.kind != "MUL" or not _is_layer(op, source):
        return None
    is_plain = Use(op, 1).tensor.shape[1:3] == strides_of(op) == (1, 1)
    if not is_plain or len(uses.readers(source)) > 1 or uses.is_output(source):
        return None
    for image, gate in (product.inputs, product.inputs[::-1]):
        is_bare = product.option("fusedActivationFunction") == 0
        if is_bare and image is not None and gate is not None and _is_gate(gate, image):
            return _Gated(op, product, image, gate)
    return None


def _is_layer(op: Op, source: Tensor) -> bool:
    """Whether `op` is a convolution with constants whose outputs sum over all channels of `source`."""
    constants = op.inputs[1:]
    is_known = constants[0] is not None and all(t is None or t.data is not None for t in constants)
    return is_known and len(source.shape) == 4 and Use(op, 1).tensor.shape[3] == source.shape[3]


def _is_gate(gate: Tensor, image: Tensor) -> bool:
    """Whether `gate` is computed, with one factor for each channel of each image, in sizes that do not change."""
    is_open = any(-1 in t.dynamic_shape[1:] for t in (gate, image))
    is_computed = gate.data is None and image.data is None
    shape = (image.shape[0], 1, 1, image.shape[-1])
    return is_computed and not is_open and len(image.shape) == 4 and gate.shape == shape != image.shape


@dataclass(frozen=True)
class _Path:
    """Where a constant that is added to each pixel may be added instead: the biases of `layers`.

    All other `tensors` on the way may lack it.
    """

    tensors: tuple[Tensor, ...]
    layers: tuple[Op, ...]

    @classmethod
    def of(cls, start: Tensor, uses: Uses, free: Callable[[Op], bool]) -> _Path | None:
        """Return the path from `start`, unless something on it needs the constant."""
        tensors, layers = [start], list[Op]()
        for tensor in tensors:  # grows
            if uses.is_output(tensor):
                return None
            for use in uses.readers(tensor):
                if not free(use.op) or use.op.outputs[0] in tensors:  # a sum that would add it twice
                    return None
                if use.op.kind == "CONV_2D" and use.slot == 0 and _is_layer(use.op, tensor) and _is_unpadded(use.op):
                    layers.append(use.op)
                elif _passes(use.op, tensor):
                    tensors.append(use.op.outputs[0])
                else:
                    return None
        return cls(tuple(tensors), tuple(layers))


def _is_unpadded(op: Op) -> bool:
    return op.option("padding") == VALID or Use(op, 1).tensor.shape[1:3] == (1, 1)


def _passes(op: Op, tensor: Tensor) -> bool:
    """Whether the result has what is added to each channel of `tensor`: a sum of two images, a mean of pixels."""
    if op.kind == "ADD":
        is_bare = op.option("fusedActivationFunction") == 0
        return is_bare and all(t is not None and t.data is None and t.shape == tensor.shape for t in op.inputs)
    axes = op.inputs[1].data if op.kind == "MEAN" and op.inputs[1] is not None else None
    return axes is not None and all(0 < axis % len(tensor.shape) < len(tensor.shape) - 1 for axis in axes.reshape(-1))


def _substitute(graph: Graph, old: Tensor, new: Tensor) -> None:
    """Have `new` take the place of `old`."""
    for op in graph.ops:
        op.inputs = [new if t is old else t for t in op.inputs]
        op.outputs = [new if t is old else t for t in op.outputs]
