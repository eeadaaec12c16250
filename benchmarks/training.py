"""Training with quantization in the loop, on the zoo: scores before and after, and the time of a step.

`KERAS_BACKEND=tensorflow python -m benchmarks.training --zoo ../shared/zoo [--only NAME] [--seeds 3] [-o results.json]`

Scores are of the exported models in LiteRT; all have the float model for a teacher. `resnet8` trains on 5,000 labelled
images, `kws` on the 500 labelled samples of its calibration set, `mobilenet` on 200 images without labels. With
`--environments FOLDER` (see `benchmarks.environments`) tfmot trains `resnet8` in 8 bits, too: on the same images, for
the same steps, with the same teacher.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import zeropoint
from zeropoint.recipe import Effort
from zeropoint.train import Goal, QuantSettings, Schedule, distill, parity, trainable

from .apart import elsewhere
from .environments import python_of
from .measure import print_table, take_turns
from .tfmot import Training, trained
from .zoo import load_zoo

STEP_GOALS = {"learned ranges": 1.3, "averaged ranges": 1.3, "4-bit weights": 1.4}
EFFORTS: tuple[Effort, ...] = ("standard", "high")
"""Of post-training quantization, to compare with."""

RESNET8, KWS, MOBILENET = "resnet8_cifar10", "kws_dscnn", "mobilenetv1_025_224"
WITH_LABELS = Goal(loss="sparse_categorical_crossentropy")
BLOCKS = replace(WITH_LABELS, inner=("ADD",))  # where blocks of a residual network end
FEW_LABELS = replace(WITH_LABELS, teacher=0.9)  # which are soon learned by heart
LAYERS = Goal(inner=("CONV_2D",), inner_weight=5.0)


@dataclass(frozen=True)
class Case:
    """One network in some bits: weights of so many, or `train_bits`; `goal_score` is what it should reach."""

    name: str
    task: str
    schedule: Schedule
    goal: Goal = field(default_factory=Goal)
    weight_bits: int = 8
    train_bits: str | None = None
    goal_score: float | None = None
    rivals: bool = False
    """Whether other tools train it as well."""

    @property
    def bits(self) -> Mapping[str, Any]:
        """For `distill`: few bits start from quick effort, others from high effort."""
        if self.train_bits is not None:
            return {"train_bits": self.train_bits}
        return {
            "mode": "int8",
            "weight_bits": self.weight_bits,
            "effort": "high" if self.weight_bits < 8 else "standard",
        }


IMAGES = Schedule(314, 32, held_back=0.06, mirror=True)  # two passes over the images that are not held back
LONG = replace(IMAGES, steps=1500, shift=2)
LONGER = replace(LONG, steps=4000, checks=10)
LONGEST = replace(LONGER, steps=9000, shift=4)
SOUNDS = Schedule(1200, 50, held_back=0.1, mix=0.5, shift=(5, 0))  # by up to 0.1 seconds

CASES = (
    Case("resnet8, 8 bits", RESNET8, replace(IMAGES, shift=2), WITH_LABELS, goal_score=0.877, rivals=True),
    Case(
        "resnet8, 4-bit weights, no labels",
        RESNET8,
        replace(IMAGES, steps=2500, shift=2, mix=0.5, checks=10),
        Goal(inner=("ADD",)),
        weight_bits=4,
        goal_score=0.868,
    ),
    Case("resnet8, w2a8", RESNET8, LONG, BLOCKS, train_bits="w2a8", goal_score=0.84),
    Case(
        "resnet8, ternary", RESNET8, LONGEST, replace(BLOCKS, inner_weight=3.0), train_bits="ternary", goal_score=0.84
    ),
    Case("resnet8, binary", RESNET8, LONGER, BLOCKS, train_bits="binary", goal_score=0.80),
    Case("kws, w2a8", KWS, replace(SOUNDS, steps=2000, mix=0.7), FEW_LABELS, train_bits="w2a8", goal_score=0.905),
    Case("kws, w4a4", KWS, replace(SOUNDS, learning_rate=3e-3), FEW_LABELS, train_bits="w4a4", goal_score=0.915),
    Case("mobilenet, 8 bits", MOBILENET, Schedule(120, 16, 3e-5, mirror=True), goal_score=0.585),
    Case("mobilenet, 4-bit weights", MOBILENET, Schedule(600, 16, mirror=True), LAYERS, weight_bits=4, goal_score=0.45),
)


def samples_of(case: Case, task: Any, folder: Path) -> list[Any]:
    """Pairs of inputs and labels, or inputs alone."""
    if case.task == RESNET8:
        with np.load(folder / "data" / "cifar10_train5k.npz") as file:
            images, labels = file["x"].astype(np.float32), file["y"].reshape(-1)
        pairs = [(x[None], int(y)) for x, y in zip(images, labels, strict=True)]
    elif case.goal.is_labelled:
        rows, labels = task.samples("calib")
        pairs = [(row[0], int(label)) for row, label in zip(rows, labels, strict=True)]
    else:
        return list(task.calibration(200))
    return pairs if case.goal.is_labelled else [inputs for inputs, _ in pairs]


def run_case(case: Case, task: Any, folder: Path, seeds: int, tfmot: str | None = None) -> dict[str, Any]:
    """Scores of the float model, of post-training quantization where it has these bits, and of the trained models;
    `tfmot` is the Python that has tfmot."""
    samples = samples_of(case, task, folder)
    plain = [sample[0] if case.goal.is_labelled else sample for sample in samples][:200]
    before = {}
    for effort in EFFORTS if case.train_bits is None else ():
        made = zeropoint.quantize(task.model, "int8", data=plain, weight_bits=case.weight_bits, effort=effort)
        before[effort] = task.evaluate(zeropoint.to_bytes(made.model))
    runs = [_run(case, task, samples, plain, seed) for seed in range(seeds)]
    scores = [run["score"] for run in runs]
    others = [_run_tfmot(case, task, samples, seed, tfmot) for seed in range(seeds) if case.rivals and tfmot]
    row = {
        "case": case.name,
        "float": task.float_score,
        **before,
        "trained": statistics.mean(scores),
        "spread": statistics.stdev(scores) if seeds > 1 else None,
        "goal": case.goal_score,
        "steps": case.schedule.steps,
        "runs": runs,
        "tfmot": statistics.mean(others) if others else None,
        "tfmot runs": others,
    }
    print(json.dumps(row), flush=True)
    return row


def _run(case: Case, task: Any, samples: list[Any], plain: list[Any], seed: int) -> dict[str, Any]:
    start = time.process_time()

    def progress(step: int, loss: float) -> None:
        if step % 100 == 0:
            print(f"  {case.name}: step {step}, loss {loss:.4f}, {time.process_time() - start:.0f} s", flush=True)

    schedule = replace(case.schedule, seed=seed)
    done = distill(task.model, samples, schedule=schedule, goal=case.goal, progress=progress, **case.bits)
    seconds = time.process_time() - start
    (agreement,) = parity(trainable_twin(done.trained), done.result, plain, limit=20)
    return {
        "seed": seed,
        "score": task.evaluate(zeropoint.to_bytes(done.result.model)),
        "start": None if case.train_bits else task.evaluate(zeropoint.to_bytes(done.start.model)),
        "seconds": seconds,
        "training": str(done.training),
        "parity": str(agreement),
    }


def _run_tfmot(case: Case, task: Any, samples: list[Any], seed: int, python: str) -> float:
    """The score of what tfmot makes of the same network, samples and schedule."""
    images, labels = (np.stack(column) for column in zip(*((x[0], y) for x, y in samples), strict=True))
    training = Training(case.schedule.steps, case.schedule.batch, case.schedule.held_back, seed)
    return float(task.evaluate(elsewhere(python, trained, task.model, images, labels, training)))


def trainable_twin(trained: Any) -> Any:
    """The trained graph with the outputs of the file, softmax and all."""
    from zeropoint.train.backend import array_of

    blueprint = trained.blueprint
    twin = type(trained)(replace(blueprint, outputs=tuple(blueprint.plan.graph.outputs)))
    for variable, source in zip(twin.weights, trained.weights, strict=True):
        variable.assign(array_of(source))
    return twin


def step_times(task: Any, batch: int, rounds: int) -> Mapping[str, float]:
    """Processor time of a training step with fake quantization, as a multiple of one without."""
    import keras

    rows = task.calibration(batch)
    inputs = np.concatenate([row[0] for row in rows])
    stats = zeropoint.calibrate(task.model, rows)
    jobs: dict[str, Callable[[], object]] = {}
    variants: Mapping[str, Mapping[str, Any]] = {
        "float": {"quantize": False},
        "learned ranges": {},
        "averaged ranges": {"settings": QuantSettings(ranges="average")},
        "4-bit weights": {"weight_bits": 4},
    }
    for name, options in variants.items():
        net = trainable(task.model, "int8", stats, logits=True, **options)
        target = np.zeros(net(inputs).shape, np.float32)
        net.compile(optimizer=keras.optimizers.Adam(1e-5), loss="mse", jit_compile=False)
        net.train_on_batch(inputs, target)
        jobs[name] = lambda net=net, target=target: net.train_on_batch(inputs, target)  # type: ignore[misc]
    times = take_turns(jobs, rounds, clock=time.process_time)  # which other work on the machine hardly moves
    return {name: times.ratio(name, "float") for name in jobs}


def use_one_thread() -> None:
    """For times of the processor: threads that wait for each other would count as work. Before anything else."""
    import keras

    if keras.backend.backend() == "tensorflow":
        from tensorflow import config

        config.threading.set_intra_op_parallelism_threads(1)
        config.threading.set_inter_op_parallelism_threads(1)


def _shown(score: float | None) -> str:
    return "" if score is None else f"{score:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, required=True)
    parser.add_argument(
        "--only", action="append", help="cases whose name starts so; 'time, NAME' for the time of a step"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how often each case is trained")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--environments", type=Path, help="a folder that `python -m benchmarks.environments` filled")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    tasks = load_zoo(options.zoo)
    if options.only is not None and all(part.startswith("time") for part in options.only):
        use_one_thread()

    def asked(name: str) -> bool:
        return options.only is None or any(name.startswith(part) for part in options.only)

    tfmot = None if options.environments is None else python_of(options.environments, "tfmot")
    rows = [run_case(case, tasks[case.task], options.zoo, options.seeds, tfmot) for case in CASES if asked(case.name)]
    times = {}
    for name, batch in ((RESNET8, 64), (MOBILENET, 16)):
        if asked(f"time, {name}"):
            times[name] = step_times(tasks[name], batch, options.rounds)
    header = ("case", "float", *EFFORTS, "trained", "spread", "goal", "tfmot", "how")
    print_table(
        header,
        [(row["case"], *(_shown(row.get(k)) for k in header[1:-1]), row["runs"][0]["training"]) for row in rows],
    )
    for name, ratios in times.items():
        print_table(
            (f"time of a step, {name}", "times float", "goal"),
            [(what, f"{ratio:.2f}", str(STEP_GOALS.get(what, ""))) for what, ratio in ratios.items()],
        )
    if options.output is not None:
        options.output.write_text(json.dumps({"scores": rows, "times": times}, indent=1))


if __name__ == "__main__":
    main()
