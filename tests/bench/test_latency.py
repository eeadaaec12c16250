"""Benchmarks: everything that is promised is there. How long anything takes is not asserted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.latency import TimingOptions, benchmark, peak_memory, times_by_kind
from zeropoint.errors import RuntimeFailure
from zeropoint.runtime import Session

from ..diagnosis.faults import conv_net, images, plainly
from ..nets import Net, normal


def test_models_are_timed_side_by_side():
    model = conv_net()
    models = {"float": model, "int8": plainly(model, images())}
    done = []
    found = benchmark(models, TimingOptions((1, 2), 3), done.append)
    assert done == [1, 2, 3]
    assert [m.name for m in found.models] == ["float", "int8"]
    for timing in found.models:
        assert [x.threads for x in timing.latencies] == [1, 2]
        for latency in timing.latencies:
            assert 0 < latency.fastest <= latency.median <= latency.high
            assert latency.rounds == 3
        assert {k.kind for k in timing.kinds} >= {"CONV_2D", "MEAN", "FULLY_CONNECTED"}
        assert sum(k.share for k in timing.kinds) == pytest.approx(1)
    assert found.models[0].conversions == 0
    assert found.models[1].conversions > 0  # its ends are float
    assert found.models[1].bytes == len(zeropoint.to_bytes(models["int8"]))
    json.dumps(found.to_json(), allow_nan=False)


def test_large_tensors_take_memory():
    def memory(side):
        net = Net()
        x = net.input(1, side, side, 8)
        return peak_memory(zeropoint.to_bytes(net.model(net.conv(x, normal(8, 3, 3, 8)))))

    small, large = memory(8), memory(512)
    if sys.platform.startswith("linux"):  # no other system tells the peak since a given moment
        assert large > small + 512 * 512 * 8 * 4
    else:
        assert small is None


def test_the_delegate_takes_what_it_has_kernels_for():
    net = Net()
    x = net.conv(net.input(1, 8, 8, 3), normal(4, 3, 3, 3), name="taken")
    model = net.model(net("REVERSE_V2", [x, np.array([1], np.int32)], name="left"))
    assert Session(model).delegated() == {0}
    assert Session(model, kernels="optimized").delegated() == set()


def test_ops_that_cannot_run_alone_are_left_out():
    net = Net()
    model = net.model(net("SIN", [net.input(1, 4)]))
    assert [k.kind for k in times_by_kind(model)] == ["SIN"]


@pytest.mark.parametrize("input_type", ["float32", "int16"])
def test_models_can_be_timed_on_a_sample_where_random_numbers_fail(input_type: str) -> None:
    """LiteRT's integer RSQRT refuses numbers below zero, which no sample gives."""
    net = Net()
    model = net.model(net("RSQRT", [net.input(1, 8)]))
    rows = [np.random.default_rng(k).uniform(1, 3, (1, 8)).astype(np.float32) for k in range(20)]
    made = zeropoint.quantize(model, "int16x8", data=rows, target="integer", input_type=input_type)
    options = TimingOptions(rounds=1, inside=False)
    with pytest.raises(RuntimeFailure, match="Rsqrt"):
        benchmark({"made": made.model}, options)
    timed = benchmark({"float": model, "made": made.model}, replace(options, sample=(rows[0],)))
    assert all(one.latencies[0].fastest > 0 for one in timed.models)
