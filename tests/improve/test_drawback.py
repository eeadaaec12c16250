"""A result that is larger than its origin, or slower, says so, says why, and says what is better. Times are given."""

from __future__ import annotations

import re

import numpy as np
import pytest

import zeropoint
from zeropoint.bench import relative_speed
from zeropoint.graph.query import constants
from zeropoint.improve.drawback import SLOWER, SourceModel, Weighing, drawback_of, judged, written_bytes
from zeropoint.targets import CPU, INTEGER, check_model

from .. import build
from ..nets import Net, normal, samples_for


@pytest.fixture(autouse=True)
def untimed(monkeypatch):
    monkeypatch.setattr(relative_speed, "relative_speeds", lambda _: None)


def convolutions():
    net = Net()
    x = net.conv(net.input(1, 8, 8, 8), normal(32, 3, 3, 8, seed=1) / 8)
    return net.model(net.conv(x, normal(32, 3, 3, 32, seed=2) / 16))


def in_half(outputs=64, inputs=64):
    """A layer whose weights the file holds in float16."""
    net = Net()
    x = net.input(1, inputs)
    held = [normal(outputs, inputs).astype(np.float16), normal(outputs).astype(np.float16)]
    weights, bias = (net("DEQUANTIZE", [build.const(f"w{k}", v)]) for k, v in enumerate(held))
    return net.model(net("FULLY_CONNECTED", [x, weights, bias], (1, outputs)))


def shared():
    """Two layers that read the same weights."""
    net, weights = Net(), build.const("weights", normal(64, 64, spread=0.2))
    x = net.dense(net.input(1, 64), weights, name="first")
    return net.model(net.dense(net("TANH", [x]), weights, name="second"))


def weighed(before, after, target=CPU):
    return Weighing(SourceModel(before), after, check_model(after, target))


def of_weights(model):
    return lambda mode: zeropoint.quantize(model, mode, effort="quick").model


@pytest.mark.parametrize("mode", ["int8", "int16x8", "dynamic", "weights", "float16"])
def test_a_result_that_is_smaller_says_nothing(mode):
    model = convolutions()
    data = samples_for(model) if mode.startswith("int") else None
    result = zeropoint.quantize(model, mode, data, target="integer" if mode == "int16x8" else "cpu")
    assert result.drawback is None


def test_sizes_are_those_of_the_files(tmp_path):
    model, path = convolutions(), tmp_path / "model.tflite"
    content = zeropoint.to_bytes(model)
    assert written_bytes(model) == len(content)
    path.write_bytes(content + bytes(1000))
    for source, size in ((path, len(content) + 1000), (str(path), len(content) + 1000), (content, len(content))):
        assert zeropoint.quantize(source, "dynamic").origin.bytes == size
    assert zeropoint.quantize(model, "dynamic").origin.bytes == len(content)


def test_half_precision_weights_that_are_unpacked_are_named_with_their_bytes():
    before = in_half()
    after = zeropoint.quantize(in_half(), "dynamic").prepared  # in float32, as for an op that stays float
    found = judged(weighed(before, after), None, of_weights(before))
    assert (found.is_larger, found.is_slower, found.speed) == (True, False, None)
    assert found.size == written_bytes(after) / written_bytes(before) > 1.5
    halves = sum(t.buffer.raw.size for t in constants(before.main))
    assert f"constants of 1 op in float32, which the original holds in float16 (+{halves / 1000:.1f} kB)" in str(found)


def test_the_alternative_has_the_size_that_it_is_said_to_have():
    before = in_half()
    after = zeropoint.quantize(in_half(), "dynamic").prepared
    said = judged(weighed(before, after), None, of_weights(before)).alternative
    mode, size = re.fullmatch(r'mode="(\w+)" is ([\d.]+) x the size', said).groups()
    made = zeropoint.quantize(zeropoint.to_bytes(before), mode)
    assert written_bytes(made.model) / written_bytes(before) == pytest.approx(float(size), abs=0.02)


def test_constants_in_two_forms_are_counted():
    result = zeropoint.quantize(shared(), "dynamic", keep_float=["second"])
    found = result.drawback
    text = "1 constant read as integers by some ops and as floats by others, stored for each (+4.1 kB)"
    assert found.reasons == (text,)
    assert found.alternative.startswith('mode="dynamic" is 0.')
    assert zeropoint.quantize(shared(), "dynamic").drawback is None


def test_scales_outweigh_small_constants():
    found = zeropoint.quantize(in_half(512, 4), "dynamic").drawback
    assert found.reasons[0].startswith("scales, beside constants of only 4.1 kB (+")
    assert found.alternative.startswith("the original is smaller")


def test_a_clearly_lower_speed_is_said_with_the_ops_that_are_slow(monkeypatch):
    model = convolutions()
    result = zeropoint.quantize(model, "int16x8", samples_for(model), target="cpu")
    beside = weighed(model, result.model)
    assert judged(weighed(model, zeropoint.quantize(model, "dynamic").model), SLOWER, of_weights(model)) is None
    monkeypatch.setattr(relative_speed, "relative_speeds", lambda _: (1.25,))
    found = judged(beside, 0.031, of_weights(model))
    assert (found.title, found.is_larger, found.is_slower) == ("Slower", False, True)
    assert re.match(r"0\.\d\d x the size of the original, but 0\.031 x its speed on cpu: 4 of 4 ops on", str(found))
    assert "such as CONV_2D, which computes in int16" in str(found)
    assert re.search(r'; mode="dynamic" is 0\.\d\d x the size and 1\.2 x the speed$', str(found))
    monkeypatch.setattr(relative_speed, "relative_speeds", lambda _: (0.5,))
    assert judged(beside, 0.031, of_weights(model)).alternative.startswith("the original is faster")


def test_without_a_measurement_the_table_tells_slow_work():
    model = convolutions()
    found = zeropoint.quantize(model, "int16x8", samples_for(model), target="cpu").drawback
    assert found.is_slower
    assert found.speed is None
    assert "but slower on cpu" in str(found)


def test_nothing_is_timed_for_devices_other_than_this_machine(monkeypatch):
    monkeypatch.setattr(relative_speed, "relative_speeds", lambda _: pytest.fail("timed"))
    model = convolutions()
    result = zeropoint.quantize(model, "int16x8", samples_for(model), target="integer")
    assert drawback_of(weighed(model, result.model, INTEGER), of_weights(model)) is None


def test_nothing_is_timed_before_it_is_asked_for(monkeypatch):
    model, asked = convolutions(), []
    monkeypatch.setattr(relative_speed, "relative_speeds", asked.append)
    result = zeropoint.quantize(model, "int8", samples_for(model))
    zeropoint.to_bytes(result.model)
    assert not asked
    assert (result.drawback, result.drawback) == (None, None)
    assert len(asked) == 1
