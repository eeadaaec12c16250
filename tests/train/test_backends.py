"""The tests of this folder on other backends: Keras takes one for each process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PARTS = ("test_fake_quant.py", "test_compute.py", "test_trainable.py", "test_distill.py")


@pytest.mark.jax
@pytest.mark.parametrize("part", PARTS)
def test_training_works_on_jax(part):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    for name in [n for n in environment if n.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(HERE / part)]
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
