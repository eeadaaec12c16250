"""Measures the arena of a model in a separate process: reads the model from standard input, prints the bytes.

If the model does not run in TensorFlow Lite Micro, the output says why.
"""

from __future__ import annotations

import sys

import numpy as np

from ..errors import RuntimeFailure
from .tflm import MicroSession


def main() -> None:
    try:
        session = MicroSession(sys.stdin.buffer.read())
        session.invoke([np.zeros(d["shape"], d["dtype"]) for d in session.inputs])
        print(session.arena_bytes)
    except RuntimeFailure as error:
        print(error)


if __name__ == "__main__":
    main()
