"""Damaged files: reading returns a model or raises InvalidModel, whatever the bytes are."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tools.soak.mutations import damage
from zeropoint.errors import InvalidModel
from zeropoint.report.inspection import inspect
from zeropoint.tflite import load, to_bytes

from .. import build
from ..difference import difference
from .attacks import ATTACKS
from .encodings import data_behind

MUTATIONS = 1200
SECONDS = 25
"""After which a slow machine has tried enough."""


def mutants(content: bytes, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    deadline = time.monotonic() + SECONDS
    for k in range(MUTATIONS):
        if time.monotonic() > deadline:
            return
        yield damage(content, k, rng)


def many_features() -> bytes:
    """A model of several graphs with signatures, metadata, sparsity, block scales, custom ops and external buffers."""
    parts = [f() for f in (build.branches, build.sparse, build.blockwise, build.custom, build.quantized_cnn)]
    model = parts[0]
    for part in parts[1:]:
        model.graphs += part.graphs
    for part in (build.described(), build.outside()):
        model.graphs += part.graphs
        model.metadata += part.metadata
        model.external_buffers = part.external_buffers or model.external_buffers
    return to_bytes(model)


SEEDS: dict[str, Callable[[bytes], bytes]] = {
    "digits": bytes,
    "digits, rewritten": lambda digits: to_bytes(load(digits)),
    "many features": lambda _: many_features(),
    "data behind": lambda _: data_behind(many_features()),
    "every type": lambda _: to_bytes(build.every_type()),
}


@pytest.mark.parametrize("seed", range(len(SEEDS)), ids=SEEDS.keys())
def test_a_damaged_file_is_read_or_refused(digits, seed):
    read = refused = 0
    for mutant in mutants(list(SEEDS.values())[seed](digits), seed):
        try:
            model = load(mutant)
        except InvalidModel:
            refused += 1
            continue
        read += 1
        # What was read can be shown, and written so that it is read again.
        assert str(model)
        json.dumps(inspect(model, len(mutant)).to_json(), allow_nan=False)
        assert difference(load(to_bytes(model)), model) is None
    assert read > 0
    assert refused > 0


@pytest.mark.parametrize("length", range(64))
def test_noise_is_refused(length):
    rng = np.random.default_rng(length)
    for start in (b"", b"\x10\0\0\0TFL3"):
        with pytest.raises(InvalidModel):
            load(start + rng.bytes(length * 5))


ENDINGS = {
    "constants": lambda: to_bytes(build.quantized_cnn()),
    "custom options": lambda: data_behind(to_bytes(build.custom())),
}


@pytest.mark.parametrize("make", ENDINGS.values(), ids=ENDINGS.keys())
def test_every_truncation_is_refused(make):
    """The last bytes may be padding; what comes before them is needed."""
    content = make()
    for length in range(len(content) - 16):
        with pytest.raises(InvalidModel):
            load(content[:length])


@pytest.mark.parametrize(("attack", "words"), ATTACKS.values(), ids=ATTACKS.keys())
def test_a_small_file_stays_small(attack, words):
    """Vectors that point at the same bytes over and over cost no more than the file could rightly hold."""
    content = attack(10_000)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidModel, match=words):
            load(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(content)
