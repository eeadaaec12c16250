"""FlexBuffers, the schemaless format in which custom ops store their options: only the part that is needed here."""

from __future__ import annotations

from flatbuffers import flexbuffers

from ..dtypes import Array
from ..errors import InvalidModel


def strings(options: Array | None) -> list[bytes]:
    """Return the elements of a vector of strings, as bytes: they need not be text."""
    try:
        vector = flexbuffers.GetRoot(b"" if options is None else options.tobytes()).AsVector
        # By index: iteration would mistake an IndexError within a damaged vector for its end.
        return [bytes(vector[k].AsStringBytes) for k in range(len(vector))]
    except Exception:  # on damaged bytes the library may raise anything
        raise InvalidModel("the options of a custom op are damaged, or not a list of strings") from None
