"""Numbers halfway between two integers, where kernels round in different ways, each as its runtime does."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.affine import QuantParams
from zeropoint.dtypes import DType
from zeropoint.graph import Model
from zeropoint.runtime import Runner
from zeropoint.simulation.rules import KERNEL_SETS
from zeropoint.simulation.trace import RUNTIMES

from .. import build


def quantizing(params: QuantParams, size: int) -> Model:
    """QUANTIZE, and something that reads the integers."""
    x, y, z = build.act("x", 1, size), *(build.act(name, 1, size, dtype=params.dtype, params=params) for name in "yz")
    reshape = build.op("RESHAPE", [y, build.const("shape", [1, size])], z, options="ReshapeOptions", newShape=(1, size))
    return Model([build.graph("main", [x], [z], build.op("QUANTIZE", [x], y), reshape)])


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize(("dtype", "zero_point"), [(DType.INT8, -7), (DType.INT16, 0)], ids=["int8", "int16"])
@pytest.mark.parametrize("size", [8, 11])
def test_halves(size, dtype, zero_point, kernels):
    """LiteRT's own optimized kernel for int16 treats eight at a time, and what is left over in another way."""
    rng = np.random.default_rng(size)
    for scale in rng.uniform(1e-4, 1e-2, 40).astype(np.float32):
        model = quantizing(QuantParams((float(scale),), (zero_point,), dtype), size)
        sample = ((rng.integers(dtype.min // 2, dtype.max // 2, (1, size)) + 0.5) * float(scale)).astype(np.float32)
        wanted = Runner(model, kernels=RUNTIMES[kernels]).run([sample])[0]
        np.testing.assert_array_equal(zeropoint.simulate(model, [sample], kernels).outputs[0], wanted)
