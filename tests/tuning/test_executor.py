"""Wherever trials are carried out, the results are the same, and a process that dies costs one attempt."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from zeropoint.bench import bench as bench_module
from zeropoint.calibration import Settings
from zeropoint.calibration.collect import collect_stats
from zeropoint.demo import digits as digits_data
from zeropoint.demo import digits_model
from zeropoint.errors import InvalidRecipe, MissingExtra
from zeropoint.recipe import preset
from zeropoint.tuning.executor import DIED, InProcess, Processes, executor, uninterrupted
from zeropoint.tuning.trial import Configuration, Outcome, Workpiece

CANDIDATES = [Configuration(mode, preset(mode)) for mode in ("int8", "dynamic", "float16")]


def workpiece() -> Workpiece:
    data = digits_data()
    rows = tuple((image[None],) for image in data["test_images"][:8])
    return Workpiece(digits_model(), [image[None] for image in data["calibration"][:16]], rows, "cpu", Settings())


def found(outcomes) -> list[tuple[int, bytes, list[bytes], str]]:
    """What has to be equal, by place."""
    return sorted((k, o.content, [row[0].tobytes() for row in o.outputs], o.refusal) for k, o in outcomes)


@dataclass(frozen=True)
class Fragile(Workpiece):
    """Its process is killed while it carries out some candidate, as often as there are files in a folder to remove."""

    lives: str = ""

    def carry_out(self, candidate: Configuration) -> Outcome:
        left = sorted(Path(self.lives).iterdir()) if candidate.label == "dynamic" else []
        if left:
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().carry_out(candidate)


def fragile(folder: Path, deaths: int) -> Fragile:
    for k in range(deaths):
        (folder / str(k)).touch()
    plain = workpiece()
    return Fragile(plain.model, plain.calibration, plain.rows, plain.target, plain.settings, lives=str(folder))


@pytest.mark.parametrize("deaths", [1, 3])
def test_processes_give_the_same_even_if_one_dies(tmp_path, deaths):
    here = found(InProcess(workpiece()).outcomes(CANDIDATES))
    with executor(fragile(tmp_path, deaths), workers=2) as processes:
        assert isinstance(processes, Processes)
        apart = found(processes.outcomes(CANDIDATES))
    if deaths == 3:
        here[1] = (1, b"", [], DIED)
    assert apart == here


def test_ctrl_c_waits_while_processes_are_started():
    """One that is half started would show a traceback of its own; those that run end at once."""
    reached = []

    def start() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached
    program = "import os, signal; from zeropoint.tuning.executor import _receive; _receive(None, 1)"
    with uninterrupted():  # as a process is started
        command = [sys.executable, "-c", f"{program}; os.kill(os.getpid(), signal.SIGINT); print('lives')"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_samples_are_measured_once_for_all_trials(monkeypatch):
    """Trials that hold the same samples back share statistics; each makes the same bytes as by itself."""
    asked = []
    monkeypatch.setattr(
        bench_module, "collect_stats", lambda *given, **named: asked.append(1) or collect_stats(*given, **named)
    )
    shared = workpiece()
    candidates = [*CANDIDATES[:2], replace(CANDIDATES[0], label="int8, high effort", effort="high")]
    together = [shared.carry_out(candidate).content for candidate in candidates]
    assert len(asked) == 1
    assert together == [workpiece().carry_out(candidate).content for candidate in candidates]
    assert len(pickle.dumps(shared)) == len(pickle.dumps(workpiece())), "others measure for themselves"


def test_a_refusal_is_an_outcome():
    ((_, outcome),) = InProcess(workpiece()).outcomes([Configuration("none", preset("int8", 2))])
    assert outcome.content or outcome.refusal
    bad = Workpiece(digits_model(), [np.zeros((1, 9, 9, 1), np.float32)], (), "cpu", Settings())
    ((_, outcome),) = InProcess(bad).outcomes(CANDIDATES[:1])
    assert "does not fit" in outcome.refusal


def test_bad_places_are_refused(monkeypatch):
    with pytest.raises(InvalidRecipe, match="workers"):
        executor(workpiece(), workers=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"zeropoint\[ray\]"):
        executor(workpiece(), on="ray")


ON_TWO_NODES = """
import json, sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import zeropoint
from tests.tuning.test_executor import CANDIDATES, digits_data, digits_model, found, fragile, workpiece
from zeropoint.errors import RuntimeFailure
from zeropoint.tuning.executor import InProcess, executor

try:
    executor(workpiece(), on="127.0.0.1:1")
    reached = "reached"
except RuntimeFailure as error:
    reached = str(error)
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
here = found(InProcess(workpiece()).outcomes(CANDIDATES))
with executor(fragile(Path(sys.argv[1]), 1), on=nodes.address) as on_ray:
    there = found(on_ray.outcomes(CANDIDATES))
    count = len([n for n in ray.nodes() if n["Alive"]])
samples = [image[None] for image in digits_data()["calibration"][:48]]
files = []
for on in (None, nodes.address):
    zeropoint.calibrate(digits_model(), samples, zeropoint.Settings(on=on)).save(f"{len(files)}.stats")
    files.append(Path(f"{len(files)}.stats").read_bytes())
nodes.shutdown()
print(json.dumps({"trials": here == there, "nodes": count, "stats": files[0] == files[1],
                  "deaths": 1 - len(list(Path(sys.argv[1]).iterdir())), "reached": reached}))
"""


def test_a_cluster_of_two_nodes_gives_the_same(tmp_path):
    """In a process of its own: Ray takes over signals, and starts others."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
    lives = tmp_path / "lives"
    lives.mkdir()
    command = [sys.executable, "-c", ON_TWO_NODES, str(lives)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "cannot reach the Ray cluster at 127.0.0.1:1" in told.pop("reached")
    assert told == {"trials": True, "nodes": 2, "stats": True, "deaths": 1}
