"""Finds the op that crashes the process running a model, by bisecting over the length of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import Array
from ..errors import ZeropointError
from ..graph.edit import cut_model
from ..graph.model import Model, Op
from ..tflite import load, to_bytes
from .child import Died, idle_worker, put_back
from .interpreter import Kernels

PATIENCE = 5.0
"""Seconds after which a truncated graph is considered hung."""


def culprit(content: bytes, kernels: Kernels, given: Sequence[Array]) -> Op | None:
    """Return the op that makes the truncated graph crash or hang; None if not even the whole graph fails again.

    `given` are the inputs that it failed on, if it got that far.
    """
    model = load(content)
    runs, fails = 0, len(model.main.ops)  # a number of leading ops that runs, and one that fails
    if not fails or not _dies(model, fails, kernels, given):
        return None
    while fails - runs > 1:
        middle = (runs + fails) // 2
        if _dies(model, middle, kernels, given):
            fails = middle
        else:
            runs = middle
    return model.main.ops[runs]


def _dies(model: Model, count: int, kernels: Kernels, given: Sequence[Array]) -> bool:
    """Whether running the first `count` ops of the main graph crashes the process or never ends."""
    graph, ops = model.main, set(model.main.ops[:count])
    cut, needed = cut_model(model, graph, [t for op in graph.ops[:count] for t in op.outputs])
    cut.main.ops = [op for op in cut.main.ops if op in ops]
    try:
        content = np.frombuffer(to_bytes(cut), np.uint8)
    except ZeropointError:
        return False
    worker = idle_worker()
    try:
        start = [("open", (kernels, 1)), ("get_input_details", ())]
        reply, _ = worker.call({"calls": start, "seconds": PATIENCE}, [content])
        inputs = reply.get("value", [])
        if len(given) == len(graph.inputs):
            fed = [value for value, tensor in zip(given, graph.inputs, strict=True) if tensor in needed]
        else:
            fed = [np.zeros(detail["shape"], detail["dtype"]) for detail in inputs]
        calls: list[tuple[str, tuple[object, ...]]] = [
            ("resize_tensor_input", (detail["index"], value.shape)) for detail, value in zip(inputs, fed, strict=True)
        ]
        calls.append(("allocate_tensors", ()))
        calls += (("set_tensor", (detail["index"],)) for detail in inputs)
        worker.call({"calls": [*calls, ("invoke", ())], "seconds": PATIENCE}, fed)
    except Died:
        return True
    finally:
        put_back(worker)
    return False
