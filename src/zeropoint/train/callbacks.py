"""What can be done in the course of `fit`."""

from __future__ import annotations

from typing import Any

import keras

from ..errors import InvalidRecipe
from .network import Trainable


class FreezeRanges(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """From the start of an epoch on, ranges of activations stay as they are while weights go on being trained."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        if epoch == self.epoch:
            if not isinstance(self.model, Trainable):
                raise InvalidRecipe("FreezeRanges is for models that zeropoint.train.trainable made")
            self.model.freeze_ranges()
