"""The command `tune`."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRecipe
from . import shared
from .command import CheckFailed, Screen, flag, option

if TYPE_CHECKING:
    from ..tuning.budget import Budget, Objective
    from ..tuning.result import Tuned
    from ..tuning.store import Store
    from ..tuning.tune import SearchSettings

MOST_WORKERS = 4
"""Maximum number of processes by default, however many cores there are: each holds the samples."""


@dataclass(frozen=True)
class ScoreOptions:
    """What models are calibrated and scored on."""

    data: str = option(..., "DATA", "Calibration samples: .npz, .npy, a folder of images, or file.py:name.")
    evaluation: str | None = option(
        None, "DATA", "Evaluation samples; by default those not used to calibrate.", "--eval"
    )
    labels: Path | None = option(None, "Y.npy", "The class of each evaluation sample, or what --metric takes.")
    metric: str | None = option(None, "METRIC", "top1, top5, agreement, snr, or file.py:name, of (outputs, labels).")
    lower_is_better: bool = flag("A lower score of --metric file.py:name is better.")

    def truth(self) -> Any:
        from ..sources.data import read_labels

        return None if self.labels is None else read_labels(self.labels)


@dataclass(frozen=True)
class BudgetOptions:
    """What a model may lose and cost, and what to optimize within that."""

    max_drop: str | None = option(None, "POINTS", "What the score may lose: absolute, or relative, such as 1%.")
    min_metric: float | None = option(None, "SCORE", "The score must be at least this good.")
    max_size: str | None = option(None, "BYTES", "File size in bytes, or such as 200kB.")
    max_latency: str | None = option(None, "TIME", "Time of one run on this machine, such as 5ms.")
    max_ram: str | None = option(None, "BYTES", "RAM as reported by the target's tool.")
    max_cycles: int | None = option(None, "N", "Cycles as reported by the target's tool.")
    smallest: bool = flag("Find the smallest model within the budget (the default).")
    fastest: bool = flag("Find the fastest model on this machine.")
    front: bool = flag("Find the Pareto front of size and latency.")
    target: str | None = shared.target_option()

    def budget(self) -> Budget:
        from ..tuning.budget import Budget

        return Budget(self.max_drop, self.min_metric, self.max_size, self.max_latency, self.max_ram, self.max_cycles)

    def objective(self) -> Objective:
        asked: list[Objective] = []
        asked += ["smallest"] * self.smallest
        asked += ["fastest"] * self.fastest
        asked += ["front"] * self.front
        if len(asked) > 1:
            raise InvalidRecipe(f"--{asked[0]} and --{asked[1]} contradict each other; give one of them")
        return asked[0] if asked else "smallest"


@dataclass(frozen=True)
class TrialOptions:
    """How long to search, and where."""

    trials: int = option(20, "N", "Score at most this many models.", min=1)
    seconds: float | None = option(None, "SECONDS", "Start no trial after this many seconds.", "--time-limit", min=0)
    store: Path | None = option(None, "DIR", "Folder that stores trials (default: OUT.trials).")
    workers: int | None = option(None, "N", "Processes; by default one for each core, at most 4.", min=1)
    on: str | None = option(None, "CLUSTER", "ray, or the address of a Ray cluster.")
    allow_training: bool = flag("Train the best few that lose too much, on --data; needs Keras.")
    training_steps: int = option(500, "N", "Number of batches to train each on.", min=1)
    in_process: bool = flag(
        "Run models in this process: slightly faster, but a damaged file can crash it.", "--trusted"
    )

    def settings(self, store: Path) -> SearchSettings:
        from ..parallel import cores
        from ..tuning.tune import SearchSettings

        workers = min(cores(), MOST_WORKERS) if self.workers is None else self.workers
        where = (self.trials, self.seconds, store, workers, self.on)
        return SearchSettings(*where, self.allow_training, self.training_steps)


@dataclass(frozen=True)
class TunedOutputs:
    """Where the results go."""

    output: Path | None = option(
        None, "OUT", "Where to write the best .tflite; its recipe goes next to it.", "--output", "-o"
    )
    closest: bool = flag("If no model meets the budget, write the closest one.")
    dry_run: bool = flag("Print what would be tried, and write nothing.")
    report: Path | None = option(None, "OUT.html", "Write a page with all trials and their recipes.")
    as_json: bool = flag("Print the log of all trials as JSON.", "--json")
    overwrite: bool = flag(shared.OVERWRITE_HELP)

    def path(self) -> Path:
        if self.output is None:
            raise InvalidRecipe("name the output file with -o, or print only the search tree with --dry-run")
        return self.output

    def recipe_path(self) -> Path:
        return self.path().with_suffix(".toml")


def tune(
    screen: Screen,
    model: shared.ModelArgument,
    outputs: TunedOutputs,
    score: ScoreOptions,
    budget: BudgetOptions,
    search: TrialOptions,
    samples: shared.SampleOptions,
) -> None:
    """Find the smallest or fastest quantized model within an accuracy budget.

    Half of the evaluation samples guide the search; the final score is measured on the other half. Trials are stored
    next to OUT, so that the same command resumes where it stopped. Ctrl-C takes the best so far.

    Exits with 1 if no model meets the budget, and then writes none unless --closest is given.

    Examples:
      zeropoint tune model.tflite -o best.tflite --data calibration.npz \\
        --eval eval.npz --labels y.npy --max-drop 0.5
      zeropoint tune model.tflite -o best.tflite --data samples.npz \\
        --metric eval.py:accuracy --max-drop 1% --fastest --report tune.html
      zeropoint tune model.tflite --data samples.npz --max-drop 0.5 --dry-run
    """
    from ..calibration import Settings
    from ..report.tuning import live_table, print_tuned
    from ..runtime import isolated
    from ..sources.models import size_of
    from ..tuning.store import Store
    from ..tuning.tree import estimated_lines
    from ..tuning.tune import tune as find

    limits, objective = budget.budget(), budget.objective()
    if outputs.dry_run:
        source = shared.load_model(model, screen)
        known = source, size_of(model, source), objective, budget.target, search.allow_training
        for line in estimated_lines(*known):
            print(line)
        return
    path, folder = outputs.path(), search.store or Path(f"{outputs.output}.trials")
    inputs = (model, score.data, score.evaluation, score.labels)
    truth = score.truth()
    source = shared.load_model(model, screen)
    calibration = samples.sampled(source, score.data)
    evaluation = None if score.evaluation is None else samples.sampled(source, score.evaluation).data.samples
    replaced = outputs.overwrite or _ours(folder, (path, outputs.recipe_path(), outputs.report))
    pages = shared.PageOptions(outputs.report, replaced)
    pages.require(path, outputs.recipe_path(), inputs=inputs)
    isolation = contextlib.nullcontext() if search.in_process else isolated()
    with isolation, live_table(screen.beside(outputs.as_json)) as progress:
        tuned = find(
            source,
            calibration.data.samples,
            budget=limits,
            evaluation=evaluation,
            labels=truth,
            metric=score.metric,
            lower_is_better=score.lower_is_better,
            objective=objective,
            target=budget.target,
            settings=Settings(samples.limit, keep_state=samples.state_is_kept),
            search=search.settings(folder),
            progress=progress,
        )
    command = _command(model, outputs, score, samples, tuned)
    _write(tuned, outputs, replaced, Store.at(folder), command, screen)
    if outputs.as_json:
        screen.json({**tuned.to_json(), "command": command})
    print_tuned(tuned, screen.beside(outputs.as_json))
    if not tuned.met:
        raise CheckFailed(f"{tuned.lines[-1]}{_next_step(tuned, outputs, search)}")


def _ours(folder: Path, paths: tuple[Path | None, ...]) -> bool:
    """Whether all files that are in the way were left by an earlier run of this search."""
    from ..tuning.store import MARK, Store

    existing = [path for path in paths if path is not None and path.exists()]
    return (folder / MARK).is_file() and all(map(Store.at(folder).wrote, existing))


def _command(
    model: Path, outputs: TunedOutputs, score: ScoreOptions, samples: shared.SampleOptions, tuned: Tuned
) -> str:
    """Return the command that makes exactly the same model again."""
    steps, effort = (
        (0, "standard") if tuned.chosen is None else (tuned.chosen.candidate.steps, tuned.chosen.candidate.effort)
    )
    words: list[object] = [
        "zeropoint",
        "train" if steps else "quantize",
        model,
        "-o",
        outputs.path(),
        "--data",
        score.data,
    ]
    words += ["--recipe", outputs.recipe_path()]
    images = {"--scale": samples.scale, "--offset": samples.offset, "--mean": samples.mean, "--std": samples.std}
    for name, value in {**images, "--limit": tuned.limit, "--steps": steps or None}.items():
        words += [] if value is None else [name, value]
    flags = ("transpose",) if steps else ("transpose", "keep-state", "reset-state")
    words += [f"--{name}" for name in flags if getattr(samples, name.replace("-", "_"))]
    words += [] if effort == "standard" else ["--effort", effort]
    return shlex.join(map(str, words))


def _write(tuned: Tuned, outputs: TunedOutputs, replaced: bool, store: Store, command: str, screen: Screen) -> None:
    """Write the model and its recipe, if it meets the budget or the closest is accepted; and the page."""
    from ..files import write_whole
    from ..report.terminal import Printer
    from ..report.tuning import save_tuning_page

    printer, path, written = Printer(screen.beside(outputs.as_json)), outputs.path(), []
    taken = tuned.chosen if tuned.met or outputs.closest else None
    if taken is not None:
        write_whole(path, [taken.content], overwrite=replaced)
        write_whole(outputs.recipe_path(), [tuned.recipe_text.encode()], overwrite=replaced)
        written += [path, outputs.recipe_path()]
        printer.entry("Wrote", f"{path}, and its recipe {outputs.recipe_path()}; the same again:")
        printer.line(f"  {command}")
    if outputs.report is not None:
        save_tuning_page(tuned, path.name, command if taken is not None else "", outputs.report, overwrite=replaced)
        written.append(outputs.report)
        printer.entry("Report", str(outputs.report))
    store.remember(*written)


def _next_step(tuned: Tuned, outputs: TunedOutputs, search: TrialOptions) -> str:
    if tuned.chosen is None:
        return ""
    if outputs.closest:
        return f"; {outputs.path()} is the closest"
    more = "more --training-steps" if search.allow_training else "--allow-training"
    return f"; --closest writes it, a larger budget or {more} may do better"
