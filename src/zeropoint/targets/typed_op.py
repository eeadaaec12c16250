"""An op with the types and parameters of its operands, as targets are asked about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..affine import QuantParams
from ..dtypes import Array, DType
from ..graph.model import BlockScales, Op, Tensor
from ..graph.query import Use
from ..ops import BIAS_TYPE, OPS, Activation, Bias, OpSpec, Untouched, Weight, fused_activation
from ..parallel import cached_property
from ..recipe import Scheme

Form = DType | QuantParams
"""A type, with parameters once these have been chosen."""


@dataclass(frozen=True)
class Operand:
    """A tensor as an op reads or produces it.

    `params` are None for floats, and for integers until they are chosen; `block` is the block size of blockwise
    weights. `is_open`: a dimension is dynamic. The values of a `constant` are those of its tensor: floats if a plan is
    going to quantize them.
    """

    dtype: DType
    shape: tuple[int, ...]
    params: QuantParams | None = None
    block: int | None = None
    is_open: bool = False
    constant: Tensor | None = None

    @classmethod
    def of(cls, tensor: Tensor, form: Form | None = None) -> Operand:
        """Return a tensor as it is in a file, or as it will be in this form."""
        if form is None:
            dtype, params, details = tensor.dtype, tensor.params, tensor.quantization and tensor.quantization.details
            block = details.record.get("blockSize") if isinstance(details, BlockScales) else None
        else:
            dtype, params = (form, None) if isinstance(form, DType) else (form.dtype, form)
            block = None if params is None else params.block
        return cls(dtype, tensor.shape, params, block, tensor.is_dynamic, tensor if tensor.is_constant else None)

    @property
    def data(self) -> Array | None:
        return None if self.constant is None else self.constant.data


@dataclass(frozen=True)
class TypedOp:
    """An op of a file or of a plan: its kind and options, and its operands in the types they will have."""

    op: Op
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    spec: OpSpec | None = None

    @classmethod
    def of_file(
        cls, op: Op, ops: Mapping[str, OpSpec] = OPS, unpacked: Mapping[Tensor, Tensor] | None = None
    ) -> TypedOp:
        """Return an op as it is in a file. `unpacked` maps tensors to the constants they are dequantized from."""
        held = unpacked or {}
        read = [None if t is None else Operand.of(t) for t in op.inputs]
        for slot, tensor in enumerate(op.inputs):
            operand = read[slot]
            if operand is not None and tensor is not None and tensor in held:
                read[slot] = replace(operand, constant=held[tensor])
        return cls(op, tuple(read), tuple(map(Operand.of, op.outputs)), ops.get(op.kind))

    @classmethod
    def of_scheme(cls, op: Op, scheme: Scheme, ops: Mapping[str, OpSpec]) -> TypedOp:
        """Return a float op as `scheme` asks for it, before parameters are chosen."""
        spec = ops.get(op.kind)
        flow = scheme.activations or DType.FLOAT32
        weights = DType.FLOAT32 if scheme.unpacked else scheme.weights or DType.FLOAT32

        def read(use: Use) -> Form:
            role = Untouched() if spec is None else spec.input_role(use.slot)
            if isinstance(role, Weight) or (flow is DType.FLOAT32 and cls._is_held(role, Operand.of(use.tensor))):
                return weights
            return BIAS_TYPE.get(flow, flow) if isinstance(role, Bias) else flow

        return cls.of_plan(op, read, lambda _: flow, ops)

    @classmethod
    def of_plan(
        cls, op: Op, read: Callable[[Use], Form], made: Callable[[Tensor], Form], ops: Mapping[str, OpSpec]
    ) -> TypedOp:
        """Return a float op whose float operands will have these forms."""
        inputs = [
            None if t is None else Operand.of(t, read(Use(op, slot)) if t.dtype is DType.FLOAT32 else None)
            for slot, t in enumerate(op.inputs)
        ]
        outputs = [Operand.of(t, made(t) if t.dtype is DType.FLOAT32 else None) for t in op.outputs]
        return cls(op, tuple(inputs), tuple(outputs), ops.get(op.kind))

    @property
    def kind(self) -> str:
        return self.op.kind

    @property
    def label(self) -> str:
        """The op kind, or the custom code of a custom op."""
        return self.op.label

    @cached_property
    def activations(self) -> DType | None:
        """The type of the activations; for conversions, the type of the input."""
        read = [o for k, o in enumerate(self.inputs) if o is not None and self._flows(k)]
        made = [o for k, o in enumerate(self.outputs) if self.spec is None or self._is_made(k)]
        flowing = [*(o for o in read if o.constant is None), *made, *read, *self.operands]
        return flowing[0].dtype if flowing else None

    def _flows(self, slot: int) -> bool:
        return self.spec is None or isinstance(self.spec.input_role(slot), Activation)

    def _is_made(self, slot: int) -> bool:
        return self.spec is not None and isinstance(self.spec.output_role(slot), Activation)

    @cached_property
    def weights(self) -> Operand | None:
        """The operand that holds trained weights, if the op has any."""
        for slot, operand in enumerate(self.inputs):
            role = None if self.spec is None else self.spec.input_role(slot)
            if operand is not None and (isinstance(role, Weight) or self._is_held(role, operand)):
                return operand
        return None

    @staticmethod
    def _is_held(role: object, operand: Operand) -> bool:
        return operand.constant is not None and isinstance(role, Activation) and role.constant is not None

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*(o for o in self.inputs if o is not None), *self.outputs)

    def input(self, slot: int) -> Operand | None:
        return self.inputs[slot] if slot < len(self.inputs) else None

    def constant(self, slot: int) -> Array | None:
        """Return the values of the input at `slot`, if it is constant."""
        operand = self.input(slot)
        return None if operand is None else operand.data

    @property
    def fused(self) -> str:
        """The fused activation function: NONE, RELU, ..."""
        return fused_activation(self.op).name

    def option(self, name: str, default: Any = None) -> Any:
        return self.op.option(name, default)
