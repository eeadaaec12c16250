"""`import zeropoint` and `zeropoint --help` pull in nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    *("keras", "tensorflow", "matplotlib", "PIL", "jax", "torch", "ai_edge_litert", "flatbuffers"),
    *("igraph", "jinja2"),
}

PROGRAMS = {
    "import": "import zeropoint",
    "help": """
import contextlib, io
from zeropoint.cli import main
sys.argv = ["zeropoint", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
""",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_nothing_heavy_is_imported(program):
    report = "import json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    code = f"import sys\n{program}\n{report}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads(result.stdout))
    assert "zeropoint" in loaded
    assert not loaded & HEAVY


def test_every_public_name_is_there():
    import zeropoint

    for name in zeropoint.__all__:
        assert getattr(zeropoint, name) is not None
        assert name in dir(zeropoint)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = zeropoint.nonsense


def test_help_on_a_public_function_fits_on_a_few_screens():
    import inspect

    import zeropoint

    functions = [getattr(zeropoint, name) for name in zeropoint.__all__ if inspect.isfunction(getattr(zeropoint, name))]
    assert zeropoint.quantize in functions
    for function in functions:
        assert len(str(inspect.signature(function))) < 2000, function.__name__
