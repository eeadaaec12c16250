"""Models made up for measuring: as large as one likes."""

from __future__ import annotations

import math

import numpy as np

from zeropoint.dtypes import DType
from zeropoint.graph.model import Graph, Model, Op, Signature, Tensor
from zeropoint.tflite import schema


def layered_model(size: int, layers: int) -> Model:
    """Dense layers in a row, about `size` bytes of weights; values keep their size on the way."""
    width = max(1, math.isqrt(size // (4 * layers)))
    random = np.random.default_rng(0)
    first = value = Tensor("serving_default_input:0", (1, width), DType.FLOAT32, shape_signature=(-1, width))
    graph = Graph("main", [first], inputs=[first])
    options = schema.default_options("FullyConnectedOptions")
    for k in range(layers):
        weight = random.standard_normal((width, width), np.float32) * np.float32(1 / math.sqrt(width))
        bias = random.standard_normal(width, np.float32) / 10
        constants = [
            Tensor.constant(f"model/dense_{k}/MatMul", weight, DType.FLOAT32),
            Tensor.constant(f"model/dense_{k}/BiasAdd/ReadVariableOp", bias, DType.FLOAT32),
        ]
        result = Tensor(f"model/dense_{k}/BiasAdd", (1, width), DType.FLOAT32, shape_signature=(-1, width))
        graph.tensors += [*constants, result]
        graph.ops.append(Op("FULLY_CONNECTED", [value, *constants], [result], options))
        value = result
    graph.outputs = [value]
    return Model([graph], [Signature("serving_default", graph, {"input": first}, {"output": value})])
