"""LiteRT's interpreter, in this process or in a child: whichever the file may be trusted with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from ..dtypes import DType
from ..graph.model import Graph, Model, Op, Tensor
from ..streams import without_lines
from ..tflite import load, to_bytes

Kernels = Literal["delegate", "optimized", "reference"]
RESOLVERS = {"delegate": "AUTO", "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}


def interpreter_class() -> Any:
    """LiteRT's own interpreter, for whoever runs models by hand."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


def open_interpreter(content: bytes, kernels: Kernels, threads: int) -> Any:
    """A model in this process. Where LiteRT lacks ops that TensorFlow has, one that goes from piece to piece."""
    from ai_edge_litert.interpreter import OpResolverType

    _announce()

    def make(part: bytes) -> Any:
        resolver = OpResolverType[RESOLVERS[kernels]]
        return interpreter_class()(model_content=part, num_threads=threads, experimental_op_resolver_type=resolver)

    if b"Flex" in content:
        from ..sources.flex import PiecewiseInterpreter, has_flex_ops

        model = load(content)
        if has_flex_ops(model):
            return PiecewiseInterpreter(model, make)
    return make(content)


Clock = Literal["wall", "cpu"]
"""cpu: the time that this thread computes, whatever else the machine does."""

CLOCKS: Mapping[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


def timed(interpreter: Any, runs: int, clock: Clock = "wall") -> float:
    """The seconds that `runs` runs take, on what the inputs hold."""
    now = CLOCKS[clock]
    start = now()
    for _ in range(runs):
        interpreter.invoke()
    return now() - start


@cache
def _announce() -> None:
    """Let LiteRT say that it has a delegate, as it does once in each process, where nobody has to read it.

    It prints to the file descriptor and offers no switch (ai-edge-litert 2.3). Whatever else is printed is passed on.
    """
    x, y = (Tensor(name, (1,), DType.FLOAT32) for name in "xy")
    smallest = Model([Graph("main", [x, y], [Op("ABS", [x], [y])], [x], [y])])
    with without_lines("Created TensorFlow Lite XNNPACK delegate"):
        interpreter_class()(model_content=to_bytes(smallest), num_threads=1).allocate_tensors()
