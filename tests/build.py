"""Small models, built through our own graph types: one for each thing that a file can hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zeropoint.affine import PerAxis, QuantParams, quantize
from zeropoint.dtypes import Array, DType
from zeropoint.graph import BlockScales, Buffer, Graph, Model, Op, Quantization, Signature, Tensor
from zeropoint.tflite.schema import default_options

INT8, INT32 = DType.INT8, DType.INT32


def act(name: str, *shape: int, dtype: DType = DType.FLOAT32, params: QuantParams | None = None) -> Tensor:
    """An activation."""
    return Tensor(name, shape, dtype, quantization=None if params is None else Quantization.of(params))


def const(name: str, data: Any, dtype: DType | None = None, params: QuantParams | None = None) -> Tensor:
    """A constant; floats are float32 and integers int32 unless `data` or `dtype` say otherwise."""
    array = np.asarray(data)
    if not isinstance(data, np.ndarray):
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    return Tensor.constant(name, array, dtype or DType.parse(array.dtype.name), params)


def op(kind: str, inputs: Sequence[Tensor | None], *outputs: Tensor, options: str = "", **values: Any) -> Op:
    """An op whose options table is called `options`, with the schema's defaults and `values`."""
    return Op(kind, list(inputs), list(outputs), default_options(options, **values) if options else None)


def graph(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *ops: Op) -> Graph:
    """A graph of `ops`, with all the tensors that these refer to."""
    tensors = (*inputs, *(t for o in ops for t in o.tensors()), *outputs)
    return Graph(name, list(dict.fromkeys(tensors)), list(ops), list(inputs), list(outputs))


def one_op(kind: str, inputs: Sequence[Tensor | None], *outputs: Tensor, options: str = "", **values: Any) -> Model:
    """A model of a single op; what is no constant is an input."""
    only = op(kind, inputs, *outputs, options=options, **values)
    return Model([graph("main", [t for t in inputs if t is not None and not t.is_constant], outputs, only)])


def weights(*shape: int, seed: int = 0) -> Array:
    """Values in [-2, 2) without a pattern, the same on every machine."""
    steps = np.arange(int(np.prod(shape))) * 2654435761 + seed * 40503
    return ((steps >> 7) % 64 / 16 - 2).astype(np.float32).reshape(shape)


def raw(content: bytes) -> Buffer:
    return Buffer(np.frombuffer(content, np.uint8))


def sign(model: Model, key: str, graph: Graph) -> None:
    """A signature that knows tensors by their place."""
    sides = ({f"{end}{k}": t for k, t in enumerate(s)} for end, s in (("in", graph.inputs), ("out", graph.outputs)))
    model.signatures.append(Signature(key, graph, *sides))


# One model for each feature.


def float_cnn() -> Model:
    """Convolution, depthwise convolution, residual sum, pooling, mean, dense, softmax."""
    names = ("image", "stem", "depthwise", "sum", "pool", "mean", "logits", "scores")
    shapes = ((1, 4, 4, 1), (1, 4, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4), (1, 2, 2, 4), (1, 4), (1, 3), (1, 3))
    x, stem, deep, total, pool, mean, logits, scores = (act(n, *s) for n, s in zip(names, shapes, strict=True))
    conv = {"strideW": 1, "strideH": 1}
    main = graph(
        "main",
        [x],
        [scores],
        op(
            "CONV_2D",
            [x, const("stem/w", weights(4, 3, 3, 1)), const("stem/b", weights(4))],
            stem,
            options="Conv2DOptions",
            fusedActivationFunction=1,
            **conv,
        ),
        op(
            "DEPTHWISE_CONV_2D",
            [stem, const("depthwise/w", weights(1, 3, 3, 4)), const("depthwise/b", weights(4, seed=1))],
            deep,
            options="DepthwiseConv2DOptions",
            depthMultiplier=1,
            **conv,
        ),
        op("ADD", [stem, deep], total, options="AddOptions"),
        op("MAX_POOL_2D", [total], pool, options="Pool2DOptions", strideW=2, strideH=2, filterWidth=2, filterHeight=2),
        op("MEAN", [pool, const("axes", [1, 2])], mean, options="ReducerOptions"),
        op("FULLY_CONNECTED", [mean, const("logits/w", weights(3, 4)), None], logits, options="FullyConnectedOptions"),
        op("SOFTMAX", [logits], scores, options="SoftmaxOptions", beta=1.0),
    )
    model = Model([main], description="a small network")
    sign(model, "serving_default", main)
    return model


IMAGE = QuantParams.from_range(-1.6488090753555298, 1.5555250644683838, INT8)
SCORES = QuantParams((1 / 256,), (-128,), INT8)


def quantized_cnn() -> Model:
    """Convolution per channel, sum and softmax in int8; the image and the convolution store their ranges."""
    conv, other, total = (QuantParams.from_range(-a, b, INT8) for a, b in ((2.0, 3.0), (1.0, 1.0), (2.5, 4.0)))
    kernel = weights(2, 3, 3, 1)
    peaks = np.abs(kernel).reshape(2, -1).max(1)
    kernel_params = QuantParams.from_range(-peaks, peaks, INT8, symmetric=True, narrow=True, axis=0)
    bias_scales = np.float32(IMAGE.scale) * np.float32(kernel_params.scales)
    bias_params = QuantParams(tuple(map(float, bias_scales)), (0, 0), INT32, PerAxis(0))
    image = act("image", 1, 4, 4, 1, dtype=INT8, params=IMAGE)
    image.quantization = Quantization(IMAGE.scales, IMAGE.zero_points, 0, (-1.6488090753555298,), (1.5555250644683838,))
    second = act("second", 1, 4, 4, 2, dtype=INT8, params=other)
    made = act("conv", 1, 4, 4, 2, dtype=INT8)
    made.quantization = Quantization(conv.scales, conv.zero_points, 0, (-2.0,), (3.0,))
    summed, scores = act("sum", 1, 4, 4, 2, dtype=INT8, params=total), act("scores", 1, 4, 4, 2, dtype=INT8)
    scores.quantization = Quantization.of(SCORES)
    inputs = [
        image,
        const("conv/w", quantize(kernel, kernel_params), INT8, kernel_params),
        const("conv/b", quantize(np.float32([0.1, -0.2]), bias_params), INT32, bias_params),
    ]
    main = graph(
        "main",
        [image, second],
        [scores],
        op("CONV_2D", inputs, made, options="Conv2DOptions", strideW=1, strideH=1, fusedActivationFunction=1),
        op("ADD", [made, second], summed, options="AddOptions"),
        op("SOFTMAX", [summed], scores, options="SoftmaxOptions", beta=1.0),
    )
    for each, version in zip(main.ops, (3, 2, 2), strict=True):
        each.version = version
    return Model([main])


def branches() -> Model:
    """IF with two graphs, and a signature for each of two entry points."""
    sides = []
    for name, kind, options in (("then", "ADD", "AddOptions"), ("else", "MUL", "MulOptions")):
        x, y = act(f"{name}/x", 2), act(f"{name}/y", 2)
        sides.append(graph(name, [x], [y], op(kind, [x, const(f"{name}/c", [2.0, 3.0])], y, options=options)))
    then, other = sides
    choice, x, y = act("choice", dtype=DType.BOOL), act("x", 2), act("y", 2)
    call = op("IF", [choice, x], y, options="IfOptions", thenSubgraphIndex=then, elseSubgraphIndex=other)
    model = Model([graph("main", [choice, x], [y], call), then, other])
    sign(model, "serving_default", model.main)
    sign(model, "just_add", then)
    return model


def loop() -> Model:
    """WHILE: multiply three times."""
    step, x, done = act("cond/step", dtype=INT32), act("cond/x", 2), act("cond/go", dtype=DType.BOOL)
    cond = graph(
        "cond", [step, x], [done], op("LESS", [step, const("limit", np.int32(3))], done, options="LessOptions")
    )
    ends = [act(f"body/{n}", *s, dtype=d) for n in ("in", "out") for s, d in (((), INT32), ((2,), DType.FLOAT32))]
    body = graph(
        "body",
        ends[:2],
        ends[2:],
        op("ADD", [ends[0], const("one", np.int32(1))], ends[2], options="AddOptions"),
        op("MUL", [ends[1], const("factor", [1.5, -0.5])], ends[3], options="MulOptions"),
    )
    ins = [act("step", dtype=INT32), act("x", 2)]
    outs = [act("last", dtype=INT32), act("y", 2)]
    call = op("WHILE", ins, *outs, options="WhileOptions", condSubgraphIndex=cond, bodySubgraphIndex=body)
    return Model([graph("main", ins, outs, call), cond, body])


def composite() -> Model:
    """A composite op with attributes and the graph that spells it out."""
    x, y = act("body/x", 3), act("body/y", 3)
    body = graph("body", [x], [y], op("MUL", [x, x], y, options="MulOptions"))
    outer = act("x", 3)
    model = one_op(
        "STABLEHLO_COMPOSITE",
        [outer],
        act("y", 3),
        options="StableHLOCompositeOptions",
        name="my.square",
        decompositionSubgraphIndex=body,
        compositeAttributes=(1, 2, 250),
        version=4,
    )
    model.graphs.append(body)
    return model


def custom() -> Model:
    """Ops of somebody else, with options of theirs."""
    x, y, z = (act(n, 2) for n in "xyz")
    first, second = op("CUSTOM", [x, None], y), op("CUSTOM", [y], z)
    first.custom_code, first.custom_options, first.version = "Fancy", np.arange(7, dtype=np.uint8), 5
    second.custom_code, second.custom_options = "Plain", None
    first.mutating_variable_inputs = (True, False)
    first.custom_options_format, first.debug_metadata_index = 1, 3
    main = graph("main", [x], [z], first, second)
    main.debug_metadata_index = 4
    return Model([main])


def newer() -> Model:
    """An op that the installed schema does not know."""
    return one_op("BUILTIN_900", [act("x", 2)], act("y", 2))


def described() -> Model:
    """Metadata in both places, empty ones too."""
    model = one_op("ABS", [act("x", 2)], act("y", 2), options="AbsOptions")
    model.metadata = [("min_runtime_version", raw(b"1.5.0")), ("empty", None), ("twice", raw(b"abc"))]
    model.metadata_buffers = [model.metadata[0][1], None, raw(b"old")]
    model.description = "naïve — ünïcode"
    return model


def stateful() -> Model:
    """A recurrent layer with a state that survives from one run to the next."""
    state = act("state", 1, 2)
    state.is_variable = True
    x, y = act("x", 1, 3, 2), act("y", 1, 3, 2)
    inputs = [x, const("w", weights(2, 2)), const("r", weights(2, 2, seed=1)), const("b", weights(2)), state]
    call = op("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, y, options="SequenceRNNOptions", fusedActivationFunction=4)
    return Model([graph("main", [x], [y], call)])


def sparse() -> Model:
    """A sparse constant, spread out by DENSIFY."""
    rows = default_options("DimensionMetadata", format=0, denseSize=2)
    columns = default_options(
        "DimensionMetadata",
        format=1,
        arraySegmentsType=1,
        arraySegments=default_options("Int32Vector", values=(0, 1, 3)),
        arrayIndicesType=1,
        arrayIndices=default_options("Int32Vector", values=(2, 0, 3)),
    )
    thin = Tensor("thin", (2, 4), DType.FLOAT32, const("", [1.0, 2.0, 3.0]).buffer)
    thin.sparsity = default_options("SparsityParameters", traversalOrder=(0, 1), dimMetadata=(rows, columns))
    x, full, y = act("x", 2, 4), act("full", 2, 4), act("y", 2, 4)
    densify = op("DENSIFY", [thin], full, options="DensifyOptions")
    return Model([graph("main", [x], [y], densify, op("ADD", [x, full], y, options="AddOptions"))])


def dynamic() -> Model:
    """A batch of any size."""
    model = one_op("ABS", [act("x", 1, 3)], act("y", 1, 3), options="AbsOptions")
    for tensor in model.main.tensors:
        tensor.shape_signature, tensor.has_rank = (-1, 3), True
    return model


def open_sides() -> Model:
    """Two convolutions without padding over images of any height and width: they do not run at the 1x1 of the file."""
    x, h, y = act("x", 1, 1, 1, 3), act("h", 1, 1, 1, 8), act("y", 1, 1, 1, 4)
    for tensor in (x, h, y):
        tensor.shape_signature = (1, -1, -1, tensor.shape[-1])
    ops = []
    for seed, (source, result) in enumerate([(x, h), (h, y)]):
        kernel = const(f"w{seed}", weights(result.shape[-1], 3, 3, source.shape[-1], seed=seed))
        bias = const(f"b{seed}", np.zeros(result.shape[-1], np.float32))
        sides = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
        ops.append(op("CONV_2D", [source, kernel, bias], result, options="Conv2DOptions", **sides))
    return Model([graph("main", [x], [y], *ops)])


def blockwise() -> Model:
    """Parameters beyond one scale and zero point: blocks, and details that only their author understands."""
    kernel = Tensor.constant("w", np.arange(-8, 8, dtype=np.int8).reshape(2, 8), DType.INT4)
    scales = const("w/scales", np.float16([[0.5, 0.25], [1, 2]]))
    zeros = const("w/zeros", np.zeros((2, 2), np.int8))
    record = default_options("BlockwiseQuantization", blockSize=4).replace(scales=None, zeroPoints=None)
    kernel.quantization = Quantization(details=BlockScales(record, scales, zeros))
    y = act("y", 1, 2)
    details = default_options("CustomQuantization", custom=(9, 8, 7))
    y.quantization = Quantization((0.5,), (3,), 0, (-1.0,), (2.0,), details)
    return one_op("FULLY_CONNECTED", [act("x", 1, 8), kernel], y, options="FullyConnectedOptions")


def versions() -> Model:
    """One kind of op in two versions."""
    x, y, z = (act(n, 2) for n in "xyz")
    ops = [op("ADD", [x, x], y, options="AddOptions"), op("ADD", [y, x], z, options="AddOptions")]
    ops[1].version = 2
    return Model([graph("main", [x], [z], *ops)])


def int4() -> Model:
    """Float activations, int4 weights, an odd number of them."""
    params = QuantParams.from_range([-1.0] * 3, [1.0] * 3, DType.INT4, symmetric=True, axis=0)
    kernel = const("w", quantize(weights(3, 5), params), DType.INT4, params)
    model = one_op("FULLY_CONNECTED", [act("x", 1, 5), kernel], act("y", 1, 3), options="FullyConnectedOptions")
    model.main.ops[0].version = 10
    return model


def shared() -> Model:
    """Two constants with the same bytes in the file, and one with equal bytes of its own."""
    first, third = const("c", [1.0, -2.0]), const("e", [1.0, -2.0])
    second = Tensor("d", (2, 1), DType.FLOAT32, first.buffer)
    x, y, z = act("x", 2), act("y", 2), act("z", 2, 2)
    ops = [op("ADD", [x, first], y, options="AddOptions"), op("MUL", [y, second], z, options="MulOptions")]
    last = act("last", 2, 2)
    return Model([graph("main", [x], [last], *ops, op("SUB", [z, third], last, options="SubOptions"))])


def names() -> Model:
    """Duplicate, empty, and not even text."""
    tensors = [act(n, 2) for n in ("x", "", "x", "", "caf\udce9\udcff", "\x1b[31m\n", "ü")]
    pairs = itertools.pairwise(tensors)
    return Model([graph("", tensors[:1], tensors[-1:], *(op("ABS", [a], b, options="AbsOptions") for a, b in pairs))])


def empty() -> Model:
    """A constant without elements: the shape of a scalar."""
    shape = Tensor("shape", (0,), INT32)
    return one_op("RESHAPE", [act("x", 1), shape], act("y"), options="ReshapeOptions")


def outside() -> Model:
    """Constants in files of their own."""
    far = act("far", 2)
    far.external_buffer = 1
    model = one_op("ADD", [act("x", 2), far], act("y", 2), options="AddOptions")
    model.external_buffer_groups = (default_options("ExternalBufferGroup", name="weights.bin"),)
    model.external_buffers = (default_options("ExternalBuffer", id=1, group=0, offset=64, length=8, packing="raw"),)
    return model


def every_type() -> Model:
    """A constant of each type there is, a resource and a variant included."""
    tensors = []
    for dtype in DType:
        needed = dtype.nbytes(6)
        content = np.arange(6 if needed is None else needed, dtype=np.uint8) % 2
        tensors.append(Tensor(dtype.label, (2, 3), dtype, Buffer(content)))
    tensors[0].variants = (default_options("VariantSubType", shape=(1, 2), hasRank=True).replace(type=2),)
    intermediate = act("intermediate", 1)
    call = op("CUSTOM", tensors, act("y", 1))
    call.custom_code, call.intermediates = "Everything", [intermediate]
    return Model([graph("main", [], call.outputs, call)], version=2)


RUNNABLE: Mapping[str, Callable[[], Model]] = {
    f.__name__: f
    for f in (
        float_cnn,
        quantized_cnn,
        branches,
        loop,
        composite,
        described,
        stateful,
        sparse,
        dynamic,
        versions,
        int4,
        shared,
        names,
        empty,
    )
}
CARRIED: Mapping[str, Callable[[], Model]] = {f.__name__: f for f in (custom, newer, blockwise, outside, every_type)}
MODELS = RUNNABLE | CARRIED


def sample(details: Sequence[Mapping[str, Any]], seed: int = 0) -> list[Array]:
    """Random values for the inputs that a session describes."""
    rng = np.random.default_rng(seed)
    spread = {"f": 2, "i": 100 if any(d["dtype"] == np.int8 for d in details) else 3, "b": 1}
    values = (rng.uniform(-1, 1, d["shape"]) * spread[np.dtype(d["dtype"]).kind] for d in details)
    return [
        np.asarray(v > 0 if d["dtype"] == np.bool_ else v).astype(d["dtype"])
        for v, d in zip(values, details, strict=True)
    ]
