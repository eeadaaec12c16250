"""Measures tensors that a run of a graph does not expose: those inside control flow, and the cell states of LSTMs.

A called graph cannot get more outputs, because the calling op fixes their number; and what an interpreter still holds
of it after a run may belong to a branch that was not taken, or to memory that has been reused. So each called graph is
loaded by itself and run again on the op's inputs: the branch that was taken, every iteration of a loop.

The LSTM kernel keeps its cell state from step to step without exposing it, so the recurrence is recomputed here from
the op's recorded input.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..affine import dequantize
from ..dtypes import Array, DType
from ..errors import RuntimeFailure
from ..graph.model import Graph, Op, Tensor
from ..graph.query import reachable_graphs
from ..ops.recurrent import BOTH_WAYS, LSTM, Gate, LstmSlot, one_way
from ..runtime import Runner, time_limit
from .instrumented_graph import InstrumentedGraph, MeasureMode, instrument
from .task import CalibrationTask, OpTable, measured_tensors

Observe = Callable[[str, Array, bool], None]
"""Called with a tensor's name, its values, and whether per-channel statistics are needed."""

CALLS = frozenset({"IF", "WHILE", "STABLEHLO_COMPOSITE"})


def calls(graph: Graph, ops: OpTable) -> Iterator[Op]:
    """Yield ops that call graphs with tensors to measure, and whose inputs can be passed on."""
    return (op for op in graph.ops if op.kind in CALLS and _has_measured(op, ops) and not _has_resources(op))


def unmeasurable_calls(graph: Graph, ops: OpTable) -> list[str]:
    """Return the names of ops, in `graph` or the graphs it calls, whose inner tensors cannot be measured."""
    callers = [op for g in (graph, *reachable_graphs(graph)) for op in g.ops]
    return [op.name for op in callers if _has_measured(op, ops) and _has_resources(op)]


def passed_tensors(graph: Graph, ops: OpTable) -> list[Tensor]:
    """Return the tensors that `graph` passes to the graphs it calls."""
    return [t for op in calls(graph, ops) for t in op.inputs if t is not None and not t.is_constant]


def _callees(op: Op) -> list[Graph]:
    return [g for callee in op.graphs() for g in (callee, *reachable_graphs(callee))]


def _has_measured(op: Op, ops: OpTable) -> bool:
    return any(measured_tensors(g, ops) for g in _callees(op))


def _has_resources(op: Op) -> bool:
    """Whether the op involves resources or other values that are not arrays."""
    return any(t.dtype.storage is None for g in _callees(op) for t in g.tensors)


class CalledGraphs:
    """The graphs that the task's graph calls, each loaded by itself."""

    def __init__(self, task: CalibrationTask) -> None:
        self._ops = task.ops
        self._loaded: dict[Graph, tuple[InstrumentedGraph, Runner]] = {}
        for callee in dict.fromkeys(g for op in calls(task.graph, task.ops) for g in _callees(op)):
            exposed = [*callee.outputs, *passed_tensors(callee, task.ops)]
            instrumented = instrument(dataclasses.replace(task, graph=callee), MeasureMode.EXPOSED, exposed)
            # The values passed to it may have other shapes than the file says, or the file may say none.
            self._loaded[callee] = instrumented, Runner(instrumented.model, strict=False)

    def restart(self) -> None:
        for _, runner in self._loaded.values():
            runner.restart()

    def measure(self, graph: Graph, values: Mapping[Tensor, Array], observe: Observe) -> None:
        """Observe every tensor inside the graphs that `graph` calls, given its `passed_tensors`."""
        for op in calls(graph, self._ops):
            given = [_value(t, values) for t in op.inputs if t is not None]
            if op.kind == "IF":
                branch = "thenSubgraphIndex" if given[0].item() else "elseSubgraphIndex"
                self._run(op.option(branch), given[1:], observe)
            elif op.kind == "WHILE":
                self._loop(op, given, observe)
            else:
                self._run(op.option("decompositionSubgraphIndex"), given, observe)

    def _loop(self, op: Op, given: list[Array], observe: Observe) -> None:
        """Run a loop iteration by iteration, within the time limit: an untrusted loop may never end."""
        start, seconds = time.monotonic(), time_limit()
        while self._run(op.option("condSubgraphIndex"), given, observe)[0].item():
            given = self._run(op.option("bodySubgraphIndex"), given, observe)
            if seconds is not None and time.monotonic() - start > seconds:
                raise RuntimeFailure(f"the loop of WHILE '{op.name}' did not finish within {seconds:g} s")

    def _run(self, graph: Graph, given: Sequence[Array], observe: Observe) -> list[Array]:
        instrumented, runner = self._loaded[graph]
        runner.invoke(given)
        values = dict(zip(instrumented.exposed, runner.read(instrumented.exposed), strict=True))
        for probe in instrumented.read:
            observe(probe.key, values[probe.tensor], probe.keep_channels)
        self.measure(graph, values, observe)
        return [values[t] for t in graph.outputs]


def _value(tensor: Tensor, values: Mapping[Tensor, Array]) -> Array:
    if tensor in values:
        return values[tensor]
    return np.zeros(tensor.shape, tensor.dtype.storage) if tensor.data is None else tensor.data


# Cell states of LSTMs.


LstmState = tuple[Array, Array]
"""Output and cell state of every sequence in the batch."""


@dataclass
class Replay:
    """Recomputes the cell states of one op from the values of `source`, to be recorded under `key`."""

    op: Op
    source: Tensor
    key: str
    last: LstmState | None = None
    backward: bool = False

    def states(self, x: Array) -> Array:
        """Return the cell state after every step, continuing from where the last call stopped."""
        given = np.flip(x, 0 if self.op.option("timeMajor") else 1) if self.backward else x
        states, self.last = lstm_cell_states(self.op, given, self.last)
        return states


@dataclass
class FeatureReplay(Replay):
    """Recomputes the state of SVDF: the products of each step's input with the feature weights."""

    def states(self, x: Array) -> Array:
        weights = _data(self.op, 1)
        assert weights is not None
        return np.asarray(x.reshape(-1, x.shape[-1]) @ weights.T)


def replays(task: CalibrationTask) -> list[Replay]:
    found: list[Replay] = []
    for op in task.graph.ops:
        if op.kind == "SVDF":
            source, state, replayed = op.inputs[0], op.inputs[4], _with_float_constants(op, (0, 4))
            if source is not None and state is not None and replayed is not None:
                found.append(FeatureReplay(replayed, source, task.keys[state]))
        for layer, backward in _lstms(op):
            source, cell = layer.inputs[LstmSlot.INPUT], layer.inputs[LstmSlot.CELL_STATE]
            replayed = _with_float_constants(layer, (LstmSlot.INPUT, LstmSlot.OUTPUT_STATE, LstmSlot.CELL_STATE))
            if source is not None and cell is not None and replayed is not None:
                found.append(Replay(replayed, source, task.keys[cell], backward=backward))
    return found


def _lstms(op: Op) -> Iterator[tuple[Op, bool]]:
    """Yield the LSTMs that an op consists of, and whether each runs backwards."""
    if op.kind == LSTM and len(op.inputs) > LstmSlot.CELL_STATE:
        yield op, False
    elif op.kind == BOTH_WAYS:
        ways = ((one_way(op, backward=backward), backward) for backward in (False, True))
        yield from ((way, backward) for way, backward in ways if way is not None)


def _with_float_constants(op: Op, flowing: Sequence[int]) -> Op | None:
    """Return the op with its weights, which may be integers, as floats; None if they are not constants."""
    inputs = list(op.inputs)
    for slot, tensor in enumerate(op.inputs):
        if tensor is None or slot in flowing:
            continue
        params = tensor.params
        if tensor.data is not None and params is not None and params.axis is None:
            inputs[slot] = Tensor.constant(tensor.name, dequantize(tensor.data, params), DType.FLOAT32)
        elif tensor.data is None or tensor.dtype is not DType.FLOAT32:
            return None
    return dataclasses.replace(op, inputs=inputs)


def lstm_cell_states(op: Op, x: Array, start: LstmState | None = None) -> tuple[Array, LstmState]:
    """Return c_t = f * c_{t-1} + i * tanh(g) for every step t, and the state after the last.

        i, f, o = sigmoid(W x_t + R h_{t-1} + P c + b) and g = tanh(...); with coupled gates i = 1 - f;
        h_t = o * tanh(c_t), projected if the op has a projection.

    Layer normalization, if any, is applied to the sums first.
    """
    steps = x if op.option("timeMajor") else np.swapaxes(x, 0, 1)
    batch = steps.shape[1]
    forget_recurrent = _data(op, Gate.FORGET.recurrent_weights)
    assert forget_recurrent is not None
    cells, outputs = forget_recurrent.shape
    h, c = start or (np.zeros((batch, outputs), np.float32), np.zeros((batch, cells), np.float32))
    coupled = op.inputs[Gate.INPUT.weights] is None
    clip, projection_clip = float(op.option("cellClip", 0.0)), float(op.option("projClip", 0.0))
    projection, projection_bias = _data(op, LstmSlot.PROJECTION), _data(op, LstmSlot.PROJECTION_BIAS)
    states = []
    for step in steps:
        forget = _sigmoid(_gate(op, Gate.FORGET, step, h, c))
        enter = 1 - forget if coupled else _sigmoid(_gate(op, Gate.INPUT, step, h, c))
        c = forget * c + enter * np.tanh(_gate(op, Gate.CELL, step, h, c))
        if clip > 0:
            c = np.clip(c, -clip, clip)
        h = _sigmoid(_gate(op, Gate.OUTPUT, step, h, c)) * np.tanh(c)
        if projection is not None:
            h = h @ projection.T + (0 if projection_bias is None else projection_bias)
            h = np.clip(h, -projection_clip, projection_clip) if projection_clip > 0 else h
        states.append(c)
    return np.stack(states), (h, c)


def _gate(op: Op, gate: Gate, step: Array, h: Array, c: Array) -> Array:
    """Return the input of a gate's activation."""
    weights, recurrent, bias = _data(op, gate.weights), _data(op, gate.recurrent_weights), _data(op, gate.bias)
    peephole = None if gate.peephole is None else _data(op, gate.peephole)
    norm = _data(op, gate.normalization)
    assert weights is not None
    assert recurrent is not None
    total: Array = step @ weights.T + h @ recurrent.T
    if peephole is not None:
        total = total + peephole * c
    if norm is not None:
        centered = total - total.mean(axis=1, keepdims=True)
        total = norm * centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-8)
    return total if bias is None else total + bias


def _data(op: Op, slot: int) -> Array | None:
    tensor: Tensor | None = op.inputs[slot] if slot < len(op.inputs) else None
    return None if tensor is None else tensor.data


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))
