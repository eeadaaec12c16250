"""Tools in environments of their own: asking another Python, making environments, models for an older Keras."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import zeropoint
from benchmarks import environments
from benchmarks.apart import Failed, elsewhere
from benchmarks.environments import Environment, python_of
from benchmarks.inference import Latency, merged
from benchmarks.keras2 import rebuilt
from benchmarks.orders import Order
from benchmarks.page import write_page
from benchmarks.rows import Row, origin
from benchmarks.tfmot import keras_model
from benchmarks.tools import TOOLS, obstacle
from benchmarks.zoo import Place

from ..frameworks import keras, unwarned
from ..nets import Net, normal, outputs_of


def add(first: int, second: int) -> int:
    return first + second


def refuse() -> None:
    raise Failed("no such thing here")


def stumble() -> None:
    raise ValueError("first\nsecond")


def die() -> None:
    os.write(2, b"something about memory\n")
    os.abort()


def test_another_python_is_asked():
    assert elsewhere(sys.executable, add, 2, 3) == 5


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (refuse, "no such thing here"),
        (stumble, "ValueError: first"),
        (die, r"its process crashed \(SIGABRT\): something about memory"),
    ],
    ids=["refused", "error", "crash"],
)
def test_what_goes_wrong_elsewhere_is_told_in_one_line(function, said):
    with pytest.raises(Failed, match=f"^{said}$"):
        elsewhere(sys.executable, function)


def test_patience_ends_elsewhere():
    with pytest.raises(Failed, match="took longer than 0 s"):
        elsewhere(sys.executable, add, 2, 3, timeout=0.01)


def test_an_environment_that_cannot_be_had_says_why(tmp_path, monkeypatch, capsys):
    nobody = Environment(("somebodys-tool==1",), ("2.9",), "import somebodys_tool")
    monkeypatch.setattr(environments, "ENVIRONMENTS", {"nobody": nobody})
    assert environments.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "nobody: cannot be had here: needs Python 2.9; none is on the path\n"
    assert python_of(tmp_path, "nobody") is None
    assert environments.main([str(tmp_path), "another"]) == 2
    assert "choose from nobody" in capsys.readouterr().err


def test_an_environment_that_works_is_kept(tmp_path, monkeypatch, capsys):
    python = tmp_path / "mine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setattr(environments, "ENVIRONMENTS", {"mine": Environment(("numpy",), ("2.9",), "import sys")})
    assert environments.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "mine: ready (numpy)\n"
    assert python_of(tmp_path, "mine") == str(python)


def test_a_saved_keras_model_is_rebuilt_layer_by_layer(tmp_path):
    """Of the same Keras here: what it computes has to be the same, whoever's layers it is made of."""
    with unwarned():
        library = keras()
        library.utils.set_random_seed(0)
        layers = library.layers
        image = library.Input((8, 8, 3), name="image")
        x = layers.Conv2D(4, 3, padding="same", use_bias=False, name="stem")(image)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
        branch = layers.DepthwiseConv2D(3, padding="same", activation="relu")(layers.ZeroPadding2D(((0, 0), (0, 0)))(x))
        x = layers.GlobalAveragePooling2D(keepdims=True)(layers.Concatenate()([layers.Add()([x, branch]), branch]))
        model = library.Model(image, layers.Dense(5, activation="softmax")(layers.Flatten()(x)))
        model.layers[2].set_weights([np.linspace(0.5, 2, 4) + k for k in range(4)])
        path = tmp_path / "model.keras"
        model.save(path)
        sample = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
        np.testing.assert_array_equal(rebuilt(path, library)(sample), model(sample))


def test_models_that_cannot_be_rebuilt_are_refused(tmp_path):
    with unwarned():
        library = keras()
        path = tmp_path / "model.keras"
        library.Sequential([library.Input((4,)), library.layers.Dense(2)]).save(path)
        with pytest.raises(Failed, match="a Sequential model; only functional ones"):
            rebuilt(path, library)
        image = library.Input((4,))
        library.Model(image, library.layers.Dense(2)(image)).save(path)

        class Older:
            layers, __version__ = object(), "2.15"

        Older.Input = library.Input
        with pytest.raises(Failed, match=r"Keras 2.15 has no layer Dense"):
            rebuilt(path, Older)


def small_resnet():
    net = Net()
    stem = net.conv(net.input(1, 8, 8, 3), normal(4, 3, 3, 3), normal(4, seed=1), activation=1)
    total = net("ADD", [stem, net.conv(stem, normal(4, 3, 3, 4, seed=2), normal(4, seed=3))], fusedActivationFunction=1)
    sizes = {"strideW": 8, "strideH": 8, "filterWidth": 8, "filterHeight": 8}
    flat = net(
        "RESHAPE", [net("AVERAGE_POOL_2D", [total], (1, 1, 1, 4), padding=1, **sizes), np.int32([-1, 4])], (1, 4)
    )
    return net.model(net.dense(flat, normal(5, 4, seed=4), normal(5, seed=5)))


def test_tfmot_gets_the_network_that_the_tflite_holds(tmp_path):
    model, path = small_resnet(), tmp_path / "model.tflite"
    zeropoint.save(model, path)
    sample = normal(1, 8, 8, 3, seed=6)
    with unwarned():
        made = keras_model(path, keras())(sample)
    np.testing.assert_allclose(made, outputs_of(model, [(sample,)])[0][0], rtol=1e-4)


def test_tfmot_is_not_given_a_network_that_would_be_another(tmp_path):
    net, path = Net(), tmp_path / "model.tflite"
    zeropoint.save(net.model(net("TANH", [net.input(1, 4)])), path)
    with unwarned(), pytest.raises(Failed, match="TANH is not rebuilt for tfmot"):
        keras_model(path, keras())


def test_runs_are_merged_with_their_spread():
    runs = [[Latency(1, seconds, ratio, ratio, ratio)] for seconds, ratio in ((2.0, 0.5), (4.0, 0.7), (3.0, 0.4))]
    (found,) = merged(runs)
    assert found == Latency(1, 3.0, 0.5, 0.4, 0.7)
    assert found.as_row() == {"1": 3.0, "1 of float": 0.5, "1 lowest": 0.4, "1 highest": 0.7}


@pytest.mark.parametrize("tool", [name for name, tool in TOOLS.items() if tool.has_environment])
def test_a_tool_without_its_environment_is_a_row(zoo, tmp_path: Path, tool):
    order = Order(Place(str(zoo), "digits"), "int8", tool, None, 8)
    reason = obstacle(order)
    assert reason == f"has no environment: python -m benchmarks.environments FOLDER {tool}, then --environments FOLDER"
    assert obstacle(replace(order, python=sys.executable)) is None
    assert obstacle(replace(order, mode="float16")) == "has no such mode"
    row = Row("digits", "int8", tool, error=reason)
    page = write_page(tmp_path, origin({"samples": 8, "rounds": 1, "runs": 1}), [row]).read_text()
    assert f"| int8 | {TOOLS[tool].title} |" in page
    assert reason in page


def test_the_page_shows_the_spread_of_latency(tmp_path: Path):
    latency = Latency(1, 1e-3, 0.5, 0.44, 0.58).as_row()
    row = Row("digits", "int8", "zeropoint", score=0.9, float_score=0.9, size=10, float_size=40, latency=latency)
    here = origin({"samples": 8, "rounds": 1, "runs": 3})
    page = write_page(tmp_path, here, [row]).read_text()
    assert "| 0.50 (0.44–0.58) |" in page
    assert f"instruction sets {here.machine['instruction sets']}" in page
