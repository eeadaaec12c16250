"""The invariants of a legal graph, as a table. `problems` describes each one that a model violates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import islice

from ..errors import InvalidModel
from .model import Graph, Model, Tensor
from .sparse import index_problem


def check(model: Model) -> None:
    """Raise InvalidModel naming the first few problems, if the model has any."""
    refuse(problems(model))


def refuse(found: Iterator[str], consequence: str = "") -> None:
    """Raise InvalidModel naming the first few of the problems in `found`, if there are any."""
    shown = list(islice(found, 4))  # a damaged file may have millions
    if shown:
        raise InvalidModel("; ".join(shown[:3]) + (" (and more)" if len(shown) > 3 else "") + consequence)


def problems(model: Model) -> Iterator[str]:
    """Yield a sentence for every violated invariant."""
    if not model.graphs:
        yield "the model has no graph"
    for graph in model.graphs:
        for invariant in GRAPH_INVARIANTS:
            yield from (f"graph '{graph.name}': {text}" for text in invariant(graph))
    for model_invariant in MODEL_INVARIANTS:
        yield from model_invariant(model)


def tensors_belong(graph: Graph) -> Iterator[str]:
    """Every tensor that ops, graph inputs and graph outputs refer to is listed in graph.tensors exactly once."""
    own = set(graph.tensors)
    if len(own) != len(graph.tensors):
        yield "a tensor is listed twice"
    for op in graph.ops:
        for tensor in op.tensors():
            if tensor not in own:
                yield f"{op.label} '{op.name}' refers to '{tensor.name}', which is not in the graph"
    for tensor in (*graph.inputs, *graph.outputs):
        if tensor not in own:
            yield f"the input or output '{tensor.name}' is not in the graph"


def one_producer(graph: Graph) -> Iterator[str]:
    """A tensor is the output of one op, or a graph input, or a constant: never more than one of these."""
    made = dict.fromkeys(graph.inputs, "a graph input")
    made |= {t: "a constant" for t in graph.tensors if t.is_constant and not t.is_variable}
    for op in graph.ops:
        for tensor in op.outputs:
            if tensor in made:
                yield f"'{tensor.name}' is an output of {op.label} but already {made[tensor]}"
            made[tensor] = f"an output of {op.label}"


def producers_first(graph: Graph) -> Iterator[str]:
    """Ops run in topological order, and every graph output is produced."""
    there = _filled(graph)
    later = {t for op in graph.ops for t in op.outputs} - there
    for op in graph.ops:
        for tensor in op.inputs:
            if tensor in later:
                yield f"{op.label} '{op.name}' reads '{tensor.name}' before anything has produced it"
        later.difference_update(op.outputs)
        there.update(op.outputs)
    for tensor in graph.outputs:
        if tensor not in there:
            yield f"the output '{tensor.name}' is never produced"


def _filled(graph: Graph) -> set[Tensor]:
    """Return the tensors that have a value before any op has run."""
    return {t for t in graph.tensors if t.is_constant or t.is_variable or t.size == 0} | set(graph.inputs)


def inputs_are_filled(graph: Graph) -> Iterator[str]:
    """Every op input has a value at run time. Files for other runtimes (scratch tensors, partial models) may violate
    this."""
    there = _filled(graph).union(*(op.outputs for op in graph.ops))
    for op in graph.ops:
        for tensor in op.inputs:
            if tensor is not None and tensor not in there:
                yield f"{op.label} '{op.name}' reads '{tensor.name}', which nothing fills"


def shapes_are_sane(graph: Graph) -> Iterator[str]:
    """Dimensions are not negative, and a shape signature has the same rank as the shape."""
    for tensor in graph.tensors:
        if any(d < 0 for d in tensor.shape):
            yield f"'{tensor.name}' has the shape {list(tensor.shape)}"
        if tensor.shape_signature and len(tensor.shape_signature) != len(tensor.shape):
            yield f"'{tensor.name}' has {len(tensor.shape)} dimensions but a signature of {len(tensor.shape_signature)}"


def data_fits(graph: Graph) -> Iterator[str]:
    """A constant has exactly as many bytes as its shape and type require."""
    for tensor in graph.tensors:
        needed = tensor.dtype.nbytes(tensor.size)
        if tensor.buffer is None or needed is None or tensor.sparsity is not None:
            continue
        if tensor.buffer.raw.size != needed:
            yield f"the constant {tensor!r} has {tensor.buffer.raw.size} bytes where {needed} are needed"


LARGEST_TENSOR = 1 << 31
"""Element count at which LiteRT's integers overflow."""


def sizes_can_be_counted(graph: Graph) -> Iterator[str]:
    """No tensor has more elements than LiteRT can count; allocating such a shape would exhaust memory."""
    for tensor in graph.tensors:
        if tensor.size >= LARGEST_TENSOR:
            yield f"'{tensor.name}' has the shape {list(tensor.shape)}, which is larger than a runtime can allocate"


def sparsity_fits(graph: Graph) -> Iterator[str]:
    """The index of a sparse constant addresses as many elements as are stored, all of them within its shape."""
    for tensor in graph.tensors:
        if tensor.sparsity is not None and (problem := index_problem(tensor, tensor.sparsity)) is not None:
            yield f"the sparse constant '{tensor.name}' is damaged: {problem}"


def parameters_fit(graph: Graph) -> Iterator[str]:
    """The axis of per-axis parameters exists and has one slice for each scale. For a vector, the stored axis is
    ignored.
    """
    for tensor in graph.tensors:
        stored = tensor.quantization
        if stored is None or len(stored.scales) <= 1 or stored.details is not None:
            continue
        if tensor.shape == (len(stored.scales),):  # TOCO stored the axis of the weights for biases
            continue
        if not 0 <= stored.axis < len(tensor.shape):
            yield f"'{tensor.name}' is quantized along axis {stored.axis} but has {len(tensor.shape)} dimensions"
        elif tensor.shape[stored.axis] != len(stored.scales):
            yield (
                f"'{tensor.name}' has {len(stored.scales)} scales "
                f"for {tensor.shape[stored.axis]} slices along axis {stored.axis}"
            )


def no_dangling_tensors(graph: Graph) -> Iterator[str]:
    """Every tensor is used. Files from other tools may violate this; our own edits must not."""
    used = graph.referred()
    yield from (f"nothing refers to '{tensor.name}'" for tensor in graph.tensors if tensor not in used)


def signatures_fit(model: Model) -> Iterator[str]:
    """A signature refers to inputs and outputs of a single graph of the model."""
    known = set(model.graphs)
    ends = {s.graph: (set(s.graph.inputs), set(s.graph.outputs)) for s in model.signatures}
    for signature in model.signatures:
        if signature.graph not in known:
            yield f"the signature '{signature.key}' belongs to no graph of the model"
            continue
        inputs, outputs = ends[signature.graph]
        for kind, named, actual in (("input", signature.inputs, inputs), ("output", signature.outputs, outputs)):
            for name, tensor in named.items():
                if tensor not in actual:
                    yield f"the signature '{signature.key}' names '{tensor.name}' as {kind} '{name}', which it is not"


def calls_stay_inside(model: Model) -> Iterator[str]:
    """Ops only call graphs of the same model."""
    known = set(model.graphs)
    for graph in model.graphs:
        for op in graph.ops:
            if not known.issuperset(op.graphs()):
                yield f"{op.label} '{op.name}' calls a graph that is not in the model"


def calls_end(model: Model) -> Iterator[str]:
    """No graph calls itself, directly or indirectly: the runtime would recurse until its stack overflows."""
    try:
        TopologicalSorter({graph: {g for op in graph.ops for g in op.graphs()} for graph in model.graphs}).prepare()
    except CycleError as error:
        yield f"the graph '{error.args[1][0].name}' calls itself, directly or through others"


GRAPH_INVARIANTS: tuple[Callable[[Graph], Iterator[str]], ...] = (
    tensors_belong,
    one_producer,
    producers_first,
    shapes_are_sane,
    data_fits,
    parameters_fit,
)
MODEL_INVARIANTS: tuple[Callable[[Model], Iterator[str]], ...] = (signatures_fit, calls_stay_inside, calls_end)

RUNNABLE_INVARIANTS: tuple[Callable[[Graph], Iterator[str]], ...] = (
    inputs_are_filled,
    sizes_can_be_counted,
    sparsity_fits,
)
"""Invariants that are checked only before a model is run."""
