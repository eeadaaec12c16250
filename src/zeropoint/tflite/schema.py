"""The interface to the generated flatbuffer schema that ships with LiteRT: enums by name, tables as Records."""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated

from ..dtypes import DType
from ..errors import InvalidModel
from ..graph.model import Graph, Record
from .flatbuffer import File, Table

IDENTIFIER = b"TFL3"


@cache
def _names(enum: str) -> dict[int, str]:
    return {v: k for k, v in vars(getattr(generated, enum)).items() if not k.startswith("_")}


@cache
def _codes(enum: str) -> dict[str, int]:
    return {name: code for code, name in _names(enum).items()}


def dtype_of(code: int) -> DType:
    try:
        return DType[_names("TensorType")[code]]
    except KeyError:
        raise InvalidModel(f"a tensor has the type {code}, which this version does not know") from None


def dtype_code(dtype: DType) -> int:
    return _codes("TensorType")[dtype.name]


def op_kind(code: int) -> str:
    """Return the builtin op's name; ops newer than the installed schema are represented by their number."""
    return _names("BuiltinOperator").get(code, f"BUILTIN_{code}")


def op_code(kind: str) -> int:
    known = _codes("BuiltinOperator").get(kind)
    return int(kind.removeprefix("BUILTIN_")) if known is None else known


@cache
def option_types() -> dict[str, tuple[int, int]]:
    """Return, for the name of each options table, which of the two unions it is in and its code there."""
    found = {name: (2, code) for name, code in _codes("BuiltinOptions2").items()}
    return found | {name: (1, code) for name, code in _codes("BuiltinOptions").items()}


def details_code(type: str) -> int:
    """Return the union code of a table of quantization details."""
    return _codes("QuantizationDetails")[type]


def holds_subgraphs(field: str) -> bool:
    """Whether an option holds one or several subgraph indices in a file, and therefore Graphs in a Record."""
    return "subgraph" in field.lower()  # condSubgraphIndex, branchSubgraphIndices, subgraph, ...


@cache
def _defaults(type: str) -> dict[str, Any]:
    return dict(vars(getattr(generated, f"{type}T")()))


def default_options(type: str, **values: Any) -> Record:
    """Return the options table called `type` with `values`, and the schema's defaults for all other fields."""
    table = _defaults(type)
    unknown = values.keys() - table.keys()
    if unknown:
        raise ValueError(f"{type} has no {', '.join(sorted(unknown))}")
    return Record(type, {**table, **values})


def union_record(table: Table, union: str, type_slot: int, value_slot: int) -> Record | None:
    """Return the value of a union field as a Record."""
    code = table.number(type_slot, "B")
    value = table.table(value_slot)
    if code == 0 or value is None:
        return None
    name = _names(union).get(code)
    if name is None:
        raise InvalidModel(
            f"it uses entry {code} of {union}, which is newer than the installed ai-edge-litert; upgrade that package"
        )
    return record(value, name)


def record(table: Table, type: str) -> Record:
    """Return a table as plain values, read by the generated code with errors converted."""
    try:
        unpacked = getattr(generated, f"{type}T").InitFromBuf(table.file.content, table.position)
    except (struct.error, ValueError, TypeError, IndexError, OverflowError, AttributeError, MemoryError) as error:
        raise InvalidModel(f"its {type} are damaged ({error})") from None
    return _to_record(unpacked, type, table.file)


def _to_record(unpacked: Any, type: str, file: File) -> Record:
    return Record(type, {name: _to_value(value, file) for name, value in vars(unpacked).items()})


def _to_value(value: Any, file: File) -> Any:
    file.charge(4)
    if isinstance(value, np.ndarray):
        file.charge(value.nbytes)
        return tuple(value.tolist())
    if isinstance(value, bytes):
        file.charge(len(value))
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return tuple(_to_value(v, file) for v in value)
    if hasattr(value, "Pack"):
        return _to_record(value, type(value).__name__.removesuffix("T"), file)
    return 0.0 if isinstance(value, float) and value == 0 else value  # written, a zero has no sign: it is the default


def packed(record: Record, graph_index: dict[Graph, int]) -> bytes:
    """Return the record as a flatbuffer of its own."""
    if any(isinstance(value, Graph | Record | tuple) for value in record.values.values()):
        return _packed(_generated_table(record, graph_index))
    return _packed_plain(record.type, tuple(record.values), *record.values.values())


@lru_cache(1024, typed=True)
def _packed_plain(type: str, names: tuple[str, ...], *values: Any) -> bytes:
    """Pack a record of plain values. Cached, because a model and its candidate versions repeat a few op options many
    times.
    """
    return _packed(_generated_table(Record(type, dict(zip(names, values, strict=True))), {}))


def _packed(table: Any) -> bytes:
    builder = flatbuffers.Builder(64)
    builder.Finish(table.Pack(builder))
    return bytes(builder.Output())


def _generated_table(record: Record, graph_index: dict[Graph, int]) -> Any:
    """Return the generated object that packs `record`."""
    table = getattr(generated, f"{record.type}T")()
    for name, value in record.values.items():
        setattr(table, name, _from_value(value, graph_index))
    return table


def _from_value(value: Any, graph_index: dict[Graph, int]) -> Any:
    if isinstance(value, Graph):
        return graph_index[value]
    if isinstance(value, Record):
        return _generated_table(value, graph_index)
    if isinstance(value, tuple):
        return [_from_value(v, graph_index) for v in value]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
