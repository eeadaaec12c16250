"""The table of TensorFlow Lite Micro against its interpreter: what it says runs there does, and computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Model
from zeropoint.runtime import Session
from zeropoint.targets import TypedOp
from zeropoint.targets.tflm import TFLM
from zeropoint.tflite import to_bytes

from .. import build
from ..conformance.cases import CASES, quantized
from ..conformance.samples import SAMPLES
from .probes import dense, probes
from .tools import ask_all, outputs_in_tflm


@dataclass(frozen=True, eq=False)
class Asked:
    """A model, with samples to run it on."""

    name: str
    model: Model
    samples: list[tuple[Array, ...]]

    def refusals(self) -> list[str]:
        """What the table says of its ops."""
        verdicts = [TFLM.verdict(TypedOp.of_file(op)) for graph in self.model.graphs for op in graph.ops]
        return [str(v) for v in verdicts if v.speed == "refused"]


def integer_ops() -> Iterator[Asked]:
    """Every claim of the op table about integers."""
    for case in CASES:
        if case.stretch is None and case.spec.table is None:  # a table is several ops
            yield Asked(str(case), quantized(case).model, case.sample.draw(2))


def other_ops() -> Iterator[Asked]:
    """Floats, indices, truth values, conversions, weights of 4 bits, graphs that call others."""
    for sample in SAMPLES:
        yield Asked(f"{sample}-float32", sample.model(), sample.draw(2))
    narrow = (dense(weights, per_channel) for weights in (DType.INT8, DType.INT4) for per_channel in (False, True))
    for model in (*probes(), *narrow, build.branches(), build.loop()):
        (kind, *_) = (op.kind for op in model.main.ops)
        rows = [tuple(np.ones(t.shape, t.dtype.storage) for t in model.main.inputs)]
        types = "-".join(t.dtype.label for t in (*model.main.inputs, *model.main.outputs))
        yield Asked(f"{kind}-{types}", model, rows)


def furthest(asked: Asked, outputs: list[list[Array]]) -> float:
    """How far the outputs are from LiteRT's: integers in units of the last place, floats in units of 1e-5; wrong
    truth values count 2."""
    units = {op.outputs[0]: op.inputs[0].params.scale for op in asked.model.main.ops if op.kind == "DEQUANTIZE"}
    litert = Session(asked.model, kernels="optimized")
    far = 0.0
    for sample, found in zip(asked.samples, outputs, strict=True):
        litert.reset()
        for tensor, own, wanted in zip(asked.model.main.outputs, found, litert.run(sample), strict=True):
            assert own.shape == wanted.shape
            unit = units.get(
                tensor, 1e-5 if tensor.dtype is DType.FLOAT32 else 0.5 if tensor.dtype is DType.BOOL else 1
            )
            far = max(far, float(np.nanmax(np.abs(own.astype(np.float64) - wanted) / unit, initial=0)))
    return far


def is_simulated(asked: Asked, outputs: list[list[Array]]) -> bool:
    """Whether the simulation computes the same integers."""
    return all(
        np.array_equal(simulated, own)
        for sample, found in zip(asked.samples, outputs, strict=True)
        for simulated, own in zip(zeropoint.simulate(asked.model, sample, "tflm").outputs, found, strict=True)
    )


@pytest.mark.parametrize("ops", [integer_ops, other_ops])
def test_no_surprises(ops):
    """What is not refused runs, and is at most about a unit from LiteRT; what is refused does not run, or wrongly."""
    asked = list(ops())
    surprises = []
    for one, found in zip(
        asked, ask_all(outputs_in_tflm, [(to_bytes(a.model), a.samples) for a in asked]), strict=True
    ):
        refused = one.refusals()
        runs = not isinstance(found, str) and furthest(one, found) < 1.5
        if runs is bool(refused):
            surprises.append((one.name, refused[:1], found if isinstance(found, str) else furthest(one, found)))
        if ops is integer_ops and runs and not is_simulated(one, found):
            surprises.append((one.name, refused, "the simulation gives other integers"))
    assert surprises == []
    assert len(asked) > 250
