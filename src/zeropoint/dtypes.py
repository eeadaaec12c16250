"""Element types: their width in bits, their bounds, and how they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .parallel import cached_property

Array: TypeAlias = npt.NDArray[Any]
Kind = Literal["float", "int", "uint", "bool", "complex", "string", "opaque"]


class DType(Enum):
    """A tensor's element type, named as in the LiteRT schema."""

    FLOAT32 = ("float", 32)
    FLOAT16 = ("float", 16)
    INT32 = ("int", 32)
    UINT8 = ("uint", 8)
    INT64 = ("int", 64)
    STRING = ("string", 0)
    BOOL = ("bool", 8)
    INT16 = ("int", 16)
    COMPLEX64 = ("complex", 64)
    INT8 = ("int", 8)
    FLOAT64 = ("float", 64)
    COMPLEX128 = ("complex", 128)
    UINT64 = ("uint", 64)
    RESOURCE = ("opaque", 0)
    VARIANT = ("opaque", 1)
    UINT32 = ("uint", 32)
    UINT16 = ("uint", 16)
    INT4 = ("int", 4)
    BFLOAT16 = ("float", 16, "bfloat16")
    INT2 = ("int", 2)
    UINT4 = ("uint", 4)
    FLOAT8_E4M3FN = ("float", 8, "e4m3fn")
    FLOAT8_E5M2 = ("float", 8, "e5m2")

    def __init__(self, kind: Kind, bits: int, variant: str = "") -> None:
        # Part of the value only so that types of the same kind and width stay distinct members.
        self.kind: Kind = kind
        self.bits = bits
        self.variant = variant

    __hash__ = object.__hash__  # Enum's own hash is slow Python code, and types are part of most dictionary keys

    @cached_property
    def label(self) -> str:
        """The name that users type: `int8`, `float32`."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> DType:
        """Return the type called `text`; raises ValueError listing the choices if there is none."""
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValueError(f"unknown type {text!r}; choose from {', '.join(d.label for d in cls)}") from None

    @cached_property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def min(self) -> int:
        """The lowest integer."""
        self._require_integer()
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> int:
        """The highest integer."""
        self._require_integer()
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    @property
    def levels(self) -> Levels:
        """All integers of the type."""
        return Levels(self, self.bits)

    def _require_integer(self) -> None:
        if not self.is_integer:
            raise ValueError(f"{self.label} has no integer bounds")

    @cached_property
    def is_packed(self) -> bool:
        """Whether several elements share a byte."""
        return self.is_integer and self.bits < 8

    @cached_property
    def storage(self) -> np.dtype[Any] | None:
        """The NumPy type of one stored element; None if elements have no fixed size.

        Packed types hold one element per byte once unpacked. Types that NumPy lacks (bfloat16, float8) are held as
        unsigned integers of the same width: preserved, never computed with.
        """
        if self.kind in ("string", "opaque"):
            return None
        if self.is_packed:
            return np.dtype(np.int8 if self.kind == "int" else np.uint8)
        if self.variant:
            return np.dtype(f"uint{self.bits}")
        return np.dtype(self.label)

    def nbytes(self, elements: int) -> int | None:
        """Return the bytes that `elements` of this type take in a file; None if that is not fixed."""
        return None if self.storage is None else (elements * self.bits + 7) // 8


@dataclass(frozen=True)
class Levels:
    """The integers that values are rounded to: those of `bits` bits, stored in a type that may be wider."""

    dtype: DType
    bits: int

    @property
    def max(self) -> int:
        """The highest integer; with symmetric weights, the lowest is its negative."""
        return self.dtype.max >> (self.dtype.bits - self.bits)

    @property
    def min(self) -> int:
        return self.dtype.min >> (self.dtype.bits - self.bits)

    @property
    def narrowed(self) -> int | None:
        """The number of bits, if fewer than the type has."""
        return self.bits if self.bits < self.dtype.bits else None
