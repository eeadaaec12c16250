"""Settings for the whole suite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Derandomized: a failure on one machine is a failure on every machine. No deadline: tests do not assert times.
settings.register_profile(
    "zeropoint", derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zeropoint")


GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files in tests/golden anew; read the diff")


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
