"""Training with quantization in the loop, on the zoo: scores before and after, and the time of a step.

`KERAS_BACKEND=tensorflow python -m benchmarks.training --zoo ../shared/zoo [--only NAME] [-o results.json]`

Scores are of the exported models in LiteRT. `resnet8` trains on labelled images, `mobilenet` on the calibration images
without labels; both have the float model for a teacher.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import zeropoint
from zeropoint.recipe import Effort
from zeropoint.train import Goal, QuantSettings, Schedule, distill, parity, trainable

from .measure import print_table, take_turns
from .zoo import load_zoo

STEP_GOALS = {"learned ranges": 1.3, "averaged ranges": 1.3, "4-bit weights": 1.4}
EFFORTS: tuple[Effort, ...] = ("standard", "high")
"""Of post-training quantization, to compare with; training starts from the last."""

LABELS = "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Case:
    """One training run; `goal_score` is what it should reach."""

    name: str
    task: str
    weight_bits: int = 8
    labelled: bool = False
    goal_score: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    goal: Goal = field(default_factory=Goal)
    settings: QuantSettings = field(default_factory=QuantSettings)


WITH_LABELS = Goal(inner=("ADD",), loss=LABELS, teacher=0.9)
LAYERS = Goal(inner=("CONV_2D",), inner_weight=5.0)

CASES = (
    Case("resnet8, 8 bits", "resnet8_cifar10", 8, True, None, Schedule(300, 64, 1e-4, 0.06, mirror=True), WITH_LABELS),
    Case(
        "resnet8, 4-bit weights",
        "resnet8_cifar10",
        4,
        True,
        0.868,
        Schedule(1500, 64, 1e-3, 0.06, mirror=True),
        WITH_LABELS,
    ),
    Case(
        "resnet8, 2-bit weights",
        "resnet8_cifar10",
        4,
        True,
        None,
        Schedule(1500, 64, 2e-3, 0.06, mirror=True),
        WITH_LABELS,
        QuantSettings(weight_bits=2),
    ),
    Case("mobilenet, 8 bits", "mobilenetv1_025_224", 8, False, 0.585, Schedule(120, 16, 3e-5, mirror=True)),
    Case(
        "mobilenet, 4-bit weights",
        "mobilenetv1_025_224",
        4,
        False,
        0.45,
        Schedule(600, 16, 1e-3, mirror=True),
        LAYERS,
    ),
)


def samples_of(case: Case, task: Any, folder: Path) -> list[Any]:
    if not case.labelled:
        return list(task.calibration(200))
    with np.load(folder / "data" / "cifar10_train5k.npz") as file:
        images, labels = file["x"].astype(np.float32), file["y"].reshape(-1)
    return [(x[None], int(y)) for x, y in zip(images, labels, strict=True)]


def run_case(case: Case, task: Any, folder: Path) -> dict[str, Any]:
    """Scores of the float model, of post-training quantization, and of the trained model."""
    samples = samples_of(case, task, folder)
    plain = [sample[0] if case.labelled else sample for sample in samples][:200]
    before = {
        effort: zeropoint.quantize(task.model, "int8", data=plain, weight_bits=case.weight_bits, effort=effort).model
        for effort in EFFORTS
    }
    start = time.perf_counter()

    def progress(step: int, loss: float) -> None:
        if step % 100 == 0:
            print(f"  {case.name}: step {step}, loss {loss:.4f}, {time.perf_counter() - start:.0f} s", flush=True)

    done = distill(
        task.model,
        samples,
        "int8",
        weight_bits=case.weight_bits,
        schedule=case.schedule,
        goal=case.goal,
        settings=case.settings,
        effort="high",
        progress=progress,
    )
    (agreement,) = parity(trainable_twin(done.trained), done.result, plain, limit=50)
    row = {
        "case": case.name,
        "float": task.float_score,
        **{effort: task.evaluate(zeropoint.to_bytes(model)) for effort, model in before.items()},
        "trained": task.evaluate(zeropoint.to_bytes(done.result.model)),
        "goal": case.goal_score,
        "steps": case.schedule.steps,
        "seconds": time.perf_counter() - start,
        "training": str(done.training),
        "parity": str(agreement),
    }
    print(json.dumps(row), flush=True)
    return row


def trainable_twin(trained: Any) -> Any:
    """The trained graph with the outputs of the file, softmax and all."""
    from dataclasses import replace

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, required=True)
    parser.add_argument("--only", action="append", help="cases whose name starts so; 'time' for the time of a step")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    tasks = load_zoo(options.zoo)
    if options.only == ["time"]:
        use_one_thread()

    def asked(name: str) -> bool:
        return options.only is None or any(name.startswith(part) for part in options.only)

    rows = [run_case(case, tasks[case.task], options.zoo) for case in CASES if asked(case.name)]
    times = {}
    if asked("time"):
        for name, batch in (("resnet8_cifar10", 64), ("mobilenetv1_025_224", 16)):
            times[name] = step_times(tasks[name], batch, options.rounds)
    header = ("case", "float", *EFFORTS, "trained", "goal", "how")
    print_table(
        header,
        [
            (
                row["case"],
                f"{row['float']:.4f}",
                *(f"{row[effort]:.4f}" for effort in EFFORTS),
                f"{row['trained']:.4f}",
                "" if row["goal"] is None else f"{row['goal']:.4f}",
                row["training"],
            )
            for row in rows
        ],
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
