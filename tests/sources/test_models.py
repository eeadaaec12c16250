"""Models of other frameworks go through their converters: the same numbers come out, and refusals are plain."""

from __future__ import annotations

import errno
import json
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint import Conversion, lite
from zeropoint.dtypes import DType
from zeropoint.errors import ConversionFailed, InvalidModel, InvalidSample, MissingExtra
from zeropoint.graph import Op
from zeropoint.runtime import Session
from zeropoint.sources.models import load
from zeropoint.sources.tensorflow import unwritten

from .. import build
from ..frameworks import IMAGE, images, keras, small_network, tensorflow, unwarned


@pytest.fixture(scope="module")
def network() -> Any:
    return small_network()


@pytest.fixture(scope="module")
def outputs(network) -> list[Any]:
    with unwarned():
        return [np.asarray(network(x, training=False)) for x in images()]


@pytest.fixture(scope="module")
def home(network, tmp_path_factory) -> Path:
    """The network in every kind of file. The SavedModel offers twice its scores as well."""
    folder = tmp_path_factory.mktemp("models")
    with unwarned():
        library = keras()
        network.save(folder / "network.keras")
        network.save(folder / "network.h5")
        spec = library.InputSpec("float32", (1, *IMAGE), name="image")
        archive = library.export.ExportArchive()
        archive.track(network)
        archive.add_endpoint("serving_default", lambda image: {"scores": network(image, training=False)}, [spec])
        archive.add_endpoint("doubled", lambda image: {"scores": 2 * network(image, training=False)}, [spec])
        archive.write_out(folder / "saved", verbose=False)
    return folder


def function_of(network: Any) -> Any:
    spec = tensorflow().TensorSpec((1, *IMAGE), name="image")
    return tensorflow().function(lambda image: network(image, training=False), input_signature=[spec])


def as_before(model: zeropoint.Model, outputs: list[Any]) -> bool:
    session = Session(model)
    return all(np.allclose(session.run([x])[0], wanted, atol=1e-5) for x, wanted in zip(images(), outputs, strict=True))


@pytest.mark.parametrize("name", ["network.keras", "network.h5"])
def test_keras_files(home, outputs, name, capfd):
    assert as_before(load(home / name), outputs)
    assert capfd.readouterr() == ("", "")


def test_keras_objects(network, outputs, capfd):
    model = load(network)
    assert as_before(model, outputs)
    assert [list(s.inputs) for s in model.signatures] == [["image"]]
    assert capfd.readouterr() == ("", "")


def test_keras_models_with_named_inputs():
    """Called with a dict, which TensorFlow's own entry refuses."""
    with unwarned():
        library = keras()
        ends = {name: library.Input((4,), name=name) for name in ("left", "right")}
        scores = library.layers.Dense(3)(ends["left"] - 2 * ends["right"])
        network = library.Model(ends, scores)
        left, right = np.ones((1, 4), np.float32), np.full((1, 4), 0.25, np.float32)
        wanted = np.asarray(network({"left": left, "right": right}))
    model = load(network)
    (signature,) = model.signatures
    assert list(signature.inputs) == ["left", "right"]
    values = {"left": left, "right": right}
    fed = [values[next(n for n, t in signature.inputs.items() if t is tensor)] for tensor in model.main.inputs]
    np.testing.assert_allclose(Session(model).run(fed)[0], wanted, atol=1e-5)
    samples = [{"left": left * k, "right": right * k} for k in range(1, 9)]
    assert not zeropoint.quantize(model, "int8", data=samples).skipped


def test_variables_that_the_converter_loses_are_found(network, outputs, tmp_path):
    """Of a Keras model inside another module, TensorFlow 2.21 writes a model that reads what nobody wrote."""
    with unwarned():
        owner = tensorflow().Module()
        owner.network, owner.function = network, function_of(network)
        whole = owner.function.get_concrete_function()
        tensorflow().saved_model.save(owner, str(tmp_path / "saved"), signatures={"scores": whole})
        lost = tensorflow().lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved")).convert()
        assert unwritten(zeropoint.load(lost))
        for model in (
            load(tmp_path / "saved"),
            zeropoint.load(lite.TFLiteConverter.from_concrete_functions([whole], network).convert()),
        ):
            assert not unwritten(model)
            assert as_before(model, outputs)
    assert [(s.key, list(s.inputs)) for s in load(tmp_path / "saved").signatures] == [("scores", ["image"])]


def test_functions(network, outputs):
    function = function_of(network)
    for source in (function, [function.get_concrete_function()]):
        model = load(source)
        assert as_before(model, outputs)
        assert [list(s.inputs) for s in model.signatures] == [["image"]]


def test_saved_models(home, outputs, capfd):
    model = load(home / "saved", conversion=Conversion(signatures=("serving_default",)))
    assert as_before(model, outputs)
    assert [(s.key, list(s.outputs)) for s in model.signatures] == [("serving_default", ["scores"])]
    assert {s.key for s in load(home / "saved").signatures} == {"serving_default", "doubled"}
    assert capfd.readouterr() == ("", "")


def test_a_saved_model_that_cannot_be_restored_is_converted_from_its_graph(home, outputs, monkeypatch):
    """As those of Keras 2 with TensorFlow 2.21. The names of its signature are kept."""

    def refuse(*arguments: Any) -> Any:
        raise AttributeError("'_UserObject' object has no attribute 'add_slot'")

    monkeypatch.setattr(tensorflow().lite.TFLiteConverter, "from_saved_model", refuse)
    model = load(home / "saved", conversion=Conversion(signatures=("serving_default",)))
    assert as_before(model, outputs)
    assert [(s.key, list(s.inputs), list(s.outputs)) for s in model.signatures] == [
        ("serving_default", ["image"], ["scores"])
    ]
    with pytest.raises(ConversionFailed, match="add_slot"):
        load(home / "saved")  # two signatures need the other way


def test_every_function_and_command_takes_them(home, network, run, tmp_path):
    samples = images()
    np.savez(tmp_path / "samples.npz", image=np.concatenate(samples))
    assert zeropoint.calibrate(home / "network.keras", samples).samples == len(samples)
    assert zeropoint.quantize(network, data=samples).model.main.ops
    out = tmp_path / "int8.tflite"
    code, _, err = run("quantize", home / "network.keras", "--data", tmp_path / "samples.npz", "-o", out)
    assert (code, err) == (0, "")
    assert zeropoint.load(out).signatures
    code, shown, err = run("inspect", home / "network.h5", "--summary")
    assert (code, err) == (0, "")
    assert "CONV_2D" in shown or "float" in shown


def test_verbose_lets_the_converter_print(home, capfd):
    load(home / "network.keras", conversion=Conversion(verbose=True))
    out, err = capfd.readouterr()
    assert "saved" in (out + err).lower()


# What cannot be read.


def keras_archive(path: Path, version: str) -> Path:
    """A file as a Keras of that version might write it, with a layer that no Keras has."""
    unknown = {"module": "keras.layers", "class_name": "HologramLayer", "config": {}, "registered_name": None}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version, "date_saved": "2030-01-01"}))
        archive.writestr("config.json", json.dumps(unknown))
        archive.writestr("model.weights.h5", b"")
    return path


def test_keras_files_of_other_versions(tmp_path, monkeypatch):
    with pytest.raises(ConversionFailed, match=r"written by Keras 99.1, read by keras 3.*HologramLayer"):
        load(keras_archive(tmp_path / "newer.keras", "99.1"))
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    with pytest.raises(MissingExtra, match=r"written by Keras 2\.15\.0.*pip install tf_keras"):
        load(keras_archive(tmp_path / "older.keras", "2.15.0"))


@pytest.mark.parametrize("name", ["x.keras", "x.h5", "x.tflite"])
def test_files_that_may_not_be_read(tmp_path, monkeypatch, name):
    def refuse(*_args, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / name).write_bytes(b"anything")
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(np, "fromfile", refuse)
    with pytest.raises(InvalidModel, match=r"cannot read .*: permission denied"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.keras", b"junk", "not a Keras file: it is not the zip archive"),
        ("x.h5", b"junk", "not a Keras file: it does not start as HDF5"),
        ("x.h5", b"", "not a Keras file"),
        ("x.keras", None, "there is no file"),
        ("x.tflite", b"junk", "not a .tflite model"),
    ],
)
def test_damaged_files(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidModel, match=says):
        load(tmp_path / name)


def test_folders_that_are_no_saved_models(home, tmp_path):
    with pytest.raises(InvalidModel, match=r"without saved_model.pb, so it is not a SavedModel$"):
        load(tmp_path)
    with pytest.raises(InvalidModel, match=r"did you mean .*saved"):
        load(home)
    (tmp_path / "saved_model.pb").write_bytes(b"\xff" * 40)
    with pytest.raises(InvalidModel, match="damaged SavedModel"):
        load(tmp_path)


def test_unknown_signatures_and_tags(home):
    with pytest.raises(InvalidModel, match="no signature 'nonsense'; it has 'doubled', 'serving_default'"):
        load(home / "saved", conversion=Conversion(signatures=("nonsense",)))
    converter = zeropoint.lite.TFLiteConverter.from_saved_model(home / "saved", tags={"train"})
    with pytest.raises(InvalidModel, match="no graph with the tags train; it has serve"):
        converter.convert()


def test_objects_that_are_no_models():
    tf = tensorflow()
    with unwarned():
        undecided = tf.function(lambda x: x + 1)
        uncalled = type("Uncalled", (keras().Model,), {"call": lambda _, x: x})()
    with pytest.raises(InvalidModel, match=r"the inputs of the tf.function are not known"):
        load(undecided)
    with pytest.raises(InvalidModel, match="call it once on a sample"):
        load(uncalled)
    with pytest.raises(InvalidModel, match=r"give a tf.function of it"):
        load(tf.Module())
    for other in (object(), 3, None, []):
        with pytest.raises(InvalidModel, match=r"is not a model that can be read; give a .tflite"):
            load(other)


@pytest.fixture(scope="module")
def determinant() -> Any:
    """Ops that LiteRT has no kernel for: one that TensorFlow's could stand in for, and one that nobody has."""
    tf = tensorflow()

    def compute(x: Any) -> Any:
        y = tf.nn.relu(tf.matmul(x, tf.eye(4) + 0.1))
        return tf.linalg.det(y[:, :2, :2]), tf.raw_ops.Betainc(a=y, b=y, x=y)

    return tf.function(compute, input_signature=[tf.TensorSpec((1, 4, 4))])


def test_a_refusal_of_the_converter_names_the_op(determinant, capfd):
    with pytest.raises(ConversionFailed) as refusal:
        load(determinant)
    first, *rest = refusal.value.args
    assert first.startswith("TensorFlow's converter refused the model: 'tf.")
    assert any(line.startswith("  MatrixDeterminant: ") and "SELECT_TF_OPS" in line for line in rest)
    assert any(line.startswith("  Betainc: ") and "allow_custom_ops" in line for line in rest)
    assert all(len(line) < 400 for line in rest)
    assert capfd.readouterr() == ("", "")
    model = load(determinant, conversion=Conversion(select_tf_ops=True, custom_ops=True))
    assert {op.label for op in model.main.ops} >= {"FlexMatrixDeterminant", "Betainc"}


def test_without_tensorflow_the_error_says_how_to_get_it(home, network, monkeypatch, run):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for source in (home / "network.keras", home / "network.h5", home / "saved", network):
        with pytest.raises(MissingExtra, match=r"pip install 'zeropoint\[tensorflow\]'. A .tflite does not need it"):
            load(source)
    code, _, err = run("inspect", home / "network.keras")
    assert code == 2
    assert "zeropoint[tensorflow]" in err


# PyTorch.


class Module:
    """Stands for `torch.nn.Module`, by its name."""

    training = True

    def eval(self) -> None:
        self.training = False

    def train(self) -> None:
        self.training = True


Module.__module__ = "torch.nn.modules.module"


@pytest.fixture
def converted(monkeypatch, digits) -> list[tuple[Any, ...]]:
    """The calls of a litert-torch that converts everything to the embedded model."""
    calls: list[tuple[Any, ...]] = []

    def convert(module: Any, arguments: Any, named: Any) -> Any:
        calls.append((module.training, arguments, named))
        print("converting")
        if arguments == ("broken",):
            raise ValueError("error: no lowering for aten.hologram\nand much more")
        return types.SimpleNamespace(model_content=lambda: digits)

    monkeypatch.setitem(sys.modules, "litert_torch", types.SimpleNamespace(convert=convert))
    return calls


@pytest.mark.parametrize(
    ("given", "arguments", "named"),
    [(("x", "y"), ("x", "y"), None), (["x"], ("x",), None), ("x", ("x",), None), ({"a": "x"}, None, {"a": "x"})],
)
def test_pytorch_modules_are_traced_on_sample_inputs(converted, given, arguments, named, capfd):
    module = Module()
    assert load(module, sample_inputs=given).main.ops
    assert converted == [(False, arguments, named)]
    assert module.training
    assert capfd.readouterr() == ("", "")


def test_graphs_that_pt2e_made_are_converted_as_they_are(converted, monkeypatch):
    """They say that they are in training, and refuse to change it (PyTorch 2.13)."""

    def refuse(self: Module) -> None:
        raise NotImplementedError("Calling train() or eval() is not supported for exported models.")

    monkeypatch.setattr(Module, "eval", refuse)
    monkeypatch.setattr(Module, "train", refuse)
    assert load(Module(), sample_inputs="x").main.ops
    assert converted == [(True, ("x",), None)]


def test_pytorch_refusals(converted, monkeypatch):
    with pytest.raises(InvalidModel, match="sample_inputs"):
        load(Module())
    with pytest.raises(ConversionFailed, match=r"litert-torch refused the model: no lowering for aten.hologram"):
        load(Module(), sample_inputs="broken")
    monkeypatch.setitem(sys.modules, "litert_torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'zeropoint\[torch\]'. A .tflite does not need it"):
        load(Module(), sample_inputs="x")


def test_exported_programs_bring_their_inputs(converted):
    program = type("ExportedProgram", (), {"__module__": "torch.export.exported_program", "graph_module": None})()
    program.example_inputs = (("x",), {})
    program.module = Module
    assert load(program).main.ops
    assert converted == [(True, ("x",), None)]


# Flex ops.


def test_flex_ops_are_run_by_tensorflow():
    """Between pieces that LiteRT runs, whatever the shapes."""
    tf = tensorflow()
    weights = np.random.default_rng(0).normal(0, 0.5, (4, 4)).astype(np.float32)

    def compute(x: Any) -> Any:
        y = tf.matmul(x, weights)
        return tf.tanh(tf.linalg.det(tf.matmul(y, y, transpose_b=True))), tf.nn.relu(y)

    function = tf.function(compute, input_signature=[tf.TensorSpec((None, 3, 4))])
    model = load(function, conversion=Conversion(select_tf_ops=True))
    session = Session(model)
    delegated = [model.main.ops[place].label for place in session.delegated()]
    assert "BATCH_MATMUL" in delegated
    assert "FlexMatrixDeterminant" not in delegated
    for batch in (1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 4)).astype(np.float32)
        session.resize([x.shape])
        wanted = {v.shape: v for v in map(np.asarray, function(x))}
        for found in session.run([x]):
            np.testing.assert_allclose(found, wanted[found.shape], atol=1e-4)


def test_constants_without_elements_are_read_beside_flex_ops():
    """As the shape of a scalar, which BROADCAST_ARGS combines with that of a batch."""
    tf = tensorflow()
    function = tf.function(lambda x: tf.math.erf(x) + 1.0, input_signature=[tf.TensorSpec((2, 3))])
    model = load(function, conversion=Conversion(select_tf_ops=True))
    graph = model.main
    shape, scalar = build.const("shape", np.int32([2, 3])), build.act("scalar", 0, dtype=DType.INT32)
    both, result = build.act("both", 2, dtype=DType.INT32), build.act("result", 2, 3)
    graph.ops += [
        build.op("BROADCAST_ARGS", [scalar, shape], both, options=""),
        Op("BROADCAST_TO", [graph.outputs[0], both], [result], version=2),
    ]
    graph.tensors += [shape, scalar, both, result]
    graph.outputs[:] = [result]
    model.signatures.clear()
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    (found,) = Session(model).run([x])
    np.testing.assert_allclose(found, np.asarray(function(x)), atol=1e-5)


def test_samples_are_checked_against_converted_inputs(network):
    with pytest.raises(InvalidSample, match="'image'"):
        zeropoint.calibrate(network, [np.zeros((1, 3), np.float32)])
