"""Whether the measure of error is right: does it put models in the order of their tasks' own metrics?

`python -m benchmarks.error_measure --zoo FOLDER [--tasks NAME ...] [--keep FOLDER] [--page FILE.md] [--plot FILE.svg]`

Each task's float model is quantized in a dozen ways, good and bad, on two thirds of its calibration samples. The error
of each version is measured on the other third, as the verdict does, and compared with the score of the task's metric on
its own evaluation samples. A model has lost little if it keeps 99 % of its score, something down to 95 %, and much
below: the verdict should say good, look at it, broken. `--keep` stores scores, so that another run is fast.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zeropoint
from zeropoint.bench.bench import Bench
from zeropoint.bench.verdict import Judgement
from zeropoint.errors import ZeropointError
from zeropoint.sources.data import samples_from
from zeropoint.sources.models import load
from zeropoint.sources.ports import entry
from zeropoint.tuning.metric import rank_correlation

from .measure import print_table
from .rows import commit
from .zoo import Task, load_zoo

SAMPLES, MEASURED_ON, LEAST_APART = 200, 64, 3
"""How many samples a task gives at most, and on how many of them errors are measured: one in three, to the maximum."""

LITTLE, SOMETHING = 0.01, 0.05
"""Shares of the float model's score: what is lost beyond the first is not good, beyond the second not usable."""

LEVELS = ("good", "doubtful", "broken")

WAYS: Mapping[str, Mapping[str, Any]] = {
    "int8": {},
    "int8, quick": {"effort": "quick"},
    "int8, percentile 99": {"effort": "quick", "range": "percentile", "percentile": 99.0},
    "int8, 4 samples": {"effort": "quick", "few": 4},
    "int8, 4-bit weights": {"weight_bits": 4},
    "int8, 4-bit weights, quick": {"effort": "quick", "weight_bits": 4},
    "int8, 3-bit weights, quick": {"effort": "quick", "weight_bits": 3},
    "all in integers": {"effort": "quick", "target": "integer"},
    "int16x8": {"mode": "int16x8", "effort": "quick"},
    "dynamic": {"mode": "dynamic"},
    "dynamic, 4-bit weights": {"mode": "dynamic", "effort": "quick", "weight_bits": 4},
    "weights, 4 bits": {"mode": "weights", "effort": "quick", "weight_bits": 4},
    "weights, 3 bits": {"mode": "weights", "effort": "quick", "weight_bits": 3},
    "weights, 2 bits": {"mode": "weights", "effort": "quick", "weight_bits": 2},
}
"""Ways to quantize, from good to hopeless. Only those in integers need samples."""


@dataclass(frozen=True)
class Version:
    """A quantized version of a task's model: its score, the share of the float score that is lost, and the verdict."""

    task: str
    way: str
    score: float
    lost: float
    error: float
    level: str
    kinds: tuple[str, ...]
    errors: tuple[float, ...]

    @property
    def true_level(self) -> str:
        return LEVELS[(self.lost > LITTLE) + (self.lost > SOMETHING)]

    @property
    def steps(self) -> int:
        """How many levels the verdict is from the truth."""
        said = LEVELS.index(self.level) if self.level in LEVELS else 1
        return abs(said - LEVELS.index(self.true_level))


def versions(name: str, task: Task, keep: Path | None) -> list[Version]:
    """Return all versions of a task's model, judged and scored."""
    given = list(task.calibration(SAMPLES))
    apart = given[::LEAST_APART][:MEASURED_ON]
    used = [sample for k, sample in enumerate(given) if k % LEAST_APART or k // LEAST_APART >= MEASURED_ON]
    model = load(str(task.model))
    judgement = Judgement.of(Bench(model, samples_from(apart, entry(model))), on_all=True)
    float_score, found, seen = _scored(task, Path(task.model).read_bytes(), keep), list[Version](), set[bytes]()
    for way, options in WAYS.items():
        more = {"mode": "int8", "few": None, **options}
        mode, few = more.pop("mode"), more.pop("few")
        data = used[:few] if mode.startswith("int") else None
        try:
            made = zeropoint.quantize(model, mode, data, record=False, **more).model
        except ZeropointError as error:
            print(f"{name}, {way}: {error}", flush=True)
            continue
        content = zeropoint.to_bytes(made)
        if content in seen:
            continue  # the same model, made in another way
        seen.add(content)
        score, (verdict, _) = _scored(task, content, keep), judgement.verdict(made)
        lost, kinds = (float_score - score) / abs(float_score), tuple(one.kind for one in verdict.outputs)
        errors = tuple(one.error for one in verdict.outputs)
        assert verdict.error is not None
        found.append(Version(name, way, score, lost, verdict.error, verdict.level, kinds, errors))
        print(f"{name}, {way}: {score:.4f}, lost {lost:.2%}; {verdict}", flush=True)
    return found


def _scored(task: Task, content: bytes, keep: Path | None) -> float:
    """Return the score of a model, from `keep` if it is there."""
    mark = hashlib.sha256(content + str(task.model).encode()).hexdigest()[:24]
    if keep is not None and (keep / mark).is_file():
        return float((keep / mark).read_text())
    score = float(task.evaluate(content))
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / mark).write_text(repr(score))
    return score


@dataclass(frozen=True)
class Agreement:
    """How far errors and verdicts agree with a task's metric."""

    task: str
    kinds: tuple[str, ...]
    versions: int
    correlation: float
    steps: float
    bad_called_good: int

    @classmethod
    def of(cls, found: Sequence[Version]) -> Agreement:
        order = rank_correlation([-one.error for one in found], [one.score for one in found])
        steps = float(np.mean([one.steps for one in found]))
        bad = sum(one.level == "good" and one.lost > SOMETHING for one in found)
        return cls(found[0].task, found[0].kinds, len(found), order, steps, bad)


COLUMNS = ("task", "kinds of outputs", "versions", "rank correlation", "levels off", "bad called good")


def rows_of(agreements: Sequence[Agreement]) -> list[list[str]]:
    return [
        [
            one.task,
            ", ".join(dict.fromkeys(one.kinds)),
            f"{one.versions}",
            f"{one.correlation:.3f}",
            f"{one.steps:.2f}",
            f"{one.bad_called_good}",
        ]
        for one in agreements
    ]


def summary(agreements: Sequence[Agreement]) -> str:
    """All tasks in a sentence."""
    count = sum(one.versions for one in agreements)
    steps = sum(one.steps * one.versions for one in agreements) / count
    bad, order = sum(one.bad_called_good for one in agreements), np.mean([one.correlation for one in agreements])
    return (
        f"mean rank correlation {order:.3f}; verdicts {steps:.3f} levels off per version; "
        f"{bad} of {count} versions are called good although they lose more than {SOMETHING:.0%}"
    )


def page(found: Sequence[Sequence[Version]], agreements: Sequence[Agreement]) -> str:
    """The results as a page of Markdown."""
    lines = [
        "# The measure of error against the metrics of tasks",
        "",
        f"By `python -m benchmarks.error_measure` at commit {commit()}: {summary(agreements)}. [How error is measured]"
        "(../error.md) says what the columns mean. Below, a line for each version has its score, the share of the "
        "float score that is lost, the error, and what the verdict says.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---:|---:|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows_of(agreements)),
    ]
    for one in found:
        lines += [
            "",
            f"## {one[0].task}",
            "",
            "| version | score | lost | error | verdict |",
            "|---|---:|---:|---:|---|",
        ]
        lines += [f"| {v.way} | {v.score:.4f} | {v.lost:.2%} | {v.error:.4f} | {v.level} |" for v in one]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", required=True, help="a folder with a Python file that lists TASKS")
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--keep", type=Path, help="a folder for scores")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    zoo = load_zoo(given.zoo)
    found = list[list[Version]]()
    for name in given.tasks or zoo:
        samples = zoo[name].calibration(1)
        if isinstance(samples, Mapping):
            print(f"{name}: left out, because it has several signatures", flush=True)
            continue
        found.append(versions(name, zoo[name], given.keep))
    agreements = [Agreement.of(one) for one in found]
    print_table(list(COLUMNS), rows_of(agreements))
    print(summary(agreements))
    if given.page is not None:
        given.page.write_text(page(found, agreements), encoding="utf-8")
    if given.plot is not None:
        plot([version for one in found for version in one], given.plot)


def plot(every: Sequence[Version], path: Path) -> None:
    """Draw what each version has lost of its score over its error, a panel for each task."""
    import matplotlib.pyplot as plt

    colors = {"good": "#0b6e4f", "doubtful": "#c9a227", "broken": "#b5179e", "unknown": "#7d8597"}
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "zeropoint", "font.size": 8}
    names, across = list(dict.fromkeys(one.task for one in every)), 4
    down = -(-len(names) // across)
    figure, panels = plt.subplots(
        down, across, figsize=(10, 2.1 * down), layout="constrained", sharex=True, sharey=True
    )
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for name, axes in zip(names, panels.flat, strict=False):
        for one in (one for one in every if one.task == name):
            axes.plot(max(one.error, 1e-4), min(max(one.lost, 1e-3), 1), "o", color=colors[one.level], markersize=4)
        axes.set(xscale="log", yscale="log", title=name)
        axes.minorticks_off()
        axes.axhspan(1e-3, LITTLE, color=colors["good"], alpha=0.08)
        axes.axhspan(SOMETHING, 1, color=colors["broken"], alpha=0.08)
    figure.supxlabel("error by the measure (colors: what the verdict says)")
    figure.supylabel("share of the score that is lost")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
