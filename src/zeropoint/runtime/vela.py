"""Vela, Arm's compiler for Ethos-U. It runs in a separate process, because some models crash it."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import MissingExtra, RuntimeFailure
from .child import time_limit
from .device_tools import LeftToCpu, ToolReport

LEFT = re.compile(r"^Warning \(supported operators\) operator: (.+), ofm: '(.*)'\nReason: (.+)$", re.MULTILINE)
MEMORIES = ("sram", "dram", "on_chip_flash", "off_chip_flash")
KIB = 1024


def compile_model(content: bytes, accelerator: str) -> ToolReport:
    """Compile a model for an accelerator (`ethos-u55-128`, ...), with Vela's default system and memory settings."""
    tool = f"ethos-u-vela {require_vela()}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.tflite").write_bytes(content)
        command = [sys.executable, "-m", "ethosu.vela", "--accelerator-config", accelerator]
        try:
            done = subprocess.run(
                [*command, "--output-dir", folder, str(Path(folder) / "model.tflite")],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=time_limit(),
            )
        except subprocess.TimeoutExpired as late:
            raise RuntimeFailure(
                f"Vela did not finish within {late.timeout:.0f} s; the model was not compiled"
            ) from None
        if done.returncode or not (Path(folder) / "model_vela.tflite").exists():
            raise RuntimeFailure(f"Vela cannot compile this model for {accelerator}: {_reason(done)}")
        (summary,) = Path(folder).glob("model_summary_*.csv")
        with summary.open(newline="") as file:
            (row,) = csv.DictReader(file)
    return _report(tool, row, done.stdout)


def require_vela() -> str:
    try:
        return version("ethos-u-vela")
    except PackageNotFoundError:
        raise MissingExtra(
            "Arm's compiler Vela is needed for this: pip install 'zeropoint[ethos-u]' (Python 3.10 to 3.13)"
        ) from None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line that matters from its output, or from the exception that it ended with."""
    if done.returncode < 0:
        return f"it crashed with {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Error\b", line)]
    return (telling or lines or ["no reason given"])[-1]


def _report(tool: str, row: dict[str, str], printed: str) -> ToolReport:
    sram, dram, on_chip, off_chip = (round(float(row[f"{name}_memory_used"]) * KIB) for name in MEMORIES)
    left = tuple(LeftToCpu(kind, output, reason) for kind, output, reason in LEFT.findall(printed))
    notes = (f"Vela's settings: {row['system_config']}, {row['memory_mode']}",)
    cycles, seconds = round(float(row["cycles_total"])), float(row["inference_time"])
    return ToolReport(tool, sram + dram, on_chip + off_chip, cycles, seconds, left, notes)
