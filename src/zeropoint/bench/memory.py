"""Measures memory in a separate process: reads a model from standard input, prints the additional bytes it needs.

Only Linux reports the peak since a given moment; elsewhere the process fails, and the caller reports it as unknown.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROCESS = Path("/proc/self")


def kilobytes(name: str) -> int:
    fields = dict(line.split(":", 1) for line in (PROCESS / "status").read_text().splitlines())
    return int(fields[name].removesuffix("kB"))


def main() -> None:
    from ..runtime import Session, interpreter_class, run_on_zeros

    content = sys.stdin.buffer.read()
    interpreter_class()
    (PROCESS / "clear_refs").write_text("5")  # the peak counts from here
    before = kilobytes("VmRSS")
    session = Session(content)
    run_on_zeros(session)
    session.seconds(1)
    print(max(0, kilobytes("VmHWM") - before) * 1024)


if __name__ == "__main__":
    main()
