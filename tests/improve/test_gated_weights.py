"""Gates multiply weights instead of pixels where there are fewer of them; the model computes the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.latency import Benchmark, TimingOptions
from zeropoint.calibration import Range, Ranges
from zeropoint.dtypes import Array
from zeropoint.graph import Model, Tensor, problems
from zeropoint.graph.edit import copy_model, drop_unused
from zeropoint.improve import measured_target
from zeropoint.improve.gated_weights import GatedWeights
from zeropoint.improve.steps import STEPS
from zeropoint.recipe import FLOAT, INT8, Rule, preset
from zeropoint.targets import CPU, Rewrite
from zeropoint.train.fake_quant_graph import trainable_target

from ..nets import KERNELS, Net, kinds, normal, outputs_of, samples_for

PLAIN = CPU.without(Rewrite.GATED_WEIGHTS)
AVERAGE = {"keepDims": True}


class Blocks(Net):
    """Inverted residual blocks with squeeze-and-excitation, as in MobileNetV3."""

    def gate(self, x: Tensor, seed: int = 0) -> Tensor:
        channels, squeezed = x.shape[-1], (x.shape[0], 1, 1, x.shape[-1])
        mean = self("MEAN", [x, np.array([1, 2], np.int32)], squeezed, **AVERAGE)
        inner = self.conv(mean, normal(4, 1, 1, channels, seed=seed), normal(4, seed=seed), activation=1)
        return self("LOGISTIC", [self.conv(inner, normal(channels, 1, 1, 4, seed=seed + 1), normal(channels))])

    def gated(self, x: Tensor, outputs: int, *, swapped: bool = False, **layer) -> Tensor:
        """The image times its gate, and a 1x1 convolution."""
        operands = [x, self.gate(x)]
        product = self("MUL", operands[::-1] if swapped else operands, x.shape)
        weights = normal(outputs, 1, 1, x.shape[-1], seed=7, spread=0.3)
        return self.conv(product, weights, normal(outputs, seed=8), name="project", **layer)

    def block(self, x: Tensor, seed: int = 0) -> Tensor:
        wide = self.conv(x, normal(24, 1, 1, x.shape[-1], seed=seed), normal(24, seed=seed), activation=1)
        product = self("MUL", [wide, self.gate(wide, seed)], wide.shape)
        bias = normal(x.shape[-1], seed=seed + 4)
        narrow = self.conv(product, normal(x.shape[-1], 1, 1, 24, seed=seed + 3, spread=0.2), bias)
        return self("ADD", [x, narrow])


def rewritten(model: Model) -> tuple[Model, int]:
    """The model with gates in its weights, and in how many layers."""
    copy = copy_model(model)
    edit = GatedWeights(copy.main, lambda _: True)
    edit.rewrite()
    drop_unused(copy.main)
    assert list(problems(copy)) == []
    return copy, edit.layers


def assert_same(model: Model, made: Model, samples: list[tuple[Array, ...]] | None = None) -> None:
    samples = samples or samples_for(model, 3)
    for wanted, got in zip(outputs_of(model, samples), outputs_of(made, samples), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def pixels(kind: str, model: Model) -> list[int]:
    """How many pixels the results of such ops have."""
    return [int(np.prod(op.outputs[0].shape[1:3])) for op in model.main.ops if op.kind == kind]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize(("height", "width", "outputs"), [(6, 10, 8), (1, 40, 3), (9, 7, 1)])
def test_a_layer_at_the_end_keeps_its_bias(height: int, width: int, outputs: int, activation: int, swapped: bool):
    """What the graph returns has to have it: one more sum, with the layer's activation."""
    net = Blocks()
    model = net.model(net.gated(net.input(1, height, width, 24), outputs, swapped=swapped, activation=activation))
    made, layers = rewritten(model)
    assert layers == 1
    assert kinds(made)[-3:] == ["MUL", "BATCH_MATMUL", "ADD"]
    assert made.main.ops[-3].outputs[0].shape == (1, 1, outputs, 24)  # as many as there are weights
    assert_same(model, made)


@pytest.mark.parametrize("count", [1, 3])
def test_biases_move_past_sums_into_the_next_layers(count: int):
    net = Blocks()
    x = net.conv(net.input(1, 8, 12, 3), normal(8, 3, 3, 3), normal(8))
    for k in range(count):
        x = net.block(x, 10 * k)
    model = net.model(net.conv(x, normal(5, 1, 1, 8), normal(5)))
    made, layers = rewritten(model)
    assert layers == count
    assert kinds(made).count("ADD") == count  # those of the model, between two images
    assert_same(model, made)


def test_biases_move_past_means():
    net = Blocks()
    x = net.gated(net.input(1, 8, 12, 24), 8)
    mean = net("MEAN", [x, np.array([-3, 2], np.int32)], (1, 1, 1, 8), **AVERAGE)
    model = net.model(net.conv(x, normal(5, 1, 1, 8), normal(5)), net.conv(mean, normal(5, 1, 1, 8), normal(5)))
    made, _ = rewritten(model)
    assert "ADD" not in kinds(made)
    assert_same(model, made)


@pytest.mark.parametrize("reader", ["nothing", "padded", "function", "itself", "part"])
def test_a_bias_that_something_needs_stays(reader: str):
    """A function of the pixels, a layer that sees less of them at the edge, a sum with itself."""
    net = Blocks()
    x = net.gated(net.input(1, 8, 12, 24), 8)
    rest = {
        "nothing": lambda: x,
        "padded": lambda: net.conv(x, normal(5, 3, 3, 8), normal(5)),
        "function": lambda: net("RELU", [x]),
        "itself": lambda: net.conv(net("ADD", [x, x]), normal(5, 1, 1, 8), normal(5)),
        "part": lambda: net.conv(net("ADD", [x, net.input(1, 1, 1, 8)]), normal(5, 1, 1, 8), normal(5)),
    }
    model = net.model(rest[reader]())
    made, layers = rewritten(model)
    assert layers == 1
    assert kinds(made).count("ADD") == kinds(model).count("ADD") + 1
    assert_same(model, made)


def test_larger_kernels_take_a_bias_where_nothing_is_padded():
    net = Blocks()
    x = net.gated(net.input(1, 8, 12, 24), 8)
    operands, strides = [x, normal(5, 3, 3, 8), normal(5)], {"strideH": 2, "strideW": 1, "padding": 1}
    model = net.model(net("CONV_2D", operands, (1, 3, 10, 5), **strides))
    made, _ = rewritten(model)
    assert "ADD" not in kinds(made)
    assert_same(model, made)


def test_batches_of_any_size_stay_possible():
    net = Blocks()
    model = net.model(net.conv(net.gated(net.input(1, 6, 10, 24), 8), normal(5, 1, 1, 8), normal(5)))
    for tensor in model.main.tensors:
        if tensor.data is None:
            tensor.shape_signature = (-1, *tensor.shape[1:])
    made, _ = rewritten(model)
    assert made.main.ops[-3].outputs[0].shape_signature == (-1, 1, 8, 24)
    together = [np.concatenate([x for (x,) in samples_for(model, 4)])]
    assert_same(model, made, [tuple(together)])


def unlike(what: str) -> Model:
    net = Blocks()
    x = net.input(1, *{"few pixels": (2, 12)}.get(what, (8, 12)), 24)
    if what == "a constant factor":
        return net.model(net.conv(net("MUL", [x, normal(1, 1, 1, 24)]), normal(8, 1, 1, 24), normal(8)))
    if what == "a factor for each pixel":
        return net.model(net.conv(net("MUL", [x, net.input(1, 8, 12, 1)]), normal(8, 1, 1, 24), normal(8)))
    if what == "a larger kernel":
        return net.model(net.conv(net("MUL", [x, net.gate(x)]), normal(8, 3, 3, 24), normal(8)))
    y = net.gated(x, 8)
    if what == "uneven weights":
        net.ops[-1].inputs[1].data[0] *= 100
    if what == "an activation":
        net.ops[-2].options = net.ops[-2].options.replace(fusedActivationFunction=1)
    return net.model(y, *([net.ops[-2].outputs[0]] if what == "another reader" else []))


@pytest.mark.parametrize(
    "what",
    [
        *("few pixels", "a constant factor", "a factor for each pixel", "a larger kernel"),
        *("uneven weights", "an activation", "another reader"),
    ],
)
def test_others_stay_as_they_are(what: str):
    model = unlike(what)
    made, layers = rewritten(model)
    assert layers == 0
    assert kinds(made) == kinds(model)


def network() -> Model:
    net = Blocks()
    x = net.conv(net.input(1, 12, 16, 3), normal(8, 3, 3, 3, spread=0.3), normal(8), activation=0)
    for k in range(2):
        x = net.block(x, 10 * k)
    return net.model(net.conv(x, normal(4, 1, 1, 8), normal(4)))


def test_products_of_pixels_are_gone_for_cpu_and_nothing_is_slow():
    model = network()
    data = samples_for(model, 24)
    made, plain = (zeropoint.quantize(model, data=data, target=target) for target in (CPU, PLAIN))
    assert kinds(made.model).count("BATCH_MATMUL") == 2
    assert pixels("MUL", made.model) == [8, 8]  # one for each output
    assert pixels("MUL", plain.model) == [12 * 16] * 2
    assert "gates in the weights of 2 layers" in str(made.notes)
    assert made.check.counts["fast"] == len(made.check.ops)
    assert made.verdict.snr > plain.verdict.snr - 3
    one, other = (outputs_of(made.model, data, kernels)[0] for kernels in KERNELS)
    assert np.square(one - other).mean() <= 1e-3 * np.square(one).mean()  # kernels round in their own ways


def test_weights_stay_where_a_user_or_an_earlier_step_decided():
    model = network()
    data = samples_for(model, 24)
    named = preset("int8").then(Rule(INT8, ops="MUL"))
    floats = preset("int8").then(Rule(FLOAT, ops="MUL"))
    for recipe in (named, floats, preset("int8", 4)):
        assert "BATCH_MATMUL" not in kinds(zeropoint.quantize(model, recipe=recipe, data=data).model)
    given = Ranges({model.main.ops[0].outputs[0].name: Range(-4.0, 4.0)})
    assert "BATCH_MATMUL" not in kinds(zeropoint.quantize(model, data=data, ranges=given).model)
    assert "BATCH_MATMUL" not in kinds(zeropoint.quantize(model, data=data, target="integer").model)


def test_samples_decide(monkeypatch: pytest.MonkeyPatch):
    """Computed weights that come out wrong are not kept."""
    model = network()
    data = samples_for(model, 24)
    original = GatedWeights.rewrite

    def spoiled(self):
        new = original(self)
        for constant in new.constants:
            if constant.name.endswith("/matrix"):
                constant.data[...] *= 1.2
        return new

    monkeypatch.setattr(GatedWeights, "rewrite", spoiled)
    result = zeropoint.quantize(model, data=data)
    assert "BATCH_MATMUL" not in kinds(result.model)
    assert [step.kept for step in result.steps if step.what == "gates in weights"] == [False]


def test_fitted_weights_stay():
    names = [step.name for step in STEPS]
    assert names.index("gates in weights") > names.index("compensated rounding")


def test_all_efforts_take_what_it_makes():
    model = network()
    result = zeropoint.quantize(model, data=samples_for(model, 24), effort="high")
    assert "BATCH_MATMUL" in kinds(result.model)
    assert result.verdict.snr > 20


@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_what_is_timed_is_what_is_made(effort: str, monkeypatch: pytest.MonkeyPatch):
    """Quick effort, which has no samples to judge by, leaves gates where they are."""
    timed: dict[str, Model] = {}

    def benchmark(models: Mapping[str, Model], options: TimingOptions) -> Benchmark:
        timed.update(models)
        return measured_on_this_machine(models, options)

    measured_on_this_machine = measured_target.benchmark
    monkeypatch.setattr(measured_target, "benchmark", benchmark)
    model = network()
    zeropoint.quantize(model, data=samples_for(model, 24), effort=effort, measure=True)
    assert ("BATCH_MATMUL" in kinds(timed["by the table"])) is (effort == "standard")
    made = zeropoint.quantize(model, data=samples_for(model, 24), effort=effort).model
    assert kinds(made) == kinds(timed["by the table"])


def test_training_has_layers_with_weights():
    assert Rewrite.GATED_WEIGHTS in CPU.rewrites
    assert Rewrite.GATED_WEIGHTS not in trainable_target(CPU).rewrites


def test_tensors_without_their_bias_are_compared_with_none():
    """Values of the float model would not fit the layers that took the bias over."""
    model = network()
    data = samples_for(model, 24)
    made = zeropoint.quantize(model, data=data).model
    assert "BATCH_MATMUL" in kinds(made)
    compared = zeropoint.compare(model, zeropoint.load(zeropoint.to_bytes(made)), data)
    assert all(not op.name.endswith("/unbiased") for op in compared.ops)
    assert min(op.own.snr for op in compared.ops if op.own is not None) > 20
