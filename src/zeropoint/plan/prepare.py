"""Folds that turn a model into a plain float model before planning. The model computes the same as before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..affine import PerBlock, QuantParams, dequantize
from ..dtypes import DType
from ..graph.edit import absorb, drop_unused, fold_into_constant, recast, remove_op, replace_input
from ..graph.model import BlockScales, Buffer, Graph, Model, Op, Tensor
from ..graph.query import Uses
from ..graph.sparse import fold_densify
from ..ops import CLAMPS, CONVERSIONS, FUSED_CODES, Bias, OpSpec, Trait, fused_activation, spec_of
from ..ops.delegate_faults import identity_pools
from ..ops.execution import execution_of
from ..ops.layout import VALID
from ..recipe import Recipe
from ..sources.ports import entry_graphs
from ..tflite.schema import default_options
from .inferred_shapes import infer_sizes
from .plan import Packed
from .qdq import Trained, take_trained


def prepare(model: Model, recipe: Recipe, ops: Mapping[str, OpSpec]) -> Trained:
    """Edit `model` in place; return what training left in it, and how its constants were stored.

    Ops to which `recipe` gives different schemes are not fused.
    """
    for graph in entry_graphs(model):  # other graphs stay unchanged
        _fold_sparse(graph, recipe)
    trained = take_trained(model, ops)
    unpacked = _Unpacked(dict(trained.constants), dict(trained.packed))
    for graph in entry_graphs(model):
        for op in list(graph.ops):
            if op.kind in CONVERSIONS:
                unpacked.fold_float16(graph, op)
            elif execution_of(op, ops) == "hybrid" and (spec := ops.get(op.kind)) is not None:
                unpacked.take_weights(graph, op, spec)
        _fuse_activations(graph, recipe, ops)
        _drop_pools_of_one(graph)
        infer_sizes(graph)
        for op in graph.ops:
            if recipe.scheme(op).activations is not None:
                _quotient_to_product(graph, op)
                _global_pool_to_mean(graph, op)
                _flatten_biases(graph, op, ops)
        drop_unused(graph)
    return replace(trained, constants=unpacked.grids, packed=unpacked.packed)


def _fuse_activations(graph: Graph, recipe: Recipe, ops: Mapping[str, OpSpec]) -> None:
    """Fuse a ReLU into the op before it: its integers then need not cover negative values that are cut off anyway."""
    uses = Uses(graph)
    for op in list(graph.ops):
        source = op.inputs[0] if op.kind in CLAMPS else None
        producer = None if source is None else uses.producer(source)
        if source is None or producer is None or producer.options is None or uses.is_output(source):
            continue
        if Trait.FUSES not in spec_of(producer, ops).traits or len(uses.readers(source)) > 1:
            continue
        if recipe.rule(producer) is not recipe.rule(op) or recipe.scheme(op).activations is None:
            continue
        both = _as_one_clamp(producer, op)
        if both is not None:
            absorb(graph, op, producer, producer.options.replace(fusedActivationFunction=FUSED_CODES[both]))
            uses = Uses(graph)


def _as_one_clamp(producer: Op, op: Op) -> str | None:
    """Return the clamp that does what `op` does after the one fused into `producer`: the narrower of the two."""
    fused = fused_activation(producer).name
    if fused == "NONE":
        return op.kind
    if fused not in CLAMPS:
        return None
    for clamp, other in ((fused, op.kind), (op.kind, fused)):
        (low, high), (least, most) = CLAMPS[clamp], CLAMPS[other]
        if least <= low and high <= most:
            return clamp
    return None


def _drop_pools_of_one(graph: Graph) -> None:
    """Remove pooling that is the identity, which LiteRT's delegate gets wrong. What the graph returns keeps its name: a
    RESHAPE copies it."""
    for op in identity_pools(graph):
        source, result = op.inputs[0], op.outputs[0]
        if result not in graph.outputs:
            remove_op(graph, op)
        elif source is not None and -1 not in (shape := result.dynamic_shape):
            wanted = Tensor.constant(f"{op.name}/shape", np.array(shape, np.int32), DType.INT32)
            recast(graph, op, "RESHAPE", [source, wanted], default_options("ReshapeOptions", newShape=shape))


def _quotient_to_product(graph: Graph, op: Op) -> None:
    """Replace a division by a constant by a product with its reciprocal.

    The integer kernel of DIV shifts by more than 31 bits, and so garbles the quotients of small numbers (LiteRT 2.3).
    """
    source, divisor = op.inputs if op.kind == "DIV" else (None, None)
    if source is None or divisor is None or divisor.dtype is not DType.FLOAT32 or divisor.data is None:
        return
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.reciprocal(divisor.data)
    if np.isfinite(factors).all():
        factor = Tensor.constant(f"{divisor.name}/reciprocal", factors, DType.FLOAT32)
        fused = op.option("fusedActivationFunction", 0)
        recast(graph, op, "MUL", [source, factor], default_options("MulOptions", fusedActivationFunction=fused))


def _global_pool_to_mean(graph: Graph, op: Op) -> None:
    """Replace an average over the whole image by MEAN, whose integer kernel has its own output scale."""
    source = op.inputs[0] if op.kind == "AVERAGE_POOL_2D" else None
    if source is None or len(source.shape) != 4 or op.option("fusedActivationFunction") != 0:
        return
    window = (op.option("filterHeight"), op.option("filterWidth"))
    if window == source.shape[1:3] and op.outputs[0].shape[1:3] == (1, 1) and op.option("padding") == VALID:
        axes = Tensor.constant(f"{op.name}/axes", np.array([1, 2], np.int32), DType.INT32)
        recast(graph, op, "MEAN", [source, axes], default_options("ReducerOptions", keepDims=True))


def _flatten_biases(graph: Graph, op: Op, ops: Mapping[str, OpSpec]) -> None:
    """Make biases vectors: kernels only count their elements, but scales lie along one axis."""
    for slot, tensor in enumerate(op.inputs):
        is_bias = op.kind in ops and isinstance(ops[op.kind].input_role(slot), Bias)
        if is_bias and tensor is not None and tensor.data is not None and tensor.data.ndim != 1:
            flat = Tensor.constant(f"{tensor.name}/flat", tensor.data.reshape(-1), tensor.dtype)
            replace_input(graph, op, slot, flat)


@dataclass
class _Unpacked:
    """Converts constants that the file stores in fewer bits to float32, and remembers their parameters and form.

    The values are those that the float kernels compute with: quantizing them with the same parameters loses nothing.
    """

    grids: dict[Tensor, QuantParams]
    packed: dict[Tensor, Packed]
    _floats: dict[Tensor, Tensor] = field(default_factory=dict)
    _buffers: dict[tuple[Buffer | None, QuantParams, tuple[int, ...]], Buffer | None] = field(default_factory=dict)

    def fold_float16(self, graph: Graph, op: Op) -> None:
        """Fold a constant that is stored in float16 and converted for float arithmetic."""
        source = op.inputs[0]
        if source is None or source.dtype is not DType.FLOAT16 or source.data is None:
            return
        if op.outputs[0] not in graph.outputs:
            values = source.data.astype(np.float32)
            constant = Tensor.constant(op.outputs[0].name, values, DType.FLOAT32)
            fold_into_constant(graph, op, constant)
            self.packed[constant] = Packed(DType.FLOAT16, True)

    def take_weights(self, graph: Graph, op: Op, spec: OpSpec) -> None:
        """Convert the integer weights of an op that computes with float activations."""
        for slot, tensor in enumerate(op.inputs):
            params = None if tensor is None or spec.held(slot) is None else _stored_params(tensor)
            if tensor is None or tensor.data is None or params is None:
                continue
            if tensor not in self._floats:
                constant = Tensor.constant(tensor.name, dequantize(tensor.data, params), DType.FLOAT32)
                spot = tensor.buffer, params, tensor.shape  # tensors that shared its bytes keep sharing them
                constant.buffer = self._buffers.setdefault(spot, constant.buffer)
                self._floats[tensor], self.packed[constant] = constant, Packed(params, False)
                if params.block is None:
                    self.grids[constant] = params
            replace_input(graph, op, slot, self._floats[tensor])


def _stored_params(tensor: Tensor) -> QuantParams | None:
    """Return the parameters of a constant's integers, if they are valid and fit its shape."""
    stored = tensor.quantization
    if stored is not None and isinstance(stored.details, BlockScales):
        scales, zeros = stored.details.scales.data, stored.details.zero_points
        size = int(stored.details.record["blockSize"])
        if scales is None or size < 1 or scales.size * size != tensor.size or tensor.shape[-1] % size:
            return None
        if zeros is not None and (zeros.data is None or zeros.data.any()):
            return None
        spread = scales.reshape(-1).astype(float).tolist()
        return QuantParams((*spread,), (0,) * len(spread), tensor.dtype, PerBlock(len(tensor.shape) - 1, size))
    params = tensor.params
    if params is None or params.axis is None:
        return params
    fits = 0 <= params.axis < len(tensor.shape) and tensor.shape[params.axis] == len(params.scales)
    return params if fits else None


def _fold_sparse(graph: Graph, recipe: Recipe) -> None:
    """Make a sparse constant dense if integer kernels are to read it, which take no other."""
    uses = Uses(graph)
    for op in [op for op in graph.ops if op.kind == "DENSIFY"]:
        readers = [use.op for use in uses.readers(op.outputs[0])]
        behind = [use.op for reader in readers if reader.kind in CONVERSIONS for use in uses.readers(reader.outputs[0])]
        if any(recipe.scheme(reader).activations is not None for reader in behind or readers):
            fold_densify(graph, op)
