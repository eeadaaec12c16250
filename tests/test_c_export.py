"""Models as C++: the sources compile, hold the file's bytes, and name exactly the ops that are needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from zeropoint.c_export import export_c
from zeropoint.dtypes import DType
from zeropoint.errors import OutputExists, RuntimeFailure, UnsupportedOp
from zeropoint.graph import Model
from zeropoint.runtime.tflm import measure_arena
from zeropoint.targets import TFLM
from zeropoint.targets.tflm import resolver_method
from zeropoint.tflite import save, to_bytes

from . import build

METHODS = re.findall(
    r"\w+",
    """
Abs Add AddN ArgMax ArgMin AssignVariable AveragePool2D BatchMatMul BatchToSpaceNd BroadcastArgs BroadcastTo
CallOnce Cast Ceil Concatenation Conv2D Cos CumSum DepthToSpace DepthwiseConv2D Dequantize Div DynamicUpdateSlice
Elu EmbeddingLookup Equal EthosU Exp ExpandDims Fill Floor FloorDiv FloorMod FullyConnected Gather GatherNd Greater
GreaterEqual HardSwish If L2Normalization L2Pool2D LeakyRelu Less LessEqual Log LogSoftmax LogicalAnd LogicalNot
LogicalOr Logistic MaxPool2D Maximum Mean Minimum MirrorPad Mul Neg NotEqual Pack Pad PadV2 Prelu Quantize
ReadVariable ReduceAll ReduceMax ReduceMin Relu Relu6 Reshape ResizeBilinear ResizeNearestNeighbor ReverseV2 Round
Rsqrt SelectV2 Shape Sin Slice Softmax SpaceToBatchNd SpaceToDepth Split SplitV Sqrt Square SquaredDifference
Squeeze StridedSlice Sub Sum Svdf Tanh Transpose TransposeConv UnidirectionalSequenceLSTM Unpack VarHandle While
ZerosLike
""",
)
"""What MicroMutableOpResolver has methods for, behind \"Add\"."""

DECLARATIONS = {
    "micro/micro_mutable_op_resolver.h": """#pragma once
enum TfLiteStatus { kTfLiteOk, kTfLiteError };
namespace tflite {
class MicroOpResolver {};
template <unsigned N> class MicroMutableOpResolver : public MicroOpResolver {
 public:
"""
    + "\n".join(f"  TfLiteStatus Add{name}() {{ return kTfLiteOk; }}" for name in METHODS)
    + "\n};\n}\n",
    "micro/micro_interpreter.h": """#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"
union TfLitePtrUnion {
  std::int8_t* int8; std::uint8_t* uint8; std::int16_t* i16; std::int32_t* i32; std::int64_t* i64; bool* b; float* f;
};
struct TfLiteTensor { TfLitePtrUnion data; };
namespace tflite {
class MicroInterpreter {
 public:
  MicroInterpreter(const Model*, const MicroOpResolver&, std::uint8_t*, std::size_t) {
    room_.resize(1 << 16); tensor_.data.int8 = room_.data();
  }
  TfLiteStatus AllocateTensors() { return kTfLiteOk; }
  TfLiteStatus Invoke() { room_[3] = 100; return kTfLiteOk; }
  TfLiteTensor* input(std::size_t) { return &tensor_; }
  TfLiteTensor* output(std::size_t) { return &tensor_; }
 private:
  std::vector<std::int8_t> room_; TfLiteTensor tensor_;
};
}
""",
    "micro/micro_log.h": "#pragma once\n#include <cstdio>\n#define MicroPrintf(...) std::printf(__VA_ARGS__)\n",
    "schema/schema_generated.h": """#pragma once
namespace tflite { struct Model {}; inline const Model* GetModel(const void*) { static Model model; return &model; } }
""",
}
"""Ours, of what the sources use of TensorFlow Lite Micro."""

PRINTER = """#include <cstdio>
#include "model.h"
int main() {
  if (reinterpret_cast<std::uintptr_t>(kModelData) % 16 != 0) return 3;
  std::fwrite(kModelData, 1, kModelSize, stdout);
  return 0;
}
"""


def compiler() -> str:
    found = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    assert found, "the tests need a C++ compiler: install g++ or clang++, or name one with CXX"
    return found


@pytest.fixture(scope="session")
def declarations(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("include")
    for name, text in DECLARATIONS.items():
        path = place / "tensorflow/lite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def run_program(folder: Path, declarations: Path, *sources: str) -> bytes:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(declarations)]
    program = folder / "program"
    subprocess.run([compiler(), *flags, "-o", str(program), *(str(folder / name) for name in sources)], check=True)
    return subprocess.run([str(program)], check=True, capture_output=True).stdout


def labelled(model: Model, text: str) -> Model:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("labels.txt", text)
    model.packed_files = build.raw(packed.getvalue())
    return model


def test_sources_compile_and_hold_the_file(tmp_path, declarations):
    model = build.quantized_cnn()
    export_c(model).save(tmp_path)
    (tmp_path / "printer.cc").write_text(PRINTER)
    assert run_program(tmp_path, declarations, "printer.cc", "model.cc") == to_bytes(model)
    classes = model.main.outputs[0].size
    assert run_program(tmp_path, declarations, "main.cc", "model.cc") == (b"largest: output %d" % min(3, classes - 1))


def test_the_resolver_names_exactly_the_ops(digits):
    data = [(np.random.default_rng(k).uniform(0, 1, (1, 8, 8, 1)).astype(np.float32),) for k in range(4)]
    model = zeropoint.quantize(digits, "int8", data=data, effort="quick", input_type="int8", output_type="int8").model
    made = export_c(model)
    named = re.findall(r"resolver\.Add(\w+)\(\)", made.files["ops.h"])
    assert sorted(named) == sorted({resolver_method(op.kind)[3:] for op in model.main.ops})
    assert f"MicroMutableOpResolver<{len(named)}>" in made.files["ops.h"]
    assert set(named) <= set(METHODS)
    assert made.arena.size >= measure_arena(to_bytes(model))
    assert f"kTensorArenaSize = {made.arena.size};" in made.files["model.h"]
    assert "measured with tflite-micro" in made.files["model.h"]


def test_every_op_of_the_target_has_a_method():
    kinds = {kind for rule in TFLM.rules for kind in rule.kinds}
    assert {resolver_method(kind)[3:] for kind in kinds} <= set(METHODS)


def test_scales_and_labels_are_constants(tmp_path, declarations):
    model = build.quantized_cnn()
    source, result = model.main.inputs[0], model.main.outputs[0]
    names = [f"class {k}" for k in range(result.shape[-1] - 1)] + ['caf\u00e9 "x" ??/ \\']
    made = export_c(labelled(model, "\n".join(names)))
    header = made.files["model.h"]
    assert made.labels == tuple(names)
    scale = float(re.search(r"kInput0Scale = (\S+)f;", header)[1])
    assert np.float32(scale) == np.float32(source.params.scale)
    assert f"kInput0ZeroPoint = {source.params.zero_point};" in header
    made.save(tmp_path)
    (tmp_path / "printer.cc").write_text(
        '#include <cstdio>\n#include "model.h"\nint main() { for (auto label : kLabels) std::puts(label); '
        'std::printf("%d %d %.9g", QuantizeInput0(1e9f), QuantizeInput0(-1e9f), DequantizeOutput0(5)); }'
    )
    *printed, numbers = run_program(tmp_path, declarations, "printer.cc", "model.cc").decode().split("\n")
    assert printed == names
    most, least, real = numbers.split()
    assert (int(most), int(least)) == (source.dtype.max, source.dtype.min)
    assert float(real) == pytest.approx(result.params.scale * (5 - result.params.zero_point))


def test_without_the_interpreter_the_arena_is_an_upper_bound(monkeypatch):
    model = build.quantized_cnn()
    measured = export_c(model).arena
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    made = export_c(model)
    assert made.arena.size >= measured.size
    assert "estimated" in made.files["model.h"]


def test_what_a_microcontroller_cannot_run_is_refused():
    model = build.one_op("GELU", [build.act("x", 1, 4)], build.act("y", 1, 4), options="GeluOptions")
    with pytest.raises(UnsupportedOp, match="GELU 'y' is not among the ops of TFLM's kernels"):
        export_c(model)


def test_too_small_an_arena_is_refused():
    with pytest.raises(RuntimeFailure, match=r"needs an arena of [\d,]+ bytes .* but has 100"):
        export_c(build.quantized_cnn(), arena=100)


def test_compiled_models_are_exported_with_the_npus_op():
    """What Vela makes holds a custom op that only a device can run."""
    x, y = (build.act(n, 1, 4, dtype=DType.INT8, params=build.quantized_cnn().main.inputs[0].params) for n in "xy")
    model = build.one_op("CUSTOM", [x], y)
    model.main.ops[0].custom_code = "ethos-u"
    made = export_c(model)
    assert made.ops == ("ethos-u",)
    assert "AddEthosU" in made.files["ops.h"]
    assert made.arena.source is None


def test_the_command(run, tmp_path):
    path, folder = tmp_path / "m.tflite", tmp_path / "c"
    save(build.quantized_cnn(), path)
    code, out, err = run("export", path, "--c", folder)
    assert (code, err) == (0, "")
    assert "Arena" in out
    assert {p.name for p in folder.iterdir()} == {"model.h", "model.cc", "ops.h", "main.cc"}
    before = (folder / "model.cc").read_bytes()
    code, out, err = run("export", path, "--c", folder)
    assert code == 2
    assert "exists already" in err
    assert (folder / "model.cc").read_bytes() == before
    code, _, _ = run("export", path, "--c", folder, "--overwrite")
    assert code == 0
    code, out, err = run("export", path)
    assert (code, out) == (2, "")
    assert "--c DIR" in err
    code, out, err = run("export", path, "--c", tmp_path / "no" / "folder")
    assert (code, out) == (2, "")
    assert "no such file" in err


def test_nothing_is_written_if_one_file_is_in_the_way(tmp_path):
    (tmp_path / "ops.h").write_text("mine")
    with pytest.raises(OutputExists):
        export_c(build.quantized_cnn()).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["ops.h"]
