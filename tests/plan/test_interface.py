"""Types of inputs and outputs: names and signatures stay, values agree, and what is printed about them works."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import zeropoint
from zeropoint.calibration import Range, Ranges, Stats, calibrate
from zeropoint.dtypes import Array, DType
from zeropoint.errors import InvalidRecipe, InvalidSample
from zeropoint.graph import Model
from zeropoint.improve.pipeline import Result
from zeropoint.recipe import INT8, INT16X8, Recipe, Rule
from zeropoint.report.quantization import usage_lines
from zeropoint.streams import quiet_stderr
from zeropoint.tflite import to_bytes

from ..nets import KERNELS, Net, normal, outputs_of, samples_for, worst
from .laws import broken_laws

TYPES = ("float32", "int8", "uint8", "int16")
MODES = ("int8", "int16x8")
SAME_GRID = {"int8": ("int8", "uint8"), "int16x8": ("int16",)}
"""Types that hold what the model computes with; others cost a rounding of their own."""


@pytest.fixture(scope="module")
def model() -> Model:
    """Two inputs, two outputs, one of them also used inside; a signature with names of its own."""
    net = Net()
    image, extra = net.input(1, 6, 6, 2, name="image"), net.input(1, 4, name="extra")
    features = net.conv(image, normal(4, 3, 3, 2), normal(4), name="features", activation=1)
    mean = net("MEAN", [features, np.int32([1, 2])], (1, 4), name="mean")
    scores = net.dense(net("ADD", [mean, extra]), normal(3, 4), normal(3), name="scores")
    model = net.model(scores, mean)
    signature = model.signatures[0]
    signature.inputs = {"picture": image, "more": extra}
    signature.outputs = {"result": scores, "means": mean}
    return model


@pytest.fixture(scope="module")
def samples(model) -> list[tuple[Array, ...]]:
    return samples_for(model)


@pytest.fixture(scope="module")
def stats(model, samples) -> Stats:
    return calibrate(model, samples)


@pytest.fixture(scope="module")
def float_ends(model, stats) -> dict[str, Result]:
    return {mode: zeropoint.quantize(model, mode, stats=stats) for mode in MODES}


@pytest.mark.parametrize("output_type", TYPES)
@pytest.mark.parametrize("input_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_combination_of_types(model, samples, stats, float_ends, mode, input_type, output_type):
    result = zeropoint.quantize(model, mode, stats=stats, input_type=input_type, output_type=output_type)
    main, (signature,) = result.model.main, result.model.signatures
    assert [(t.name, t.dtype.label) for t in main.inputs] == [("image", input_type), ("extra", input_type)]
    assert [(t.name, t.dtype.label) for t in main.outputs] == [("scores", output_type), ("mean", output_type)]
    assert list(signature.inputs.items()) == list(zip(("picture", "more"), main.inputs, strict=True))
    assert list(signature.outputs.items()) == list(zip(("result", "means"), main.outputs, strict=True))
    assert broken_laws(result) == []
    exact = {input_type, output_type} <= {"float32", *SAME_GRID[mode]}
    for kernels in KERNELS:
        reference = outputs_of(float_ends[mode].model, samples, kernels)
        assert worst(reference, outputs_of(result.model, samples, kernels)) <= (1e-6 if exact else 0.02)


@pytest.mark.parametrize("end", ["input_type", "output_type"])
@pytest.mark.parametrize("name", ["int4", "uint16", "float16", "FLOAT32", "", "int32"])
def test_other_types_are_refused(model, stats, end, name):
    with pytest.raises(
        InvalidRecipe, match=f"{end.split('_')[0]} type '{name}' is not one of float32, int8, uint8, int16"
    ):
        zeropoint.quantize(model, stats=stats, **{end: name})


def test_ends_without_a_range_are_refused(model):
    """Of tensors about which nothing is known an integer form would be a guess."""
    ranges = Ranges({"features": Range(-1.0, 1.0, "test")})
    for types in ({"input_type": "int8"}, {"output_type": "int8"}):
        with pytest.raises(InvalidRecipe, match="its range is not known"):
            zeropoint.quantize(model, ranges=ranges, **types)
    with pytest.raises(InvalidSample, match="ranges of the tensors are not known"):
        zeropoint.quantize(model)


# What is printed about them.


class Reader:
    """Executes the printed lines, as someone would who pastes them."""

    def __init__(self, model: Model) -> None:
        with quiet_stderr():
            self.interpreter = Interpreter(model_content=to_bytes(model))
            self.interpreter.allocate_tensors()

    def execute(self, line: str, **names: Any) -> dict[str, Any]:
        scope = {"np": np, "interpreter": self.interpreter, **names}
        exec(line, scope)
        return scope

    def run(self, result: Result, sample: tuple[Array, ...]) -> list[Array]:
        """Integer ends by the printed lines, float ones as ever."""
        lines = list(usage_lines(result))
        snippets = {head.split("'")[1]: code for head, code in zip(lines[::2], lines[1::2], strict=True)}
        ports = dict(zip(("picture", "more"), sample, strict=True))
        details = self.interpreter.get_input_details()
        for (name, x), detail in zip(ports.items(), details, strict=True):
            if name in snippets:
                self.execute(snippets[name].strip(), x=x)
            else:
                self.interpreter.set_tensor(detail["index"], x)
        self.interpreter.invoke()
        found = []
        for name, detail in zip(("result", "means"), self.interpreter.get_output_details(), strict=True):
            if name in snippets:
                found.append(self.execute(snippets[name].strip())["real"])
            else:
                found.append(self.interpreter.get_tensor(detail["index"]))
        return found


@pytest.mark.parametrize("output_type", TYPES)
@pytest.mark.parametrize("input_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_printed_lines_feed_and_read_the_model(model, samples, stats, mode, input_type, output_type):
    result = zeropoint.quantize(model, mode, stats=stats, input_type=input_type, output_type=output_type)
    reader = Reader(result.model)
    found = [np.stack(column) for column in zip(*(reader.run(result, s) for s in samples), strict=True)]
    wanted = outputs_of(result.model, samples)
    for output, tensor, reference in zip(found, result.model.main.outputs, wanted, strict=True):
        step = 1e-6 if tensor.params is None else tensor.params.scale
        assert np.abs(output - reference).max() <= 1.01 * step  # halves are rounded to even where we round away from 0


def test_an_input_in_uint8_is_converted_to_int8_once():
    """There is no kernel from uint8 to int16, so who wants 16 bits reads what was converted for others."""
    net = Net()
    x = net.input(1, 8, name="x")
    model = net.model(net("TANH", [x], name="wide"), net.dense(x, normal(4, 8), name="narrow"))
    recipe = Recipe((Rule(INT8), Rule(INT16X8, name="wide")))
    made = zeropoint.quantize(model, recipe=recipe, data=samples_for(model), input_type="uint8", effort="quick").model
    to_int8 = [op for op in made.main.ops if op.inputs[0].dtype is DType.UINT8]
    assert [op.outputs[0].dtype for op in to_int8] == [DType.INT8]
    assert {t.dtype for op in made.main.ops if op.inputs[0] is to_int8[0].outputs[0] for t in op.outputs} == {
        DType.INT8,
        DType.INT16,
    }


def test_printed_formulas_hold(model, samples, stats):
    result = zeropoint.quantize(model, stats=stats, input_type="uint8", output_type="int8")
    heads = list(usage_lines(result))[::2]
    assert [head.split(":")[0] for head in heads] == [
        "Input 'picture' is uint8",
        "Input 'more' is uint8",
        "Output 'result' is int8",
        "Output 'means' is int8",
    ]
    for head, tensor in zip(heads, (*result.model.main.inputs, *result.model.main.outputs), strict=True):
        scale, sign, zero = re.search(r"([0-9.e-]+)\)? (?:\* \(q )?([+-]) ([0-9]+)", head).groups()
        assert float(scale) == pytest.approx(tensor.params.scale, rel=1e-4)
        offset = int(f"{sign}{zero}")
        assert offset == (tensor.params.zero_point if head.startswith("Input") else -tensor.params.zero_point)


def test_float_ends_need_no_words(float_ends):
    assert [line for result in float_ends.values() for line in usage_lines(result)] == []


def test_the_lines_follow_the_first_signature(stats, model):
    """Names by which a caller knows inputs, and places by which the interpreter does."""
    lines = list(usage_lines(zeropoint.quantize(model, stats=stats, input_type="int8")))
    assert [re.search(r"details\(\)\[(\d)\]", line).group(1) for line in lines[1::2]] == ["0", "1"]


def test_states_and_integers_are_no_business_of_callers():
    net = Net()
    x, indices = net.input(1, 8), net.input(2, dtype=DType.INT32, name="indices")
    model = net.model(net("GATHER", [net("ABS", [x]), indices], (1, 2), axis=1), indices)
    result = zeropoint.quantize(model, data=samples_for(model), input_type="int8", output_type="int8")
    assert not any("indices" in line for line in usage_lines(result))
