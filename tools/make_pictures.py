"""Draw the pictures of the documentation from the tensors of the embedded digits model.

    python tools/make_pictures.py [--out DIR]

SVG files go to DIR (by default ``docs/pictures``, where they are committed, because GitHub shows them there). Needs
``zeropoint[docs]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import zeropoint
from zeropoint import DType, QuantParams
from zeropoint.affine import dequantize, quantize
from zeropoint.calibration import Grid, TensorStats, choose_range
from zeropoint.calibration.range_methods import ExpectedErrors
from zeropoint.calibration.stats import stats_of
from zeropoint.demo import digits, digits_model
from zeropoint.dtypes import Array
from zeropoint.graph.edit import cut_model
from zeropoint.runtime import Session

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures"

BLUE, ORANGE, GREY, DARK = "#1f6f9f", "#c8501e", "#9aa0a6", "#30343a"
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and it can be searched
    "svg.hashsalt": "zeropoint",  # the same picture is the same file
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": DARK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": DARK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": DARK,
    "ytick.color": DARK,
}


@cache
def residual() -> TensorStats:
    """The sum in the middle of the network, over 200 images. Calibration counts some of its values, here all count."""
    model = zeropoint.load(digits_model())
    (op,) = (op for op in model.main.ops if op.kind == "ADD")
    shown, _ = cut_model(model, model.main, [op.outputs[0]])
    session = Session(shown, kernels="reference")
    values = [session.run([image[None]])[0] for image in digits()["calibration"]]
    found = stats_of(np.concatenate(values), 0)
    assert found is not None
    return found


def depthwise_weights() -> Array:
    """One column for each channel."""
    (op,) = (op for op in zeropoint.load(digits_model()).main.ops if op.kind == "DEPTHWISE_CONV_2D")
    weights = op.inputs[1]
    assert weights is not None
    assert weights.data is not None
    return np.asarray(weights.data).reshape(-1, weights.shape[-1])


def sum_params() -> QuantParams:
    low, high = choose_range(residual(), "minmax", Grid())
    return QuantParams.from_range(low, high, DType.INT8)


def affine(figure: Figure) -> None:
    """Real numbers on one axis, the integers that stand for them on the other."""
    axes = figure.add_subplot()
    histogram, params = residual().histogram, sum_params()
    edges, counts = coarse(histogram.edges(), histogram.counts, 96)
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=BLUE, alpha=0.75)
    for end in params.range():
        axes.axvline(end, color=ORANGE)
    axes.axvline(0, color=DARK, linewidth=0.8, linestyle=":")
    axes.set_xlabel("real value of the sum in the digits network, over 200 images")
    axes.set_ylabel("values")
    axes.set_yticks([])
    integers = axes.secondary_xaxis(
        "top",
        functions=(lambda x: x / params.scale + params.zero_point, lambda q: params.scale * (q - params.zero_point)),
    )
    integers.set_xlabel(f"int8: real = {params.scale:.4f} · (q + {-params.zero_point})")
    integers.set_xticks([-128, -64, params.zero_point, 64, 127])


def coarse(edges: Array, counts: Array, bins: int) -> tuple[Array, Array]:
    """A histogram with fewer bins."""
    group = max(1, -(-counts.size // bins))
    starts = np.arange(0, counts.size, group)
    return np.append(edges[starts], edges[-1]), np.add.reduceat(counts, starts)


def nudge(figure: Figure) -> None:
    """The grid that starts exactly at the minimum misses zero; the one that is used does not."""
    axes = figure.add_subplot()
    low, high = choose_range(residual(), "minmax", Grid())
    params = sum_params()
    k = np.arange(256)
    rows = {
        "spread from min to max": low + k * (high - low) / 255,
        "with a whole zero point": params.scale * (k - 128 - params.zero_point),
    }
    reach = 4.6 * params.scale
    for height, (label, grid) in enumerate(rows.items()):
        near = grid[abs(grid) < reach]
        color = (GREY, BLUE)[height]
        axes.hlines(height, -reach, reach, color=color, linewidth=0.8)
        axes.plot(near, np.full(near.shape, height), "o", color=color)
        axes.text(-reach, height + 0.2, label, color=color)
        nearest = near[abs(near).argmin()]
        axes.annotate(f"{nearest:.4f}", (nearest, height), (6, -14), textcoords="offset points", color=color)
    axes.axvline(0, color=ORANGE)
    axes.annotate("real 0: padding, ReLU", (0, 1.6), (6, 0), textcoords="offset points", color=ORANGE)
    axes.set_ylim(-0.6, 1.9)
    axes.set_yticks([])
    axes.set_xlabel("real value; dots are what integers can stand for")
    axes.spines["left"].set_visible(False)


def channels(figure: Figure) -> None:
    """With one scale for all, channels with small weights have few steps."""
    axes = figure.add_subplot()
    weights = depthwise_weights()
    peaks = abs(weights).max(axis=0)
    scale = peaks.max() / 127
    order = np.argsort(-peaks)
    places = np.arange(order.size)
    low, high = weights.min(axis=0)[order], weights.max(axis=0)[order]
    axes.bar(places, high - low, 0.6, bottom=low, color=BLUE, alpha=0.75)
    for x, peak, top in zip(places, peaks[order], high, strict=True):
        axes.text(x, max(top, 0) + 0.06, f"{int(np.floor(peak / scale + 0.5))}", ha="center", color=ORANGE)
    axes.axhline(0, color=DARK, linewidth=0.8)
    axes.set_xticks(places, [str(c) for c in order])
    axes.set_xlabel("channel of the depthwise convolution, largest weights first")
    axes.set_ylabel("least to greatest weight")
    said = "steps up to the largest weight,\nif all channels shared one scale\n(127 with a scale of its own)"
    axes.text(0.99, 0.97, said, color=ORANGE, ha="right", va="top", transform=axes.transAxes)
    axes.set_ylim(weights.min() * 1.1, weights.max() * 1.4)


def ranges(figure: Figure) -> None:
    """Error against the share of the observed range that is kept."""
    tensor = residual()
    full = choose_range(tensor, "minmax", Grid())
    kept = np.linspace(0.35, 1.0, 131)
    for place, bits in enumerate((8, 4)):
        axes = figure.add_subplot(1, 2, place + 1)
        errors = ExpectedErrors([tensor.histogram], Grid(bits))(full[0] * kept[None], full[1] * kept[None])[0]
        power = errors / errors[-1]
        axes.plot(kept, power, color=BLUE)
        axes.plot([1], [1], "o", color=GREY)
        axes.annotate("min / max", (1, 1), (6, 12), textcoords="offset points", ha="right", color=DARK)
        best = int(power.argmin())
        axes.plot([kept[best]], [power[best]], "o", color=ORANGE)
        at, said = (kept[best], power[best]), f"least: {power[best]:.2f}"
        axes.annotate(said, at, (0, -14), textcoords="offset points", ha="center", color=ORANGE)
        axes.set_ylim(0, 2)
        axes.set_xlim(0.35, 1.03)
        axes.set_title(f"{bits} bits")
        axes.set_xlabel("share of the range that is kept")
        if not place:
            axes.set_ylabel("squared error, min / max = 1")


def fake_quant(figure: Figure) -> None:
    """Forwards a staircase with ends; backwards a gate. The range is the best one for the sum in 4 bits."""
    tensor = residual()
    x = np.linspace(tensor.low.value, tensor.high.value, 1501)
    params = QuantParams.from_range(*choose_range(tensor, "mse", Grid(4)), DType.INT4)
    rounded = dequantize(quantize(x, params), params)
    least, most = params.range()
    forward, backward = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    edges, counts = coarse(tensor.histogram.edges(), tensor.histogram.counts, 60)
    for axes, bottom, height in ((forward, least * 1.4, 2.5), (backward, 0, 0.8)):
        axes.bar(edges[:-1], counts / counts.max() * height, np.diff(edges), bottom, align="edge", color="#dfe6ec")
    forward.plot(x, x, color=GREY, linewidth=0.8)
    forward.plot(x, rounded, color=BLUE)
    forward.set_title("forwards: 4 bits")
    forward.set_xlabel("x")
    forward.set_ylabel("fake_quant(x)")
    inside = (x >= least) & (x <= most)
    for values, color, label in (
        (inside, BLUE, "to x"),
        (x < least, GREY, "to the lower end"),
        (x > most, ORANGE, "to the upper end"),
    ):
        backward.plot(np.where(values, x, np.nan), values.astype(float), color=color, linewidth=3, label=label)
    backward.set_ylim(0, 1.5)
    backward.set_yticks([0, 1])
    backward.set_title("backwards: where the gradient goes")
    backward.set_xlabel("x")
    backward.legend(loc="upper center", ncols=3, frameon=False, fontsize=8, columnspacing=1.0, handlelength=1.2)
    for axes in (forward, backward):
        for end in (least, most):
            axes.axvline(end, color=GREY, linestyle=":")


def modes(figure: Figure) -> None:
    """The decision guide: questions in rounded boxes, answers in square ones."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    question(axes, (26, 92), "Does the target compute in\nintegers only (microcontroller,\nEdge TPU, DSP, NPU)?")
    question(axes, (26, 62), "Is it a GPU?")
    question(axes, (26, 36), "Are there samples to\ncalibrate on?")
    answer(axes, (78, 92), "int8, strict, int8 inputs\nand outputs; needs samples")
    answer(axes, (78, 62), "float16")
    answer(axes, (17, 8), "dynamic: 8- or 4-bit weights\n(weights, where arithmetic\nhas to stay float)")
    question(axes, (74, 36), "Is int8 close enough\nto the float model?")
    answer(axes, (47, 8), "int8")
    answer(axes, (80, 8), "effort high, doctor,\nthen train, or int16x8 for\nthe ops that need it")
    arrow(axes, (44, 92), (60, 92), "yes")
    arrow(axes, (26, 83.5), (26, 67), "no")
    arrow(axes, (44, 62), (60, 62), "yes")
    arrow(axes, (26, 57), (26, 43), "no")
    arrow(axes, (44, 36), (58, 36), "yes")
    arrow(axes, (22, 29.5), (18, 17.5), "no")
    arrow(axes, (66, 29.5), (50, 12.5), "yes")
    arrow(axes, (78, 29.5), (80, 17.5), "no")


def question(axes: Axes, at: tuple[float, float], text: str) -> None:
    _box(axes, at, text, "round,pad=0.6", "#eef3f7", BLUE)


def answer(axes: Axes, at: tuple[float, float], text: str) -> None:
    _box(axes, at, text, "square,pad=0.6", "#fdf1eb", ORANGE)


def _box(axes: Axes, at: tuple[float, float], text: str, style: str, face: str, edge: str) -> None:
    axes.text(*at, text, ha="center", va="center", bbox={"boxstyle": style, "facecolor": face, "edgecolor": edge})


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], label: str) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": DARK})
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(*middle, label, ha="center", va="center", fontsize=9, bbox=behind)


PICTURES: Mapping[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "affine": (affine, (7.2, 3.0)),
    "nudge": (nudge, (7.2, 2.4)),
    "channels": (channels, (7.2, 3.0)),
    "ranges": (ranges, (7.2, 2.8)),
    "fake_quant": (fake_quant, (7.2, 2.8)),
    "modes": (modes, (7.2, 4.6)),
}
"""Name -> what draws it, and its size in inches."""


def draw(name: str, out: Path) -> Path:
    drawn, size = PICTURES[name]
    with matplotlib.rc_context(STYLE):
        figure = Figure(size, layout=None if name == "modes" else "constrained")
        drawn(figure)
        file = out / f"{name}.svg"
        figure.savefig(file, metadata={"Date": None, "Creator": None})
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="where the pictures go")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        draw(name, out)


if __name__ == "__main__":
    main()
