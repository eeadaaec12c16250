"""Block reconstruction: roundings and scales are learned block by block, to reproduce the outputs of the float block.

A block is a part of the graph that few tensors enter and leave: a residual block, an attention block, two layers of a
plain chain. Its inputs are what the quantized blocks before it produce, and it learns the float model's values at its
outputs (AdaRound, BRECQ, QDrop). That needs no labels, and few samples, because a block outputs many values.

This module finds the blocks and runs the samples; `block_training`, which imports Keras, trains them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..affine import QuantParams
from ..bench.errors import real
from ..calibration import Stats
from ..calibration.collect import Progress
from ..dtypes import Array, DType
from ..errors import ZeropointError
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Use, Uses
from ..improve.refined_layers import CarriedOut
from ..improve.refiner import Refiner
from ..ops import OpSpec, spec_of
from ..ops.execution import logits_of, total_macs
from ..plan.derive import settle
from ..plan.plan import Group, Held, Plan, Planned
from ..plan.request import Request
from ..runtime.runner import Runner
from ..sources.ports import Row, entry
from . import require_keras, start_keras

FEWEST_LAYERS, MOST_LAYERS = 2, 8
"""The minimum and maximum number of layers in a block. Between them, it ends where the fewest tensors leave it."""

MOST_BYTES = 1 << 27
"""Memory limit for the inputs and outputs of a block over all samples."""

STEP_BYTES, COPIES, SMALLEST_BATCH = 1 << 28, 12, 4
"""Memory limit for one training step, about how many copies of each activation it holds until the gradients are
computed, and the batch size below which the limit does not count."""

LARGEST_STEP = 1 << 30
"""Memory in bytes for one training step with the smallest batch, beyond which a block is not learned."""

MOST_MACS = 8e12
"""Multiply-accumulates for learning all blocks, including backward passes, and the same again for all of them at
once."""

STEPS, BATCHES = (500, 1500), (32, 16, 8)
"""The minimum and maximum number of training steps for each block, and possible batch sizes: the largest that the work
allows."""

MORE_TELLING = 8
"""A tensor inside a block that has this many times as many values as its outputs is compared as well."""

MIXTURES, MIXING_MACS = 16, 1e12
"""The maximum number of mixtures of two samples to add for each sample, and the multiply-accumulates for running the
float model on them, over all blocks. The float model tells the wanted outputs, so there is more to learn from than the
few samples (mixup, without labels)."""


def require_learning() -> None:
    """Raise if Keras is not installed; start it, without what its backend prints."""
    require_keras("max effort")
    start_keras()


@dataclass(frozen=True)
class Block:
    """Consecutive ops, the tensors that they read from earlier ops, and the outputs that they are judged by."""

    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def step_bytes(self) -> int:
        """About how much memory a training step takes for each sample of its batch."""
        return COPIES * 4 * sum(t.size for op in self.ops for t in op.outputs)


@dataclass(frozen=True)
class BlockData:
    """For each sample, the inputs of a block in the quantized model, and the outputs that it has in the float model."""

    inputs: list[list[Array]]
    wanted: list[list[Array]]


@dataclass(frozen=True)
class Learned:
    """The plans after reconstruction, how many blocks there are, and how many were changed."""

    planned: Planned
    changed: int
    blocks: int
    interrupted: bool = False


def blocks_of(graph: Graph, ops: Mapping[str, OpSpec]) -> list[Block]:
    """Return the blocks that contain layers. Each ends, after 2 to 8 layers, where the fewest tensors leave it."""
    is_layer = [spec_of(op, ops).layout is not None for op in graph.ops]
    leading = _leading_on(graph)
    found, start = [], 0
    while start < len(graph.ops):
        layers, ends = 0, list[tuple[int, int, int]]()
        for end in range(start + 1, len(graph.ops) + 1):
            layers += is_layer[end - 1]
            if layers > MOST_LAYERS:
                break
            if layers >= FEWEST_LAYERS and sum(is_layer[end:]) != 1:  # one layer is no block of its own
                ends.append((max(1, leading[end]), layers, -end))
        stop = -min(ends)[2] if ends and any(is_layer[start:]) else len(graph.ops)
        if any(is_layer[start:stop]):
            found.append(_block(graph, start, stop, ops))
        start = stop
    return found


def joined(graph: Graph, blocks: Sequence[Block], ops: Mapping[str, OpSpec]) -> Block:
    """Return everything from the first of these blocks to the end of the graph as one block, judged by the outputs of
    each.

    The outputs of a network are few numbers for each sample, which roundings would be fitted to rather than learned
    from; together with the outputs of inner blocks there are enough.
    """
    start = graph.ops.index(blocks[0].ops[0])
    whole = _block(graph, start, len(graph.ops), ops)
    inner = dict.fromkeys(t for block in blocks for t in block.outputs)
    return replace(whole, outputs=tuple(inner | dict.fromkeys(whole.outputs)))


def learned_uses(plan: Plan, uses: Iterable[Use]) -> set[Use]:
    """Return the uses of weights whose roundings are learned: those of fewer than 8 bits, or all if there are none."""
    own = {use for use in uses if isinstance(plan.constants.grids.get(use), QuantParams)}
    few = {use for use in own if plan.constants.grids[use].levels.bits < 8}
    return few or own


def _leading_on(graph: Graph) -> list[int]:
    """Return, before each op and after the last, how many tensors made earlier are read later."""
    made = dict.fromkeys(graph.inputs, 0) | {t: k + 1 for k, op in enumerate(graph.ops) for t in op.outputs}
    last = {t: k for k, op in enumerate(graph.ops) for t in op.inputs if t is not None}
    changes = np.zeros(len(graph.ops) + 2, int)
    for tensor, start in made.items():
        if tensor in last and tensor.dtype.is_float:
            changes[start] += 1
            changes[last[tensor] + 1] -= 1
    return [int(n) for n in np.cumsum(changes)]


def _block(graph: Graph, start: int, stop: int, ops: Mapping[str, OpSpec]) -> Block:
    own, uses = graph.ops[start:stop], Uses(graph)
    made = {t for op in own for t in op.outputs}
    inputs = dict.fromkeys(t for op in own for t in op.inputs if t is not None and t not in made and not t.is_constant)
    later = {t for op in graph.ops[stop:] for t in op.inputs}
    ends = dict.fromkeys(t for op in own for t in op.outputs if t in later)
    ends |= dict.fromkeys(t for output in graph.outputs if (t := logits_of(output, uses, ops)[0]) in made)
    inner = dict.fromkeys(_telling(graph, start, stop, sum(t.size for t in ends)))
    return Block(tuple(own), (*inputs,), tuple(t for t in inner | ends if t.dtype is DType.FLOAT32))


def _telling(graph: Graph, start: int, stop: int, size: int) -> Iterator[Tensor]:
    """Yield the largest tensor through which everything in these ops passes, and the last of these, if it has many
    times as many values as the outputs, of which there are `size`.

    A classifier that ends in an average over all pixels has few outputs, and as many roundings as ever: they would be
    fitted to the outputs of the samples, and be of no use for others. What is averaged tells more.
    """
    leading = _leading_on(graph)
    later = {t for op in graph.ops[start:] for t in op.inputs}
    passed = [t for k in range(start, stop) if leading[k + 1] == 1 for t in graph.ops[k].outputs if t in later]
    largest = max(reversed(passed), key=lambda t: t.size, default=None)
    if largest is not None and largest.size >= MORE_TELLING * size:
        yield largest


@dataclass(frozen=True)
class Parts:
    """The blocks of a graph, those with roundings to learn, and all of the latter together, if that can be learned."""

    blocks: Sequence[Block]
    learnable: Sequence[Block]
    together: Block | None

    @classmethod
    def of(cls, plan: Plan, ops: Mapping[str, OpSpec]) -> Parts:
        blocks = blocks_of(plan.graph, ops)
        learnable = [block for block in blocks if _is_learnable(block, plan)]
        together = joined(plan.graph, learnable, ops) if len(learnable) > 1 else None
        return cls(blocks, learnable, together if together and _is_learnable(together, plan) else None)

    @property
    def all(self) -> list[Block]:
        return [*self.blocks] if self.together is None else [*self.blocks, self.together]

    @property
    def learned(self) -> int:
        """The number of parts that learn."""
        return len(self.learnable) + (self.together is not None)


@dataclass(frozen=True)
class Reconstruction:
    """Learns from the samples of `refiner`, which must not be a sequence, and is checked on others: a block that does
    not improve on these stays as it was. `seed` determines the batches, how samples are mixed, and which activations
    are not rounded. `stats` tell the means of channels, if given."""

    refiner: Refiner
    checked: Sequence[Row]
    stage: Callable[[str, int], Progress]
    seed: int = 0
    stats: Stats | None = None

    @property
    def request(self) -> Request:
        return self.refiner.request

    def of(self, planned: Planned) -> Learned:
        """Return the plans with what was learned. Their weights need not be refined before: each block starts from
        weights rounded with compensation, given what the blocks before it produce. If interrupted, the remaining blocks
        keep those weights. Finally all blocks are trained together."""
        require_learning()
        graph = entry(planned.model).graph
        plan = next((p for p in planned.plans if p.graph is graph), None)
        if plan is None:
            return Learned(planned, 0, 0)
        parts = Parts.of(plan, self.request.ops)
        report, changed, done, interrupted = self.stage("learning roundings", len(parts.all)), 0, 1, False
        try:
            for done, part in enumerate(parts.all, 1):
                refined, plan = self._step(planned, plan, parts, part)
                changed += plan is not refined
                report(done)
        except KeyboardInterrupt:
            interrupted = True
            plan = self.refiner.refined_plan(plan, [op for block in parts.blocks[done - 1 :] for op in block.ops])
        plans = tuple(plan if p.graph is graph else p for p in planned.plans)
        return Learned(replace(planned, plans=plans), changed, parts.learned, interrupted)

    def _step(self, planned: Planned, plan: Plan, parts: Parts, part: Block) -> tuple[Plan, Plan]:
        """Return the plan before and after one part has learned."""
        if part is parts.together:
            return plan, self.learned_plan(planned, plan, part, is_learned=True)
        refined = self.refiner.refined_plan(plan, part.ops)
        if part not in parts.learnable:
            return refined, refined
        work = sum(self._work(block) for block in parts.learnable)
        return refined, self.learned_plan(planned, refined, part, work)

    def learned_plan(
        self, planned: Planned, plan: Plan, block: Block, work: float | None = None, *, is_learned: bool = False
    ) -> Plan:
        """Return the plan with what this block learned; the plan itself if that is no gain or an op has no gradient.
        `work` is that of one sample in all blocks that are learned one after the other; by default in this one.
        `is_learned` says that its roundings have been learned before."""
        from .block_training import BlockTraining

        part = replace(plan.graph, ops=list(block.ops), inputs=list(block.inputs), outputs=list(block.outputs))
        groups = tuple(_held_still(plan, block))
        part_plan = replace(plan, graph=part, groups=groups)
        try:
            training = BlockTraining.of(planned, part_plan, self, is_learned=is_learned)
        except ZeropointError:  # an op that has no gradient
            return plan
        data = self._data(planned, plan, block, self.learned_from)
        checked = self._data(planned, plan, block, lambda most: self.checked[:most])
        learned = training.run(data, checked, *self._schedule(block, work))
        del training, data, checked
        gc.collect()  # what Keras has traced refers to itself, and would stay until later blocks have added theirs
        if learned is None:
            return plan
        values = {**plan.constants.values, **{plan.key(use): value for use, value in learned.values.items()}}
        keys = {**plan.constants.keys, **{use: plan.key(use) for use in learned.values}}
        constants = replace(plan.constants, values=values, keys=keys, grids={**plan.constants.grids, **learned.grids})
        moved = zip(plan.groups, groups, learned.params, strict=True)
        groups = tuple(group if held.fixed else replace(group, params=params) for group, held, params in moved)
        made, refused = settle(replace(plan, constants=constants, groups=groups), self.request.ops)
        return plan if refused else made

    def learned_from(self, most: int) -> Iterator[Row]:
        """Yield the samples, then mixtures of them if all inputs are real numbers: the same ones each time, so that
        they need not be held in memory."""
        rows, rng = self.refiner.samples, np.random.default_rng(self.seed)
        yield from rows[:most]
        if len(rows) > 1 and all(value.dtype.kind == "f" for value in rows[0]):
            count = min(self.mixtures * len(rows), most - len(rows))
            yield from (_mixture(rows, rng) for _ in range(count))

    @property
    def mixtures(self) -> int:
        """The number of mixtures for each sample: fewer for large models, because all of it is run for each block."""
        graph = entry(self.refiner.model).graph
        each = total_macs(graph.ops, self.request.ops) * len(self.refiner.samples)
        runs = MIXING_MACS / max(1, each * max(1, len(blocks_of(graph, self.request.ops))))
        return int(np.clip(runs, 1, MIXTURES))

    def _work(self, block: Block) -> float:
        """Return the multiply-accumulates for learning from one sample."""
        return float(3 * total_macs(block.ops, self.request.ops))

    def _schedule(self, block: Block, work: float | None = None) -> tuple[int, int]:
        """Return the number of training steps for a block, and the batch size."""
        each, (fewest, most) = max(1.0, self._work(block) if work is None else work), STEPS
        batch = next((b for b in BATCHES if b * fewest * each <= MOST_MACS), BATCHES[-1])
        steps = int(np.clip(MOST_MACS / (each * batch), fewest, most))
        return steps, min(batch, max(SMALLEST_BATCH, STEP_BYTES // max(1, block.step_bytes)))

    def _data(
        self, planned: Planned, plan: Plan, block: Block, first_rows: Callable[[int], Iterable[Row]]
    ) -> BlockData:
        """Return the values around a block for the first samples, as many as memory allows."""
        made = CarriedOut.of(planned.model, plan, self.request.ops)
        most = max(2, MOST_BYTES // max(1, 4 * sum(t.size for t in (*block.inputs, *block.outputs))))
        inputs = _values(made.model, made.graph, [_twin(made, t) for t in block.inputs], first_rows(most))
        return BlockData(inputs, _values(planned.model, plan.graph, block.outputs, first_rows(most)))


def _mixture(rows: Sequence[Row], rng: np.random.Generator) -> Row:
    """Return a random point between two of the samples."""
    (one, other), share = rng.choice(len(rows), 2, replace=False), np.float32(rng.random())
    return tuple(share * a + (1 - share) * b for a, b in zip(rows[one], rows[other], strict=True))


def _values(model: Model, graph: Graph, tensors: Sequence[Tensor], rows: Iterable[Row]) -> list[list[Array]]:
    """Return the real values of some tensors, by sample."""
    made = [t for t in tensors if t not in graph.inputs]
    runner = Runner.exposing(model, graph, made) if made else None
    found = []
    for row in rows:
        values = dict(zip(graph.inputs, row, strict=True)) | ({} if runner is None else runner.values(row))
        found.append([np.asarray(real(values[t], t)) for t in tensors])
    return found


def _twin(made: CarriedOut, tensor: Tensor) -> Tensor:
    """Return the tensor of the quantized model that corresponds to a tensor, as the op that produces it leaves it."""
    for op, twin in made.twins.items():
        if tensor in op.outputs:
            return twin.outputs[op.outputs.index(tensor)]
    return made.graph.inputs[made.source.inputs.index(tensor)]


def _held_still(plan: Plan, block: Block) -> Iterator[Group]:
    """Yield the groups of the plan; those that hold tensors from before the block are fixed."""
    place = {op: k for k, op in enumerate(plan.graph.ops)}
    maker = {t: place[op] for op in plan.graph.ops for t in op.outputs}
    start, stop = place[block.ops[0]], place[block.ops[-1]]
    for group in plan.groups:
        made = [maker.get(node.tensor, -1) for node in group.nodes if isinstance(node, Held)]
        is_own = any(start <= k <= stop for k in made) and all(k >= start for k in made)
        yield group if is_own else replace(group, fixed=True)


def _is_learnable(block: Block, plan: Plan) -> bool:
    """Whether there are roundings to learn, values to learn them from, and memory enough."""
    own = set(block.ops)
    has_weights = any(use.op in own for use in learned_uses(plan, plan.constants.grids))
    is_fixed = all(-1 not in (t.shape_signature or t.shape)[1:] for t in block.inputs)
    has_states = any(t is not None and t.is_variable for op in block.ops for t in op.inputs)
    fits = SMALLEST_BATCH * block.step_bytes <= LARGEST_STEP
    return has_weights and is_fixed and not has_states and fits and bool(block.inputs) and bool(block.outputs)
