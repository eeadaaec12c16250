"""Small float networks, samples for them, and the law that every quantized one has to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import zeropoint
from zeropoint.affine import dequantize, quantize
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model, Op, Tensor, problems
from zeropoint.graph.check import no_dangling_tensors
from zeropoint.improve.pipeline import Result
from zeropoint.runtime import Kernels, Session

from . import build

OPTIONS = {
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "CUMSUM": "CumsumOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "PADV2": "PadV2Options",
    "MAXIMUM": "MaximumMinimumOptions",
    "FAKE_QUANT": "FakeQuantOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "RELU": "",
    "RELU6": "",
    "TANH": "",
    "LOGISTIC": "",
    "CUSTOM": "",
    "CEIL": "",
    "FLOOR": "",
    "SIN": "",
    "LOG": "",
    "MINIMUM": "MaximumMinimumOptions",
    "RSQRT": "",
    "SQRT": "",
    "RELU_0_TO_1": "",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
}
"""Names of options tables that do not follow from the op's."""

KERNELS: tuple[Kernels, ...] = ("delegate", "optimized")


@dataclass
class Net:
    """A graph in the making: calling it adds an op and gives its output. Arrays become constants."""

    inputs: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def input(self, *shape: int, dtype: DType = DType.FLOAT32, name: str = "") -> Tensor:
        self.inputs.append(build.act(name or f"x{len(self.inputs)}", *shape, dtype=dtype))
        return self.inputs[-1]

    def __call__(
        self, kind: str, inputs: Sequence[Any], shape: Sequence[int] = (), name: str = "", **values: Any
    ) -> Tensor:
        """The op's output: of the shape of the first input, unless another is given."""
        name = name or self._name(kind.lower())
        operands = [
            t if t is None or isinstance(t, Tensor) else build.const(f"{name}/{k}", t) for k, t in enumerate(inputs)
        ]
        made = build.act(name, *(shape or operands[0].shape))
        table = OPTIONS.get(kind, "".join(map(str.capitalize, kind.split("_"))) + "Options")
        self.ops.append(build.op(kind, operands, made, options=table, **values))
        return made

    def _name(self, base: str) -> str:
        self.names[base] += 1
        return base if self.names[base] == 1 else f"{base}{self.names[base]}"

    def conv(self, x: Tensor, kernel: Any, bias: Any = None, *, name: str = "", activation: int = 0) -> Tensor:
        """Padded to keep the size, stride 1."""
        data = kernel.data if isinstance(kernel, Tensor) else kernel
        shape, strides = (*x.shape[:3], data.shape[0]), {"strideW": 1, "strideH": 1}
        bias = np.zeros(data.shape[0], np.float32) if bias is None else bias  # LiteRT demands one
        return self("CONV_2D", [x, kernel, bias], shape, name, fusedActivationFunction=activation, **strides)

    def dense(self, x: Tensor, kernel: Any, bias: Any = None, *, name: str = "", activation: int = 0) -> Tensor:
        data = kernel.data if isinstance(kernel, Tensor) else kernel
        shape = (*x.shape[:-1], data.shape[0])
        return self("FULLY_CONNECTED", [x, kernel, bias], shape, name, fusedActivationFunction=activation)

    def model(self, *outputs: Tensor, signed: bool = True) -> Model:
        model = Model([build.graph("main", self.inputs, outputs, *self.ops)])
        if signed:
            build.sign(model, "serving_default", model.main)
        return model


def normal(*shape: int, seed: int = 0, spread: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def samples_for(model: Model, count: int = 24, spread: float = 1.0) -> list[tuple[Array, ...]]:
    """Normally distributed floats; small counts for integers."""
    rng = np.random.default_rng(1)
    return [
        tuple(
            (rng.standard_normal(t.shape) * spread).astype(np.float32)
            if t.dtype is DType.FLOAT32
            else rng.integers(0, 3, t.shape).astype(t.dtype.storage)
            for t in model.main.inputs
        )
        for _ in range(count)
    ]


def outputs_of(model: Model, samples: Sequence[Sequence[Array]], kernels: Kernels = "delegate") -> list[Array]:
    """What the model computes for all samples, as reals: one stack for each output. Integer inputs get integers."""
    session = Session(model, kernels=kernels)
    ends = (model.main.inputs, model.main.outputs)
    fed, read = ([t.params if t.is_quantized else None for t in side] for side in ends)
    rows = []
    for sample in samples:
        row = [v if p is None else quantize(v, p) for v, p in zip(sample, fed, strict=True)]
        shapes = [v.shape for v in row]
        if shapes != [tuple(d["shape"]) for d in session.inputs]:
            session.resize(shapes)
        rows.append([v if p is None else dequantize(v, p) for v, p in zip(session.run(row), read, strict=True)])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def worst(wanted: Sequence[Array], got: Sequence[Array]) -> float:
    """The largest error of any output, as a share of that output's range."""
    errors = [0.0]
    for w, g in zip(wanted, got, strict=True):
        assert w.shape == g.shape
        span = float(w.max()) - float(w.min()) or 1.0
        errors.append(float(np.abs(w.astype(np.float64) - g).max()) / span)
    return max(errors)


def quantized(model: Model, samples: Any = None, bound: float = 0.03, **options: Any) -> Result:
    """Quantize, in integers wherever there is a kernel unless told otherwise; the result is a legal graph, keeps its
    ends' names, and computes the same with every set of kernels."""
    samples = samples_for(model) if samples is None else samples
    options.setdefault("data", samples)
    options.setdefault("target", "integer")
    result = zeropoint.quantize(model, **options)
    assert not list(problems(result.model))
    assert not [p for graph in result.model.graphs for p in no_dangling_tensors(graph)]
    wanted = outputs_of(model, samples)
    for kernels in KERNELS:
        assert worst(wanted, outputs_of(result.model, samples, kernels)) <= bound, kernels
    return result


def kinds(model: Model) -> list[str]:
    return [op.kind for op in model.main.ops]


def steps(*ops: str) -> list[str]:
    """These ops between a float input and a float output."""
    return ["QUANTIZE", *ops, "DEQUANTIZE"]


def conversions(model: Model) -> list[str]:
    return [kind for kind in kinds(model) if kind in ("QUANTIZE", "DEQUANTIZE")]


def constants(model: Model, name: str) -> list[Tensor]:
    """The constant `name` and its copies in other forms."""
    return [t for t in model.main.tensors if t.is_constant and (t.name == name or t.name.startswith(f"{name}/"))]
