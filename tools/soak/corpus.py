"""The intact models that are damaged: small ones that the tests build, of everything that a file can hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

import zeropoint
from tests import build
from tests.conformance.samples import HYBRID_SAMPLES, SAMPLES
from tests.nets import samples_for
from tests.tflite.encodings import data_behind
from zeropoint.graph import Model
from zeropoint.tflite import to_bytes

from .graphs import random_graph

LARGEST = 1 << 16
"""Bytes of a file in a folder that is still taken: what is damaged has to hit something."""


@cache
def corpus(folder: str | None = None) -> Sequence[bytes]:
    """Models as bytes, always in the same order; with `folder`, the small ones in there instead."""
    if folder is not None:
        paths = sorted(Path(folder).rglob("*.tflite"))
        return [path.read_bytes() for path in paths if 8 < path.stat().st_size <= LARGEST]
    plain = [make() for make in build.MODELS.values()]
    ops = [sample.model() for sample in (*SAMPLES, *HYBRID_SAMPLES)]
    graphs = [random_graph(seed, ops=(5, 12)) for seed in range(40)]
    made = [to_bytes(m) for m in (*plain, *ops, *(g.model for g in graphs), *quantized())]
    return [*made, *(data_behind(content) for content in made[::20])]


def quantized() -> list[Model]:
    """Models with integers of all kinds, as this package makes them."""
    net = build.float_cnn()
    data = samples_for(net, 4)
    with np.errstate(all="ignore"):
        made = [zeropoint.quantize(net, mode, data, effort="quick").model for mode in ("int8", "int16x8")]
        made.append(zeropoint.quantize(net, "int8", data, effort="quick", weight_bits=4).model)
        made += [zeropoint.quantize(net, mode, min_elements=1).model for mode in ("dynamic", "weights")]
        made.append(zeropoint.quantize(net, "float16").model)
    return made
