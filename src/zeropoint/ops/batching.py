"""Whether a graph treats the rows of a batch independently, so that it can be run with any batch size.

Files are often made for batch size 1. As long as every op keeps the first dimension in place, and neither mixes nor
selects rows, the same graph computes a batch. A reshape may fold rows together: the first dimension is then a multiple
of the batch size, with the rows of one sample adjacent. The op table has the rule of each op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..graph.model import Op, Tensor
from .spec import OpSpec
from .table import OPS

Free = frozenset[Tensor]


def free_tensors(inputs: Sequence[Tensor], sequence: Sequence[Op], ops: Mapping[str, OpSpec] = OPS) -> Free:
    """Return the tensors whose first dimension is proportional to the batch; none if the batch size must stay as
    recorded."""
    leading = {t.shape[:1] for t in inputs}
    if len(leading) != 1 or () in leading:
        return frozenset()
    ((batch,),) = leading
    walk = _Walk(ops, batch, set(inputs))
    return frozenset(walk.free) if all(walk.takes(op) for op in sequence) else frozenset()


@dataclass
class _Walk:
    """Walks through the ops. `shapes` are values read from the shape of a batched tensor: valid only for the recorded
    batch."""

    ops: Mapping[str, OpSpec]
    batch: int
    free: set[Tensor]
    shapes: set[Tensor] = field(default_factory=set)

    def takes(self, op: Op) -> bool:
        """Whether the op allows any number of rows, given the ops before it."""
        spec = self.ops.get(op.label)
        operands = [t for t in op.inputs if t is not None]
        touched = any(t in self.free for t in operands)
        if spec is not None and spec.reads_shapes_only:
            self.shapes.update(op.outputs if touched else ())
            return True
        if op.kind != "RESHAPE" and any(t in self.shapes for t in operands):
            self.shapes.update(op.outputs)
            return not touched and all(t in self.shapes or t.is_constant for t in operands)
        return not touched or self._keeps_rows(op, spec)

    def _keeps_rows(self, op: Op, spec: OpSpec | None) -> bool:
        if spec is None or spec.batch is None or any(not t.shape for t in op.outputs) or not spec.batch(op, self.free):
            return False
        self.free.update(op.outputs)
        return op.kind != "RESHAPE" or op.outputs[0].shape[0] % self.batch == 0
