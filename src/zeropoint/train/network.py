"""The trainable graph: a Plan executed in `keras.ops`, with fake quantization where the Plan stores integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ..errors import InvalidRecipe, InvalidSample
from ..sources.ports import Port
from .activation_ranges import ActivationRanges
from .backend import array_of
from .fake_quant_graph import Blueprint, FakeQuantGraph
from .forward import ForwardPass
from .weights import TrainableConstant


class Trainable(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A `.tflite` as a Keras model. Its inputs and outputs are those of the file, in the file's order.

    Inputs are given as one array, a list, or a dict by name. Weights and biases can be trained.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(name="trainable")
        self.graph = FakeQuantGraph.of(blueprint, self.add_weight)
        self._steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """All variables exist already."""

    @property
    def blueprint(self) -> Blueprint:
        return self.graph.blueprint

    @property
    def takes_any_batch(self) -> bool:
        """Whether it can be run with any number of samples at a time, or only with as many as the file says."""
        return bool(self.graph.free)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The inputs, with the names that they go by."""
        return self.graph.ports

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        forward = ForwardPass(self.graph, self._steps, bool(training))
        outputs = forward.outputs(self._arranged(inputs))
        if training and self.blueprint.quantize:
            forward.finish()
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
        self.ranges.freeze()

    @property
    def constants(self) -> tuple[TrainableConstant, ...]:
        return self.graph.constants

    @property
    def ranges(self) -> ActivationRanges:
        return self.graph.ranges

    @property
    def step(self) -> int:
        """How many training steps it has seen."""
        return int(array_of(self._steps))

    @property
    def least_bits(self) -> int:
        """Of the weights that are trained; 8 if there are none."""
        return min((quantizer.levels.bits for quantizer in self.graph.quantizers.values()), default=8)


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
