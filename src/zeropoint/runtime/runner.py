"""The only module that runs LiteRT: a loaded model, and a graph run repeatedly with any shapes and states."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ..dtypes import Array, DType
from ..errors import RuntimeFailure, UnsupportedOp
from ..graph.edit import copy_model, cut_model
from ..graph.model import Graph, Model, Tensor
from ..graph.query import live_bytes
from ..ops.check import check_runnable
from ..ops.delegate_faults import has_delegate_faults
from ..parallel import cores, threads_of_each
from ..tflite import load
from ..tflite.write import chunks
from .child import ChildInterpreter, time_limit
from .interpreter import Clock, Kernels, open_interpreter, timed
from .tflm import MicroSession
from .unit_steps import with_unit_steps

Runtime = Literal["delegate", "optimized", "reference", "tflm"]
"""LiteRT with one of its sets of kernels, or TensorFlow Lite Micro."""

OPEN_SIZES = (8, 32, 128, 512)
"""Sizes that are tried for dynamic dimensions if nothing else determines them."""


class Session:
    """A model loaded into LiteRT.

    `kernels`: "delegate" is what applications get by default (XNNPACK where it applies), "optimized" the builtin
    kernels, "reference" the plain kernels that define the arithmetic. `checked`: the bytes come from our own writer. If
    the file has dynamic input dimensions, tensors are allocated with the first sample or by `resize`, because the model
    may not run with the placeholder sizes in the file. `open_shapes`: any dimension may change.
    """

    def __init__(
        self,
        model: Model | bytes,
        *,
        kernels: Kernels = "delegate",
        threads: int = 1,
        checked: bool = False,
        open_shapes: bool = False,
    ) -> None:
        if isinstance(model, bytes) and not checked:  # the native code trusts offsets
            check_runnable(load(model))
        # The interpreter reads the bytes for as long as it lives.
        self._content = model if isinstance(model, bytes) else loadable(model)
        with _explained():
            self._interpreter = self._loaded(kernels, threads)
            self._read_details()
            self.is_allocated = not open_shapes and not any(-1 in d["shape_signature"] for d in self.inputs)
            if self.is_allocated:
                self._interpreter.allocate_tensors()
                self._read_details()

    def _loaded(self, kernels: Kernels, threads: int) -> Any:
        """Return the interpreter in this process, or in a child process if files are not trusted."""
        seconds = time_limit()
        if seconds is None:
            return open_interpreter(self._content, kernels, threads)
        return ChildInterpreter(self._content, kernels, threads, seconds)

    def _read_details(self) -> None:
        self.inputs: list[dict[str, Any]] = self._interpreter.get_input_details()
        self.outputs: list[dict[str, Any]] = self._interpreter.get_output_details()

    def resize(self, shapes: Sequence[tuple[int, ...]], *, strict: bool = True) -> None:
        """Change the input shapes; with `strict`, only in dimensions that are dynamic in the model."""
        with _explained():
            for detail, shape in zip(self.inputs, shapes, strict=True):
                self._interpreter.resize_tensor_input(detail["index"], list(shape), strict=strict)
            self._interpreter.allocate_tensors()
        self.is_allocated = True
        self._read_details()

    def run(self, sample: Sequence[Array]) -> list[Array]:
        """Run one sample and return copies of the outputs."""
        self.invoke(sample)
        return self.read([d["index"] for d in self.outputs])

    def invoke(self, sample: Sequence[Array]) -> None:
        """Run one sample without reading the outputs; use `views` or `read` for that."""
        if not self.is_allocated:
            self.resize([values.shape for values in sample], strict=False)
        with _explained():
            for detail, value in zip(self.inputs, sample, strict=True):
                self._interpreter.set_tensor(detail["index"], value)
            self._interpreter.invoke()

    def seconds(self, runs: int, clock: Clock = "wall") -> float:
        """Return the seconds that `runs` runs take on the current inputs, without any overhead of Python."""
        with _explained():
            if isinstance(self._interpreter, ChildInterpreter):
                return self._interpreter.timed(runs, clock)
            return timed(self._interpreter.invoke, runs, clock)

    def delegated(self) -> set[int]:
        """Return the positions of the first graph's ops that a delegate runs: those between its inputs and its
        outputs."""
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
        """Return copies of outputs of the last `invoke`, by index."""
        return [self._held(index, self._interpreter.get_tensor) for index in indices]

    def views(self, indices: Sequence[int]) -> Iterator[Array]:
        """Return views of outputs by index in the runtime's own memory, valid until the next `invoke`."""
        for index in indices:
            yield self._held(index, lambda k: self._interpreter.tensor(k)())

    def _held(self, index: int, get: Callable[[int], Array]) -> Array:
        """Return the tensor at `index`. LiteRT's Python API refuses to return empty tensors (ai-edge-litert 2.3)."""
        try:
            return get(index)
        except (RuntimeError, ValueError) as error:
            detail = self._interpreter._get_tensor_details(index, 0)
            if 0 not in detail["shape"]:
                raise RuntimeFailure(f"LiteRT cannot return the values of '{detail['name']}': {error}") from None
            return np.zeros(detail["shape"], detail["dtype"])

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the first graph's tensors in the last run, in file order."""
        found = {d["index"]: tuple(map(int, d["shape"])) for d in self._interpreter.get_tensor_details()}
        return [found[index] for index in sorted(found)]

    def reset(self) -> None:
        """Reset variable tensors to zero, if they are allocated."""
        with _explained():
            if self.is_allocated:
                self._interpreter.reset_all_variables()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Convert LiteRT's exceptions to ours, keeping the one line that matters."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = "; ".join(lines[:2]) or "no reason given"
        if "read_variable" in text and "variable != nullptr" in text:
            text += (
                "; it reads a variable that nothing in the file has assigned: convert the model with its weights frozen"
            )
        lacks_ops = "custom op" in text.lower() or "select tensorflow" in text.lower()
        raise (UnsupportedOp if lacks_ops else RuntimeFailure)(f"LiteRT cannot run this model: {text}") from None


def require_runnable(model: Model) -> None:
    """Raise unless LiteRT loads and runs `model`. Models with unknown custom ops are not run, because only their owners
    can."""
    if any(op.kind == "CUSTOM" for graph in model.graphs for op in graph.ops):
        with contextlib.suppress(UnsupportedOp):
            Session(model)
        return
    run_on_zeros(Session(model, threads=cores()))


def run_on_zeros(session: Session) -> list[tuple[int, ...]]:
    """Run the model on zeros to see whether it runs at all; return the input shapes.

    Dynamic dimensions get the sizes stored in the file, mostly 1; other sizes are tried if the model fails with those.
    """
    try:
        return _run_on_zeros(session, [tuple(d["shape"]) for d in session.inputs])
    except RuntimeFailure:
        if not any(-1 in d["shape_signature"] for d in session.inputs):
            raise
        for size in OPEN_SIZES:
            with contextlib.suppress(RuntimeFailure):
                shapes = [tuple(size if k < 0 else int(k) for k in d["shape_signature"]) for d in session.inputs]
                return _run_on_zeros(session, shapes)
        raise


def _run_on_zeros(session: Session, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    if not session.is_allocated or shapes != [tuple(d["shape"]) for d in session.inputs]:
        session.resize(shapes)
    session.invoke([np.zeros(shape, d["dtype"]) for shape, d in zip(shapes, session.inputs, strict=True)])
    return shapes


def right_kernels(model: Model) -> Kernels:
    """Return the kernels that compute a float model correctly: LiteRT's delegate, unless it is known to be wrong."""
    return "optimized" if has_delegate_faults(model) else "delegate"


def loadable(model: Model, *, checked: bool = False) -> bytes:
    """Return the model as file content. LiteRT's Python API fails on names that are not valid text, so those are
    replaced.

    With `checked`, the model derives from a checked one and is not checked again, which would take as long as writing
    it.
    """
    if not checked:
        check_runnable(model)
    if not all(_is_text(t.name) for t in (*model.main.inputs, *model.main.outputs)):
        model = copy_model(model)
        for tensor in (*model.main.inputs, *model.main.outputs):
            tensor.name = tensor.name if _is_text(tensor.name) else ascii(tensor.name)
    return b"".join(chunks(model, checked=checked))


def _is_text(name: str) -> bool:
    return name == name.encode(errors="replace").decode()


class Runner:
    """The first graph of a model, loaded once and run sample by sample. Not thread-safe.

    A sample is a row of arrays, one for each input; results are read by tensor of `model`. Input shapes may change from
    run to run; with `strict`, only in dynamic dimensions. With `checked`, the model derives from a checked one.
    """

    session: Session | MicroSession

    def __init__(
        self,
        model: Model,
        *,
        kernels: Runtime = "delegate",
        threads: int = 1,
        strict: bool = True,
        checked: bool = False,
    ) -> None:
        self.model, self.outputs = model, tuple(model.main.outputs)
        self._content = loadable(model, checked=checked)
        self._kernels, self._threads, self._strict = kernels, threads, strict
        self._slots: tuple[int, ...] | None = None
        self._in_sequence = False
        tensors = [t for g in model.graphs for t in g.tensors]
        self._has_variables = any(t.is_variable for t in tensors)
        self._has_resources = any(t.dtype is DType.RESOURCE for t in tensors)
        self.reload()

    @classmethod
    def exposing(
        cls,
        model: Model,
        graph: Graph,
        tensors: Sequence[Tensor],
        *,
        kernels: Runtime = "delegate",
        strict: bool = True,
        checked: bool = False,
    ) -> Runner:
        """Return a runner that computes only `tensors` of `graph`. Rows still hold all of the graph's inputs.

        For the delegate, and if shapes cannot change, slices get unit strides, as it takes no others.
        """
        cut, needed = cut_model(model, graph, list(dict.fromkeys(tensors)))
        if strict and kernels == "delegate":
            cut.graphs[0] = with_unit_steps(cut.main)
        threads = 1 if cores() == 1 else threads_of_each(live_bytes(cut.main))
        runner = cls(cut, kernels=kernels, threads=threads, strict=strict, checked=checked)
        runner._slots = tuple(k for k, t in enumerate(graph.inputs) if t in needed)
        return runner

    def keeping_state(self, keep: bool) -> Runner:
        """Set whether consecutive samples form one sequence, for which `begin` keeps the state of the last run; return
        self."""
        self._in_sequence = keep
        return self

    def another(self) -> Runner:
        """Load the same model again, for another thread."""
        runner = copy.copy(self)
        runner.reload()
        return runner

    def reload(self) -> None:
        """Load the file again, because a failed run leaves the interpreter in an unknown state."""
        if self._kernels == "tflm":
            self.session = MicroSession(self._content)
        else:
            self.session = Session(
                self._content, kernels=self._kernels, threads=self._threads, checked=True, open_shapes=not self._strict
            )
        self._shapes: list[tuple[int, ...]] | None = None
        if isinstance(self.session, MicroSession) or self.session.is_allocated:
            self._shapes = [tuple(d["shape"]) for d in self.session.inputs]
        self._index = {t: d["index"] for t, d in zip(self.outputs, self.session.outputs, strict=True)}
        self._is_used = False

    def restart(self) -> None:
        """Reset the state left by earlier runs."""
        if not self._is_used:
            return  # perhaps not allocated yet: dynamic shapes are set by the first sample
        if self._has_resources:
            self.reload()  # LiteRT resets variable tensors, but not what VAR_HANDLE refers to (ai-edge-litert 2.3)
        elif self._has_variables:
            self.session.reset()

    def begin(self) -> None:
        """Prepare for a sample: reset the state, unless the samples form one sequence."""
        if not self._in_sequence:
            self.restart()

    def invoke(self, row: Sequence[Array]) -> None:
        """Run the graph from its current state; read the outputs with `views` or `read`."""
        given = row if self._slots is None else [row[k] for k in self._slots]
        shapes = [a.shape for a in given]
        if shapes != self._shapes:
            self.session.resize(shapes, strict=self._strict)
            self._shapes = shapes
        self._is_used = True
        self.session.invoke(given)

    def run(self, row: Sequence[Array]) -> list[Array]:
        """Run one sample and return copies of all outputs."""
        self.begin()
        self.invoke(row)
        return self.read(self.outputs)

    def values(self, row: Sequence[Array]) -> dict[Tensor, Array]:
        """Run one sample and return copies of all outputs, by tensor."""
        return dict(zip(self.outputs, self.run(row), strict=True))

    def viewed_values(self, row: Sequence[Array]) -> dict[Tensor, Array]:
        """Run one sample and return all outputs, by tensor, as `views`."""
        self.begin()
        self.invoke(row)
        return dict(zip(self.outputs, self.views(self.outputs), strict=True))

    def read(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Return copies of outputs of the last run."""
        return self.session.read([self._index[t] for t in tensors])

    def views(self, tensors: Sequence[Tensor]) -> Iterator[Array]:
        """Return views of outputs of the last run in the runtime's own memory: release them before the next run."""
        return self.session.views([self._index[t] for t in tensors])
