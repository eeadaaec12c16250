"""A quantized model run in integers, op by op: every tensor that its ops make, and how each number came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
"""What runs the kernels that are simulated."""


@dataclass(frozen=True)
class OpIntegers:
    """The integers that an op made: the least, the greatest, the share at the ends of their type; and whether they were
    computed here or by LiteRT."""

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
    """One sample through one graph. `values` has what each tensor holds, constants apart, as in LiteRT's memory;
    `elsewhere` are the ops that LiteRT computed: those in float or on indices, and with `float_rest` any other that has
    no simulation. `row` is the sample as the model takes it."""

    model: Model
    entry: Entry
    kernels: KernelSet
    row: Row
    values: dict[Tensor, Array]
    rules: Mapping[Op, Rules]
    elsewhere: frozenset[Op]
    float_model: Model | None = None

    def __getitem__(self, name: str) -> Array:
        """The integers of a tensor."""
        return self.value(self.tensor(name))

    def value(self, tensor: Tensor) -> Array:
        data = self.values.get(tensor, tensor.data)
        if data is None:
            raise InvalidModel(f"'{tensor.name}' has no values: no op of the graph makes it")
        return data

    @property
    def names(self) -> dict[Tensor, str]:
        """A distinct name for each tensor."""
        return unique_names(self.entry.graph)

    def _short_names(self) -> dict[Tensor, str]:
        short, keys = short_names(self.model), tensor_keys(self.model)
        return {tensor: short[keys[tensor]] for tensor in self.names}

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name, or short name. Of those that ops make, a part between semicolons is enough."""
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
        """An op with what it read."""
        inputs = tuple(None if t is None else self.value(t) for t in op.inputs)
        return KernelCall(op, inputs, self.rules[op])

    def integers(self) -> Iterator[OpIntegers]:
        """What the first output of each op holds, where these are integers."""
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
        """`integers` as JSON can hold them."""
        return {"kernels": self.kernels, "ops": json_values(list(self.integers()))}

    def explain(self, tensor: str, index: Sequence[int]) -> Explanation:
        """How one number came about: what was read, each step of the arithmetic, the real number it stands for."""
        from .explanation import explain

        return explain(self, tensor, tuple(index))


@dataclass(frozen=True)
class SimulationOptions:
    """Whose kernels; which signature; whether LiteRT computes integer ops that have no simulation; and the float model
    that explanations compare with."""

    kernels: KernelSet = "reference"
    signature: str | None = None
    float_rest: bool = False
    float_model: Model | None = None

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
) -> Trace:
    """Run a quantized model on one sample in NumPy integers: what LiteRT computes, bit for bit.

    `kernels`: "reference" are LiteRT's plain kernels, "xnnpack" what applications get by default on a desktop, "tflm"
    those of TensorFlow Lite Micro. Ops in float, and on indices and shapes, are computed by LiteRT; so are, with
    `float_rest`, integer ops that have no simulation. `float_model` is what the model was made of: explanations then
    say what it has.
    """
    original = None if float_model is None else load(float_model)
    found = next(simulate_all(load(model), [sample], SimulationOptions(kernels, signature, float_rest, original)), None)
    if found is None:
        raise InvalidSample("the sample is an empty batch; give one row of data")
    return found


def simulate_all(model: Model, samples: Samples, options: SimulationOptions) -> Iterator[Trace]:
    """The same for each sample, every one from a fresh state."""
    where = entry(model, options.signature)
    ready: dict[tuple[tuple[int, ...], ...], Simulator] = {}
    for row in _fitting_rows(samples, where):
        shapes = tuple(value.shape for value in row)
        if shapes not in ready:
            ready[shapes] = Simulator(*_resolved(model, where, row), options)
        yield ready[shapes].run(row)


class Simulator:
    """A model made ready: what is asked of LiteRT is asked once, for any number of samples of one shape."""

    def __init__(self, model: Model, where: Entry, options: SimulationOptions) -> None:
        self.model, self.entry, self.options = model, where, options
        self.graph_of = {op: graph for graph in followed_graphs(where.graph) for op in graph.ops}
        executions = {op: execution_of(op) for op in self.graph_of if not is_followed(op)}
        if not {"integer", "hybrid"}.intersection(executions.values()):
            raise InvalidModel("no op of this model computes with integers; quantize it first (zeropoint quantize)")
        outside = {op for op, how in executions.items() if how in ("float", "other") and op.kind not in MOVING}
        graphs = dict.fromkeys(self.graph_of.values())
        self.rules = {op: rules for g in graphs for op, rules in rules_for(model, g, options.kernels).items()}
        missing = [op for op in executions if op not in outside and kernel_of(op, self.rules[op]) is None]
        if missing and not options.float_rest:
            kinds = ", ".join(dict.fromkeys(f"{op.label} ({executions[op]})" for op in missing))
            raise UnsupportedOp(
                f"there is no simulation of {kinds}: '{missing[0].name}'; let LiteRT compute these with "
                f"{argument('float_rest', True)}"
            )
        self.elsewhere = frozenset(outside.union(missing))
        self._runners: dict[Op, tuple[Runner, tuple[Tensor, ...]]] = {}

    def run(self, row: Row) -> Trace:
        """One sample."""
        known = self.rules, self.elsewhere, self.options.float_model
        trace = Trace(self.model, self.entry, self.options.kernels, row, {}, *known)
        _Sample(self, trace).call(self.entry.graph, row)
        return trace

    def in_litert(self, op: Op, values: Mapping[Tensor, Array]) -> list[Array]:
        """What LiteRT, or TensorFlow Lite Micro, makes of these inputs."""
        if op not in self._runners:
            alone = isolate(self.graph_of[op], [op], lambda _: True)
            self._runners[op] = Runner(alone.model, kernels=RUNTIMES[self.options.kernels]), alone.fed
        runner, fed = self._runners[op]
        return runner.run([values[t] for t in fed])


class _Sample:
    """A sample on its way through the graphs. Of a graph that is called repeatedly, the last call's values remain."""

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
        if is_followed(op):
            return CONTROL[op.kind](self, op, [self.trace.value(t) for t in op.inputs if t is not None])
        return compute(self.trace.call(op)).outputs


def compute(call: KernelCall) -> Computed:
    """What the kernels that the call's rules describe make of its inputs."""
    kernel = kernel_of(call.op, call.rules)
    assert kernel is not None
    return kernel(call)


def initial_state(tensor: Tensor) -> Array:
    """A real zero."""
    zero = 0 if tensor.params is None or tensor.params.axis is not None else tensor.params.zero_point
    return np.full(tensor.shape, zero, tensor.dtype.storage)


def _fitting_rows(samples: Samples, where: Entry) -> Iterator[Row]:
    """Samples as the model takes them: real numbers for inputs that are quantized are quantized."""
    for sample in iterate(samples):
        ports = _ports(sample, where)
        for _, row in rows([sample], replace(where, ports=ports), Notes()):
            yield tuple(_encoded(value, port.tensor) for value, port in zip(row, where.ports, strict=True))


def _ports(sample: Any, where: Entry) -> tuple[Port, ...]:
    """The model's inputs, those as float that are given real numbers."""
    given = list(sample.values()) if isinstance(sample, Mapping) else sample
    arrays = given if isinstance(given, list | tuple) else [given]
    if len(arrays) != len(where.ports):
        return where.ports
    pairs = zip(arrays, where.ports, strict=True)
    return tuple(_as_float(p) if p.tensor.params and np.asarray(a).dtype.kind == "f" else p for a, p in pairs)


def _as_float(port: Port) -> Port:
    return replace(port, tensor=replace(port.tensor, dtype=DType.FLOAT32, quantization=None))


def _encoded(value: Array, tensor: Tensor) -> Array:
    is_real = value.dtype.kind == "f" and tensor.params is not None
    return quantize(value, tensor.params) if is_real and tensor.params is not None else value


def _resolved(model: Model, where: Entry, row: Row) -> tuple[Model, Entry]:
    """The model with the sizes that this sample gives its tensors; as it is, where the file says them all."""
    graph = where.graph
    sizes = {t: value.shape for t, value in zip(graph.inputs, row, strict=True)}
    is_open = any(-1 in (t.shape_signature or ()) for t in graph.tensors)
    if not is_open and all(t.shape == shape for t, shape in sizes.items()):
        return model, where
    if graph is not model.main:
        raise InvalidModel(f"the sizes of '{graph.name}' are open; only those of a model's first graph can be resolved")
    session = Session(model, kernels="optimized", open_shapes=True)
    session.invoke(row)
    shapes = session.shapes()[: len(graph.tensors)]
    if all(t.shape == shape for t, shape in zip(graph.tensors, shapes, strict=True)):
        return model, where
    made = copy_model(model)
    for tensor, shape in zip(made.main.tensors, shapes, strict=True):
        tensor.shape = shape
    return made, entry(made, where.key)
