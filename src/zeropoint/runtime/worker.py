"""The child process that runs LiteRT for a parent that does not trust a file. It reads calls and writes results.

It does not outlive the parent, whose end closes the stream of calls, and a call that takes too long ends it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..dtypes import Array
from ..errors import ZeropointError
from .interpreter import interpreter_class, open_interpreter, timed
from .messages import Message, receive, send

LEAST_WORTHY = "1000"
"""Linux's out-of-memory score adjustment: this process is killed first."""


def serve() -> None:
    """Execute calls until the stream ends."""
    calls, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of native code must not get between the messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then ends this process
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(LEAST_WORTHY)
    interpreter_class()  # slow to import, so the parent can do other work meanwhile
    _Server(results).listen(calls)


class _Server:
    def __init__(self, results: IO[bytes]) -> None:
        self._results = results
        self._interpreter: Any = None

    def listen(self, calls: IO[bytes]) -> None:
        while True:
            try:
                message, arrays = receive(calls)
            except EOFError:
                return
            faulthandler.dump_traceback_later(message["seconds"], exit=True)
            try:
                reply, found = self._result(message, arrays)
            except ZeropointError as error:
                reply, found = {"refused": type(error).__name__, "text": str(error)}, []
            except Exception as error:  # any exception of LiteRT or TensorFlow is passed to the caller
                reply, found = {"error": f"{error}" or type(error).__name__}, []
            faulthandler.cancel_dump_traceback_later()
            send(self._results, reply, found)

    def _result(self, message: Message, arrays: list[Array]) -> tuple[Message, list[Array]]:
        value: Any = None
        given = iter(arrays)
        for name, arguments in message["calls"]:
            if name == "open":
                self._interpreter = None  # release the old model first, so that there are never two in memory
                self._interpreter = open_interpreter(next(given).tobytes(), *arguments)
            elif name == "close":
                self._interpreter = None
            elif name == "set_tensor":
                self._interpreter.set_tensor(*arguments, next(given))
            elif name == "timed":
                value = timed(self._interpreter.invoke, *arguments)
            elif name == "get_tensor":
                return {"value": None}, [self._interpreter.get_tensor(*arguments)]
            else:
                value = getattr(self._interpreter, name)(*arguments)
        return {"value": _plain(value)}, []


def _plain(value: Any) -> Any:
    """Convert tensor and op details to JSON values. Types are sent by name."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, type):
        return np.dtype(value).str
    return value
