"""What high effort takes of processor and memory, on networks made up to be large where that costs most.

`python -m benchmarks.efforts [--only NAME ...] [--samples N] [--effort high] [--weight-bits 8]`

Each network is quantized in a process of its own. CPU time is that of all threads; several of NumPy's that wait for
each other on a busy machine would count as work.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import zeropoint
from zeropoint.dtypes import Array
from zeropoint.graph import Model
from zeropoint.recipe import Effort

from .apart import apart
from .measure import peak, print_table
from .models import Chain, finished, mobilenet_shaped

RELU = 1
INPUTS = 8192


def wide_dense() -> Model:
    """A dense layer of 8,192 inputs and 128 outputs behind one of 64 inputs."""
    chain = Chain((1, 64))
    for outputs, activation in ((INPUTS, RELU), (128, 0)):
        inputs = chain.value.shape[1]
        weights, bias = _random(chain, outputs, inputs), _random(chain, outputs)
        options = "FullyConnectedOptions", {"fusedActivationFunction": activation}
        chain.add("FULLY_CONNECTED", (1, outputs), options, weights / np.float32(np.sqrt(inputs)), bias)
    return finished(chain)


def wide_convolutions() -> Model:
    """Two 1-D convolutions of 8,192 inputs: 32 steps of 256 channels, 64 outputs; 1x1 between them."""
    chain = Chain((1, 1, 256, 256))
    for taps, outputs, activation in ((32, 64, RELU), (1, 256, RELU), (32, 64, 0)):
        inputs = taps * chain.value.shape[3]
        weights = _random(chain, outputs, 1, taps, chain.value.shape[3]) / np.float32(np.sqrt(inputs))
        options = "Conv2DOptions", {"strideW": 1, "strideH": 1, "fusedActivationFunction": activation}
        chain.add("CONV_2D", (1, 1, 256, outputs), options, weights, _random(chain, outputs))
    return finished(chain)


def _random(chain: Chain, *shape: int) -> Array:
    return chain.random.standard_normal(shape, np.float32)


NETWORKS: Mapping[str, Callable[[], Model]] = {
    "dense": wide_dense,
    "convolutions": wide_convolutions,
    "mobilenetv2": mobilenet_shaped,
}


def measured(name: str, samples: int, effort: Effort, bits: int) -> tuple[float, float, int]:
    """Seconds of CPU, seconds, and peak bytes."""
    model, random = NETWORKS[name](), np.random.default_rng(1)
    data = [random.standard_normal(model.main.inputs[0].shape, np.float32) for _ in range(samples)]
    start = time.process_time(), time.perf_counter()
    zeropoint.quantize(model, "int8", data=data, effort=effort, weight_bits=bits)
    return time.process_time() - start[0], time.perf_counter() - start[1], peak()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.efforts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--effort", default="high", choices=("quick", "standard", "high"))
    parser.add_argument("--weight-bits", type=int, default=8)
    given = parser.parse_args(arguments)
    rows = []
    for name in given.only:
        cpu, seconds, held = apart(measured, name, given.samples, given.effort, given.weight_bits)
        rows.append((name, f"{cpu:.1f} s", f"{seconds:.1f} s", f"{held / 1e6:.0f} MB", ""))
    print_table(("network", "CPU", "wall", "peak memory", ""), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
