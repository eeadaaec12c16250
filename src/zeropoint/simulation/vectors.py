"""Golden vectors: every tensor of every op as files, for testing hardware and kernels."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..dtypes import Array
from ..errors import InvalidRecipe
from ..files import PathLike, make_folder, refuse_existing, write_whole
from ..graph.model import Op, Tensor
from ..graph.query import fingerprint
from ..json_values import json_values
from ..ops.spec import fused_activation
from .control import is_followed
from .trace import Trace, compute

VectorFormat = Literal["npy", "hex"]
FORMATS: tuple[VectorFormat, ...] = ("npy", "hex")
INDEX = "index.json"
SCHEMA_VERSION = 1
FIXED = ("multiplier", "shift", "factor", "zero point", "lower bound", "upper bound")
"""Intermediate results that are the same for all samples."""


def export_vectors(
    traces: Iterable[Trace],
    folder: PathLike,
    *,
    format: VectorFormat = "npy",
    ops: Sequence[str] = (),
    overwrite: bool = False,
) -> list[str]:
    """Write the inputs and outputs of all ops, or of some kinds, for each sample; return the names of the files.

    `.npy` files hold arrays. Hex text has one element per line, in two's complement of the type's width and in memory
    order, as Verilog's $readmemh reads it. index.json describes the files: ops with their options, multipliers and
    shifts, tensors with their shapes, types and scales. Equal inputs give equal bytes.
    """
    place, written, index = Path(folder), [], None
    for number, trace in enumerate(traces):
        chosen = _chosen(trace, ops)
        tensors = _tensors(chosen)
        if index is None:
            index = _index(trace, chosen, format)
            make_folder(place)
            refuse_existing(place / INDEX, overwrite)
            constants = {t: f"{_file(trace, t)}.{format}" for t in tensors if t.is_constant}
            written += _write(trace, place, constants, overwrite)
        flowing = {t: f"sample{number}_{_file(trace, t)}.{format}" for t in tensors if not t.is_constant}
        written += _write(trace, place, flowing, overwrite)
    if index is None:
        raise InvalidRecipe("there are no samples to write vectors for; give at least one")
    index["samples"] = number + 1
    # Written last, so that a folder with an index is complete.
    write_whole(place / INDEX, [json.dumps(index, indent=1).encode()], overwrite=overwrite)
    return [*written, INDEX]


def _chosen(trace: Trace, kinds: Sequence[str]) -> list[Op]:
    present = dict.fromkeys(op.label for op in trace.entry.graph.ops)
    if unknown := [kind for kind in kinds if kind not in present]:
        raise InvalidRecipe(f"the model has no {', '.join(unknown)}; it has {', '.join(present)}")
    return [op for op in trace.entry.graph.ops if not kinds or op.label in kinds]


def _tensors(ops: Sequence[Op]) -> list[Tensor]:
    every = (t for op in ops for t in (*op.inputs, *op.outputs))
    return list(dict.fromkeys(t for t in every if t is not None and t.dtype.storage is not None))


def _write(trace: Trace, place: Path, files: dict[Tensor, str], overwrite: bool) -> list[str]:
    for name in files.values():
        refuse_existing(place / name, overwrite)
    for tensor, name in files.items():
        value = trace.value(tensor)
        content = _hex(value, tensor) if name.endswith(".hex") else _npy(value)
        write_whole(place / name, [content], overwrite=overwrite)
    return list(files.values())


def _file(trace: Trace, tensor: Tensor) -> str:
    """Return a valid file name: the tensor's number, followed by its name without special characters."""
    number = trace.entry.graph.tensors.index(tensor)
    return f"t{number:04}_{re.sub(r'[^A-Za-z0-9]+', '_', trace.names[tensor])[-60:].strip('_')}"


def _npy(value: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, value, allow_pickle=False)
    return content.getvalue()


def _hex(value: Array, tensor: Tensor) -> bytes:
    digits = max(1, tensor.dtype.bits // 4)
    unsigned = np.ascontiguousarray(value).view(f"uint{8 * value.itemsize}").reshape(-1)
    mask = (1 << tensor.dtype.bits) - 1
    return "".join(f"{int(v) & mask:0{digits}x}\n" for v in unsigned).encode()


def _index(trace: Trace, ops: Sequence[Op], format: VectorFormat) -> dict[str, Any]:
    numbers = {t: k for k, t in enumerate(trace.entry.graph.tensors)}
    shown = [_tensor(trace, t, numbers[t], format) for t in _tensors(ops)]
    return {
        "schema": SCHEMA_VERSION,
        "model": fingerprint(trace.model),
        "kernels": trace.kernels,
        "format": format,
        "samples": 0,
        "tensors": shown,
        "ops": [_op(trace, op, numbers) for op in ops],
    }


def _tensor(trace: Trace, tensor: Tensor, number: int, format: str) -> dict[str, Any]:
    params = tensor.params
    file = f"{_file(trace, tensor)}.{format}"
    return {
        "id": number,
        "name": trace.names[tensor],
        "file": file if tensor.is_constant else f"sample{{n}}_{file}",
        "constant": tensor.is_constant,
        "type": tensor.dtype.label,
        "shape": list(tensor.shape),
        "scales": None if params is None else json_values(params.scales),
        "zero_points": None if params is None else list(params.zero_points),
        "axis": None if params is None else params.axis,
    }


def _op(trace: Trace, op: Op, numbers: dict[Tensor, int]) -> dict[str, Any]:
    is_simulated = op not in trace.elsewhere
    steps = compute(trace.call(op)).steps if is_simulated and not is_followed(op, trace.ops) else ()
    fixed = [step for step in steps if step.values.ndim <= 1 and step.name.startswith(FIXED)]
    constants = {step.name: json_values(step.values.tolist()) for step in fixed}
    options = {} if op.options is None else {k: v for k, v in op.options.values.items() if not hasattr(v, "ops")}
    return {
        "position": trace.entry.graph.ops.index(op),
        "kind": op.label,
        "inputs": [None if t is None else numbers.get(t) for t in op.inputs],  # also None for variable handles
        "outputs": [numbers.get(t) for t in op.outputs],
        "activation": fused_activation(op).name,
        "options": json_values(options),
        "computed_by": "zeropoint" if is_simulated else "LiteRT",
        "arithmetic": constants,
    }
