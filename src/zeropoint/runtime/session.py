"""The one place that runs LiteRT."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from ..dtypes import Array
from ..errors import RuntimeFailure, UnsupportedOp
from ..graph.model import Model
from ..parallel import cores
from ..streams import quiet_stderr
from ..tflite import load, to_bytes

Kernels = Literal["delegate", "optimized", "reference"]
RESOLVERS = {"delegate": "AUTO", "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}


class Session:
    """A model loaded into LiteRT.

    `kernels`: "delegate" is what applications get by default (XNNPACK where it applies), "optimized" the builtin
    kernels, "reference" the plain ones that define the arithmetic. `checked`: these bytes come from our own writer.
    """

    def __init__(
        self, model: Model | bytes, *, kernels: Kernels = "delegate", threads: int = 1, checked: bool = False
    ) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        if isinstance(model, bytes) and not checked:
            load(model)  # the native code trusts offsets; nothing reaches it that our reader rejects
        resolver = OpResolverType[RESOLVERS[kernels]]
        # The interpreter reads the bytes for as long as it lives.
        self._content = model if isinstance(model, bytes) else to_bytes(model)
        make = partial(Interpreter, num_threads=threads, experimental_op_resolver_type=resolver)
        with _explained(), quiet_stderr():
            self._interpreter = self._loaded(model, lambda content: make(model_content=content))
            self._interpreter.allocate_tensors()
        self._read_details()

    def _loaded(self, model: Model | bytes, make: Callable[[bytes], Any]) -> Any:
        """An interpreter of the whole model, or one that goes from piece to piece where LiteRT lacks ops."""
        if b"Flex" in self._content:
            from ..sources.flex import PiecewiseInterpreter, has_flex_ops

            source = load(model) if isinstance(model, bytes) else model
            if has_flex_ops(source):
                return PiecewiseInterpreter(source, make)
        return make(self._content)

    def _read_details(self) -> None:
        self.inputs: list[dict[str, Any]] = self._interpreter.get_input_details()
        self.outputs: list[dict[str, Any]] = self._interpreter.get_output_details()

    def resize(self, shapes: Sequence[tuple[int, ...]], *, strict: bool = True) -> None:
        """Give the inputs other shapes; with `strict`, in dimensions only that the model leaves open."""
        with _explained(), quiet_stderr():
            for detail, shape in zip(self.inputs, shapes, strict=True):
                self._interpreter.resize_tensor_input(detail["index"], list(shape), strict=strict)
            self._interpreter.allocate_tensors()
        self._read_details()

    def run(self, sample: Sequence[Array]) -> list[Array]:
        """The outputs for one sample, as copies."""
        self.invoke(sample)
        return self.read([d["index"] for d in self.outputs])

    def invoke(self, sample: Sequence[Array]) -> None:
        """Run one sample and leave the outputs inside; `views` reads them."""
        with _explained():
            for detail, value in zip(self.inputs, sample, strict=True):
                self._interpreter.set_tensor(detail["index"], value)
            self._interpreter.invoke()

    def repeat(self) -> None:
        """Run again on what the inputs hold: nothing but the model takes time."""
        with _explained():
            self._interpreter.invoke()

    def delegated(self) -> set[int]:
        """Places of the first graph's ops that a delegate took over: those between its inputs and its outputs."""
        details = self._interpreter._get_ops_details()
        makers = {int(t): d for d in details if d["op_name"] != "DELEGATE" for t in d["outputs"]}
        taken: set[int] = set()
        for part in (d for d in details if d["op_name"] == "DELEGATE"):
            ends, waiting = set(map(int, part["inputs"])), list(map(int, part["outputs"]))
            while waiting:
                tensor = waiting.pop()
                if tensor in makers and tensor not in ends and makers[tensor]["index"] not in taken:
                    taken.add(int(makers[tensor]["index"]))
                    waiting += map(int, makers[tensor]["inputs"])
        return taken

    def read(self, indices: Sequence[int]) -> list[Array]:
        """Outputs of the last `invoke` by index, as copies."""
        return [self._interpreter.get_tensor(index) for index in indices]

    def views(self, indices: Sequence[int]) -> Iterator[Array]:
        """Outputs by index into the runtime's own memory: valid until the next call of `invoke`."""
        for index in indices:
            yield self._interpreter.tensor(index)()

    def reset(self) -> None:
        """Zero the state of variable tensors."""
        self._interpreter.reset_all_variables()


def interpreter_class() -> Any:
    """LiteRT's own interpreter, for whoever runs models by hand."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """LiteRT's exceptions as ours, with the one line that matters."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = "; ".join(lines[:2]) or "no reason given"
        if "custom op" in text.lower() or "select tensorflow" in text.lower():
            raise UnsupportedOp(f"LiteRT cannot run this model: {text}") from None
        raise RuntimeFailure(f"LiteRT cannot run this model: {text}") from None


def require_runnable(model: Model) -> None:
    """Raise unless LiteRT loads and runs `model`. Models with ops from elsewhere can only be run by their owners."""
    if any(op.kind == "CUSTOM" for graph in model.graphs for op in graph.ops):
        with contextlib.suppress(UnsupportedOp):
            Session(model)
        return
    session = Session(model, threads=cores())
    session.invoke(zeros_like_inputs(session))


def zeros_like_inputs(session: Session) -> list[Array]:
    """A sample of zeros, to see whether a model runs at all."""
    return [np.zeros(d["shape"], d["dtype"]) for d in session.inputs]
