"""Hand-made files in which a few bytes stand for a lot of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated


class Forge:
    """A flatbuffer builder that does what it is told."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(0)

    def table(self, kind: str, **fields: Any) -> int:
        getattr(generated, f"{kind}Start")(self.builder)
        for name, value in fields.items():
            getattr(generated, f"{kind}Add{name}")(self.builder, value)
        return getattr(generated, f"{kind}End")(self.builder)

    def tables(self, table: int, count: int = 1) -> int:
        """A vector that points at one table over and over."""
        self.builder.StartVector(4, count, 4)
        for _ in range(count):
            self.builder.PrependUOffsetTRelative(table)
        return self.builder.EndVector()

    def numbers(self, *values: float, times: int = 1, dtype: Any = np.int32) -> int:
        return self.builder.CreateNumpyVector(np.array(values * times, dtype))

    def model(self, graph: dict[str, Any], graphs: int = 1, **fields: Any) -> bytes:
        defaults = {
            "OperatorCodes": self.tables(self.table("OperatorCode")),
            "Buffers": self.tables(self.table("Buffer")),
            "Subgraphs": self.tables(self.table("SubGraph", **graph), graphs),
        }
        root = self.table("Model", Version=3, **(defaults | fields))
        self.builder.Finish(root, file_identifier=b"TFL3")
        return bytes(self.builder.Output())


def graphs(n: int) -> bytes:
    return Forge().model({}, graphs=4 * n)


def tensors_in_graphs(n: int) -> bytes:
    f = Forge()
    return f.model({"Tensors": f.tables(f.table("Tensor"), n)}, graphs=n)


def ops_in_graphs(n: int) -> bytes:
    f = Forge()
    return f.model({"Operators": f.tables(f.table("Operator"), n)}, graphs=n)


def buffers(n: int) -> bytes:
    f = Forge()
    data = f.table("Buffer", Data=f.numbers(1, times=16, dtype=np.uint8))
    return f.model({}, Buffers=f.tables(data, 4 * n))


def tensors(n: int) -> bytes:
    f = Forge()
    numbers, shape = f.numbers(1, 2, 3, dtype=np.float32), f.numbers(1, 2, 3, 4)
    quantization = f.table("QuantizationParameters", Scale=numbers, Min=numbers, Max=numbers)
    tensor = f.table("Tensor", Shape=shape, ShapeSignature=shape, Quantization=quantization)
    return f.model({"Tensors": f.tables(tensor, n)})


def shapes(n: int) -> bytes:
    f = Forge()
    return f.model({"Tensors": f.tables(f.table("Tensor", Shape=f.numbers(1000, times=30)), n)})


def dimensions(n: int) -> bytes:
    f = Forge()
    return f.model({"Tensors": f.tables(f.table("Tensor", Shape=f.numbers(2**31 - 1, times=n)), 8)})


def names(n: int) -> bytes:
    f = Forge()
    return f.model({"Tensors": f.tables(f.table("Tensor", Name=f.builder.CreateString("n" * n)), n)})


def sparsity(n: int) -> bytes:
    f = Forge()
    values = f.table("Int32Vector", Values=f.numbers(1))
    dimension = f.table("DimensionMetadata", ArraySegmentsType=1, ArraySegments=values)
    sparse = f.table("SparsityParameters", DimMetadata=f.tables(dimension, n))
    return f.model({"Tensors": f.tables(f.table("Tensor", Sparsity=sparse), 4)})


def options(n: int) -> bytes:
    f = Forge()
    reshape = f.table("ReshapeOptions", NewShape=f.numbers(1, times=n))
    op = f.table("Operator", BuiltinOptionsType=generated.BuiltinOptions.ReshapeOptions, BuiltinOptions=reshape)
    return f.model({"Operators": f.tables(op, n)})


def mutating(n: int) -> bytes:
    f = Forge()
    op = f.table("Operator", MutatingVariableInputs=f.numbers(1, times=4 * n, dtype=np.uint8))
    return f.model({"Operators": f.tables(op, n // 10)})


def complaints(n: int) -> bytes:
    """Every op breaks a rule, and every sentence about it repeats the graph's long name."""
    f = Forge()
    name, tensor = f.builder.CreateString("n" * 4 * n), f.table("Tensor", Shape=f.numbers(1))
    op = f.table("Operator", Outputs=f.numbers(0))
    return f.model({"Name": name, "Tensors": f.tables(tensor), "Operators": f.tables(op, n // 2)})


def signatures(n: int) -> bytes:
    f = Forge()
    signature = f.table("SignatureDef", SubgraphIndex=n - 1)
    return f.model({}, graphs=n, SignatureDefs=f.tables(signature, n))


AGAIN = "over and over"
ATTACKS: dict[str, tuple[Callable[[int], bytes], str]] = {
    "graphs": (graphs, AGAIN),
    "tensors in graphs": (tensors_in_graphs, AGAIN),
    "ops in graphs": (ops_in_graphs, AGAIN),
    "buffers": (buffers, AGAIN),
    "tensors": (tensors, AGAIN),
    "shapes": (shapes, AGAIN),
    "dimensions": (dimensions, "10000 dimensions"),
    "names": (names, AGAIN),
    "sparsity": (sparsity, "more dimensions"),
    "options": (options, AGAIN),
    "mutating": (mutating, AGAIN),
    "complaints": (complaints, "but already an output of"),
    "signatures": (signatures, AGAIN),
}
