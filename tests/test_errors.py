"""Messages speak of arguments in Python and of options on the command line, by one mechanism."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import zeropoint
from zeropoint.errors import argument, call, names_are_listed, speaking_of_options, spelled
from zeropoint.parallel import in_parallel

SOURCE = Path(zeropoint.__file__).parent

SPELLINGS = {
    ("keep_float",): ("keep_float=", "--keep-float"),
    ("effort", "high"): ('effort="high"', "--effort high"),
    ("scale", 1 / 127.5): ("scale=0.0078431", "--scale 0.0078431"),
    ("strict", True): ("strict=True", "--strict"),
    ("keep_state", False): ("keep_state=False", "--reset-state"),
}


@pytest.mark.parametrize(("given", "expected"), SPELLINGS.items(), ids=str)
def test_an_argument_is_an_option_on_the_command_line(given, expected):
    python, shell = expected
    assert argument(*given) == python
    with speaking_of_options():
        assert argument(*given) == shell
    assert argument(*given) == python


def test_a_command_is_a_function_in_python():
    assert call("doctor", "FLOAT", data="DATA") == "zeropoint.doctor(FLOAT, data=DATA)"
    with speaking_of_options():
        assert call("doctor", "FLOAT", data="DATA") == "zeropoint doctor FLOAT --data DATA"
        assert "zeropoint inspect --ops" in names_are_listed()


def test_threads_speak_like_whoever_started_them():
    with speaking_of_options():
        assert in_parallel(lambda _: spelled("python", "shell"), range(3)) == ["shell"] * 3


OPTION = re.compile(r"(?<![\w-])--[a-z]")
MAY_NAME_OPTIONS = {
    "errors.py": "the mechanism itself",
    "sources/data.py": "--transpose is for the command line only",
    "sources/samples.py": "beside what to do in Python",
    "report/simulation.py": "prints what commands show",
    "comparison/metrics.py": "file.py:function is for the command line only",
    "sources/onnx.py": "the options of another program",
    "runtime/vela.py": "the options of another program",
    "runtime/child.py": "beside what it is in Python",
    "report/terminal.py": "prints what commands show",
    "report/quantization.py": "prints what commands show",
}


def texts(path: Path) -> list[str]:
    """The string constants of a module, without its docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare)
    return [node.value for node in found if isinstance(node.value, str)]


def test_only_the_command_line_names_options():
    modules = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "cli"]
    naming = {str(p.relative_to(SOURCE)) for p in modules if any(OPTION.search(text) for text in texts(p))}
    assert naming == set(MAY_NAME_OPTIONS)
