"""How much memory quantizing takes: bounded by what one run of the float model holds, whatever the number of cores."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from zeropoint import parallel
from zeropoint.graph import Model
from zeropoint.graph.query import activation_bytes
from zeropoint.tflite import to_bytes

from .. import build

LAYERS, SIDE, CHANNELS = 48, 256, 16


def wide() -> Model:
    """Large activations and small weights: 4 MB in each of the layers."""
    tensors, ops = [build.act("x", 1, SIDE, SIDE, CHANNELS)], []
    for k in range(LAYERS):
        kernel = build.const(f"w{k}", build.weights(CHANNELS, 1, 1, CHANNELS, seed=k))
        bias = build.const(f"b{k}", np.zeros(CHANNELS, np.float32))
        tensors.append(build.act(f"y{k}", 1, SIDE, SIDE, CHANNELS))
        options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "fusedActivationFunction": 1}
        ops.append(build.op("CONV_2D", [tensors[-2], kernel, bias], tensors[-1], options="Conv2DOptions", **options))
    return Model([build.graph("main", tensors[:1], tensors[-1:], *ops)])


QUANTIZE = f"""
import sys
import numpy as np, zeropoint
from pathlib import Path

def kilobytes(name):
    return int(dict(l.split(":", 1) for l in Path("/proc/self/status").read_text().splitlines())[name].split()[0])

model = zeropoint.load(sys.argv[1])
rng = np.random.default_rng(0)
samples = [rng.normal(size=(1, {SIDE}, {SIDE}, {CHANNELS})).astype("f") for _ in range(2)]
Path("/proc/self/clear_refs").write_text("5")
before = kilobytes("VmRSS")
zeropoint.quantize(model, "int8", samples)
print(1024 * (kilobytes("VmHWM") - before))
"""


def test_peak_memory_is_bounded_by_the_activations(tmp_path):
    model = wide()
    path = tmp_path / "wide.tflite"
    path.write_bytes(to_bytes(model))
    done = subprocess.run([sys.executable, "-c", QUANTIZE, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2 * activation_bytes(model.main)


def test_large_models_run_one_at_a_time(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 16)
    assert parallel.side_by_side(0) == parallel.side_by_side(1 << 20) == 16
    assert parallel.side_by_side(1 << 25) == 4
    assert parallel.side_by_side(1 << 30) == 1
