"""Bits against accuracy and size, on the network for handwritten digits that comes with the package.

`KERAS_BACKEND=tensorflow python -m benchmarks.low_bits [--steps 200] [-o docs/results/low_bits.json] [--plot FILE.svg]`

Everything is trained on the images of the package without labels: the float network is the teacher. Scores are of the
exported files in LiteRT, on test images that training has not seen.
"""

from __future__ import annotations

import argparse
import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import zeropoint
from zeropoint.demo import accuracy, digits, lenet_model
from zeropoint.train import Schedule, distill, parity

from .measure import print_table

STAGES = ("w8a8", "w4a8", "w4a4", "w3a8", "w2a8", "w2a4", "ternary", "w8a8,w4a8,binary")


@dataclass(frozen=True)
class Row:
    """One network: the bits it was trained in, its score before and after, and what it weighs."""

    bits: str
    before: float
    score: float
    bytes: int
    zipped: int
    equal: float | None = None


def measured(stages: str, steps: int, seed: int) -> Row:
    """Train in these bits, the last of several being those of the result."""
    model, data = lenet_model(), digits()
    samples = [image[None] for image in data["calibration"]]
    bits = stages.split(",")[-1]
    start = distill(model, samples, train_bits=bits, schedule=Schedule(1, 32, 1e-9))
    done = distill(model, samples, train_bits=stages, schedule=Schedule(steps, 32, 3e-3, shift=1, seed=seed))
    content = zeropoint.to_bytes(done.result.model)
    (found,) = parity(done.trained, done.result, samples, limit=20)
    scores = (accuracy(one.result.model, data) for one in (start, done))
    return Row(stages.replace(",", " -> "), *scores, len(content), len(zlib.compress(content)), found.equal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=STAGES)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    model, data = lenet_model(), digits()
    content = zeropoint.to_bytes(model)
    score = accuracy(model, data)
    found = [Row("float32", score, score, len(content), len(zlib.compress(content)))]
    for stages in given.only:
        found.append(measured(stages, given.steps, given.seed))
        print(found[-1], flush=True)
        if given.output is not None:
            given.output.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n", encoding="utf-8")
    head = ["bits", "before training", "trained", "kB", "kB zipped", "equal to LiteRT"]
    print_table(
        head,
        [
            [
                row.bits,
                f"{row.before:.3f}",
                f"{row.score:.3f}",
                f"{row.bytes / 1000:.1f}",
                f"{row.zipped / 1000:.1f}",
                "" if row.equal is None else f"{row.equal:.1%}",
            ]
            for row in found
        ],
    )
    if given.plot is not None:
        plot(found, given.plot)


def plot(found: list[Row], path: Path) -> None:
    """Accuracy over the zipped size, a point for each network."""
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "zeropoint"}  # small, and the same each time
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for row in found:
        axes.plot(row.zipped / 1000, 100 * row.score, "o", color="#1f6f9f")
        axes.annotate(row.bits.split(" ")[-1], (row.zipped / 1000, 100 * row.score), (4, 4), textcoords="offset points")
    axes.set(xscale="log", xlabel="kB when zipped", ylabel="% of test digits recognized")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
