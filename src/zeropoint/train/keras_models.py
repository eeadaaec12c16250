"""For people with Keras code: a model of theirs, ready to be trained with quantization in the loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..calibration import Settings, calibrate
from ..graph.model import Model
from ..recipe import Recipe
from ..sources.models import load
from ..sources.ports import Port, Row, entry
from ..sources.samples import Samples
from .building import trainable
from .network import Trainable
from .settings import QuantSettings

RUNS = 8


def quantize_model(
    keras_model: Any,
    samples: Samples | None = None,
    recipe: Recipe | str = "int8",
    *,
    weight_bits: int = 8,
    settings: QuantSettings | None = None,
    logits: bool = False,
) -> Trainable:
    """A Keras model as a trainable quantized graph. Batch normalization is folded into the layers.

    With `samples` ranges start from what these give. Without, they start from the first batches of training, so that a
    few should be run before its result means anything. The model is converted by TensorFlow, whatever Keras computes
    with afterwards.
    """
    model = load(keras_model)
    if samples is not None:
        stats = calibrate(model, samples)
        return trainable(model, recipe, stats, weight_bits=weight_bits, settings=settings, logits=logits)
    stats = calibrate(model, _noise(model), Settings(histograms=True))
    chosen = settings or QuantSettings(ranges="average", debias=True)
    return trainable(model, recipe, stats, weight_bits=weight_bits, settings=chosen, logits=logits)


def _noise(model: Model) -> list[Row]:
    """Something to run the model on; its ranges are gone after the first batch."""
    rng = np.random.default_rng(0)
    return [tuple(_values(port, rng) for port in entry(model).ports) for _ in range(RUNS)]


def _values(port: Port, rng: np.random.Generator) -> Any:
    shape = tuple(max(1, n) for n in port.shape)
    drawn = rng.standard_normal(shape) if port.dtype.is_float else np.zeros(shape)
    return drawn.astype(port.dtype.storage)
