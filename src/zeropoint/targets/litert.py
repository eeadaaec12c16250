"""LiteRT without a delegate: every op that has a kernel, integer or float."""

from __future__ import annotations

from dataclasses import replace

from ..dtypes import DType
from .conditions import OutputTypes
from .target import Target, TargetRule

NO_FLOATS = tuple(dtype for dtype in DType if not dtype.is_float)
FROM_FLOAT = TargetRule(("QUANTIZE",), (DType.FLOAT32,), (OutputTypes(NO_FLOATS),))
"""QUANTIZE of a model's float inputs counts as integer arithmetic, like its inverse DEQUANTIZE."""

LITERT = Target(
    "litert",
    "LiteRT's own kernels",
    "LiteRT's plain kernels",
    (TargetRule(),),
    source="the op table, which tests/conformance runs in LiteRT",
    version="ai-edge-litert 2.3",
)
"""Everything that LiteRT loads, as listed in the op table."""

INTEGER = Target(
    "integer",
    "no particular device: integers wherever LiteRT has a kernel for them; in strict mode, nothing else",
    "integer kernels",
    (TargetRule(activations=NO_FLOATS), FROM_FLOAT),
    source=LITERT.source,
    version=LITERT.version,
    fallback=LITERT,
)

INT8_ONLY = replace(
    INTEGER,
    name="int8",
    about="like integer, but ops of an int8 model never get 16 bits, even if they lose much: for devices without them",
    rules=(TargetRule(activations=tuple(dtype for dtype in NO_FLOATS if dtype is not DType.INT16)), FROM_FLOAT),
)
