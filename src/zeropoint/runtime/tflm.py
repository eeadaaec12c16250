"""TensorFlow Lite Micro's interpreter: runs a model as a microcontroller would, and measures its memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import MissingExtra, RuntimeFailure
from ..graph.model import Model
from ..streams import captured
from ..tflite import load
from .child import time_limit
from .interpreter import Clock, timed

TOTAL = re.compile(r"Arena allocation total (\d+) bytes")
PLENTY = 1 << 20
"""Bytes of arena in addition to the tensors; memory that is never touched costs nothing."""


class MicroSession:
    """A model loaded into TensorFlow Lite Micro, with the interface of `Session`. Indices are positions."""

    def __init__(self, content: bytes, arena: int | None = None) -> None:
        runtime = require_tflm()
        self._content = content  # the interpreter reads it for as long as it lives
        model = load(content)
        size = _plenty(model) if arena is None else arena
        self._interpreter = _explained(lambda: runtime.Interpreter.from_bytes(content, arena_size=size))
        self.inputs = [self._interpreter.get_input_details(k) | {"index": k} for k in range(len(model.main.inputs))]
        self.outputs = [self._interpreter.get_output_details(k) | {"index": k} for k in range(len(model.main.outputs))]
        self._sample: list[Array] = []

    @property
    def arena_bytes(self) -> int:
        """The bytes of arena in use. Pointers are half as wide on a microcontroller, so this is an upper bound
        there."""
        with captured() as printed:
            self._interpreter.print_allocations()
        found = TOTAL.search("\n".join(printed))
        if found is None:
            raise RuntimeFailure("TensorFlow Lite Micro did not report the size of its arena; try another version")
        return int(found[1])

    def resize(self, shapes: Sequence[tuple[int, ...]], *, strict: bool = True) -> None:  # noqa: ARG002
        """Raise if the shapes differ from the model's: TensorFlow Lite Micro cannot change them."""
        made = [tuple(map(int, d["shape"])) for d in self.inputs]
        raise RuntimeFailure(f"TensorFlow Lite Micro cannot change shapes: this model takes {made}, not {list(shapes)}")

    def invoke(self, sample: Sequence[Array]) -> None:
        self._sample = [np.asarray(value, order="C") for value in sample]
        _explained(self._repeat)

    def _repeat(self) -> None:
        """Set the inputs again, because intermediate tensors may have overwritten them, and run."""
        for place, value in enumerate(self._sample):
            self._interpreter.set_input(value, place)
        self._interpreter.invoke()

    def seconds(self, runs: int, clock: Clock = "wall") -> float:
        """Return the seconds that `runs` runs take on the current inputs."""
        return timed(self._repeat, runs, clock)

    def read(self, indices: Sequence[int]) -> list[Array]:
        return [self._interpreter.get_output(place) for place in indices]

    def views(self, indices: Sequence[int]) -> Iterator[Array]:
        return iter(self.read(indices))

    def run(self, sample: Sequence[Array]) -> list[Array]:
        self.invoke(sample)
        return self.read(range(len(self.outputs)))

    def reset(self) -> None:
        self._interpreter.reset()

    def delegated(self) -> set[int]:
        return set()


def require_tflm() -> Any:
    try:
        from tflite_micro import runtime
    except ImportError:
        raise MissingExtra(
            "TensorFlow Lite Micro is needed for this: pip install 'zeropoint[tflm]' (there are wheels for Linux on "
            "x86-64 only)"
        ) from None
    return runtime


def version() -> str:
    """Return which build of tflite-micro is installed."""
    from importlib.metadata import version as installed

    require_tflm()
    return f"tflite-micro {installed('tflite-micro')}"


def _plenty(model: Model) -> int:
    """Return an arena size that suffices for all tensors, scratch memory, and a record for each op."""
    tensors = [t for graph in model.graphs for t in graph.tensors]
    flowing = sum(8 * max(1, t.size) for t in tensors if not t.is_constant)
    unpacked = sum(t.size for t in tensors if t.is_constant and t.dtype.bits < 8)
    return PLENTY + 4 * flowing + 2 * unpacked + 1024 * len(tensors)


def _explained(call: Any) -> Any:
    """Convert TensorFlow Lite Micro's exceptions to ours, with its printed output, which holds the reason."""
    printed: list[str] = []
    try:
        with captured() as printed:
            return call()
    except (RuntimeError, ValueError) as error:
        reason = "; ".join(line.strip() for line in printed[:2]) or str(error)
        raise RuntimeFailure(f"TensorFlow Lite Micro cannot run this model: {reason}") from None


def measure_arena(content: bytes) -> int:
    """Load and run a model on zeros in a separate process; return the bytes of arena that it uses.

    Untrusted files are run here first, because the native code checks little.
    """
    require_tflm()
    command = [sys.executable, "-m", f"{__package__}.tflm_arena"]
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=False, timeout=time_limit())
    except subprocess.TimeoutExpired as late:
        raise RuntimeFailure(f"TensorFlow Lite Micro did not finish within {late.timeout:.0f} s") from None
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode < 0:
        raise RuntimeFailure(f"TensorFlow Lite Micro crashed on this model (signal {-done.returncode})")
    if not text.isdigit():
        raise RuntimeFailure(text or done.stderr.decode(errors="replace").strip()[-300:])
    return int(text)
