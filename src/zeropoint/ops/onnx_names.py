"""The LiteRT op kinds that converters translate each ONNX op to."""

from __future__ import annotations

from collections.abc import Mapping

_AVERAGE = ("AVERAGE_POOL_2D", "MEAN")
_CONVOLUTION = ("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D", "FULLY_CONNECTED")
_DENSE = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D")
_RESIZE = ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
_SLICE = ("STRIDED_SLICE", "SLICE")

KINDS: Mapping[str, tuple[str, ...]] = {
    "Abs": ("ABS",),
    "Add": ("ADD",),
    "AveragePool": _AVERAGE,
    "Clip": ("RELU6", "RELU", "RELU_0_TO_1", "RELU_N1_TO_1"),
    "Concat": ("CONCATENATION",),
    "Conv": _CONVOLUTION,
    "ConvTranspose": ("TRANSPOSE_CONV",),
    "DepthToSpace": ("DEPTH_TO_SPACE",),
    "DequantizeLinear": ("DEQUANTIZE",),
    "Div": ("DIV", "MUL"),
    "Elu": ("ELU",),
    "Exp": ("EXP",),
    "Flatten": ("RESHAPE",),
    "Gather": ("GATHER",),
    "Gelu": ("GELU",),
    "Gemm": _DENSE,
    "GlobalAveragePool": _AVERAGE,
    "GlobalMaxPool": ("REDUCE_MAX", "MAX_POOL_2D"),
    "HardSwish": ("HARD_SWISH",),
    "Identity": ("RESHAPE",),
    "LeakyRelu": ("LEAKY_RELU",),
    "MatMul": _DENSE,
    "Max": ("MAXIMUM",),
    "MaxPool": ("MAX_POOL_2D",),
    "Min": ("MINIMUM",),
    "Mul": ("MUL",),
    "Neg": ("NEG",),
    "PRelu": ("PRELU",),
    "Pad": ("PAD", "PADV2", "MIRROR_PAD"),
    "QuantizeLinear": ("QUANTIZE",),
    "ReduceMax": ("REDUCE_MAX",),
    "ReduceMean": _AVERAGE,
    "ReduceSum": ("SUM",),
    "Relu": ("RELU", "RELU6"),
    "Reshape": ("RESHAPE",),
    "Resize": _RESIZE,
    "Sigmoid": ("LOGISTIC",),
    "Slice": _SLICE,
    "Softmax": ("SOFTMAX",),
    "SpaceToDepth": ("SPACE_TO_DEPTH",),
    "Split": ("SPLIT", "SPLIT_V"),
    "Sqrt": ("SQRT",),
    "Squeeze": ("RESHAPE", "SQUEEZE"),
    "Sub": ("SUB",),
    "Tanh": ("TANH",),
    "Transpose": ("TRANSPOSE",),
    "Unsqueeze": ("RESHAPE", "EXPAND_DIMS"),
    "Upsample": _RESIZE,
}

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""ONNX ops whose second input is weights, if it is constant."""
