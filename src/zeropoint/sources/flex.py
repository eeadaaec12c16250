"""Runs models with Flex ops: TensorFlow's own ops inside a `.tflite`.

LiteRT leaves them to a delegate that neither its Python package nor TensorFlow's (2.21) includes. So the graph is cut
at these ops: LiteRT runs the pieces between them, and TensorFlow the ops themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import InvalidModel, MissingExtra, UnsupportedOp
from ..graph.model import Graph, Model, Op, Tensor
from ..tflite.flexbuffer import strings
from ..tflite.write import to_bytes
from .conversion import Conversion, converting
from .tensorflow import require_tensorflow

PREFIX = "Flex"


def is_flex(op: Op) -> bool:
    return op.kind == "CUSTOM" and (op.custom_code or "").startswith(PREFIX)


def has_flex_ops(model: Model) -> bool:
    return any(is_flex(op) for op in model.main.ops)


class PiecewiseInterpreter:
    """The methods of LiteRT's interpreter that `runtime.Session` uses. `make` loads a piece into LiteRT."""

    def __init__(self, model: Model, make: Callable[[bytes], Any]) -> None:
        self._graph = model.main
        self._steps: list[_Piece | _FlexOp] = [
            _FlexOp(ops[0]) if is_flex(ops[0]) else _Piece.of(model, ops, make) for ops in _cut(model.main)
        ]
        self._index = {t: k for k, t in enumerate(model.main.tensors)}
        self._values: dict[Tensor, Array] = {t: t.data for t in model.main.tensors if t.data is not None}
        made = {t for op in model.main.ops for t in op.outputs}
        empty = (t for t in model.main.tensors if 0 in t.shape and t not in made)  # a constant without elements
        self._values |= {t: np.empty(t.shape, t.dtype.storage) for t in empty}
        self._shapes = {t: tuple(max(1, d) for d in t.shape) for t in model.main.inputs}

    def allocate_tensors(self) -> None:
        """Run once on zeros, which determines all shapes."""
        for tensor in self._graph.inputs:
            assert tensor.dtype.storage is not None
            self._values[tensor] = np.zeros(self._shapes[tensor], tensor.dtype.storage)
        self.invoke()

    def get_input_details(self) -> list[dict[str, Any]]:
        return [self._detail(t) for t in self._graph.inputs]

    def get_output_details(self) -> list[dict[str, Any]]:
        return [self._detail(t) for t in self._graph.outputs]

    def _detail(self, tensor: Tensor) -> dict[str, Any]:
        storage = tensor.dtype.storage
        return {
            "name": tensor.name,
            "index": self._index[tensor],
            "shape": self._values[tensor].shape if tensor in self._values else self._shapes.get(tensor, tensor.shape),
            "shape_signature": tensor.shape_signature or tensor.shape,
            "dtype": None if storage is None else storage.type,
        }

    def resize_tensor_input(self, index: int, shape: Sequence[int], strict: bool = False) -> None:  # noqa: ARG002
        self._shapes[self._graph.tensors[index]] = tuple(shape)

    def set_tensor(self, index: int, value: Array) -> None:
        self._values[self._graph.tensors[index]] = value

    def invoke(self) -> None:
        for step in self._steps:
            step.run(self._values)

    def get_tensor(self, index: int) -> Array:
        return np.array(self._values[self._graph.tensors[index]])

    def tensor(self, index: int) -> Callable[[], Array]:
        return lambda: self._values[self._graph.tensors[index]]

    def reset_all_variables(self) -> None:
        for piece in self._pieces():
            piece.interpreter.reset_all_variables()

    def _get_ops_details(self) -> list[dict[str, Any]]:
        """Return the op details of all pieces, with indices into the whole graph."""
        places = {op: k for k, op in enumerate(self._graph.ops)}
        return [detail for piece in self._pieces() for detail in piece.ops_details(places, self._index)]

    def _pieces(self) -> Iterator[_Piece]:
        return (step for step in self._steps if isinstance(step, _Piece))


def _cut(graph: Graph) -> Iterator[list[Op]]:
    """Yield the ops in order: each Flex op by itself, and the ops between two of them together."""
    for are_flex, group in groupby(graph.ops, is_flex):
        ops = list(group)
        yield from ([op] for op in ops) if are_flex else [ops]


@dataclass
class _Piece:
    """A sequence of ops that LiteRT runs."""

    graph: Graph
    interpreter: Any

    @classmethod
    def of(cls, model: Model, ops: list[Op], make: Callable[[bytes], Any]) -> _Piece:
        made = {t for op in ops for t in op.outputs}
        read = {t: None for op in ops for t in op.inputs if t is not None}
        inputs = [t for t in read if not t.is_constant and not t.is_variable and t not in made]
        elsewhere = {t for op in model.main.ops if op not in ops for t in op.inputs if t is not None}
        outputs = [t for op in ops for t in op.outputs if t in elsewhere or t in model.main.outputs]
        tensors = list(dict.fromkeys(t for op in ops for t in op.tensors()))
        piece = Graph("piece", tensors, ops, inputs, outputs)
        interpreter = make(to_bytes(Model([piece, *model.graphs[1:]])))
        interpreter.allocate_tensors()
        return cls(piece, interpreter)

    def run(self, values: dict[Tensor, Array]) -> None:
        details = self.interpreter.get_input_details()
        given = {d["index"]: values[t] for d, t in zip(details, self.graph.inputs, strict=True)}
        if [tuple(d["shape"]) for d in details] != [value.shape for value in given.values()]:
            for index, value in given.items():
                self.interpreter.resize_tensor_input(index, list(value.shape))
            self.interpreter.allocate_tensors()
        for index, value in given.items():
            self.interpreter.set_tensor(index, value)
        self.interpreter.invoke()
        for detail, tensor in zip(self.interpreter.get_output_details(), self.graph.outputs, strict=True):
            values[tensor] = self.interpreter.get_tensor(detail["index"])

    def ops_details(self, places: Mapping[Op, int], index: Mapping[Tensor, int]) -> Iterator[dict[str, Any]]:
        """Yield the op details. Delegate nodes are listed after the ops they replace, possibly with tensors of their
        own."""
        ops, tensors = dict(enumerate(self.graph.ops)), dict(enumerate(self.graph.tensors))
        for detail in self.interpreter._get_ops_details():
            op = ops.get(detail["index"])
            ends = {side: [index[tensors[t]] for t in detail[side] if t in tensors] for side in ("inputs", "outputs")}
            yield {**detail, **ends, "index": None if op is None else places[op]}


class _FlexOp:
    """An op that TensorFlow runs. Its options hold its name and its NodeDef."""

    def __init__(self, op: Op) -> None:
        self.op = op
        try:
            self._function = _function(op)
        except MissingExtra as error:
            raise UnsupportedOp(f"{op.label} at '{op.name}' cannot be run: {error}") from None

    def run(self, values: dict[Tensor, Array]) -> None:
        results = self._function(*(values[t] for t in self.op.inputs if t is not None))
        for tensor, value in zip(self.op.outputs, results, strict=True):
            values[tensor] = np.asarray(value)


def _function(op: Op) -> Callable[..., Sequence[Any]]:
    """Return the op as a function of tensors."""
    with converting("TensorFlow", Conversion()):
        tf = require_tensorflow("running a Flex op")
        from tensorflow.core.framework import graph_pb2

        try:
            _, definition = strings(op.custom_options)
        except (InvalidModel, ValueError) as error:
            raise InvalidModel(f"the options of {op.label} at '{op.name}' hold no definition of it: {error}") from None
        graph = graph_pb2.GraphDef()
        present = [t for t in op.inputs if t is not None]
        for k, tensor in enumerate(present):
            node = graph.node.add(name=f"input{k}", op="Placeholder")
            node.attr["dtype"].type = tf.as_dtype(tensor.dtype.storage).as_datatype_enum
        node = graph.node.add()
        node.ParseFromString(definition)
        node.name, node.device = "op", ""
        del node.input[:]
        node.input.extend(f"input{k}" for k in range(len(present)))
        wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
        ends = wrapped.graph.as_graph_element
        feeds = [ends(f"input{k}:0") for k in range(len(present))]
        fetches = [ends(f"op:{k}") for k in range(len(op.outputs))]
        pruned = wrapped.prune(feeds, fetches)
    return lambda *arrays: pruned(*(tf.constant(a) for a in arrays))
