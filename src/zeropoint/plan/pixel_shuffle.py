"""Transposed convolutions of few channels as convolutions whose channels become pixels (pixel shuffle, ESPCN).

Where the windows of a transposed convolution do not overlap, each output pixel comes from one input pixel:

    output[s*y + i, s*x + j, o] = bias[o] + sum over c of weights[o, i, j, c] * input[y, x, c]

A 1x1 convolution with s*s*o channels computes the same numbers in another order, and DEPTH_TO_SPACE moves them into
place. Kernels compute 8 to 32 channels at once, whether or not the layer has so many: a TRANSPOSE_CONV that makes a
mask of one channel, the usual end of a segmentation network, wastes most of its time.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..dtypes import DType
from ..graph.edit import recast
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use
from ..ops.layout import VALID, strides_of
from ..recipe import Recipe
from ..tflite.schema import default_options
from .new_ops import NewOps

FEW_CHANNELS = 4
"""Output channels up to which at least half of what a kernel computes at once would be wasted."""


def shuffle_pixels(graph: Graph, recipe: Recipe, fixed: Collection[Tensor | None] = ()) -> NewOps:
    """Edit `graph` in place where `recipe` asks for int8: LiteRT has no DEPTH_TO_SPACE in 16 bits.

    Ops that a rule names, and weights that are `fixed`, stay as they are.
    """
    new = NewOps(graph)
    for op in [op for op in graph.ops if op.kind == "TRANSPOSE_CONV"]:
        if recipe.leaves_free(op, DType.INT8) and _is_shuffle(op) and op.inputs[1] not in fixed:
            _shuffle(graph, op, new)
    return new


def _is_shuffle(op: Op) -> bool:
    """Whether the op has few channels and square windows that neither overlap nor leave gaps."""
    _, weights, source, *biases = op.inputs
    if weights is None or weights.data is None or source is None or any(t and t.data is None for t in biases):
        return False
    channels, height, width, _ = weights.shape
    whole = (source.shape[0], height * source.shape[1], width * source.shape[2], channels)
    is_open = source.is_dynamic or op.outputs[0].is_dynamic
    is_square = strides_of(op) == (height, width) and height == width > 1
    return is_square and channels <= FEW_CHANNELS and op.outputs[0].shape == whole and not is_open


def _shuffle(graph: Graph, op: Op, new: NewOps) -> None:
    """Replace one op."""
    weights, source = Use(op, 1).tensor, Use(op, 2).tensor
    channels, size, _, inputs = weights.shape
    bias = op.input(3)
    kernel = Use(op, 1).data.transpose(1, 2, 0, 3).reshape(size * size * channels, 1, 1, inputs)
    offsets = np.zeros(channels) if bias is None or bias.data is None else bias.data.reshape(-1)
    shuffled = new.constant_from(weights, f"{weights.name}/shuffled", np.ascontiguousarray(kernel))
    repeated = new.constant_from(bias, f"{op.name}/bias", np.tile(offsets, size * size))
    between = new.tensor(op.outputs[0], "channels", (*source.shape[:3], len(kernel)), op.outputs[0])
    plain = dict.fromkeys(("strideH", "strideW", "dilationHFactor", "dilationWFactor"), 1)
    fused = op.option("fusedActivationFunction", 0)
    options = default_options("Conv2DOptions", padding=VALID, fusedActivationFunction=fused, **plain)
    new.insert(op, "CONV_2D", [source, shuffled, repeated], between, options)
    recast(graph, op, "DEPTH_TO_SPACE", [between], default_options("DepthToSpaceOptions", blockSize=size))
