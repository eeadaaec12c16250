"""Runs a quantized model in integers, op by op: records every tensor, and explains how each number was computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..affine import quantize
from ..bench.isolate import isolate
from ..dtypes import Array, DType
from ..errors import InvalidModel, InvalidRecipe, InvalidSample, UnsupportedOp, argument
from ..graph.edit import copy_model
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.names import short_names
from ..graph.query import tensor_keys, unique_names
from ..json_values import json_values
from ..ops import OPS, OpSpec
from ..ops.execution import execution_of
from ..runtime import Runner, Runtime, Session
from ..sources.models import ModelSource, load
from ..sources.ports import Entry, Port, Row, entry
from ..sources.samples import Notes, Samples, iterate, rows
from .call import Computed, KernelCall
from .control import CONTROL, followed_graphs, is_followed
from .kernels import kernel_of
from .movement import MOVING
from .rules import KERNEL_SETS, KernelSet, Rules, rules_for

if TYPE_CHECKING:
    from .explanation import Explanation

RUNTIMES: Mapping[KernelSet, Runtime] = {"reference": "reference", "xnnpack": "delegate", "tflm": "tflm"}
"""The runtime whose kernels are simulated."""


@dataclass(frozen=True)
class OpIntegers:
    """Statistics of an op's output integers: minimum, maximum, the share at the ends of the type; and whether they were
    simulated or computed by LiteRT."""

    position: int
    kind: str
    tensor: str
    dtype: str
    least: int
    greatest: int
    at_ends: float
    is_simulated: bool


@dataclass(frozen=True)
class Trace:
    """One sample run through one graph. `values` holds each tensor except constants, as in LiteRT's memory; `elsewhere`
    are the ops that LiteRT computed: those in float or on indices, and with `float_rest` integer ops without a
    simulation. `row` is the sample as the model takes it."""

    model: Model
    entry: Entry
    kernels: KernelSet
    row: Row
    values: dict[Tensor, Array]
    rules: Mapping[Op, Rules]
    elsewhere: frozenset[Op]
    ops: Mapping[str, OpSpec]
    float_model: Model | None = None

    def __getitem__(self, name: str) -> Array:
        """Return the integers of a tensor."""
        return self.value(self.tensor(name))

    def value(self, tensor: Tensor) -> Array:
        data = self.values.get(tensor, tensor.data)
        if data is None:
            raise InvalidModel(f"'{tensor.name}' has no values: no op of the graph produces it")
        return data

    @property
    def names(self) -> dict[Tensor, str]:
        """A distinct name for each tensor."""
        return unique_names(self.entry.graph)

    def _short_names(self) -> dict[Tensor, str]:
        short, keys = short_names(self.model), tensor_keys(self.model)
        return {tensor: short[keys[tensor]] for tensor in self.names}

    def tensor(self, name: str) -> Tensor:
        """Return the tensor with this name or short name. For op outputs, one of the parts between semicolons is
        enough."""
        names = self.names
        made = [t for op in self.entry.graph.ops for t in op.outputs]
        found = (
            [t for t, known in names.items() if known == name]
            or [t for t in made if name in names[t].split(";")]
            or [t for t, short in self._short_names().items() if name in (short, short.replace("…", "..."))]
        )
        if len(found) == 1:
            return found[0]
        problem = "several tensors" if found else "no tensor"
        some = ", ".join(repr(names[t]) for t in (found or made)[:3])
        raise InvalidModel(f"the model has {problem} called {name!r}, but {some} ... (zeropoint inspect lists all)")

    @property
    def outputs(self) -> list[Array]:
        return [self.value(tensor) for tensor in self.entry.graph.outputs]

    def call(self, op: Op) -> KernelCall:
        """Return an op with the values that it read."""
        inputs = tuple(None if t is None else self.value(t) for t in op.inputs)
        return KernelCall(op, inputs, self.rules[op], self.ops)

    def integers(self) -> Iterator[OpIntegers]:
        """Yield statistics of the first output of each op that produces integers."""
        for position, op in enumerate(self.entry.graph.ops):
            values = self.value(op.outputs[0]) if op.outputs else np.zeros(0)
            if values.size and values.dtype.kind in "iu":
                yield OpIntegers(
                    position,
                    op.label,
                    self.names[op.outputs[0]],
                    op.outputs[0].dtype.label,
                    int(values.min()),
                    int(values.max()),
                    float(np.isin(values, (op.outputs[0].dtype.min, op.outputs[0].dtype.max)).mean()),
                    op not in self.elsewhere,
                )

    def to_json(self) -> dict[str, Any]:
        """Return `integers` as JSON values."""
        return {"kernels": self.kernels, "ops": json_values(list(self.integers()))}

    def explain(self, tensor: str, index: Sequence[int]) -> Explanation:
        """Explain how one number was computed: the elements read, each step of the arithmetic, and the real number it
        represents."""
        from .explanation import explain

        return explain(self, tensor, tuple(index))


@dataclass(frozen=True)
class SimulationOptions:
    """Which kernels to simulate; which signature; whether LiteRT computes integer ops without a simulation; the float
    model that explanations compare with; and the op table."""

    kernels: KernelSet = "reference"
    signature: str | None = None
    float_rest: bool = False
    float_model: Model | None = None
    ops: Mapping[str, OpSpec] = field(default_factory=lambda: OPS)

    def __post_init__(self) -> None:
        if self.kernels not in KERNEL_SETS:
            raise InvalidRecipe(f"unknown kernels {self.kernels!r}; choose from {', '.join(KERNEL_SETS)}")


def simulate(
    model: ModelSource,
    sample: Any,
    kernels: KernelSet = "reference",
    *,
    signature: str | None = None,
    float_rest: bool = False,
    float_model: ModelSource | None = None,
    ops: Mapping[str, OpSpec] = OPS,
) -> Trace:
    """Simulate a quantized model on one sample in NumPy integers: bit for bit what the runtime computes.

    Ops in float, and on indices and shapes, are computed by LiteRT.

    Args:
        model: The quantized model.
        sample: One sample: an array, a tuple in input order, or a dict by input name.
        kernels: The kernels to simulate: "reference" (LiteRT's plain kernels), "xnnpack" (what desktop applications get
            by default) or "tflm" (TensorFlow Lite Micro).
        signature: The signature to run, if the model has several.
        float_rest: Let LiteRT compute integer ops that cannot be simulated, instead of raising.
        float_model: The float model that the model was quantized from; explanations then also show its values.
        ops: The op table, if not the package's own.

    Returns:
        A trace with the integers of every tensor; `trace.explain(tensor, index)` shows how a number was computed.
    """
    original = None if float_model is None else load(float_model)
    options = SimulationOptions(kernels, signature, float_rest, original, ops)
    found = next(simulate_all(load(model), [sample], options), None)
    if found is None:
        raise InvalidSample("the sample is an empty batch; give one row of data")
    return found


def simulate_all(model: Model, samples: Samples, options: SimulationOptions) -> Iterator[Trace]:
    """Simulate each sample, starting from a fresh state every time."""
    where = entry(model, options.signature)
    ready: dict[tuple[tuple[int, ...], ...], Simulator] = {}
    for row in _fitting_rows(samples, where):
        shapes = tuple(value.shape for value in row)
        if shapes not in ready:
            ready[shapes] = Simulator(*_resolved(model, where, row), options)
        yield ready[shapes].run(row)


class Simulator:
    """A model prepared for simulation: LiteRT is queried once, for any number of samples of one shape."""

    def __init__(self, model: Model, where: Entry, options: SimulationOptions) -> None:
        self.model, self.entry, self.options = model, where, options
        self.graph_of = {op: graph for graph in followed_graphs(where.graph, options.ops) for op in graph.ops}
        alone = [op for op in self.graph_of if not is_followed(op, options.ops)]
        executions = {op: execution_of(op, options.ops) for op in alone}
        if not {"integer", "hybrid"}.intersection(executions.values()):
            raise InvalidModel("no op of this model computes with integers; quantize it first (zeropoint quantize)")
        outside = {op for op, how in executions.items() if how in ("float", "other") and op.kind not in MOVING}
        graphs = dict.fromkeys(self.graph_of.values())
        self.rules = {op: rules for g in graphs for op, rules in rules_for(model, g, options.kernels).items()}
        inside = [op for op in executions if op not in outside]
        missing = [op for op in inside if kernel_of(op, self.rules[op], options.ops) is None]
        if missing and not options.float_rest:
            kinds = ", ".join(dict.fromkeys(f"{op.label} ({executions[op]})" for op in missing))
            raise UnsupportedOp(
                f"{kinds} cannot be simulated: '{missing[0].name}'; let LiteRT compute such ops with "
                f"{argument('float_rest', True)}"
            )
        self.elsewhere = frozenset(outside.union(missing))
        self._runners: dict[Op, tuple[Runner, tuple[Tensor, ...]]] = {}

    def run(self, row: Row) -> Trace:
        """Simulate one sample."""
        known = self.rules, self.elsewhere, self.options.ops, self.options.float_model
        trace = Trace(self.model, self.entry, self.options.kernels, row, {}, *known)
        _Sample(self, trace).call(self.entry.graph, row)
        return trace

    def in_litert(self, op: Op, values: Mapping[Tensor, Array]) -> list[Array]:
        """Return what LiteRT, or TensorFlow Lite Micro, computes from these inputs."""
        if op not in self._runners:
            alone = isolate(self.graph_of[op], [op], lambda _: True)
            self._runners[op] = Runner(alone.model, kernels=RUNTIMES[self.options.kernels]), alone.fed
        runner, fed = self._runners[op]
        return runner.run([values[t] for t in fed])


class _Sample:
    """A sample being run through the graphs. For a graph that is called repeatedly, the values of the last call
    remain."""

    def __init__(self, simulator: Simulator, trace: Trace) -> None:
        self.simulator, self.trace = simulator, trace
        self.values: dict[Tensor, Array] = trace.values
        self.variables: dict[str, Array] = {}
        self.done: set[Graph] = set()

    def call(self, graph: Graph, values: Sequence[Array]) -> list[Array]:
        self.values.update(zip(graph.inputs, values, strict=True))
        self.values.update({t: initial_state(t) for t in graph.tensors if t.is_variable and t not in self.values})
        for op in graph.ops:
            self.values.update(zip(op.outputs, self._made(op), strict=True))
        return [self.trace.value(tensor) for tensor in graph.outputs]

    def _made(self, op: Op) -> Sequence[Array]:
        if op in self.simulator.elsewhere:
            return self.simulator.in_litert(op, self.values)
        if is_followed(op, self.trace.ops):
            return CONTROL[op.kind](self, op, [self.trace.value(t) for t in op.inputs if t is not None])
        return compute(self.trace.call(op)).outputs


def compute(call: KernelCall) -> Computed:
    """Return what the kernels described by the call's rules compute."""
    kernel = kernel_of(call.op, call.rules, call.ops)
    assert kernel is not None
    return kernel(call)


def initial_state(tensor: Tensor) -> Array:
    """Return the initial state: real zeros."""
    zero = 0 if tensor.params is None or tensor.params.axis is not None else tensor.params.zero_point
    return np.full(tensor.shape, zero, tensor.dtype.storage)


def _fitting_rows(samples: Samples, where: Entry) -> Iterator[Row]:
    """Yield samples as the model takes them: real numbers given for quantized inputs are quantized."""
    for sample in iterate(samples):
        ports = _ports(sample, where)
        for _, row in rows([sample], replace(where, ports=ports), Notes()):
            yield tuple(_encoded(value, port.tensor) for value, port in zip(row, where.ports, strict=True))


def _ports(sample: Any, where: Entry) -> tuple[Port, ...]:
    """Return the model's inputs, with float type where the sample has real numbers."""
    given = list(sample.values()) if isinstance(sample, Mapping) else sample
    arrays = given if isinstance(given, list | tuple) else [given]
    if len(arrays) != len(where.ports):
        return where.ports
    pairs = zip(arrays, where.ports, strict=True)
    return tuple(_as_float(p) if p.tensor.params and np.asarray(a).dtype.kind == "f" else p for a, p in pairs)


def _as_float(port: Port) -> Port:
    return replace(port, tensor=replace(port.tensor, dtype=DType.FLOAT32, quantization=None))


def _encoded(value: Array, tensor: Tensor) -> Array:
    return value if tensor.params is None or value.dtype.kind != "f" else quantize(value, tensor.params)


def _resolved(model: Model, where: Entry, row: Row) -> tuple[Model, Entry]:
    """Return the model with the tensor shapes of this sample; unchanged if the file has no dynamic shapes."""
    graph = where.graph
    sizes = {t: value.shape for t, value in zip(graph.inputs, row, strict=True)}
    is_open = any(-1 in (t.shape_signature or ()) for t in graph.tensors)
    if not is_open and all(t.shape == shape for t, shape in sizes.items()):
        return model, where
    if graph is not model.main:
        raise InvalidModel(f"'{graph.name}' has dynamic shapes; these are supported only in a model's first graph")
    session = Session(model, kernels="optimized", open_shapes=True)
    session.invoke(row)
    shapes = session.shapes()[: len(graph.tensors)]
    if all(t.shape == shape for t, shape in zip(graph.tensors, shapes, strict=True)):
        return model, where
    made = copy_model(model)
    for tensor, shape in zip(made.main.tensors, shapes, strict=True):
        tensor.shape = shape
    return made, entry(made, where.key)
