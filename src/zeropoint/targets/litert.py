"""LiteRT without a delegate: every op that has a kernel, in integers or not."""

from __future__ import annotations

from dataclasses import replace

from ..dtypes import DType
from .conditions import OutputTypes
from .target import Target, TargetRule

NO_FLOATS = tuple(dtype for dtype in DType if not dtype.is_float)
FROM_FLOAT = TargetRule(("QUANTIZE",), (DType.FLOAT32,), (OutputTypes(NO_FLOATS),))
"""What makes integers of a model's float inputs, as DEQUANTIZE, which computes with integers, undoes it."""

LITERT = Target(
    "litert",
    "LiteRT's own kernels",
    "LiteRT's plain kernels",
    (TargetRule(),),
    source="the op table, which tests/conformance runs in LiteRT",
    version="ai-edge-litert 2.3",
)
"""Whatever LiteRT loads: the op table says what that is."""

INTEGER = Target(
    "integer",
    "integers wherever LiteRT has a kernel for them, on no device in particular; made strictly, nothing else",
    "integer kernels",
    (TargetRule(activations=NO_FLOATS), FROM_FLOAT),
    source=LITERT.source,
    version=LITERT.version,
    fallback=LITERT,
)

INT8_ONLY = replace(
    INTEGER,
    name="int8",
    about="the same, but never 16 bits for ops of an int8 model that lose much in 8: for what knows no other integers",
    rules=(TargetRule(activations=tuple(dtype for dtype in NO_FLOATS if dtype is not DType.INT16)), FROM_FLOAT),
)
