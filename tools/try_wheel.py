"""Build the wheel and the source archive, and try the wheel as a stranger would, on several Pythons.

    python -m tools.try_wheel [--python PYTHON ...] [--model MODEL.tflite]

For each Python (by default the running one) a fresh environment gets the wheel alone, without extras; then
``zeropoint demo`` runs in it, and MODEL (by default the embedded one) is quantized in two modes and inspected. Warnings
are errors. The exit code is 1 if any of it fails. Needs ``hatchling``, and an index to install from. Before a release:

    python -m tools.try_wheel --python python3.10 python3.11 python3.12 python3.13
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = "from hatchling import build; build.build_wheel({0!r}); build.build_sdist({0!r})"
VERSIONS = "import platform, numpy; print(f'Python {platform.python_version()}, NumPy {numpy.__version__}')"


class Failed(Exception):
    """A command that did not end well, and what it said."""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        line = " ".join(str(part) for part in command)
        raise Failed(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def build(folder: Path) -> Path:
    """Both archives, in `folder`; returns the wheel."""
    run(sys.executable, "-c", BUILD.format(str(folder)), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def tried(python: str, wheel: Path, model: Path, folder: Path) -> str:
    """What was run, in one line. All of it in `folder`, far from the source."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    own = folder / "venv" / "bin" / "python"
    run(own, "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=folder)
    start = time.perf_counter()
    zeropoint = (own, "-Werror", "-m", "zeropoint")
    run(*zeropoint, "demo", cwd=folder)
    run(*zeropoint, "quantize", model, "-o", "small.tflite", "--mode", "dynamic", cwd=folder)
    run(*zeropoint, "quantize", model, "-o", "narrow.tflite", "--mode", "weights", "--weight-bits", "4", cwd=folder)
    run(*zeropoint, "inspect", "small.tflite", cwd=folder)
    size, narrow = ((folder / name).stat().st_size for name in ("small.tflite", "narrow.tflite"))
    versions = run(own, "-c", VERSIONS, cwd=folder)
    seconds = time.perf_counter() - start
    whole = model.stat().st_size
    return f"{versions}: demo, {model.name} {whole:,} -> {size:,} (dynamic), {narrow:,} bytes (4 bits), {seconds:.0f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to try it on")
    parser.add_argument("--model", type=Path, default=ROOT / "src" / "zeropoint" / "data" / "digits.tflite")
    options = parser.parse_args(arguments)
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        for file in sorted(Path(folder).iterdir()):
            print(f"{file.name}: {file.stat().st_size:,} bytes")
        for place, python in enumerate(options.python):
            own = Path(folder) / str(place)
            own.mkdir()
            try:
                print(tried(python, wheel, options.model.resolve(), own), flush=True)
            except Failed as failure:
                print(f"{python}: {failure}", file=sys.stderr, flush=True)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
