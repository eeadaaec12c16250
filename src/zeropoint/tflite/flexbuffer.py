"""FlexBuffers: the format without a schema in which custom ops keep their options. Only what is needed of it."""

from __future__ import annotations

from flatbuffers import flexbuffers

from ..dtypes import Array
from ..errors import InvalidModel


def strings(options: Array | None) -> list[bytes]:
    """The elements of a vector of strings, which need not be text."""
    try:
        vector = flexbuffers.GetRoot(b"" if options is None else options.tobytes()).AsVector
        # By index: iteration would take an IndexError within a damaged vector for its end.
        return [bytes(vector[k].AsStringBytes) for k in range(len(vector))]
    except Exception:  # the library raises whatever it comes across in damaged bytes
        raise InvalidModel("the options of a custom op are damaged, or not a list of strings") from None
