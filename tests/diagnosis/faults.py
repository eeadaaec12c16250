"""Models with one known fault each, and healthy ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import zeropoint
from zeropoint.calibration import Range, Ranges
from zeropoint.dtypes import Array
from zeropoint.graph import Model
from zeropoint.recipe import preset
from zeropoint.recipe_files import recipe_from
from zeropoint.tflite import load, to_bytes

from ..nets import Net, normal

Sample = tuple[Array, ...]


@dataclass(frozen=True)
class Patient:
    """A float model, samples, a quantized version, and what it was calibrated on."""

    model: Model
    data: list[Sample]
    quantized: Model | None = None
    calibration: list[Sample] | None = None
    samples: tuple[int, ...] = ()
    ops: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def images(count: int = 24, seed: int = 0, channels: int = 3) -> list[Sample]:
    """Normalized: within -1 .. 1; each of another colour, so that outputs differ from image to image."""
    rng = np.random.default_rng(seed)
    tinted = (rng.uniform(-1, 1, size) for _ in range(count) for size in [(1, 8, 8, channels)])
    return [((0.5 * image + rng.uniform(-0.5, 0.5, channels)).astype(np.float32),) for image in tinted]


def conv_net(channels: int = 8) -> Model:
    """Three convolutions with ReLU, a mean and a dense layer, weights as an initializer leaves them."""
    net = Net()
    x = net.input(1, 8, 8, 3, name="image")
    x = net.conv(
        x, normal(channels, 3, 3, 3, spread=0.25), normal(channels, seed=1, spread=0.1), name="a", activation=1
    )
    x = net.conv(x, normal(channels, 3, 3, channels, seed=2, spread=0.15), name="b", activation=1)
    x = net.conv(x, normal(channels, 3, 3, channels, seed=3, spread=0.15), name="c")
    pooled = net("MEAN", [x, np.array([1, 2], np.int32)], (1, channels), "pooled")
    return saved(net.model(net.dense(pooled, normal(6, channels, seed=4), name="out")))


def saved(model: Model) -> Model:
    return load(to_bytes(model))


def plainly(model: Model, data: list[Sample], **options: Any) -> Model:
    """Quantized as the simplest of tools does it."""
    options.setdefault("target", "integer")
    return zeropoint.quantize(model, data=data, range="minmax", effort="quick", **options).model


def outlier_sample() -> Patient:
    """One calibration sample is a hundred times as large as all others."""
    model, data = conv_net(), images()
    spoilt = list(data)
    spoilt[7] = (spoilt[7][0] * 100,)
    return Patient(model, data, plainly(model, spoilt), spoilt, samples=(7,))


def drowned_concat_input() -> Patient:
    """A concatenation of a branch in the hundreds and one below one, which the next layer weighs the same."""
    net = Net()
    x = net.input(1, 8, 8, 3, name="image")
    loud = net.conv(x, normal(4, 3, 3, 3, spread=40), name="loud")
    faint = net.conv(x, normal(4, 3, 3, 3, seed=1, spread=0.05), name="faint")
    both = net("CONCATENATION", [loud, faint], (1, 8, 8, 8), "both", axis=3)
    weights = normal(6, 1, 1, 8, seed=2)
    weights[..., :4] *= 0.0002
    weights[..., 4:] *= 1.0
    y = net.conv(both, weights, name="mixed")
    out = net("MEAN", [y, np.array([1], np.int32)], (1, 8, 6), "out")
    model, data = saved(net.model(out)), images()
    return Patient(model, data, plainly(model, data), ops=("both",))


def unnormalized_calibration() -> Patient:
    """Calibrated on pixels, used on -1 .. 1."""
    model, data = conv_net(), images()
    pixels = [(np.round((x + 1) * 127.5).astype(np.float32),) for (x,) in data]
    return Patient(model, data, plainly(model, pixels))


def huge_weight() -> Patient:
    """In every channel of a layer one weight is a thousand times as large, on an input that is hardly ever there."""
    net = Net()
    x = net.input(1, 8, 8, 4, name="image")
    kernel = normal(8, 3, 3, 4, spread=0.15)
    kernel[:, 1, 1, 0] = 150.0
    x = net.conv(x, kernel, name="spoilt")
    out = net.conv(x, normal(6, 1, 1, 8, seed=2), name="out")
    model = saved(net.model(out))
    data = [(np.concatenate([x[..., :1] * 1e-3, x[..., 1:]], -1),) for (x,) in images(channels=4)]
    return Patient(model, data, ops=("spoilt",), options={"range": "minmax", "effort": "quick"})


def per_tensor_scale() -> Patient:
    """A dense layer whose channels differ a thousandfold, with one scale for all; the next layer makes up for it."""
    net = Net()
    x = net.input(1, 32, name="features")
    sizes = np.geomspace(1, 1e-3, 16).astype(np.float32)
    hidden = net.dense(x, normal(16, 32, spread=0.2) * sizes[:, None], name="uneven")
    parts = net("MUL", [hidden, 1 / sizes], name="evened")
    out = net.dense(parts, normal(8, 16, seed=2, spread=0.3), name="out")
    model = saved(net.model(out))
    data = [(normal(1, 32, seed=k),) for k in range(24)]
    # With 16-bit activations the one scale of the tensor between the layers is no fault as well.
    one_scale = recipe_from({"rules": [{"scheme": "int16x8", "per_tensor": True}]})
    options = {"recipe": preset("int16x8")}
    return Patient(model, data, plainly(model, data, recipe=one_scale), ops=("uneven",), options=options)


def swapped_inputs() -> Patient:
    """Two inputs of one shape, one of them fifty times the other, calibrated the wrong way round."""
    net = Net()
    a, b = net.input(1, 16, name="small"), net.input(1, 16, name="large")
    first = net.dense(a, normal(8, 16), name="from_small")
    second = net.dense(b, normal(8, 16, seed=1, spread=0.02), name="from_large")
    out = net.dense(net("ADD", [first, second], name="sum"), normal(4, 8, seed=2), name="out")
    model = saved(net.model(out))
    data = [(normal(1, 16, seed=k), normal(1, 16, seed=100 + k, spread=50)) for k in range(24)]
    return Patient(model, data, plainly(model, [(b, a) for a, b in data]))


def narrow_range() -> Patient:
    """A tensor was given half of the range that it takes."""
    model, data = conv_net(), images()
    ends = zeropoint.calibrate(model, data).tensors["b"]
    ranges = Ranges({"b": Range(0.0, ends.high.value * 0.3, "given")})
    return Patient(model, data, plainly(model, data, ranges=ranges), ops=("b",))


def other_data() -> Patient:
    """Calibrated on samples of a fifth of the size."""
    model, data = conv_net(), images()
    return Patient(model, data, plainly(model, [(x / 5,) for (x,) in data]))


def huge_values() -> Patient:
    """In every sample one value of an inner tensor is a hundred times all others."""
    net = Net()
    x = net.input(1, 96, 96, 2, name="image")
    kernel = np.zeros((2, 1, 1, 2), np.float32)
    kernel[0, 0, 0], kernel[1, 0, 0] = (1.0, 0.0), (0.0, 1.0)
    x = net.conv(x, kernel, name="passed")
    out = net("TANH", [net.conv(x, normal(4, 3, 3, 2, spread=0.3), name="mixed")], name="out")
    rng = np.random.default_rng(0)
    data = []
    for _ in range(12):
        image = rng.uniform(-1, 1, (1, 96, 96, 2)).astype(np.float32)
        image[0, 0, 0, 0] = 100 + rng.uniform(0, 1)
        data.append((image,))
    return Patient(saved(net.model(out)), data, plainly(saved(net.model(out)), data))


def two_bit_weights() -> Patient:
    """Only weights are quantized, with two bits."""
    model, data = conv_net(), images()
    return Patient(
        model, data, zeropoint.quantize(model, "weights", weight_bits=2, min_elements=0, effort="quick").model
    )


def four_bit_weights() -> Patient:
    """Integers throughout, weights with four bits, rounded so that their errors cancel: the outputs are close."""
    model, data = conv_net(32), images()
    made = zeropoint.quantize(model, data=data, weight_bits=4, target="integer").model
    return Patient(model, data, made, ops=("b", "c"))


FAULTS: dict[str, Callable[[], Patient]] = {
    "outlier_samples": outlier_sample,
    "drowned_input": drowned_concat_input,
    "unnormalized_input": unnormalized_calibration,
    "huge_weight": huge_weight,
    "uneven_channels": per_tensor_scale,
    "swapped_inputs": swapped_inputs,
    "clipping": narrow_range,
    "unlike_data": other_data,
    "outlier_values": huge_values,
    "too_few_bits": two_bit_weights,
}


def two_inputs() -> Patient:
    patient = swapped_inputs()
    return Patient(patient.model, patient.data, plainly(patient.model, patient.data))


HEALTHY: dict[str, Callable[[], Patient]] = {
    "ours": lambda: Patient(conv_net(), images()),
    "plain": lambda: Patient(conv_net(), images(), plainly(conv_net(), images())),
    "wide": lambda: Patient(conv_net(), images(), plainly(conv_net(), images(), mode="int16x8")),
    "two inputs": two_inputs,
}
