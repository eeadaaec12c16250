"""Models made up for measuring: of the shape of a known network, or as large as one likes."""

from __future__ import annotations

import math

import numpy as np

from zeropoint.dtypes import Array, DType
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


BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repetitions, stride: table 2 of the MobileNetV2 paper."""


class Chain:
    """Layers in a row, with random weights that keep the values' size."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = Tensor("image", shape, DType.FLOAT32)
        self.graph = Graph("main", [self.value], inputs=[self.value])
        self.random = np.random.default_rng(0)

    def add(self, kind: str, shape: tuple[int, ...], options: tuple[str, dict[str, object]], *weights: Array) -> None:
        name = f"{kind.lower()}_{len(self.graph.ops)}"
        constants = [Tensor.constant(f"{name}/{k}", w, DType.FLOAT32) for k, w in enumerate(weights)]
        result = Tensor(name, shape, DType.FLOAT32)
        self.graph.tensors += [*constants, result]
        record = schema.default_options(options[0], **options[1])
        self.graph.ops.append(Op(kind, [self.value, *constants], [result], record))
        self.value = result

    def convolve(self, kernel: int, channels: int | None, stride: int, activation: int) -> None:
        """A convolution, or a depthwise one without `channels`."""
        batch, height, width, depth = self.value.shape
        count = channels or depth
        steps = {"strideW": stride, "strideH": stride, "fusedActivationFunction": activation}
        shape = (count, kernel, kernel, depth) if channels else (1, kernel, kernel, depth)
        fan_in = kernel * kernel * (depth if channels else 1)
        weights = self.random.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
        bias = self.random.standard_normal(count, np.float32)
        result = (batch, -(-height // stride), -(-width // stride), count)
        if channels:
            self.add("CONV_2D", result, ("Conv2DOptions", steps), weights, bias)
        else:
            depthwise = ("DepthwiseConv2DOptions", {**steps, "depthMultiplier": 1})
            self.add("DEPTHWISE_CONV_2D", result, depthwise, weights, bias)


def finished(chain: Chain) -> Model:
    """The model of these layers, with a signature."""
    chain.graph.outputs = [chain.value]
    names = {"image": chain.graph.inputs[0]}, {"scores": chain.value}
    return Model([chain.graph], [Signature("serving_default", chain.graph, *names)])


def mobilenet_shaped() -> Model:
    """MobileNetV2 at 224 x 224, but for its weights."""
    relu6 = 3
    chain = Chain((1, 224, 224, 3))
    chain.convolve(3, 32, 2, relu6)
    for expansion, channels, repetitions, first_stride in BLOCKS:
        for k in range(repetitions):
            before, stride = chain.value, first_stride if k == 0 else 1
            if expansion > 1:
                chain.convolve(1, expansion * before.shape[3], 1, relu6)
            chain.convolve(3, None, stride, relu6)
            chain.convolve(1, channels, 1, 0)
            if before.shape == chain.value.shape:
                chain.add("ADD", before.shape, ("AddOptions", {}))
                chain.graph.ops[-1].inputs.append(before)
    chain.convolve(1, 1280, 1, relu6)
    mean = Tensor.constant("axes", np.int32([1, 2]), DType.INT32)
    chain.add("MEAN", (1, 1280), ("ReducerOptions", {}))
    chain.graph.tensors.append(mean)
    chain.graph.ops[-1].inputs.append(mean)
    weights = chain.random.standard_normal((1000, 1280), np.float32) / 36
    chain.add("FULLY_CONNECTED", (1, 1000), ("FullyConnectedOptions", {}), weights)
    chain.add("SOFTMAX", (1, 1000), ("SoftmaxOptions", {"beta": 1.0}))
    return finished(chain)
