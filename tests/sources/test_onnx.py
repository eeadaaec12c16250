"""ONNX files: read as far as needed, converted by a stand-in for onnx2tf, and their scales taken over."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from tests.build import act, const, graph, op
from zeropoint.calibration.given_ranges import ranges_from_json
from zeropoint.dtypes import Array
from zeropoint.errors import ConversionFailed, InvalidModel, InvalidStats, MissingExtra
from zeropoint.graph import Model
from zeropoint.sources.onnx import COMMAND, layout_notes
from zeropoint.sources.onnx_file import read_onnx

TYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int8): 3, np.dtype(np.int32): 6}


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


def node(kind: str, inputs: list[str], output: str, **numbers: int) -> bytes:
    attributes = b"".join(field(5, field(1, name) + field(3, value)) for name, value in numbers.items())
    return field(1, b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind) + attributes)


def constant(name: str, value: Array) -> bytes:
    dims = b"".join(field(1, d) for d in value.shape)
    return field(5, dims + field(2, TYPES[value.dtype]) + field(8, name) + field(9, value.tobytes()))


def source(name: str, *shape: int) -> bytes:
    dims = b"".join(field(1, field(1, d)) for d in shape)
    return field(11, field(1, name) + field(2, field(1, field(1, 1) + field(2, dims))))


def onnx_file(*parts: bytes) -> bytes:
    return field(1, 8) + field(2, "a test") + field(7, b"".join(parts)) + field(8, field(2, 17))


def network() -> Model:
    rng = np.random.default_rng(0)
    x, y, z = act("image", 1, 6, 6, 3), act("conv", 1, 6, 6, 4), act("activated", 1, 6, 6, 4)
    inputs = [
        x,
        const("weights", rng.normal(size=(4, 3, 3, 3)).astype(np.float32)),
        const("b", np.zeros(4, np.float32)),
    ]
    convolution = op("CONV_2D", inputs, y, options="Conv2DOptions", strideW=1, strideH=1)
    return Model([graph("main", [x], [z], convolution, op("TANH", [y], z))])


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that does what onnx2tf does with its arguments, but has its result ready."""
    ready = tmp_path / "ready.tflite"
    zeropoint.save(network(), ready)
    script = tmp_path / "onnx2tf"
    script.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "assert open(given['-i'], 'rb').read(1) == b'\\x08'\n"
        f"shutil.copy({str(ready)!r}, given['-o'] + '/net_float32.tflite')\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv(COMMAND, str(script))
    return script


def test_an_onnx_file_is_converted_in_another_process(tmp_path: Path, converter: Path, run) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "out.tflite"
    path.write_bytes(onnx_file(node("Conv", ["image", "weights"], "conv"), source("image", 1, 3, 6, 6)))
    model = zeropoint.load(path)
    assert [o.kind for o in model.main.ops] == ["CONV_2D", "TANH"]
    assert layout_notes(path, model) == [
        "input 'image' takes [1, 6, 6, 3], channels last; 'image' in the ONNX file has [1, 3, 6, 6]"
    ]
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(8, 6, 6, 3)).astype(np.float32))
    code, out_text, err = run("quantize", path, "-o", out, "--data", tmp_path / "x.npy", "--effort", "quick")
    assert code == 0
    assert "channels last" in out_text + err
    assert out.exists()


def test_without_the_converter_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMAND, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_file(node("Relu", ["x"], "y")))
    with pytest.raises(MissingExtra, match=f"pip install onnx2tf, and {COMMAND}="):
        zeropoint.load(path)


def test_what_the_converter_printed_is_shown_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "onnx2tf"
    script.write_text("#!/bin/sh\necho no such op: Strange >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv(COMMAND, str(script))
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_file(node("Strange", ["x"], "y")))
    with pytest.raises(ConversionFailed, match=r"(?s)exit code 3.*no such op: Strange"):
        zeropoint.load(path)
    monkeypatch.setenv(COMMAND, str(tmp_path / "absent"))
    with pytest.raises(MissingExtra, match="cannot be run"):
        zeropoint.load(path)


@pytest.mark.parametrize("content", [b"", b"\x08\x08", onnx_file(node("Relu", ["x"], "y"))[:-30], b"{}" * 40])
def test_half_a_file_is_refused(tmp_path: Path, converter: Path, content: bytes) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match="not a whole ONNX model"):
        zeropoint.load(path)


# Scales.


def qdq() -> bytes:
    scales = np.float32([0.01, 0.02, 0.03, 0.04])
    return onnx_file(
        constant("xs", np.float32(0.05)), constant("xz", np.uint8(100)),
        constant("ys", np.float32(0.25)), constant("yz", np.int8(-3)),
        constant("weights_quantized", np.ones((4, 3, 3, 3), np.int8)),
        constant("ws", scales), constant("wz", np.zeros(4, np.int8)),
        node("QuantizeLinear", ["image", "xs", "xz"], "image_q"),
        node("DequantizeLinear", ["image_q", "xs", "xz"], "image_dq"),
        node("DequantizeLinear", ["weights_quantized", "ws", "wz"], "w"),
        node("QuantizeLinear", ["conv", "ys", "yz"], "conv_q"),
        node("QuantizeLinear", ["elsewhere", "ys", "yz"], "elsewhere_q"),
        source("image", 1, 3, 6, 6),
    )  # fmt: skip


def test_scales_of_a_qdq_model_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "qdq.onnx"
    path.write_bytes(qdq())
    ranges = ranges_from_json(path)
    assert ranges.entries["image"].low == pytest.approx(-5)
    assert ranges.entries["image"].origin == "qdq.onnx"
    samples = [np.random.default_rng(k).normal(size=(1, 6, 6, 3)).astype(np.float32) for k in range(4)]
    result = zeropoint.quantize(network(), ranges=ranges, data=samples, effort="quick", target="integer")
    convolution = next(o for o in result.model.main.ops if o.kind == "CONV_2D")
    image, weights, made = convolution.inputs[0], convolution.inputs[1], convolution.outputs[0]
    assert image is not None
    assert weights is not None
    assert (image.params.scale, image.params.zero_point) == (pytest.approx(0.05), -28)
    assert (made.params.scale, made.params.zero_point) == (pytest.approx(0.25), -3)
    assert weights.params.scales == pytest.approx((0.01, 0.02, 0.03, 0.04), rel=1e-6)
    assert any("elsewhere" in note for note in result.notes)


# The same network under other names.


def drawn(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def renamed() -> Model:
    """What a converter makes of `theirs`: other names, channels last, a ReLU fused, an op that only moves numbers."""
    x, c = act("serving_default_x", 1, 6, 6, 3), act("t1", 1, 6, 6, 4)
    d, total, flat, y = act("t2", 1, 6, 6, 4), act("t3", 1, 6, 6, 4), act("t4", 1, 144), act("t5", 1, 5)
    kernel, depthwise = drawn(4, 3, 3, 3, seed=1), drawn(4, 1, 3, 3, seed=2)
    sides = {"strideW": 1, "strideH": 1, "padding": 0}
    main = graph(
        "main",
        [x],
        [y],
        op("CONV_2D", [x, const("k1", kernel.transpose(0, 2, 3, 1)), const("b1", np.zeros(4, np.float32))], c,
           options="Conv2DOptions", fusedActivationFunction=1, **sides),
        op("DEPTHWISE_CONV_2D", [c, const("k2", depthwise.transpose(1, 2, 3, 0)), const("b2", np.zeros(4, np.float32))],
           d, options="DepthwiseConv2DOptions", depthMultiplier=1, **sides),
        op("ADD", [d, c], total, options="AddOptions"),
        op("RESHAPE", [total, const("shape", np.int32([1, 144]))], flat, options="ReshapeOptions"),
        op("FULLY_CONNECTED", [flat, const("k3", drawn(5, 144, seed=3)), const("b3", np.zeros(5, np.float32))], y,
           options="FullyConnectedOptions"),
    )  # fmt: skip
    return Model([main])


def converted(name: str, scale: float, zero: int, dtype: type = np.uint8) -> tuple[bytes, ...]:
    return (
        constant(f"{name}/s", np.float32(scale)),
        constant(f"{name}/z", np.array(zero, dtype)),
        node("QuantizeLinear", [name, f"{name}/s", f"{name}/z"], f"{name}/q"),
        node("DequantizeLinear", [f"{name}/q", f"{name}/s", f"{name}/z"], f"{name}/dq"),
    )


def weights(name: str, values: Array, axis: int = 0) -> tuple[bytes, ...]:
    """Integers and scales by channel behind DequantizeLinear, and a bias of 32 bits."""
    others = tuple(k for k in range(values.ndim) if k != axis)
    scales = (np.abs(values).max(axis=others) / 127).astype(np.float32)
    shape = [-1 if k == axis else 1 for k in range(values.ndim)]
    integers = np.rint(values / scales.reshape(shape)).astype(np.int8)
    return (
        constant(f"{name}_quantized", integers),
        constant(f"{name}/s", scales),
        constant(f"{name}/z", np.zeros(scales.size, np.int8)),
        node("DequantizeLinear", [f"{name}_quantized", f"{name}/s", f"{name}/z"], f"{name}/dq", axis=axis),
        constant(f"{name}/bias_quantized", np.zeros(scales.size, np.int32)),
        constant(f"{name}/bias/z", np.zeros(scales.size, np.int32)),
        node("DequantizeLinear", [f"{name}/bias_quantized", f"{name}/s", f"{name}/bias/z"], f"{name}/bias", axis=0),
    )


def theirs(dense_seed: int = 3) -> bytes:
    return onnx_file(
        source("image", 1, 3, 6, 6),
        *converted("image", 0.04, 128),
        *weights("first", drawn(4, 3, 3, 3, seed=1)),
        node("Conv", ["image/dq", "first/dq", "first/bias"], "conv_out"),
        node("Relu", ["conv_out"], "relu_out"),
        *converted("relu_out", 0.05, 0),
        *weights("second", drawn(4, 1, 3, 3, seed=2)),
        node("Conv", ["relu_out/dq", "second/dq", "second/bias"], "deep", group=4),
        *converted("deep", 0.06, 120),
        node("Add", ["relu_out/dq", "deep/dq"], "sum"),
        *converted("sum", 0.07, 110),
        node("Flatten", ["sum/dq"], "flat", axis=1),
        *converted("flat", 0.07, 110),
        *weights("third", drawn(5, 144, seed=dense_seed).T, axis=1),
        node("Gemm", ["flat/dq", "third/dq", "third/bias"], "scores_QuantizeLinear_Input"),
        *converted("scores_QuantizeLinear_Input", 0.9, 100),
        node("Relu", ["nothing"], "lost"),
        *converted("lost", 0.1, 0),
    )


@pytest.mark.parametrize("dense_seed", [3, 4])
def test_tensors_of_other_names_are_found_by_what_is_computed(tmp_path: Path, dense_seed: int) -> None:
    """By the values of weights and by the ops around; where weights were changed, by the order of layers."""
    path = tmp_path / "theirs.onnx"
    path.write_bytes(theirs(dense_seed))
    found = ranges_from_json(path).resolved(renamed())
    assert {name: (round(r.high - r.low, 2)) for name, r in found.entries.items() if not name.startswith("k")} == {
        "serving_default_x": 10.2, "t1": 12.75, "t2": 15.3, "t3": 17.85, "t5": 229.5,
    }  # fmt: skip
    assert {name: len(r.channels) for name, r in found.entries.items() if name.startswith("k")} == {
        "k1": 4, "k2": 4, "k3": 5,
    }  # fmt: skip
    assert found.entries["k1"].origin == "theirs.onnx: 'first', found by the values of weights"
    assert found.entries["t3"].origin.startswith("theirs.onnx: 'sum', found by ")
    how = "what it is computed from" if dense_seed == 4 else "the values of weights"
    assert found.entries["k3"].origin.endswith(how)
    assert found.unmatched == ("lost",)
    result = zeropoint.quantize(renamed(), ranges=ranges_from_json(path), effort="quick", target="integer")
    assert not result.skipped
    assert any(note.startswith("8 tensors with a given range, found ") for note in result.notes)
    scales = {t.name: t.params.scale for t in result.model.main.tensors if t.params and len(t.params.scales) == 1}
    assert {name: scales[name] for name in ("t1", "t2", "t3", "t4")} == {
        "t1": pytest.approx(0.05), "t2": pytest.approx(0.06), "t3": pytest.approx(0.07), "t4": pytest.approx(0.07),
    }  # fmt: skip


def test_scales_in_constant_nodes_are_read(tmp_path: Path) -> None:
    """As PyTorch exports them."""

    def listed(name: str, value: Array) -> bytes:
        tensor = field(2, TYPES[value.dtype]) + field(9, value.tobytes())
        return field(1, field(2, name) + field(4, "Constant") + field(5, field(1, "value") + field(5, tensor)))

    path = tmp_path / "net.onnx"
    parts = [listed("s", np.float32(0.5)), listed("z", np.uint8(10)), node("QuantizeLinear", ["x", "s", "z"], "q")]
    path.write_bytes(onnx_file(source("x", 1, 4), *parts))
    assert ranges_from_json(path).entries["x"].low == -5


def test_a_file_that_leads_round_in_circles_is_no_trap(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    circle = [node("Relu", ["a"], "b"), node("Relu", ["b"], "a"), node("Relu", ["c"], "c")]
    path.write_bytes(onnx_file(source("image", 1, 3, 6, 6), *converted("a", 0.1, 0), *circle))
    assert ranges_from_json(path).resolved(renamed()).unmatched == ("a",)


def test_an_onnx_file_without_scales_gives_none(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    path.write_bytes(onnx_file(node("Relu", ["x"], "y")))
    with pytest.raises(InvalidStats, match="no QuantizeLinear"):
        ranges_from_json(path)


def test_scales_of_a_quantized_tflite_are_taken_too(tmp_path: Path) -> None:
    """As litert-torch writes one for a model that PT2E quantized."""
    samples = [np.random.default_rng(k).normal(size=(1, 6, 6, 3)).astype(np.float32) for k in range(4)]
    first = zeropoint.quantize(network(), data=samples, effort="quick", target="integer", input_type="int8")
    first.save(tmp_path / "theirs.tflite")
    second = zeropoint.quantize(
        network(),
        ranges=ranges_from_json(tmp_path / "theirs.tflite"),
        effort="quick",
        target="integer",
        input_type="int8",
    )
    params = [{t.name: t.params for t in made.model.main.tensors} for made in (first, second)]
    for name in ("image", "conv"):
        assert params[0][name] == params[1][name]
    assert params[1]["weights"].scales == pytest.approx(params[0]["weights"].scales, rel=1e-6)
    plain = tmp_path / "plain.tflite"
    zeropoint.save(network(), plain)
    with pytest.raises(InvalidStats, match="not quantized"):
        ranges_from_json(plain)


def test_scales_of_a_quantized_tflite_are_found_whatever_its_tensors_are_called(tmp_path: Path) -> None:
    """litert-torch names tensors after the module that it converts, and quantized modules are others."""
    samples = [np.random.default_rng(k).normal(size=(1, 6, 6, 3)).astype(np.float32) for k in range(4)]
    first = zeropoint.quantize(renamed(), data=samples, effort="quick", target="integer", input_type="int8")
    other = zeropoint.load(zeropoint.to_bytes(first.model))
    for k, tensor in enumerate(other.main.tensors):
        tensor.name = f"Wrapper;{k}"
    zeropoint.save(other, tmp_path / "theirs.tflite")
    ranges = ranges_from_json(tmp_path / "theirs.tflite")
    second = zeropoint.quantize(renamed(), ranges=ranges, effort="quick", target="integer", input_type="int8")
    params = [{t.name: t.params for t in made.model.main.tensors} for made in (first, second)]
    names = ("serving_default_x", "t1", "t2", "t3", "t4", "k1", "k2", "k3")
    for name in names:
        assert params[1][name].scales == pytest.approx(params[0][name].scales, rel=1e-6)
    assert not any("not used" in note for note in second.notes)


def test_inputs_nodes_and_constants_are_read(tmp_path: Path) -> None:
    path = tmp_path / "qdq.onnx"
    path.write_bytes(qdq())
    read = read_onnx(path)
    assert read.inputs == {"image": (1, 3, 6, 6)}
    assert len(read.nodes) == 5
    assert read.constants["ws"].tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert read.constants["weights_quantized"].shape == (4, 3, 3, 3)
