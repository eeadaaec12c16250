"""LiteRT's interpreter, in this process for trusted files and in a child process for others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from ..dtypes import DType
from ..graph.model import Graph, Model, Op, Tensor
from ..streams import without_lines
from ..tflite import load, to_bytes
from ..tflite.read import custom_codes

Kernels = Literal["delegate", "optimized", "reference"]
RESOLVERS = {"delegate": "AUTO", "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}


def interpreter_class() -> Any:
    """Return LiteRT's own interpreter class, for users who run models by hand."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


def open_interpreter(content: bytes, kernels: Kernels, threads: int) -> Any:
    """Load a model in this process. If it uses TensorFlow ops that LiteRT lacks, return an interpreter that runs it
    piece by piece."""
    from ai_edge_litert.interpreter import OpResolverType

    _announce()

    def make(part: bytes) -> Any:
        resolver = OpResolverType[RESOLVERS[kernels]]
        return interpreter_class()(model_content=part, num_threads=threads, experimental_op_resolver_type=resolver)

    if any(code.startswith("Flex") for code in custom_codes(content)):  # looking through all bytes takes longer
        from ..sources.flex import PiecewiseInterpreter, has_flex_ops

        model = load(content)
        if has_flex_ops(model):
            return PiecewiseInterpreter(model, make)
    return make(content)


Clock = Literal["wall", "cpu"]
"""cpu: the CPU time of this thread, independent of the machine's other load."""

CLOCKS: Mapping[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


def timed(run: Callable[[], object], runs: int, clock: Clock = "wall") -> float:
    """Return the seconds that `runs` calls of `run` take."""
    now = CLOCKS[clock]
    start = now()
    for _ in range(runs):
        run()
    return now() - start


@cache
def _announce() -> None:
    """Make LiteRT print its delegate message, which it does once per process, and discard it.

    It writes to the file descriptor and has no switch for it (ai-edge-litert 2.3). All other output is passed on.
    """
    x, y = (Tensor(name, (1,), DType.FLOAT32) for name in "xy")
    smallest = Model([Graph("main", [x, y], [Op("ABS", [x], [y])], [x], [y])])
    with without_lines("Created TensorFlow Lite XNNPACK delegate"):
        interpreter_class()(model_content=to_bytes(smallest), num_threads=1).allocate_tensors()
