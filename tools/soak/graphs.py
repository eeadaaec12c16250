"""Random float graphs that LiteRT runs, with samples to go with them: the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests import build
from tests.conformance.samples import IRREGULAR, REGULAR
from zeropoint.dtypes import Array, DType
from zeropoint.graph import Graph, Model, Op, Tensor
from zeropoint.runtime import Runner
from zeropoint.tflite.schema import default_options

LARGEST_TENSOR = 512
LARGEST_NUMBER = 1e25
"""Above it a product of two would leave float32."""

SAMPLES = 6
LATEST = 6
"""How many of the newest tensors most ops read from, so that a graph is more than a heap of single ops."""

VERSIONS = {"BROADCAST_TO": 2}
"""Of ops whose first version LiteRT no longer has."""

Shape = tuple[int, ...]
Random = np.random.Generator


@dataclass(frozen=True)
class RandomGraph:
    """A float model and samples, rows of arrays."""

    model: Model
    samples: list[tuple[Array, ...]]


@dataclass(frozen=True)
class Spread:
    """What the numbers of a tensor are like: normally distributed around `center`."""

    center: float
    width: float

    def draw(self, rng: Random, shape: Shape) -> Array:
        return (self.center + self.width * rng.standard_normal(shape)).astype(np.float32)


@dataclass
class Growing:
    """A graph in the making: `values` are its activations in float32, the newest last."""

    rng: Random
    extreme: bool
    inputs: list[Tensor] = field(default_factory=list)
    spreads: list[Spread | None] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    conditions: list[Tensor] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    bodies: list[Graph] = field(default_factory=list)

    # Choices.

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def spread(self) -> Spread:
        """Mostly around 1; in an extreme graph of any size, or hardly any width, or nothing but zeros."""
        way = self.rng.random() if self.extreme else 0.0
        size = float(10 ** self.rng.uniform(-6, 6)) if way > 0.4 else float(10 ** self.rng.uniform(-0.7, 0.7))
        if way > 0.92:
            return Spread(0.0 if self.chance(0.5) else size, 0.0)
        if way > 0.85:
            return Spread(size, size * 1e-5)
        return Spread(size * float(self.pick([0, 0, 0, 0.5, 1, -2])), size)

    def value(self, *ranks: int) -> Tensor | None:
        """An activation of one of these ranks (any, if none is given), more likely a new one."""
        newest = self.values[-LATEST:] if self.chance(0.8) else self.values
        fitting = [t for t in newest if not ranks or len(t.shape) in ranks]
        return self.pick(fitting) if fitting else None

    # Parts.

    def input(self, shape: Shape, dtype: DType = DType.FLOAT32) -> Tensor:
        made = build.act(f"x{len(self.inputs)}", *shape, dtype=dtype)
        self.inputs.append(made)
        self.spreads.append(self.spread() if dtype is DType.FLOAT32 else None)
        (self.values if dtype is DType.FLOAT32 else self.conditions).append(made)
        return made

    def constant(self, shape: Shape, spread: Spread | None = None) -> Tensor:
        """A new one, or one that another op reads as well."""
        alike = [t for t in self.constants if t.shape == shape]
        if alike and spread is None and self.chance(0.3):
            return self.pick(alike)
        data = (spread or self.spread()).draw(self.rng, shape)
        made = Tensor.constant(f"c{len(self.constants)}", data, DType.FLOAT32)
        self.constants.append(made)
        return made

    def kernel(self, *shape: int, fan_in: int) -> Tensor:
        """Weights under which numbers stay about as large as they are, unless the graph is extreme."""
        wild = self.extreme and self.chance(0.3)
        return self.constant(shape, self.spread() if wild else Spread(0.0, 1 / math.sqrt(fan_in)))

    def add(
        self, kind: str, inputs: Sequence[Any], *shapes: Shape, dtype: DType = DType.FLOAT32, **values: Any
    ) -> Tensor:
        """One more op; its first output. Arrays and lists of integers become constants."""
        name = f"{kind.lower()}_{len(self.ops)}"
        operands = [
            t if t is None or isinstance(t, Tensor) else build.const(f"{name}/{k}", np.int32(t))
            for k, t in enumerate(inputs)
        ]
        outputs = [build.act(f"{name}:{k}" if k else name, *s, dtype=dtype) for k, s in enumerate(shapes)]
        table = IRREGULAR.get(kind) or REGULAR.get(f"{kind.replace('_', '')}Options".lower())
        options = default_options(table, **values) if table else None
        self.ops.append(Op(kind, operands, outputs, options, VERSIONS.get(kind, 1)))
        if dtype is DType.FLOAT32:
            self.values += (t for t in outputs if t.shape)
        return outputs[0]


def random_graph(seed: int, ops: tuple[int, int] = (5, 60)) -> RandomGraph:
    """A graph of that many ops, give or take a few: what would overflow is left out, with all that follows from it."""
    from .rules import RULES

    rng = np.random.default_rng((77, seed))
    grown = Growing(rng, extreme=bool(rng.random() < 0.5))
    for _ in range(grown.pick([1, 1, 1, 2, 3])):
        grown.input(grown.pick([(1, 6, 6, 3), (1, 5, 4, 4), (2, 4, 4, 2), (1, 12), (3, 8), (2, 5, 6), (1, 16), (7,)]))
    wanted = grown.between(*ops)
    weights = np.array([rule.weight for rule in RULES])
    while len(grown.ops) < wanted:
        RULES[int(rng.choice(len(RULES), p=weights / weights.sum()))].grow(grown)
        while grown.values[-1].size > LARGEST_TENSOR:
            large = grown.values.pop()  # still computed, but nothing follows from it
            assert large.size
    samples = [tuple(_fed(t, s, rng) for t, s in zip(grown.inputs, grown.spreads, strict=True)) for _ in range(SAMPLES)]
    return _finite(grown, samples)


def _fed(tensor: Tensor, spread: Spread | None, rng: Random) -> Array:
    return np.asarray(rng.random(tensor.shape) < 0.5) if spread is None else spread.draw(rng, tensor.shape)


def _finite(grown: Growing, samples: list[tuple[Array, ...]]) -> RandomGraph:
    """The ops up to the first whose values are none that float32 can go on with."""
    ops = grown.ops
    model = _model(grown, ops)
    made = [t for op in ops for t in op.outputs]
    runner = Runner.exposing(model, model.main, made, kernels="optimized")
    bad: set[Tensor] = set()
    for row in samples:
        values = runner.values([v for v, t in zip(row, grown.inputs, strict=True) if t in model.main.inputs])
        bad |= {t for t, v in zip(made, values.values(), strict=True) if not np.all(np.abs(v) < LARGEST_NUMBER)}
    kept = ops[: next((k for k, op in enumerate(ops) if bad.intersection(op.outputs)), len(ops))]
    model = _model(grown, kept or ops[:1])
    used = [k for k, t in enumerate(grown.inputs) if t in model.main.inputs]
    return RandomGraph(model, [tuple(row[k] for k in used) for row in samples])


def _model(grown: Growing, ops: Sequence[Op]) -> Model:
    """The outputs are what no op reads, and now and then something that one does."""
    read = {t for op in ops for t in op.inputs}
    made = [t for op in ops for t in op.outputs]
    outputs = [t for k, t in enumerate(made) if t not in read or k % 17 == 16]
    inputs = [t for t in grown.inputs if t in read]
    called = {g for op in ops for g in op.graphs()}
    model = Model([build.graph("main", inputs, outputs, *ops), *(g for g in grown.bodies if g in called)])
    build.sign(model, "serving_default", model.main)
    return model
