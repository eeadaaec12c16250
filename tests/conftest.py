"""Settings for the whole suite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .slow import is_slow

# Derandomized: a failure on one machine is a failure on every machine. No deadline: tests do not assert times.
settings.register_profile(
    "zeropoint", derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zeropoint")


GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files in tests/golden anew; read the diff")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Slow files are not even imported for `-m "not slow"`: TensorFlow alone takes seconds in each process."""
    if config.option.markexpr != "not slow" or not collection_path.is_relative_to(config.rootpath):
        return None
    return is_slow(collection_path.relative_to(config.rootpath).as_posix()) or None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Two processes for `-m "not slow"`, since each of them takes seconds for importing all tests."""
    return 2 if config.option.markexpr == "not slow" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests. What needs a browser or JAX is marked as well: a `-m` on the command line replaces that of
    `pyproject.toml`, which leaves these out."""
    for item in items:
        if is_slow(item.nodeid) or item.get_closest_marker("browser") or item.get_closest_marker("jax"):
            item.add_marker("slow")


@pytest.fixture
def golden(request) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden, word for word; with --update-golden, writes it there."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8", newline="\n")
        assert text == path.read_text("utf-8")

    return compare


@pytest.fixture(scope="session")
def digits() -> bytes:
    """The model that comes with the package: written by TensorFlow's converter, not by us."""
    return files("zeropoint").joinpath("data/digits.tflite").read_bytes()


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """The CLI in this process: exit code, stdout, stderr."""
    from zeropoint.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["zeropoint", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call
