"""The front door that people know from TensorFlow: their scripts run, and mean the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import zeropoint
from zeropoint import lite
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidRecipe, InvalidSample, UnsupportedOp, ZeropointError
from zeropoint.graph import Model
from zeropoint.improve.pipeline import Result
from zeropoint.runtime import Session

from . import build
from .frameworks import images, keras, small_network, tensorflow, unwarned
from .nets import Net, normal, outputs_of, samples_for, worst

FLOAT32, INT8, INT16, UINT8 = DType.FLOAT32, DType.INT8, DType.INT16, DType.UINT8
INT16X8 = lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8

# Scripts in the way of TensorFlow's guides. Each is run as it is, and with its first line changed.

SCRIPTS = {
    "float": """
from tensorflow import lite
converter = lite.TFLiteConverter.from_keras_model(model)
tflite_model = converter.convert()
""",
    "dynamic range": """
from tensorflow import lite
converter = lite.TFLiteConverter.from_keras_model(model)
converter.optimizations = [lite.Optimize.DEFAULT]
tflite_quant_model = converter.convert()
tflite_model = tflite_quant_model
""",
    "float16": """
from tensorflow import lite
import tensorflow as tf
converter = lite.TFLiteConverter.from_keras_model(model)
converter.optimizations = [lite.Optimize.DEFAULT]
converter.target_spec.supported_types = [tf.float16]
tflite_model = converter.convert()
""",
    "integer with float fallback": """
from tensorflow import lite
import tensorflow as tf
def representative_data_gen():
    for input_value in tf.data.Dataset.from_tensor_slices(train_images).batch(1).take(10):
        yield [input_value]
converter = lite.TFLiteConverter.from_keras_model(model)
converter.optimizations = [lite.Optimize.DEFAULT]
converter.representative_dataset = representative_data_gen
tflite_model = converter.convert()
""",
    "integer only": """
from tensorflow import lite
import tensorflow as tf
def representative_data_gen():
    for input_value in tf.data.Dataset.from_tensor_slices(train_images).batch(1).take(10):
        yield [input_value]
converter = lite.TFLiteConverter.from_keras_model(model)
converter.optimizations = [lite.Optimize.DEFAULT]
converter.representative_dataset = lite.RepresentativeDataset(representative_data_gen)
converter.target_spec.supported_ops = [lite.OpsSet.TFLITE_BUILTINS_INT8]
converter.inference_input_type = tf.uint8
converter.inference_output_type = tf.uint8
tflite_model = converter.convert()
""",
    "16x8": """
from tensorflow import lite
def representative_dataset():
    for image in train_images[:10]:
        yield {"image": image[None]}
converter = lite.TFLiteConverter.from_saved_model(saved_model_dir)
converter.optimizations = {lite.Optimize.DEFAULT}
converter.representative_dataset = representative_dataset
converter.target_spec.supported_ops = [
    lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
    lite.OpsSet.TFLITE_BUILTINS,
]
tflite_model = converter.convert()
""",
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> dict[str, Any]:
    """The names that a script finds: what was trained, and on what."""
    folder = str(tmp_path_factory.mktemp("saved") / "model")
    with unwarned():
        model = small_network()
        model.export(folder, verbose=False)
    return {"model": model, "saved_model_dir": folder, "train_images": np.concatenate(images())}


def result_of(script: str, setting: dict[str, Any]) -> Model:
    names = dict(setting)
    with unwarned():
        exec(script, names)
    return zeropoint.load(names["tflite_model"])


def kinds_of(model: Model) -> list[str]:
    return [op.kind for op in model.main.ops]


def forms(model: Model) -> set[DType]:
    """Types of everything that holds reals."""
    return {t.dtype for t in model.main.tensors if t.is_quantized or t.dtype.is_float} - {DType.INT32, DType.INT64}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run_with_only_the_import_changed(name, setting):
    theirs = SCRIPTS[name]
    ours = theirs.replace("from tensorflow import lite", "from zeropoint import lite")
    assert ours != theirs
    wanted, found = result_of(theirs, setting), result_of(ours, setting)
    ends = [[t.dtype for t in (*m.main.inputs, *m.main.outputs)] for m in (wanted, found)]
    assert ends[0] == ends[1]
    if name != "dynamic range":  # which layers are large enough to be worth it is a matter of taste
        assert sorted(kinds_of(found)) == sorted(kinds_of(wanted))
        assert forms(found) == forms(wanted)
    samples = [(x,) for x in images()]
    assert worst(outputs_of(wanted, samples), outputs_of(found, samples)) < 0.1


def test_their_own_enums_and_types_are_understood(setting):
    tf = tensorflow()
    converter = lite.TFLiteConverter.from_saved_model(setting["saved_model_dir"], signature_keys=["serving_default"])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = tf.lite.RepresentativeDataset(lambda: ([x] for x in images()))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.target_spec.supported_types = [tf.int8]
    converter.inference_input_type = tf.int8
    model = zeropoint.load(converter.convert())
    assert ends(model) == (INT8, FLOAT32)


# What the settings mean, on a model that needs no TensorFlow.


def network() -> Model:
    net = Net()
    x = net.conv(net.input(1, 6, 6, 2, name="image"), normal(24, 3, 3, 2, spread=0.3), normal(24), activation=1)
    x = net("MEAN", [x, np.int32([1, 2])], (1, 24))
    return net.model(net.dense(x, normal(64, 24), name="scores"))


def with_sine() -> Model:
    """One op has no integer kernel."""
    net = Net()
    x = net("CEIL", [net.dense(net.input(1, 8, name="x"), normal(64, 8), name="angle")], name="sine")
    return net.model(net.dense(x, normal(4, 64), name="y"))


def converter(model: Model | None = None, **settings: Any) -> lite.TFLiteConverter:
    made = lite.TFLiteConverter.from_tflite(model or network())
    for name, value in settings.items():
        setattr(made.target_spec if name.startswith("supported") else made, name, value)
    return made


def data(model: Model | None = None) -> Callable[[], Iterator[list[Array]]]:
    return lambda: (list(sample) for sample in samples_for(model or network()))


def convert(model: Model | None = None, **settings: Any) -> Model:
    return zeropoint.load(converter(model, **settings).convert())


def ends(model: Model) -> tuple[DType, DType]:
    return model.main.inputs[0].dtype, model.main.outputs[0].dtype


DEFAULT = {"optimizations": [lite.Optimize.DEFAULT]}


def test_nothing_asked_for_is_float():
    source = network()
    assert converter(source).convert() == zeropoint.to_bytes(source)


@pytest.mark.parametrize("wishes", [[], [lite.Optimize.DEFAULT]], ids=len)
def test_float32_as_the_only_type_is_float(wishes):
    source = network()
    made = converter(source, optimizations=wishes, supported_types=[np.float32])
    assert made.convert() == zeropoint.to_bytes(source)


@pytest.mark.parametrize("wish", list(lite.Optimize)[:3], ids=lambda o: o.name)
def test_optimized_without_data_is_dynamic_range(wish):
    model = convert(optimizations=[wish])
    assert ends(model) == (FLOAT32, FLOAT32)
    dense = model.main.ops[-1]
    assert (dense.inputs[0].dtype, dense.inputs[1].dtype) == (FLOAT32, INT8)


@pytest.mark.parametrize("half", [np.float16, "float16", np.dtype("float16"), DType.FLOAT16])
def test_float16(half):
    model = convert(**DEFAULT, supported_types=[half])
    assert ends(model) == (FLOAT32, FLOAT32)
    assert DType.FLOAT16 in {t.dtype for t in model.main.tensors}
    assert not any(t.is_quantized for t in model.main.tensors)


def test_data_make_it_int8_with_float_ends_and_float_where_it_has_to_be():
    source = with_sine()
    made = converter(source, **DEFAULT, representative_dataset=data(source))
    model = zeropoint.load(made.convert())
    assert ends(model) == (FLOAT32, FLOAT32)
    assert [op.inputs[0].dtype for op in model.main.ops if op.kind == "FULLY_CONNECTED"] == [INT8, INT8]
    assert [op.inputs[0].dtype for op in model.main.ops if op.kind == "CEIL"] == [FLOAT32]
    assert isinstance(made.result, Result)
    assert [s.op.kind for s in made.result.skipped] == ["CEIL"]


@pytest.mark.parametrize(
    "strict",
    [
        {"supported_ops": [lite.OpsSet.TFLITE_BUILTINS_INT8]},
        {"supported_types": [np.int8]},
        {"supported_ops": ["TFLITE_BUILTINS_INT8"]},
        {"supported_ops": {INT16X8}},
    ],
)
def test_integer_ops_only(strict):
    source = with_sine()
    ops = convert(**DEFAULT, **strict, representative_dataset=data()).main.ops
    assert not [op for op in ops if op.kind not in ("QUANTIZE", "DEQUANTIZE") and op.outputs[0].dtype is FLOAT32]
    with pytest.raises(UnsupportedOp) as refusal:
        convert(source, **DEFAULT, **strict, representative_dataset=data(source))
    assert "CEIL 'sine'" in str(refusal.value)
    assert "TFLITE_BUILTINS" in refusal.value.args[-1]


@pytest.mark.parametrize("given", [np.int8, np.uint8], ids=["int8", "uint8"])
@pytest.mark.parametrize("got", [np.int8, np.uint8, np.float32], ids=["int8", "uint8", "float32"])
def test_integer_ends(given, got):
    settings = {"inference_input_type": given, "inference_output_type": got}
    model = convert(**DEFAULT, **settings, representative_dataset=data())
    assert ends(model) == tuple(DType.parse(np.dtype(t).name) for t in (given, got))


@pytest.mark.parametrize("name", ["supported_ops", "target_ops"])
def test_int16_activations_with_and_without_float_fallback(name):
    source = with_sine()
    both = {name: [INT16X8, lite.OpsSet.TFLITE_BUILTINS]}
    model = convert(source, **DEFAULT, **both, representative_dataset=data(source))
    assert [op.inputs[0].dtype for op in model.main.ops if op.kind == "FULLY_CONNECTED"] == [INT16, INT16]
    model = convert(**DEFAULT, **{name: [INT16X8]}, representative_dataset=data(), inference_input_type=np.int16)
    assert ends(model) == (INT16, FLOAT32)


def test_flex_ops_stay_and_the_rest_is_quantized():
    """TensorFlow's own converter (2.21) cannot calibrate such a model."""
    tf = tensorflow()
    weights = normal(8, 8, spread=0.3)

    def compute(x: Any) -> Any:
        return tf.matmul(tf.nn.relu(tf.math.erf(tf.matmul(x, weights))), weights)

    function = tf.function(compute, input_signature=[tf.TensorSpec((1, 8), name="x")])
    made = lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    made.optimizations, made.representative_dataset = (
        [lite.Optimize.DEFAULT],
        lambda: ([normal(1, 8, seed=k)] for k in range(24)),
    )
    made.target_spec.supported_ops = [lite.OpsSet.TFLITE_BUILTINS_INT8, lite.OpsSet.SELECT_TF_OPS]
    model = zeropoint.load(made.convert())
    flex = next(op for op in model.main.ops if op.kind == "CUSTOM")
    assert flex.custom_code == "FlexErf"
    assert flex.inputs[0].dtype is FLOAT32
    assert [op.inputs[0].dtype for op in model.main.ops if op.kind == "FULLY_CONNECTED"] == [INT8, INT8]
    session = Session(model)
    for k in range(5):
        x = normal(1, 8, seed=100 + k)
        np.testing.assert_allclose(session.run([x])[0], compute(x), atol=0.1)


@pytest.mark.parametrize(
    ("settings", "one", "other"),
    [
        ({**DEFAULT, "inference_input_type": np.int8}, "inference_input_type = int8", "representative_dataset = None"),
        ({**DEFAULT, "inference_output_type": np.uint8}, "inference_output_type = uint8", "representative_dataset"),
        ({**DEFAULT, "supported_ops": [lite.OpsSet.TFLITE_BUILTINS_INT8]}, "TFLITE_BUILTINS_INT8", "representative"),
        ({**DEFAULT, "supported_ops": [INT16X8]}, INT16X8.name, "representative_dataset = None"),
        ({**DEFAULT, "supported_types": [np.int8]}, "supported_types = [int8]", "representative_dataset = None"),
        (
            {**DEFAULT, "supported_types": [np.float16], "supported_ops": [lite.OpsSet.TFLITE_BUILTINS_INT8]},
            "supported_types = [float16]",
            "TFLITE_BUILTINS_INT8",
        ),
        (
            {**DEFAULT, "supported_types": [np.float16], "inference_input_type": np.int8},
            "supported_types = [float16]",
            "inference_input_type = int8",
        ),
        ({**DEFAULT, "supported_ops": [INT16X8, "TFLITE_BUILTINS_INT8"]}, "TFLITE_BUILTINS_INT8", INT16X8.name),
        ({**DEFAULT, "supported_ops": [INT16X8], "supported_types": [np.int8]}, "[int8]", INT16X8.name),
        (
            {**DEFAULT, "supported_types": [np.float32], "inference_input_type": np.int8},
            "[float32]",
            "input_type = int8",
        ),
        ({"inference_input_type": np.int8}, "inference_input_type = int8", "optimizations = []"),
        ({"supported_types": [np.float16]}, "supported_types = [float16]", "optimizations = []"),
        ({"supported_ops": [lite.OpsSet.TFLITE_BUILTINS_INT8]}, "TFLITE_BUILTINS_INT8", "optimizations = []"),
    ],
)
def test_contradictions_name_both_settings(settings, one, other):
    with pytest.raises(InvalidRecipe, match="contradict each other") as refusal:
        convert(**settings)
    assert one in str(refusal.value)
    assert other in str(refusal.value)


def test_data_that_have_no_effect_are_mentioned():
    for settings in ({}, {**DEFAULT, "supported_types": [np.float16]}):
        with pytest.warns(UserWarning, match="representative_dataset is not used"):
            convert(**settings, representative_dataset=data())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"optimisations": []}, "did you mean optimizations"),
        ({"dump_graphviz_dir": "here"}, "no setting 'dump_graphviz_dir'"),
        ({"optimizations": ["FASTER"]}, "choose from DEFAULT"),
        ({"optimizations": [lite.Optimize.EXPERIMENTAL_SPARSITY]}, "SPARSITY, which is not supported"),
        ({"supported_ops": ["EVERYTHING"]}, "supported_ops has 'EVERYTHING'"),
        ({**DEFAULT, "supported_types": [np.int32]}, "int8 and float16 are supported"),
        ({**DEFAULT, "supported_types": [np.int8, np.float16]}, "float16 and int8; choose one"),
        ({**DEFAULT, "inference_input_type": "complicated"}, "which is not a type"),
        ({**DEFAULT, "inference_input_type": np.int32, "representative_dataset": data()}, "'int32' is not one of"),
    ],
)
def test_settings_that_do_not_exist(settings, says):
    with pytest.raises(InvalidRecipe, match=says):
        convert(**settings)


def test_settings_for_the_converter_behind_are_accepted():
    convert(
        experimental_new_converter=True,
        experimental_new_quantizer=True,
        experimental_enable_resource_variables=False,
        _experimental_lower_tensor_list_ops=False,
        allow_custom_ops=True,
    )


# Samples.


def two_inputs() -> Model:
    """`small` and `large` come in another order than their names."""
    net = Net()
    small, large = net.input(1, 8, name="small"), net.input(1, 8, name="large")
    model = net.model(net("ADD", [net.dense(large, normal(64, 8)), net.dense(small, normal(64, 8, seed=1))]))
    model.signatures[0].inputs = {"small": small, "large": large}
    return model


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda sample: [sample],
    "function": lambda sample: lambda: iter([sample]),
    "RepresentativeDataset": lambda sample: lite.RepresentativeDataset(lambda: [sample]),
    "generator": lambda sample: iter([sample]),
}

SMALL, LARGE = normal(1, 8), 50 * normal(1, 8, seed=1)


@pytest.mark.parametrize(
    "sample",
    [
        [SMALL, LARGE],
        (SMALL, LARGE),
        {"large": LARGE, "small": SMALL},
        ("serving_default", {"large": LARGE, "small": SMALL}),
    ],
    ids=["list", "tuple", "dict", "signature"],
)
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_every_structure_of_samples(sample, hold):
    model = convert(two_inputs(), **DEFAULT, representative_dataset=hold(sample), inference_input_type=np.int8)
    peaks = {t.name: max(map(abs, t.params.range())) for t in model.main.inputs}
    assert peaks["large"] == pytest.approx(np.abs(LARGE).max(), rel=0.3)
    assert peaks["small"] == pytest.approx(np.abs(SMALL).max(), rel=0.3)


def two_signatures() -> Model:
    models = []
    for k, name in enumerate(("encode", "decode")):
        net = Net()
        models.append(net.model(net.dense(net.input(1, 8, name="x"), normal(64, 8, seed=k), name="y")))
        models[-1].main.name = models[-1].signatures[0].key = name
        models[-1].signatures[0].inputs = {"x": models[-1].main.inputs[0]}
    return Model([m.main for m in models], [m.signatures[0] for m in models])


@pytest.mark.parametrize("hold", [lambda s: lambda: iter(s), iter], ids=["function", "generator"])
def test_several_signatures_each_get_their_samples(hold):
    samples = [
        (key, {"x": spread * normal(1, 8, seed=k)}) for k in range(8) for key, spread in (("encode", 1), ("decode", 9))
    ]
    settings = {"representative_dataset": hold(samples), "inference_input_type": np.int8}
    model = convert(two_signatures(), **DEFAULT, **settings)
    scales = {s.key: s.inputs["x"].params.scale for s in model.signatures}
    assert scales["decode"] == pytest.approx(9 * scales["encode"], rel=0.05)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "no samples were given"),
        ([[None, LARGE]], "cannot use values of type object"),
        ([[SMALL]], "1 arrays, the model has 2 inputs"),
        ([{"small": SMALL}], "no input 'large'"),
        ([{"small": SMALL, "large": LARGE, "huge": LARGE}], "'huge', which is no input"),
        ([[SMALL, LARGE[:, :3]]], "does not fit"),
        (7, "not iterable"),
        ("samples.npz", "samples are of type str"),
    ],
)
def test_wrong_structures(samples, says):
    with pytest.raises(InvalidSample, match=says):
        convert(two_inputs(), **DEFAULT, representative_dataset=samples)


def test_wrong_structures_with_several_signatures():
    with pytest.raises(InvalidSample, match="names no signature"):
        convert(two_signatures(), **DEFAULT, representative_dataset=[[SMALL]])
    with pytest.raises(InvalidSample, match="no signature 'nonsense'"):
        convert(two_signatures(), **DEFAULT, representative_dataset=[("nonsense", {"x": SMALL})])


def test_an_error_in_the_generator_is_shown_as_the_users():
    def broken() -> Iterator[Any]:
        yield [SMALL, LARGE]
        raise KeyError("image_17")

    with pytest.raises(InvalidSample, match=r"your data raised KeyError while making sample 1.*image_17"):
        convert(two_inputs(), **DEFAULT, representative_dataset=broken)


# The module.


def test_conversion_of_a_tflite_needs_no_tensorflow(tmp_path):
    path = tmp_path / "model.tflite"
    zeropoint.save(build.float_cnn(), path)
    program = f"""
import sys
import zeropoint.lite
from zeropoint import lite
assert lite is zeropoint.lite
converter = lite.TFLiteConverter.from_tflite({str(path)!r})
converter.optimizations = [lite.Optimize.DEFAULT]
interpreter = lite.Interpreter(model_content=converter.convert())
interpreter.allocate_tensors()
assert type(interpreter).__module__.startswith("ai_edge_litert")
assert not {{"tensorflow", "keras"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_names_of_the_module():
    assert {*lite.__all__} >= {"TFLiteConverter", "Optimize", "OpsSet", "RepresentativeDataset", "Interpreter"}
    for name in lite.__all__:
        assert getattr(lite, name) is not None
    with pytest.raises(AttributeError, match="toco"):
        _ = lite.toco


def test_a_keras_model_on_another_backend_is_refused_with_advice(monkeypatch, setting):
    monkeypatch.setattr(keras().backend, "backend", lambda: "jax")
    with pytest.raises(ZeropointError, match=r"computes with jax.*KERAS_BACKEND=tensorflow"):
        lite.TFLiteConverter.from_keras_model(setting["model"]).convert()


# TensorFlow 1.


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """A small network as a session, and its frozen graph in a file."""
    tf = tensorflow()
    path = tmp_path_factory.mktemp("frozen") / "graph.pb"
    v1 = tf.compat.v1
    with v1.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (1, 6), "x")
        kernel = v1.get_variable("kernel", initializer=np.linspace(-1, 1, 24).reshape(6, 4).astype(np.float32))
        y = tf.nn.relu(tf.matmul(x, kernel), name="y")
        session = v1.Session(graph=graph)
        session.run(v1.global_variables_initializer())
        constant = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["y"])
    path.write_bytes(constant.SerializeToString())
    yield path, session, x, y
    session.close()


ROWS = [np.random.default_rng(k).normal(size=(1, 6)).astype(np.float32) for k in range(8)]


def old_doors(frozen) -> dict[str, lite.TFLiteConverter]:
    path, session, x, y = frozen
    return {
        "graph": lite.TFLiteConverter.from_frozen_graph(path, ["x"], ["y"]),
        "session": lite.TFLiteConverter.from_session(session, [x], [y]),
    }


@pytest.mark.parametrize("door", ["graph", "session"])
def test_graphs_of_tensorflow_1(frozen, door):
    _, session, x, y = frozen
    converter = old_doors(frozen)[door]
    converter.post_training_quantize = True
    assert converter.post_training_quantize
    converter.representative_dataset = lambda: ([row] for row in ROWS)
    got, wanted = Session(zeropoint.load(converter.convert())).run([ROWS[0]])[0], session.run(y, {x: ROWS[0]})
    np.testing.assert_allclose(got, wanted, atol=0.1)


@pytest.mark.parametrize("dtype", ["INT8", "QUANTIZED_UINT8"])
def test_inference_type_makes_everything_integer(frozen, dtype):
    converter = old_doors(frozen)["graph"]
    converter.inference_type = wanted = getattr(lite.constants, dtype)
    converter.quantized_input_stats = {"x": (128, 32) if wanted is UINT8 else (0, 32)}
    converter.default_ranges_stats = (0, 6)
    converter.reorder_across_fake_quant = converter.change_concat_input_ranges = False
    model = zeropoint.load(converter.convert())
    (x,), (y,) = model.main.inputs, model.main.outputs
    assert (x.dtype, y.dtype) == (wanted, wanted)
    assert x.params.scale == pytest.approx(1 / 32)
    assert x.params.zero_point == (128 if wanted is UINT8 else 0)
    assert {op.kind for op in model.main.ops} == {"FULLY_CONNECTED"}
    weights = model.main.ops[0].inputs[1]
    assert weights.dtype is wanted


def test_a_keras_file_by_its_old_name(tmp_path):
    path = tmp_path / "net.h5"
    with unwarned():
        small_network().save(path)
    assert zeropoint.load(lite.TFLiteConverter.from_keras_model_file(path).convert()).main.ops
    with pytest.raises(InvalidRecipe, match="from_keras_model"):
        lite.TFLiteConverter.from_keras_model_file(path, custom_objects={"Mine": object})


@pytest.mark.parametrize(
    ("names", "says"),
    [((["z"], ["y"]), "has no tensor 'z'; its placeholders are x"), ((["x"], ["relu"]), "has no tensor 'relu'")],
)
def test_unknown_tensors_of_a_frozen_graph(frozen, names, says):
    with pytest.raises(ZeropointError, match=says):
        lite.TFLiteConverter.from_frozen_graph(frozen[0], *names).convert()


def test_what_is_no_frozen_graph(tmp_path):
    (tmp_path / "x.pb").write_bytes(b"\x93\x00no graph")
    with pytest.raises(ZeropointError, match="is not a frozen graph"):
        lite.TFLiteConverter.from_frozen_graph(tmp_path / "x.pb", ["x"], ["y"]).convert()
    with pytest.raises(ZeropointError, match="there is no file"):
        lite.TFLiteConverter.from_frozen_graph(tmp_path / "none.pb", ["x"], ["y"]).convert()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"inference_type": np.float16}, "inference_type is float16"),
        ({"quantized_input_stats": {"x": (0, 1)}}, "for integer inputs"),
        ({"inference_type": np.int8}, "representative_dataset = None"),
        ({"inference_type": np.uint8, "default_ranges_stats": (3, 1)}, "is not a valid range"),
        ({"inference_type": np.int8, "default_ranges_stats": (0, 6), "quantized_input_stats": {"q": (0, 1)}}, "'q'"),
    ],
)
def test_wrong_settings_of_old(frozen, settings, says):
    converter = old_doors(frozen)["graph"]
    for name, value in settings.items():
        setattr(converter, name, value)
    with pytest.raises(ZeropointError, match=says):
        converter.convert()


def test_a_frozen_graph_on_the_command_line(frozen, run, tmp_path):
    path, out = frozen[0], tmp_path / "out.tflite"
    code, _, err = run("quantize", path, "-o", out, "--default-range", "-6,6", "--inputs", "x", "--outputs", "y")
    assert (code, err) == (0, "")
    assert out.exists()
    code, _, err = run("quantize", path, "-o", tmp_path / "two.tflite", "--default-range", "-6,6")
    assert code == 2
    assert "needs --inputs and --outputs" in err


@pytest.mark.parametrize(
    ("ops", "target"), [((), "integer"), ((lite.OpsSet.TFLITE_BUILTINS, lite.OpsSet.TFLITE_BUILTINS_INT8), "int8")]
)
def test_int8_by_name_is_never_16_bits(ops, target):
    net = Net()
    model = net.model(net.dense(net.input(1, 16), normal(4, 16), normal(4)))
    converter = lite.TFLiteConverter.from_tflite(model)
    converter.optimizations = [lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: samples_for(model, 4)
    converter.target_spec.supported_ops = ops or converter.target_spec.supported_ops
    converter.convert()
    assert converter.result.target.name == target
