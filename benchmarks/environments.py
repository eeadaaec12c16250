"""Environments for tools that need other versions of packages than ours: one virtual environment for each.

`python -m benchmarks.environments FOLDER [mct nncf tfmot]`, then `python -m benchmarks ... --environments FOLDER`
(tfmot: `python -m benchmarks.training ... --environments FOLDER`)

Environments that are there and work are kept. The exit code is 1 if a tool cannot be had; the reason is printed, and
its rows will say that it has no environment.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .apart import ROOT, Failed

OURS = f"{ROOT}[images]"
"""The zoo's tasks and this package run in every environment."""


@dataclass(frozen=True)
class Environment:
    """What to install, and the versions of Python that it can be installed on, the best first."""

    packages: tuple[str, ...]
    pythons: tuple[str, ...]
    check: str
    """A program that ends well if the tool works."""


ENVIRONMENTS: Mapping[str, Environment] = {
    "mct": Environment(
        ("model-compression-toolkit==2.6.1", "tensorflow==2.15.1"),  # the last TensorFlow with Keras 2 inside
        ("3.11", "3.10"),
        "import model_compression_toolkit.ptq as p; p.keras_post_training_quantization",
    ),
    "nncf": Environment(
        ("nncf==3.4.0", "openvino==2026.4.1"),
        ("3.11", "3.12", "3.13", "3.10"),
        "import nncf, openvino; nncf.quantize, openvino.convert_model",
    ),
    "tfmot": Environment(
        ("tensorflow-model-optimization==0.8.0", "tensorflow==2.15.1", "tf_keras==2.15.1"),
        ("3.11", "3.10"),
        "import tensorflow_model_optimization as t; t.quantization.keras.quantize_model",
    ),
}


def python_of(folder: Path, name: str) -> str | None:
    """The Python of a tool's environment, if it was made."""
    path = (folder / name / ("Scripts" if sys.platform == "win32" else "bin") / "python").absolute()
    return str(path) if path.exists() else None


def make(folder: Path, name: str) -> str:
    """Make an environment, unless it is there; returns its Python."""
    wanted = ENVIRONMENTS[name]
    present = python_of(folder, name)
    if present is not None and _works(present, wanted):
        return present
    shutil.rmtree(folder / name, ignore_errors=True)
    _run(_interpreter(wanted.pythons), "-m", "venv", str(folder / name))
    made = python_of(folder, name)
    assert made is not None
    _run(made, "-m", "pip", "install", "--quiet", *wanted.packages, OURS)
    _run(made, "-c", wanted.check)
    return made


def _works(python: str, wanted: Environment) -> bool:
    try:
        _run(python, "-c", wanted.check)
    except Failed:
        return False
    return True


def _interpreter(versions: Sequence[str]) -> str:
    """A Python of one of these versions: this one, or one on the path."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" in versions:
        return sys.executable
    for version in versions:
        if (found := shutil.which(f"python{version}")) is not None:
            return found
    raise Failed(f"needs Python {' or '.join(versions)}; none is on the path")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise Failed(said[-1] if said else f"{' '.join(command[1:4])} ended with exit code {done.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environments", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="where to make them")
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(ENVIRONMENTS)} (default: all)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in ENVIRONMENTS]:
        print(f"error: there is no environment {unknown[0]!r}; choose from {', '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    code = 0
    for name in options.names or ENVIRONMENTS:
        try:
            make(options.folder, name)
            print(f"{name}: ready ({', '.join(ENVIRONMENTS[name].packages)})")
        except Failed as failure:  # noqa: PERF203  # each by itself
            print(f"{name}: cannot be had here: {failure}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
