"""Other ways to write the same model: what files from elsewhere, and of other ages, look like."""

from __future__ import annotations

from collections.abc import Callable

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated


def _packed(model: generated.ModelT) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def object_api(content: bytes) -> bytes:
    """As the generated code writes it, like most tools in Python."""
    return _packed(generated.ModelT.InitFromPackedBuf(content))


def old_codes(content: bytes) -> bytes:
    """Op codes in the byte that they once fitted into."""
    model = generated.ModelT.InitFromPackedBuf(content)
    for code in model.operatorCodes:
        if code.builtinCode < 127:
            code.deprecatedBuiltinCode, code.builtinCode = code.builtinCode, 0
    return _packed(model)


def data_behind(content: bytes) -> bytes:
    """Constants and custom options behind the flatbuffer, as in files over 2 GB."""
    model = generated.ModelT.InitFromPackedBuf(content)
    holders = [(b, "offset", "size", b.data) for b in model.buffers if b.data is not None and len(b.data)]
    for graph in model.subgraphs:
        custom = (op for op in graph.operators if op.customOptions is not None)
        holders += [(op, "largeCustomOptionsOffset", "largeCustomOptionsSize", op.customOptions) for op in custom]
    for holder, offset, size, data in holders:
        setattr(holder, "data" if offset == "offset" else "customOptions", None)
        setattr(holder, offset, 2)  # takes as many bytes as the real one
        setattr(holder, size, len(data))
    position = -len(_packed(model)) % 16
    padding, position = bytes(position), len(_packed(model)) + position
    tail = []
    for holder, offset, _, data in holders:
        setattr(holder, offset, position)
        tail.append(np.asarray(data, np.uint8).tobytes() + bytes(-len(data) % 16))
        position += len(tail[-1])
    return _packed(model) + padding + b"".join(tail)


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {f.__name__: f for f in (object_api, old_codes, data_behind)}
