"""What is published: the wheel and the source archive, one version, one grammar, shell completion."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import zeropoint

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "zeropoint"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with both archives, built as an installer would, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    code = f"from hatchling import build; build.build_wheel({str(folder)!r}); build.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    assert path.name == f"zeropoint-{zeropoint.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def sources(built) -> set[str]:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    top = f"zeropoint-{zeropoint.__version__}/"
    assert all(name.startswith(top) for name in names)
    return {name.removeprefix(top) for name in names}


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    return message_from_bytes(wheel.read(f"zeropoint-{zeropoint.__version__}.dist-info/METADATA"))


def package_files() -> set[str]:
    """Whatever lies in the package, below `src`, except what Python and linters leave there."""
    found = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    return {name for name in found if not re.search(r"(^|/)(\.|__pycache__/)", name)}


# Contents.


def test_the_wheel_is_the_package_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == package_files()
    assert {"zeropoint/py.typed", "zeropoint/data/digits.tflite", "zeropoint/report/assets/page.html"} <= names


def test_the_wheel_holds_the_licence(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_source_archive_can_be_built_and_tested(sources):
    assert {f"src/{name}" for name in package_files()} <= sources
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert tests <= sources
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "PKG-INFO"} <= sources


def test_nothing_private_is_published(wheel, sources):
    for name in {*wheel.namelist(), *sources}:
        assert not re.search(r"(^|/)(\.git/|\.venv|\.hypothesis|__pycache__|\.mypy_cache|\.ci)", name), name


def test_metadata_says_what_is_needed(metadata):
    assert metadata["Name"] == "zeropoint"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    needed = {re.split(r"[<>=;\s\[]", line)[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {"ai-edge-litert", "flatbuffers", "numpy", "rich", "threadpoolctl", "tomli", "typer"}
    stated = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier") if ":: Python :: 3." in line}
    assert stated == {"3.10", "3.11", "3.12", "3.13"}
    assert "# zeropoint" in metadata.get_payload()


def test_the_wheel_alone_runs(wheel, tmp_path):
    wheel.extractall(tmp_path / "unpacked")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout

    assert str(tmp_path) in python("-c", "import zeropoint; print(zeropoint.__file__)")
    assert "int8" in python("-m", "zeropoint", "demo")


def test_the_command_is_installed(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "zeropoint = zeropoint.__main__:run" in wheel.read(name).decode()


# One version.


def test_the_version_is_written_once(metadata):
    assert metadata["Version"] == zeropoint.__version__
    quoted = re.compile(rf"""["']{re.escape(zeropoint.__version__)}["']""")
    places = [p for p in (*SOURCE.rglob("*.py"), ROOT / "pyproject.toml") if quoted.search(p.read_text("utf-8"))]
    assert places == [SOURCE / "__init__.py"]


def test_the_changelog_knows_the_version():
    assert f"\n## {zeropoint.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


# The oldest Python. Linters look closer: ruff and mypy are told the same version.


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_oldest_python_can_read_it(path):
    ast.parse(path.read_text("utf-8"), feature_version=(3, 10))


# Shell completion.

SHELLS = {"bash": "complete ", "zsh": "#compdef zeropoint", "fish": "complete --command zeropoint"}


def zeropoint_script(*arguments: str, **environment: str) -> str:
    """What the installed command prints: completion goes by its name."""
    code = "import sys; sys.argv[0] = 'zeropoint'; from zeropoint.cli import main; main()"
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_are_for_this_command(shell):
    # Typer finds out the shell by itself; in a test there is none.
    shown = zeropoint_script("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert SHELLS[shell] in shown
    assert "_ZEROPOINT_COMPLETE" in shown


COMPLETED = {
    "zeropoint qu": {"quantize"},
    "zeropoint quantize --mo": {"--mode", "--model-explorer"},
    "zeropoint quantize --mode ": {"int8", "int16x8", "uint8", "dynamic", "weights", "float16"},
    "zeropoint doctor --range p": {"percentile"},
    "zeropoint quantize --effort ": {"quick", "standard", "high", "max"},
    "zeropoint train --input-type u": {"uint8"},
    "zeropoint inspect --q": {"--quiet"},
}


@pytest.mark.parametrize(("typed", "offered"), COMPLETED.items(), ids=COMPLETED)
def test_completion_offers_what_can_follow(typed, offered):
    count = str(len(typed.split(" ")) - 1)
    shown = zeropoint_script(_ZEROPOINT_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=count)
    assert set(shown.split()) == offered
