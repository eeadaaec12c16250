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


def test_quantizing_imports_no_modules_that_it_does_not_need(tmp_path):
    """Those of NumPy and of Python that take megabytes of a process which needs few."""
    from zeropoint import save

    from .nets import Net, normal

    net = Net()
    hidden = net.conv(net.input(1, 8, 8, 4), normal(8, 1, 1, 4))
    save(net.model(net.conv(net("RELU", [hidden]), normal(4, 1, 1, 8))), tmp_path / "model.tflite")
    program = """
import json, sys
import numpy as np
import zeropoint
samples = [(np.full((1, 8, 8, 4), k, np.float32),) for k in range(4)]
zeropoint.quantize("model.tflite", data=samples)
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=tmp_path)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "zeropoint.improve.search" in loaded
    assert not loaded & {"numpy.ma", "numpy.random", "statistics", "decimal", "html", "zeropoint.bench.latency"}
