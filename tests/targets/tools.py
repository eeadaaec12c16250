"""Devices' tools, asked about many models by a small process: each model gets a copy of it, for some end theirs.

Run as a process of its own: pickled (name of a function here, what to give it) on standard input, answers as output.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zeropoint.errors import ZeropointError
from zeropoint.streams import captured


def ask_all(function: Any, items: Sequence[Any]) -> list[Any]:
    """`function(item)` for each; of one that ends its process, the signal."""
    command = [sys.executable, "-m", __name__]
    question = pickle.dumps((function.__name__, list(items)))
    return pickle.loads(subprocess.run(command, input=question, stdout=subprocess.PIPE, check=True).stdout)


def outputs_in_tflm(item: tuple[bytes, list[tuple[Any, ...]]]) -> list[list[Any]] | str:
    """The outputs for each sample, or what the interpreter says."""
    from zeropoint.runtime.tflm import MicroSession

    content, samples = item
    try:
        session = MicroSession(content)
        made = []
        for sample in samples:
            session.reset()
            made.append(session.run(sample))
        return made
    except (ZeropointError, ValueError) as error:
        return str(error)


def left_by_vela(item: tuple[str, bytes]) -> list[str] | str:
    """The outputs of ops that Vela leaves to the CPU, or what it says as it fails."""
    from ethosu.vela import vela

    from zeropoint.runtime.vela import LEFT

    accelerator, content = item
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "m.tflite").write_bytes(content)
        try:
            with captured() as printed:
                vela.main(["--accelerator-config", accelerator, "--output-dir", folder, f"{folder}/m.tflite"])
        except (Exception, SystemExit) as error:
            return f"{error} {' '.join(printed[-2:])}"
        if not (Path(folder) / "m_vela.tflite").exists():
            return " ".join(printed[-2:])
    return [output.removesuffix("_act") for _, output, _ in LEFT.findall("\n".join(printed))]


def _apart(function: Any, item: Any) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with os.fdopen(write, "wb") as answers:
                pickle.dump(function(item), answers)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return f"died with signal {status & 127}" if status or not answer else pickle.loads(answer)


def main() -> None:
    name, items = pickle.loads(sys.stdin.buffer.read())
    function = globals()[name]
    if not isinstance(_apart(function, items[0]), str):
        function(items[0])  # loads what all need
    answers = [_apart(function, item) for item in items]
    sys.stdout.buffer.write(pickle.dumps(answers))


if __name__ == "__main__":
    main()
