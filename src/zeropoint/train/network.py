"""The trainable graph: a Plan executed in `keras.ops`, with fake quantization where the Plan stores integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ..errors import InvalidSample
from ..graph.query import Use
from ..sources.ports import Port
from .arrays import array_of
from .constants import Constant, WeightGrid
from .learned_ranges import Ranges
from .parts import Blueprint, Parts
from .run import Run
from .ties import Ties


class Trainable(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A `.tflite` as a Keras model. Its inputs and outputs are those of the file, in the file's order.

    Inputs are given as one array, a list, or a dict by name. Weights and biases can be trained.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(name="trainable")
        self._parts = Parts.of(blueprint, self.add_weight)
        self._steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """All variables exist already."""

    @property
    def blueprint(self) -> Blueprint:
        return self._parts.blueprint

    @property
    def takes_any_batch(self) -> bool:
        """Whether it can be run with any number of samples at a time, or only with as many as the file says."""
        return bool(self._parts.free)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The inputs, with the names that they go by."""
        return self._parts.ports

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        run = Run(self._parts, self._steps, bool(training))
        outputs = run.outputs(self._arranged(inputs))
        if training and self.blueprint.quantize:
            run.finish()
            self._steps.assign(self._steps + 1)
        return outputs[0] if len(outputs) == 1 else outputs

    def _arranged(self, inputs: Any) -> list[Any]:
        ports = self.ports
        if isinstance(inputs, Mapping):
            found = [next((inputs[n] for n in p.names if n in inputs), None) for p in ports]
        else:
            found = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(found) != len(ports) or any(v is None for v in found):
            raise InvalidSample(f"give an array for each input of the model: {', '.join(map(str, ports))}")
        return found

    def freeze_ranges(self) -> None:
        """From now on ranges stay as they are; weights go on being trained."""
        ranges = self._parts.ranges
        if ranges.groups and ranges.learned:
            ranges.low.assign(array_of(ranges.parts[0]) * ranges.known.unit)
            ranges.high.assign(array_of(ranges.parts[1]) * ranges.known.unit)
        ranges.frozen.assign(np.float32(1.0))

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self._parts.constants

    @property
    def ranges(self) -> Ranges:
        return self._parts.ranges

    @property
    def ties(self) -> Ties:
        return self._parts.ties

    def weight_grid(self, use: Use) -> WeightGrid | None:
        return self._parts.grids.get(use)

    @property
    def step(self) -> int:
        """How many training steps it has seen."""
        return int(array_of(self._steps))

    @property
    def least_bits(self) -> int:
        """Of the weights that are trained; 8 if there are none."""
        return min((grid.levels.bits for grid in self._parts.grids.values()), default=8)
