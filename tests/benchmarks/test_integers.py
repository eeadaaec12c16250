"""The simulation against runtimes, on a zoo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks import integers


def test_nothing_differs_and_what_a_runtime_refuses_is_named(zoo, capsys):
    wanted = ["--zoo", str(zoo), "--only", "digits", "--samples", "2", "--modes", "int8,dynamic"]
    assert integers.main(wanted) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [
        f"digits {mode} {kernels}" for mode in ("int8", "dynamic") for kernels in ("reference", "xnnpack", "tflm")
    ]
    assert all(": 0 of " in line for line in lines[:5])
    assert "not compared: TensorFlow Lite Micro" in lines[5]


def test_a_difference_is_counted(zoo, monkeypatch, capsys):
    real = integers.simulate_all

    def wrong(*arguments):
        for trace in real(*arguments):
            output = trace.entry.graph.outputs[0]
            yield replace(trace, values={**trace.values, output: trace.values[output] + np.float32(1)})

    monkeypatch.setattr(integers, "simulate_all", wrong)
    wanted = ["--zoo", str(zoo), "--only", "digits", "--samples", "1", "--modes", "int8", "--kernels", "reference"]
    assert integers.main(wanted) == 1
    assert ": 10 of " in capsys.readouterr().out
