"""A model as C++ source for TensorFlow Lite Micro: its bytes, the ops it needs, its memory, and an example call."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .dtypes import DType
from .errors import MissingExtra, RuntimeFailure, UnsupportedOp, argument
from .files import PathLike, make_folder, refuse_existing, write_whole
from .graph.model import Model, Tensor
from .runtime.tflm import measure_arena, version
from .targets import TFLM, TypedOp
from .targets.tflm import resolver_method
from .tflite import to_bytes

ALIGNMENT = 16
SPARE = 64
"""Bytes of arena that aligning its start and end may cost."""

NPU_OP = "ethos-u"
"""The custom op into which Vela compiles the part for Ethos-U: portable builds have no kernel for it."""

LONGEST_LABELS = 1 << 20

C_TYPES = {
    DType.INT8: ("int8_t", "int8"),
    DType.UINT8: ("uint8_t", "uint8"),
    DType.INT16: ("int16_t", "i16"),
    DType.INT32: ("int32_t", "i32"),
    DType.INT64: ("int64_t", "i64"),
    DType.BOOL: ("bool", "b"),
    DType.FLOAT32: ("float", "f"),
}
"""The C type of an element, and the member of TfLiteTensor's `data` union that points to it."""


@dataclass(frozen=True)
class Arena:
    """The bytes of memory that the interpreter needs; `source` is the build that measured it, None if it is
    estimated."""

    size: int
    source: str | None

    @property
    def origin(self) -> str:
        return "estimated: an upper bound" if self.source is None else f"measured with {self.source}"


@dataclass(frozen=True)
class CExport:
    """The generated files by name, and figures about them."""

    files: dict[str, str]
    arena: Arena
    ops: tuple[str, ...]
    labels: tuple[str, ...]

    def save(self, folder: PathLike, *, overwrite: bool = False) -> None:
        """Write all files; if one of them already exists, nothing is written."""
        place = Path(folder)
        make_folder(place)
        for name in self.files:
            refuse_existing(place / name, overwrite)
        for name, text in self.files.items():
            write_whole(place / name, [text.encode()], overwrite=overwrite)


def export_c(model: Model, arena: int | None = None) -> CExport:
    """Return C++ sources for `model`. `arena` sets the arena size in bytes; raises if that is too small."""
    _require_known_ops(model)
    content = to_bytes(model)
    needed = _arena(model, content)
    if arena is not None and arena < needed.size:
        raise RuntimeFailure(
            f"the model needs an arena of {needed.size:,} bytes ({needed.origin}), but has {arena:,}; use a "
            "smaller input, or int8 in place of 16 bits"
        )
    taken = needed if arena is None else Arena(arena, needed.source)
    ops = tuple(sorted({op.label for graph in model.graphs for op in graph.ops}))
    labels = _labels(model)
    files = {
        "model.h": _header(model, content, taken, labels),
        "model.cc": _array(content),
        "ops.h": _resolver(ops),
        "main.cc": _main(model, labels),
    }
    return CExport(files, taken, ops, labels)


def _require_known_ops(model: Model) -> None:
    """Raise for ops without a kernel in TensorFlow Lite Micro, because its op resolver has no method for them."""
    refused = [
        f"  {op.label} '{op.name}' {verdict.reason}"
        for graph in model.graphs
        for op in graph.ops
        if op.label != NPU_OP and (verdict := TFLM.verdict(TypedOp.of_file(op))).speed == "refused"
    ]
    if refused:
        raise UnsupportedOp(
            "TensorFlow Lite Micro does not run this model:",
            *refused,
            f"quantize it for that: {argument('target', 'tflm')}",
        )
    for tensor in (*model.main.inputs, *model.main.outputs):
        if tensor.dtype not in C_TYPES:
            raise UnsupportedOp(f"'{tensor.name}' is {tensor.dtype.label}, which has no equivalent type in C")


def _arena(model: Model, content: bytes) -> Arena:
    if all(op.label != NPU_OP for graph in model.graphs for op in graph.ops):
        try:
            return Arena(_aligned(measure_arena(content) + SPARE), version())
        except MissingExtra:
            pass
    tensors = [t for graph in model.graphs for t in graph.tensors]
    flowing = sum(_aligned(t.dtype.nbytes(t.size) or 0) for t in tensors if not t.is_constant)
    scratch = max((4 * t.size for t in tensors if not t.is_constant), default=0)
    channels = sum(8 * len(t.params.scales) for t in tensors if t.params is not None)
    records = 128 * len(tensors) + 256 * sum(len(graph.ops) for graph in model.graphs)
    return Arena(_aligned(flowing + scratch + channels + records), None)


def _aligned(size: int) -> int:
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


def _labels(model: Model) -> tuple[str, ...]:
    """Return the lines of the packed text file that has one for each element of an output; empty if there is none."""
    if model.packed_files is None:
        return ()
    classes = {t.shape[-1] for t in model.main.outputs if t.shape}
    try:
        with zipfile.ZipFile(io.BytesIO(model.packed_files.raw.tobytes())) as archive:
            for info in archive.infolist():
                if info.file_size <= LONGEST_LABELS:
                    lines = archive.read(info).decode("utf-8", "replace").splitlines()
                    if len(lines) in classes and len(lines) > 1:
                        return tuple(line.strip() for line in lines)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return ()  # damaged, encrypted, or compressed by an unsupported method: labels are only a convenience
    return ()


# The files.


def _header(model: Model, content: bytes, arena: Arena, labels: tuple[str, ...]) -> str:
    constants = [*_constants("Input", model.main.inputs), *_constants("Output", model.main.outputs)]
    names = ", ".join(map(_c_string, labels))
    listed = [f"constexpr const char* kLabels[] = {{{names}}};", ""] if labels else []
    return _text(
        "// Made by zeropoint. The model, its memory, and what its integers mean.",
        "#ifndef ZEROPOINT_MODEL_H_",
        "#define ZEROPOINT_MODEL_H_",
        "",
        "#include <cmath>",
        "#include <cstddef>",
        "#include <cstdint>",
        "",
        f"constexpr std::size_t kModelSize = {len(content)};",
        f"alignas({ALIGNMENT}) extern const unsigned char kModelData[kModelSize];",
        "",
        f"// Memory that the interpreter works in; {arena.origin}.",
        f"constexpr std::size_t kTensorArenaSize = {arena.size};",
        "",
        *constants,
        *listed,
        "#endif  // ZEROPOINT_MODEL_H_",
    )


def _constants(side: str, tensors: list[Tensor]) -> Iterator[str]:
    """Yield types, sizes and parameters of inputs or outputs, and functions that convert between reals and integers."""
    for k, tensor in enumerate(tensors):
        kind, name = C_TYPES[tensor.dtype][0], f"{side}{k}"
        yield f"// {side} {k}: {tensor.name!a}, {tensor.dtype.label} {list(tensor.shape)}"
        yield f"constexpr std::size_t k{name}Size = {tensor.size};"
        if tensor.params is not None:
            scale, zero = tensor.params.scale, tensor.params.zero_point
            yield f"constexpr float k{name}Scale = {_c_float(scale)};"
            yield f"constexpr int k{name}ZeroPoint = {zero};"
            yield from _conversion(side, name, kind, tensor.dtype)
        yield ""


def _conversion(side: str, name: str, kind: str, dtype: DType) -> list[str]:
    if side == "Output":
        return [
            f"inline float Dequantize{name}({kind} value) {{",
            f"  return k{name}Scale * (static_cast<int>(value) - k{name}ZeroPoint);",
            "}",
        ]
    return [
        f"inline {kind} Quantize{name}(float real) {{",
        f"  const float value = std::round(real / k{name}Scale) + k{name}ZeroPoint;",
        f"  return static_cast<{kind}>(value < {dtype.min} ? {dtype.min} : value > {dtype.max} ? {dtype.max} : value);",
        "}",
    ]


def _array(content: bytes) -> str:
    data = [", ".join(f"0x{byte:02x}" for byte in content[k : k + 16]) for k in range(0, len(content), 16)]
    return _text(
        "// Made by zeropoint. The model as it is in its file.",
        '#include "model.h"',
        "",
        f"alignas({ALIGNMENT}) const unsigned char kModelData[kModelSize] = {{",
        *(f"    {row}," for row in data),
        "};",
    )


def _resolver(ops: tuple[str, ...]) -> str:
    return _text(
        "// Made by zeropoint. The kernels that the model needs, and no others.",
        "#ifndef ZEROPOINT_OPS_H_",
        "#define ZEROPOINT_OPS_H_",
        "",
        '#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"',
        "",
        f"using ModelOpResolver = tflite::MicroMutableOpResolver<{len(ops)}>;",
        "",
        "inline TfLiteStatus AddModelOps(ModelOpResolver& resolver) {",
        *(f"  if (resolver.{resolver_method(op)}() != kTfLiteOk) return kTfLiteError;" for op in ops),
        "  return kTfLiteOk;",
        "}",
        "",
        "#endif  // ZEROPOINT_OPS_H_",
    )


def _main(model: Model, labels: tuple[str, ...]) -> str:
    fills = [line for k, tensor in enumerate(model.main.inputs) for line in _fill(k, tensor)]
    shown = "kLabels[best]" if labels else "static_cast<int>(best)"
    pattern = "%s" if labels else "output %d"
    kind, member = C_TYPES[model.main.outputs[0].dtype]
    return _text(
        "// Made by zeropoint. How the model is called: an example to start from.",
        '#include "model.h"',
        '#include "ops.h"',
        '#include "tensorflow/lite/micro/micro_interpreter.h"',
        '#include "tensorflow/lite/micro/micro_log.h"',
        '#include "tensorflow/lite/schema/schema_generated.h"',
        "",
        "namespace {",
        f"alignas({ALIGNMENT}) std::uint8_t tensor_arena[kTensorArenaSize];",
        "}",
        "",
        "int main() {",
        "  const tflite::Model* model = tflite::GetModel(kModelData);",
        "  ModelOpResolver resolver;",
        "  if (AddModelOps(resolver) != kTfLiteOk) return 1;",
        "  tflite::MicroInterpreter interpreter(model, resolver, tensor_arena, kTensorArenaSize);",
        "  if (interpreter.AllocateTensors() != kTfLiteOk) return 1;",
        "",
        *fills,
        "  if (interpreter.Invoke() != kTfLiteOk) return 1;",
        "",
        f"  const {kind}* values = interpreter.output(0)->data.{member};",
        "  std::size_t best = 0;",
        "  for (std::size_t i = 1; i < kOutput0Size; ++i) {",
        "    if (values[i] > values[best]) best = i;",
        "  }",
        f'  MicroPrintf("largest: {pattern}", {shown});',
        "  return 0;",
        "}",
    )


def _fill(k: int, tensor: Tensor) -> list[str]:
    value = f"QuantizeInput{k}(0.0f)" if tensor.params is not None else "0"
    return [
        f"  for (std::size_t i = 0; i < kInput{k}Size; ++i) {{",
        f"    interpreter.input({k})->data.{C_TYPES[tensor.dtype][1]}[i] = {value};  // your data goes here",
        "  }",
    ]


def _c_float(value: float) -> str:
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _c_string(text: str) -> str:
    """Return a string literal, with everything but plain ASCII as octal escapes of three digits."""
    plain = set(range(32, 127)) - {ord('"'), ord("\\"), ord("?")}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"
