"""Reading and writing a large model against the flatbuffers object API, and how long imports take.

`python -m benchmarks.files [--size-mb 50] [--rounds 9]`
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from zeropoint.tflite import save

from .measure import Times, peak_memory, print_table, take_turns
from .models import layered_model

LAYERS = 300
TIME_GOAL, MEMORY_GOAL, IMPORT_GOAL = 1.2, 0.6, 0.25

Job = Callable[[str, str], object]


def zeropoint_job() -> Job:
    """Imports, then the round trip: a function that reads one file and writes the other."""
    from zeropoint import load, save

    return lambda source, target: save(load(source), target, overwrite=True)


def object_api_job() -> Job:
    """The same through the generated object API, as LiteRT's own tools do it (`Builder(1024)`)."""
    return _object_api(lambda _: 1024)


def object_api_sized_job() -> Job:
    """The same with a builder that is large enough from the start: the best the object API can do."""
    return _object_api(lambda size: size + size // 8)


def _object_api(initial_size: Callable[[int], int]) -> Job:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as generated

    def round_trip(source: str, target: str) -> int:
        content = Path(source).read_bytes()
        model = generated.ModelT.InitFromObj(generated.Model.GetRootAs(content, 0))
        builder = flatbuffers.Builder(initial_size(len(content)))
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return Path(target).write_bytes(builder.Output())

    return round_trip


def compare_files(size: int, rounds: int) -> None:
    preparations = {
        "zeropoint": zeropoint_job,
        "object API": object_api_job,
        "object API, sized builder": object_api_sized_job,
    }
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/model.tflite", f"{folder}/written.tflite"
        written = save(layered_model(size, LAYERS), source)
        print(f"read and write a model of {written / 1e6:.1f} MB, {LAYERS} ops; median of {rounds} rounds\n")
        memory = {
            name: peak_memory(f"benchmarks.files:{prepare.__name__}", source, target)
            for name, prepare in preparations.items()
        }
        jobs = {name: prepare() for name, prepare in preparations.items()}
        times = take_turns({name: partial(job, source, target) for name, job in jobs.items()}, rounds)

    def row(name: str) -> tuple[str, ...]:
        time, peak = times.ratio("zeropoint", name), memory["zeropoint"] / memory[name]
        return (
            name,
            f"{times.median(name) * 1e3:.0f} ms",
            f"{memory[name] / 1e6:.0f} MB",
            *(("", "", "") if name == "zeropoint" else (f"{time:.2f}", f"{peak:.2f}", _verdict(time, peak))),
        )

    goals = f"goal: time ≤ {TIME_GOAL}, memory ≤ {MEMORY_GOAL}"
    print_table(("", "time", "peak memory", "ours/its time", "ours/its memory", goals), [row(n) for n in preparations])


def _verdict(time: float, peak: float) -> str:
    missed = [name for name, met in (("time", time <= TIME_GOAL), ("memory", peak <= MEMORY_GOAL)) if not met]
    return f"missed: {', '.join(missed)}" if missed else "met"


def compare_imports(rounds: int) -> None:
    rival = "import ai_edge_quantizer"
    commands = {
        "python -c pass": ["-c", "pass"],
        "import zeropoint": ["-c", "import zeropoint"],
        "import zeropoint; zeropoint.load": ["-c", "import zeropoint; zeropoint.load"],
        "zeropoint --help": ["-m", "zeropoint", "--help"],
        "import LiteRT's schema": ["-c", "import ai_edge_litert.schema_py_generated"],
    }
    if importlib.util.find_spec("ai_edge_quantizer") is not None:
        commands[rival] = ["-c", rival]
    times = take_turns({name: partial(_run, command) for name, command in commands.items()}, rounds)
    print(f"a fresh interpreter, from start to exit; median of {rounds} rounds\n")
    rows = [(name, f"{times.median(name):.3f} s", _against(times, name, rival)) for name in commands]
    if rival not in commands:
        rows.append((rival, "-", "not installed: pip install ai-edge-quantizer"))
    print_table(("", "time", f"goal: import zeropoint < {IMPORT_GOAL} s"), rows)


def _run(arguments: list[str]) -> None:
    # The quantizer logs on stderr; its exit code tells enough.
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _against(times: Times, name: str, rival: str) -> str:
    notes = []
    if name == "import zeropoint":
        notes.append("met" if times.median(name) < IMPORT_GOAL else "missed")
    if rival in times.rounds and "zeropoint" in name:
        notes.append(f"{times.ratio(name, rival):.3f} of {rival}")
    return ", ".join(notes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading, writing and importing, against other tools.")
    parser.add_argument("--size-mb", type=float, default=50, help="size of the model (default: 50)")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions of each measurement (default: 9)")
    arguments = parser.parse_args()
    compare_files(int(arguments.size_mb * 1e6), arguments.rounds)
    compare_imports(min(arguments.rounds, 5))


if __name__ == "__main__":
    main()
