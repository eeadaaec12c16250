"""Why zeropoint is behind another tool, where it is: reasons written by hand. The first that fits counts.

`behind` finds the cases; a test demands a reason for each case in docs/results, and a case for each reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Reason:
    """Patterns of names, alternatives separated by spaces, and what to say."""

    text: str
    measure: str
    modes: str = "*"
    tasks: str = "*"
    tools: str = "*"

    def fits(self, measure: str, mode: str, task: str, tool: str) -> bool:
        asked = ((self.measure, measure), (self.modes, mode), (self.tasks, task), (self.tools, tool))
        return all(any(fnmatchcase(name, one) for one in patterns.split()) for patterns, name in asked)


REASONS: tuple[Reason, ...] = (
    # Scores.
    Reason(
        "By chance: it scores more than the float model that it was made from (0.9223), while its outputs are further "
        "from it than those of zeropoint's model: 22.2 against 24.6 dB on the first 1,000 samples.",
        "score",
        "int8",
        "kws_dscnn",
        "tf",
    ),
    Reason(
        "One of 125 samples, and one more than the float model has.",
        "score",
        "int8",
        "vww_mobilenetv1",
        "nncf",
    ),
    Reason(
        "The other tool leaves the model in float, at its full size.",
        "score latency",
        "dynamic dynamic4",
        "ad_toycar dtln_* selfie_segmentation",
        "aeq",
    ),
    # Sizes.
    Reason(
        "Weights of fewer than 1,024 elements stay in float, which is faster; with `min_elements=0` (rows marked "
        '"all") files are smaller than the other tool\'s.',
        "size",
        "dynamic weights",
        tools="aeq",
    ),
    Reason(
        "Layers for which 4 bits are too few keep 8, and small weights stay in float; the scores are higher.",
        "size",
        "dynamic4",
        tools="aeq",
    ),
    Reason(
        "Layers for which 4 bits are too few keep 8: the score is 0.82, that of the other tool 0.50.",
        "size",
        "int8w4",
        "minilm_l6_sts",
        "aeq*",
    ),
    Reason(
        "Layers for which 4 bits are too few keep 8, here the classifier, with half of all weights: the score is 0.58, "
        "that of the other tool 0.001.",
        "size",
        "int8w4",
        "mobilenetv1_025_224",
        "aeq*",
    ),
    # Latency.
    Reason(
        "The first six ops stay in float, which raises the SNR of the outputs from 17 to 22 dB, and the score far "
        "above the other tool's.",
        "latency",
        "int8",
        "mobilenetv1_025_224",
    ),
    Reason(
        "Both are slower than float, because LiteRT's delegate takes no 16-bit activations. zeropoint gives dense "
        "layers a bias that makes up for rounding, and LiteRT's 16-bit kernel takes 2.6 times as long with one; at "
        "quick effort there is none.",
        "latency",
        "int16x8",
        "dtln_1",
        "tf",
    ),
    # Memory and time.
    Reason(
        "The range of the LSTM's cell state, which LiteRT's kernel does not show, is found by computing the recurrence "
        "in NumPy.",
        "time",
        "int8 int16x8 int8w4",
        "mnist_lstm",
    ),
    Reason(
        "zeropoint keeps a sample of values for histograms and compares several versions of the model on samples; "
        "these tools keep minima and maxima and round once.",
        "memory time",
        "int8 int16x8 int8w4",
    ),
    Reason(
        "zeropoint compares ways of rounding on generated inputs, and runs the result before it is written; this tool "
        "rounds to nearest.",
        "memory time",
        "dynamic dynamic4 weights float16",
    ),
)


def reason_for(measure: str, mode: str, task: str, tool: str) -> str | None:
    """Why; None where nobody has said."""
    return next((reason.text for reason in REASONS if reason.fits(measure, mode, task, tool)), None)
