"""Whether a quantized model computes what it should: op by op, under every set of LiteRT's kernels.

How much eight bits cost is a matter of the model. That an op makes of its integers what the float op makes of the
numbers that these stand for, to a unit or so in the last place, is not: an op that does not is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.conformance.samples import LOOSE, tolerance
from zeropoint.affine import dequantize
from zeropoint.bench.errors import encoded, real
from zeropoint.bench.isolate import constant_parts
from zeropoint.calibration import Settings, Stats
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Graph, Model, Op, Tensor
from zeropoint.graph.edit import cut_model
from zeropoint.ops import CONVERSIONS, OPS, Activation, Rescale, Trait
from zeropoint.ops.interpolation import COARSE
from zeropoint.runtime import Kernels, Runner, Session
from zeropoint.tflite import to_bytes

KERNELS: tuple[Kernels, ...] = ("delegate", "optimized", "reference")

SLACK = 0.05
"""In units of the last place: what float32 loses on the way to int16 and back."""

FLOAT_ERROR = 1e-4
"""What float kernels may differ by, relative to the largest number: they add up in different orders."""

CONVERTED = {True: 1.0, False: 0.5}
"""Units that QUANTIZE may be off, by whether it starts from integers, which it rescales, or from floats."""

AS_EIGHT_BITS = COARSE + 16
"""Units of int16 that are one and a half of int8: where a table is interpolated, int16 may be as coarse as that."""

FIXED_POINT = {"LOGISTIC": 11.5, "TANH": 22.0}
"""Units of int16 that the optimized kernels are off at most, over all inputs, where the scale of these is within 0.07 %
of 2**-12 (TANH: or 2**-11): they take it for that, and compute with few bits rather than look up a table."""


@dataclass(frozen=True)
class Wrong:
    """An op whose output is too far from what its inputs say: in units of its last place, or of what is allowed."""

    op: Op
    kernels: Kernels
    units: float

    def __str__(self) -> str:
        kind = f"{self.op.outputs[0].dtype.label} {self.op.label} '{self.op.name}'"
        return f"{kind} is {self.units:.4g} units off with the {self.kernels} kernels"


class FloatTwins:
    """For each op of a graph with integer operands the same op in float, fed with what the integers stand for."""

    def __init__(self, graph: Graph, looked_up: Mapping[str, Op]) -> None:
        self.ops = [lookup(op, graph, looked_up) for op in graph.ops if has_twin(op)]
        constant = constant_parts(graph) | {t for op in self.ops for t in op.inputs if t is not None and t.is_constant}
        self.outputs: dict[Tensor, Tensor] = {}
        fed: dict[Tensor, Tensor] = {}
        held: dict[Tensor, Tensor] = {}
        twins = []
        for op in self.ops:
            for tensor in filter(None, op.inputs):
                is_held = tensor in constant and tensor.data is not None
                made = as_float_constant if is_held else as_float
                (held if is_held else fed).setdefault(tensor, made(tensor))
            self.outputs |= {t: as_float(t) for t in op.outputs}
            inputs = [None if t is None else held.get(t) or fed[t] for t in op.inputs]
            twins.append(replace(op, inputs=inputs, outputs=[self.outputs[t] for t in op.outputs], intermediates=[]))
        self.fed = list(fed)
        tensors = dict.fromkeys((*fed.values(), *(t for op in twins for t in op.tensors())))
        main = Graph("main", list(tensors), twins, list(fed.values()), list(self.outputs.values()))
        # Not strict: an op may make [1] of a scalar, whatever shape the file records.
        self.runner = Runner(Model([main]), kernels="optimized", strict=False) if twins else None

    def values(self, found: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
        """What the float ops make of the values `found` in the quantized model, by tensor of that model."""
        if self.runner is None:
            return {}
        made = self.runner.values([real(found[t], t) for t in self.fed])
        return {t: made[twin] for t, twin in self.outputs.items()}


def has_twin(op: Op) -> bool:
    spec = OPS.get(op.kind)
    has_integers = any(t is not None and t.is_quantized for t in (*op.inputs, *op.outputs))
    if spec is None or not has_integers or op.kind in CONVERSIONS or Trait.RECURRENT in spec.traits:
        return False
    return Trait.CASTS not in spec.traits  # of integers it makes places in a table: see `lookup`


def lookup(op: Op, graph: Graph, looked_up: Mapping[str, Op]) -> Op:
    """The float op whose results `op` gathers from a table, if it does: CAST, perhaps ADD, and GATHER stand for it."""
    made = op.outputs[0]
    name = made.name.removesuffix(f"/{made.dtype.label}")  # of an output of the graph, which is float
    original = looked_up.get(name) if op.kind == "GATHER" else None
    if original is None:
        return op
    makers = {t: maker for maker in graph.ops for t in maker.outputs}
    source = op.inputs[1]
    while source in makers and not source.is_quantized:
        source = makers[source].inputs[0]
    return replace(original, inputs=[source, *original.inputs[1:]], outputs=op.outputs)


def as_float(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=DType.FLOAT32, quantization=None) if tensor.is_quantized else replace(tensor)


def as_float_constant(tensor: Tensor) -> Tensor:
    if tensor.params is None or not tensor.is_quantized:
        return tensor
    assert tensor.data is not None
    return Tensor.constant(tensor.name, dequantize(tensor.data, tensor.params), DType.FLOAT32)


@dataclass(frozen=True)
class _Judged:
    """The values of all tensors in one run, and how far each op is off in it."""

    values: Mapping[Tensor, Array]
    distances: Mapping[Op, float]

    def is_alike(self, op: Op, values: Mapping[Tensor, Array]) -> bool:
        """Whether the op had the same inputs and results in another run."""
        operands = (t for t in (*op.inputs, *op.outputs) if t is not None)
        return all(_are_equal(self.values.get(t), values.get(t)) for t in operands)


def _are_equal(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None or a is b:
        return a is b
    return a.shape == b.shape and a.tobytes() == b.tobytes()


class Opened:
    """The first graph of a quantized model with all its activations to be seen, and its float twins.

    `prepared` is the float model that it was made of, which tells what its tables are tables of, and `stats` what was
    measured of it: between the points of a kernel's table nothing is promised for other inputs.
    """

    def __init__(self, model: Model, prepared: Model | None = None, stats: Stats | None = None) -> None:
        self.graph = model.main
        tensors = {} if stats is None else stats.tensors
        self.seen = {name: (t.low.value, t.high.value) for name, t in tensors.items()}
        ops = () if prepared is None else prepared.main.ops
        self.twins = FloatTwins(self.graph, {op.name: op for op in ops if op.kind in OPS and OPS[op.kind].table})
        self.made = list(dict.fromkeys(t for op in self.graph.ops for t in op.outputs if t.size))
        cut, needed = cut_model(model, self.graph, self.made)
        self.content = to_bytes(cut)
        self.places = [k for k, t in enumerate(self.graph.inputs) if t in needed]
        tensors = (t for op in self.graph.ops for t in op.inputs)
        self.constants = {t: t.data for t in tensors if t is not None and t.data is not None}

    def values(self, rows: Sequence[Sequence[Array]], kernels: Kernels) -> Iterator[dict[Tensor, Array]]:
        """For each row of inputs, what these kernels make of it, by tensor; constants are there as well."""
        session = Session(self.content, kernels=kernels, checked=True)
        in_sequence = Settings().in_sequence(self.graph)  # as it was calibrated
        for row in rows:
            given = [encoded(v, t) for v, t in zip(row, self.graph.inputs, strict=True)]
            if not in_sequence:
                session.reset()
            made = session.run([given[k] for k in self.places])
            inputs = dict(zip(self.graph.inputs, given, strict=True))
            yield self.constants | inputs | dict(zip(self.made, made, strict=True))

    def wrong_ops(self, rows: Sequence[Sequence[Array]], kernels: Kernels) -> list[Wrong]:
        """Ops that compute something else than their float twins do, each with its worst result."""
        return self.judged({kernels: self.values(rows, kernels)})

    def judged(self, runs: Mapping[Kernels, Iterable[Mapping[Tensor, Array]]]) -> list[Wrong]:
        """The same, of what these kernels made of all tensors."""
        found = []
        for row in zip(*runs.values(), strict=True):
            known: list[_Judged] = []
            for kernels, values in zip(runs, row, strict=True):
                known.append(self._judge(values, known))
                for op, off in known[-1].distances.items():
                    # The delegate unpacks constants as it loads them, and writes nothing where others look.
                    if off > 0 and (kernels != "delegate" or op.inputs[0] not in self.constants):
                        found.append(Wrong(op, kernels, off))
        worst: dict[tuple[Kernels, Op], Wrong] = {}
        for wrong in sorted(found, key=lambda w: w.units):
            worst[wrong.kernels, wrong.op] = wrong
        return list(worst.values())

    def _judge(self, found: Mapping[Tensor, Array], known: Sequence[_Judged]) -> _Judged:
        """How far each op is off: as far as with other kernels, if these had the same inputs and results."""
        distances, new = dict[Op, float](), []
        for op in self.graph.ops:
            alike = next((one for one in known if one.is_alike(op, found)), None)
            if alike is None:
                new.append(op)
            elif op in alike.distances:
                distances[op] = alike.distances[op]
        return _Judged(found, {**distances, **self._distances(found, new)} if new else distances)

    def _distances(self, found: Mapping[Tensor, Array], ops: Sequence[Op]) -> dict[Op, float]:
        """For each op that can be judged how far it is off, 0 where that is within what its kernel may be."""
        distances: dict[Op, float] = {}
        wanted, originals = self.twins.values(found), {t: op for op in self.twins.ops for t in op.outputs}
        for op in ops:
            for tensor in op.outputs:
                if tensor in wanted and tensor in found:
                    judged = self._as_seen(originals[tensor], tensor, found, wanted[tensor])
                    off = _distance(originals[tensor], tensor, found, judged)
                elif op.kind in CONVERSIONS and (source := op.inputs[0]) in found and source is not None:
                    off = _conversion_distance(source, tensor, found)
                else:
                    continue
                distances[op] = max(off, distances.get(op, 0.0))
        return distances

    def _as_seen(self, op: Op, tensor: Tensor, found: Mapping[Tensor, Array], wanted: Array) -> Array:
        """`wanted`, or where a table is interpolated for inputs that were never measured, what is there."""
        source = op.inputs[0]
        if OPS[op.kind].interpolated is None or tensor.dtype is not DType.INT16 or source is None:
            return wanted
        bounds = self.seen.get(source.name.removesuffix(f"/{source.dtype.label}"))
        if bounds is None or source.params is None:
            return wanted
        read, unit = real(found[source], source), source.params.scale
        is_new = (read < bounds[0] - unit) | (read > bounds[1] + unit)
        return np.where(is_new, real(found[tensor], tensor), wanted)


def wrong_ops(model: Model, rows: Sequence[Sequence[Array]], kernels: Kernels) -> list[Wrong]:
    return Opened(model).wrong_ops(rows, kernels)


def _distance(op: Op, tensor: Tensor, found: Mapping[Tensor, Array], wanted: Array) -> float:
    params, got = tensor.params, found[tensor]
    if got.shape != wanted.shape:
        return np.inf
    if params is not None and tensor.is_quantized:
        allowed = tolerance(OPS[op.kind], params.dtype)
        if params.dtype is DType.INT16:
            loose = AS_EIGHT_BITS if (op.kind, params.dtype) in LOOSE else 0.0
            allowed = max(FIXED_POINT.get(op.kind, loose), allowed)
        inexact = fixed_point_error(op, wanted) + float_error(op, found)
        return _units(tensor, got, wanted, allowed + inexact / params.scale)
    if not tensor.dtype.is_float:  # indices and truth values are right, or all wrong
        return 0.0 if np.array_equal(got, wanted) else np.inf
    allowed = hybrid_error(op, found) + FLOAT_ERROR * float(np.abs(wanted).max(initial=0.0))
    off = float(np.abs(got.astype(np.float64) - wanted).max(initial=0.0))
    return 0.0 if off <= allowed else off / max(allowed, np.finfo(np.float64).tiny)


def _conversion_distance(source: Tensor, tensor: Tensor, found: Mapping[Tensor, Array]) -> float:
    wanted = np.asarray(real(found[source], source), np.float32)
    if tensor.params is not None:
        return _units(tensor, found[tensor], wanted, CONVERTED[source.is_quantized])
    unit = 0.0 if source.params is None or source.params.axis is not None else source.params.scale
    return 0.0 if np.allclose(found[tensor], wanted, rtol=1e-5, atol=1e-3 * unit) else np.inf


def fixed_point_error(op: Op, wanted: Array) -> Array | float:
    """What a kernel loses by computing in few bits, as a real number, where that may exceed a unit of its output.

    SQUARED_DIFFERENCE has 7 bits below twice the greater unit of its inputs, so that d = a - b is off by a 64th of it:
    much less than what rounding the inputs costs. |error of d * d| = 2 |d| * unit / 64.
    """
    if op.kind != "SQUARED_DIFFERENCE":
        return 0.0
    unit = max(t.params.scale for t in op.inputs if t is not None and t.params is not None)
    return np.asarray(2 * np.sqrt(np.abs(wanted)) * unit / 64 + (unit / 64) ** 2)


def float_error(op: Op, found: Mapping[Tensor, Array]) -> Array | float:
    """What the float op is off by: sums in which large numbers cancel are no finer than float32 holds these.

    |error of a - b| <= (|a| + |b|) / 2**24; for a layer |error| <= (max |x| * sum |w| + |bias|) / 2**23; for a product
    of matrices |error| <= |a| |b| / 2**23; for a sum of n numbers |error| <= n max |x| / 2**24, and 1/n of that for
    their mean.
    """
    spec = OPS[op.kind]
    if op.kind in ("MEAN", "SUM") and (source := op.inputs[0]) is not None:
        terms = 1 if op.kind == "MEAN" else source.size / max(1, op.outputs[0].size)
        return terms * float(np.abs(real(found[source], source)).max(initial=0.0)) / 2.0**24
    if spec.layout is not None and not spec.weight_slots:
        sizes = [np.abs(real(found[t], t).astype(np.float64)) for t in op.inputs if t is not None]
        turned = [op.option("adjX", False), op.option("adjY", False)]
        a, b = (np.swapaxes(v, -1, -2) if turn else v for v, turn in zip(sizes, turned, strict=True))
        return np.asarray(a @ b) / 2.0**23
    if spec.rescale is Rescale.SUM:
        return np.asarray(sum(np.abs(real(found[t], t)) for t in op.inputs if t is not None)) / 2.0**24
    if spec.layout is None or spec.bias_slot is None:
        return 0.0
    flowing = [t for k, t in enumerate(op.inputs) if t is not None and isinstance(spec.input_role(k), Activation)]
    greatest = max(float(np.abs(real(found[t], t)).max(initial=0.0)) for t in flowing)
    (slot,), bias = spec.weight_slots, op.inputs[spec.bias_slot] if spec.bias_slot < len(op.inputs) else None
    added = 0.0 if bias is None else float(np.abs(real(found[bias], bias)).max(initial=0.0))
    return (greatest * sum_of_weights(op, slot, found) + added) / 2.0**23


def sum_of_weights(op: Op, slot: int, found: Mapping[Tensor, Array]) -> float:
    """sum |w|, for the output channel in which it is greatest."""
    tensor, role = op.inputs[slot], OPS[op.kind].held(slot)
    assert tensor is not None
    assert role is not None
    weights = np.abs(real(found[tensor], tensor).astype(np.float64))
    axis = role.axis_of(op, weights.ndim)
    return float(weights.sum(axis=tuple(k for k in range(weights.ndim) if k != axis)).max())


def _units(tensor: Tensor, got: Array, wanted: Array, allowed: Array | float) -> float:
    """The distance in units of the last place from what is wanted, or from the nearest that the integers can hold."""
    assert tensor.params is not None
    held = np.clip(wanted.astype(np.float64), *tensor.params.range())
    off = np.abs(dequantize(got, tensor.params) - held) / tensor.params.scale
    return float((off * (off > allowed + SLACK + 1e-5 * np.abs(held) / tensor.params.scale)).max(initial=0.0))


def hybrid_error(op: Op, found: Mapping[Tensor, Array]) -> float:
    """What a float op with integer weights may be off: it rounds its input to 8 bits first.

    |error| <= step * sum |w|.
    """
    spec = OPS[op.kind]
    for slot, tensor in enumerate(op.inputs):
        role = None if tensor is None else spec.held(slot)
        if tensor is None or role is None or not tensor.is_quantized or spec.layout is None:
            continue
        flowing = [t for t in op.inputs if t is not None and t.dtype is DType.FLOAT32 and t in found and t.data is None]
        step = max(float(np.abs(found[t]).max(initial=0.0)) for t in flowing) / 127
        return 1.1 * step * sum_of_weights(op, slot, found)
    return 0.0
