"""Numbers of all sizes in graphs: where kernels would abort or compute something else, ops stay float and say why."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.graph import Model, Tensor
from zeropoint.recipe import FLOAT, INT16X8, Rule, preset

from .. import build
from ..nets import Net, normal, outputs_of, worst


def graph(kind: str, size: float) -> Model:
    """An op on numbers that others need in full, so that its range is not cut to what it looks at."""
    net = Net()
    x = net.input(1, 32)
    if kind == "GREATER":
        above = net(kind, [x, np.float32(size / 5)], (1, 32))
        above.dtype = DType.BOOL
        return net.model(net("SELECT_V2", [above, x, np.float32(0)], (1, 32)))
    return net.model(net(kind, [x], **({"beta": 1.0} if kind == "SOFTMAX" else {})), net("ABS", [x]))


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-5, 1e8])
@pytest.mark.parametrize("kind", ["RELU6", "LOGISTIC", "TANH", "SOFTMAX", "GREATER"])
def test_graphs_of_all_sizes_are_right(kind: str, size: float, mode: str) -> None:
    model, rng = graph(kind, size), np.random.default_rng(0)
    samples = [((rng.normal(size=(1, 32)) * size).astype(np.float32),) for _ in range(8)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    assert {skipped.code for skipped in made.skipped} <= {"scale"}
    wanted = outputs_of(model, samples, "optimized")
    for kernels in ("delegate", "optimized", "reference"):
        for exact, got in zip(wanted, outputs_of(made.model, samples, kernels), strict=True):
            assert np.abs(exact - got).mean() <= 0.05 * np.abs(exact).max(), kernels


def test_squared_differences_of_large_numbers_stay_float() -> None:
    """The kernel would end the process: 1000 is held in steps of 4, and its square in steps of 16."""
    net = Net()
    x = net.input(2, 16)
    model = net.model(net("SQUARED_DIFFERENCE", [x, np.float32(1000)]))
    rng = np.random.default_rng(0)
    samples = [(rng.uniform(999.99, 1000.01, (2, 16)).astype(np.float32),) for _ in range(4)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
    assert [(skipped.op.kind, skipped.code) for skipped in made.skipped] == [("SQUARED_DIFFERENCE", "scale")]
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.01


def test_biases_far_greater_than_what_is_added_to_them_remain() -> None:
    """Beside inputs of 1e-4 they have more integers than kernels can scale down to the output's 16 bits."""
    net = Net()
    x = net.input(1, 2, 2, 1)
    weights, biases = np.float32([0.1, 0.3]).reshape(2, 1, 1, 1), np.float32([16410, 150000])
    model = net.model(net("CONV_2D", [x, weights, biases], (1, 2, 2, 2), strideW=1, strideH=1))
    rng = np.random.default_rng(0)
    samples = [((rng.normal(size=(1, 2, 2, 1)) * 1e-4).astype(np.float32),) for _ in range(4)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert not made.skipped
    for kernels in ("optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.001


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_probabilities_below_the_kernels_steps_stay_float(mode: str) -> None:
    """In steps of 1/256 or 1/32768 nothing would be left of them, whatever is computed with them later."""
    net = Net()
    chance = net("LOGISTIC", [net.input(1, 32)])
    model = net.model(net("MUL", [chance, np.float32([1e9])]))
    samples = [(np.linspace(-26, -22, 32, dtype=np.float32)[None] - k,) for k in range(4)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    reasons = {skipped.op.kind: skipped.reason for skipped in made.skipped}
    assert "its results reach no more than" in reasons["LOGISTIC"]
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.01


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1e-3, 1e5, 1e12])
def test_layers_that_clamp_numbers_of_all_sizes_are_right(size: float) -> None:
    """Kernels keep the 6 of a fused ReLU6 as an integer, and sums far beyond it do not fit: neither is a reason to give
    the layer's results steps that leave nothing of them."""
    net, rng = Net(), np.random.default_rng(0)
    weights = rng.integers(-127, 127, (8, 16)).astype(np.float32) / 127
    model = net.model(net("RELU6", [net.dense(net.input(1, 16), weights, np.zeros(8, np.float32))]))
    samples = [((rng.normal(size=(1, 16)) * size).astype(np.float32),) for _ in range(8)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    for kernels in ("delegate", "optimized", "reference"):
        # Sixteen steps at least.
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 1.5 / 16


def test_sums_far_beyond_a_clamp_do_not_wrap() -> None:
    """Of sums around 1e7, ReLU6 leaves 6. In its steps they have more than 32 bits, and int16 kernels clamp later."""
    net = Net()
    weights = np.full((1, 64), 437000, np.float32)
    model = net.model(net.dense(net("LOGISTIC", [net.input(2, 64)]), weights, activation=3))
    samples = [(np.random.default_rng(k).normal(size=(2, 64)).astype(np.float32),) for k in range(4)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    for kernels in ("delegate", "optimized", "reference"):
        assert outputs_of(made.model, samples, kernels)[0] == pytest.approx(6, rel=0.1)


@pytest.mark.parametrize("size", [1e-6, 1e-5, 1e-4, 1e-3])
def test_int16_has_steps_enough_for_small_results(size: float) -> None:
    net = Net()
    model = net.model(net("TANH", [net.input(1, 32)]))
    samples = [(np.linspace(-size, size, 32, dtype=np.float32)[None],)] * 2
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 1.5 / 32  # sixteen of each sign


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("least", [-26, -80])
def test_what_probabilities_below_the_kernels_steps_are_of_is_not_cut_off(least: float, mode: str) -> None:
    """Kernels make the same of -80 as of -11, a sigmoid that stays float does not: its input has to keep its range."""
    net = Net()
    scaled = net("MUL", [net.input(1, 32), np.float32([0.5])])
    model = net.model(net("MUL", [net("LOGISTIC", [scaled]), np.float32([1e9])]))
    samples = [(np.linspace(2 * least, 2 * least + 8, 32, dtype=np.float32)[None] - k,) for k in range(4)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    (read,) = (t for t in made.model.main.tensors if t.name == scaled.name)
    assert read.params is not None
    assert read.params.range()[0] <= least
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.15


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize(("kind", "size"), [("LOGISTIC", -26.0), ("TANH", 1e-11)])
def test_bounded_functions_in_float_do_not_wrap(kind: str, size: float, mode: str) -> None:
    """Whatever was measured, other inputs give results of up to 1. In steps that fit the measured ones, these are more
    than 2**31, and LiteRT's QUANTIZE wraps: who reads them stays float, as larger steps would leave nothing of them."""
    net = Net()
    x = net.input(1, 32)
    bounded = net(kind, [net("MUL", [x, np.float32([0.5])])])
    model = net.model(net("RESHAPE", [bounded, np.int32([32])], (32,), newShape=(32,)))
    samples = [(np.linspace(2 * size, 2.2 * size, 32, dtype=np.float32)[None],)] * 2
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer")
    reasons = {skipped.op.kind: skipped.reason for skipped in made.skipped}
    assert "wraps beyond" in reasons["RESHAPE"]
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.1
        assert outputs_of(made.model, [(np.full((1, 32), size / 5, np.float32),)], kernels)[0].min() >= 0


def recurrent(net: Net, x: Tensor) -> Tensor:
    """A layer of 4 cells whose input gates are closed for the numbers that were measured."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(4, 8)).astype(np.float32) / 3 for _ in range(4)]
    weights[0] = np.full((4, 8), -9.0, np.float32)
    states = [build.act(f"state{k}", 1, 4) for k in range(2)]
    for state in states:
        state.is_variable = True
    inputs = [x, *weights, *[np.eye(4, dtype=np.float32)] * 4, None, None, None, *[np.zeros(4, np.float32)] * 4]
    return net("UNIDIRECTIONAL_SEQUENCE_LSTM", [*inputs, None, None, *states], (1, 3, 4), fusedActivationFunction=4)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_recurrent_layers_in_float_do_not_wrap(mode: str) -> None:
    """Their results are up to 1, however small the measured ones were."""
    net = Net()
    made = recurrent(net, net("MUL", [net.input(1, 3, 8), np.float32(0.5)]))
    model = net.model(net("RESHAPE", [made, np.int32([12])], (12,), newShape=(12,)))
    samples = [(np.linspace(1.6, 2, 24, dtype=np.float32).reshape(1, 3, 8),)] * 2
    settings = {"effort": "quick", "target": "integer", "keep_float": "UNIDIRECTIONAL_SEQUENCE_LSTM"}
    result = zeropoint.quantize(model, mode, data=samples, **settings)
    assert "wraps beyond" in {skipped.op.kind: skipped.reason for skipped in result.skipped}["RESHAPE"]
    (open_gates,) = outputs_of(result.model, [(np.full((1, 3, 8), 0.02, np.float32),)], "optimized")
    assert np.abs(open_gates).max() > 1e-3


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("behind", [(), ("EXP",), ("CUMSUM", "ABS")], ids="-".join)
def test_errors_that_do_not_cancel_in_float_layers_do_not_wrap(behind: tuple[str, ...], mode: str) -> None:
    """2 a - 2 a is 0 in float, and a multiple of 2**54 if both are rounded before."""
    net = Net()
    rest = net.dense(net("MUL", [net.input(2, 2), np.float32(0.5)]), np.float32([[2, -1], [4, -2]]) * 2.0**54)
    for kind in behind:
        rest = net(kind, [rest, np.int32(1)] if kind == "CUMSUM" else [rest])
    model = net.model(net("RESHAPE", [rest, np.int32([4])], (4,), newShape=(4,)))
    samples = [(np.float32([[k, 2 * k], [k + 1, 2 * k + 2]]) / 8,) for k in range(1, 8)]
    settings = {"effort": "quick", "target": "integer", "keep_float": ["FULLY_CONNECTED", *behind[:1]]}
    result = zeropoint.quantize(model, mode, data=samples, **settings)
    reasons = {skipped.op.kind: skipped.reason for skipped in result.skipped}
    assert "wraps beyond" in reasons[(*behind, "RESHAPE")[1] if behind else "RESHAPE"]


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_a_long_chain_of_float_layers_is_no_reason_to_wrap(mode: str) -> None:
    """Each layer could make errors five times as large, and no number ever is that large: what is read behind them
    is quantized as usual."""
    net = Net()
    x = net("MUL", [net.input(1, 8), np.float32(0.5)])
    mixing = np.eye(8, dtype=np.float32) + 2 * np.float32([1, -1] * 4)[None].repeat(8, axis=0)
    for k in range(20):
        x = net.dense(x, mixing, name=f"mixed{k}")
    model = net.model(net.dense(x, normal(4, 8), name="last"))
    samples = [(np.full((1, 8), k / 8, np.float32),) for k in range(1, 17)]
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer", keep_float="mixed*")
    assert "wraps" not in " ".join(skipped.reason for skipped in made.skipped)
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.05


def test_magnitudes_beyond_all_floats_are_no_error() -> None:
    """Squares of what rounding may leave of a difference, five times: 1e25 to the power of 32."""
    net = Net()
    rest = net("RELU", [net.input(1, 8)])
    for _ in range(5):
        rest = net("SQUARED_DIFFERENCE", [rest, rest])
    model = net.model(net("ABS", [rest]))
    samples = [(np.geomspace(1e20, 1e25, 8, dtype=np.float32)[None],)] * 2
    settings = {"effort": "quick", "target": "integer", "keep_float": "SQUARED_DIFFERENCE"}
    made = zeropoint.quantize(model, "int16x8", data=samples, **settings).model
    assert not outputs_of(made, samples)[0].any()


@pytest.mark.parametrize(("mode", "ends"), [("int8", "int8"), ("int16x8", "int16")])
def test_errors_that_do_not_cancel_do_not_wrap_in_outputs(mode: str, ends: str) -> None:
    """A caller who asks for integers gets steps that are large enough, or else the least integer for the largest
    number."""
    net = Net()
    exact = net("MUL", [net.input(2, 2), np.float32(0.5)])
    model = net.model(net.dense(exact, np.float32([[2, -1], [4, -2]]) * 2.0**54))
    samples = [(np.float32([[k, 2 * k], [k + 1, 2 * k + 2]]) / 8,) for k in range(1, 8)]
    settings = {"effort": "quick", "target": "integer", "keep_float": "FULLY_CONNECTED", "output_type": ends}
    made = zeropoint.quantize(model, mode, data=samples, **settings).model
    first, second = (outputs_of(made, samples, kernels)[0] for kernels in ("optimized", "delegate"))
    assert np.array_equal(first, second)


def test_quotients_of_divisors_that_rounding_makes_small_do_not_wrap() -> None:
    """Of ten thousand beside 3e11, int16 leaves 0. The 0.1 that is added in float keeps quotients finite; but they are
    more than 2**31 of the steps that they had when they were measured."""
    net = Net()
    x, y = net.input(1, 64), net.input(1, 64)
    divisor = net("ADD", [net("ABS", [y]), np.float32([0.1])])
    model = net.model(net("RESHAPE", [net("DIV", [x, divisor]), np.int32([64])], (64,), newShape=(64,)))
    data = [(np.full((1, 64), 3e5, np.float32), np.geomspace(1e4, 3e11, 64, dtype=np.float32)[None])] * 2
    made = zeropoint.quantize(model, "int16x8", data=data, effort="quick", target="integer")
    assert "wraps beyond" in {skipped.op.kind: skipped.reason for skipped in made.skipped}["RESHAPE"]
    for kernels in ("delegate", "optimized", "reference"):
        assert outputs_of(made.model, data, kernels)[0].min() >= 0


def test_tables_are_fine_enough_for_all_that_was_measured() -> None:
    """Of x * gelu(x), cut off at 1, only inputs up to 1.1 count; but the kernel of GELU gets all of them, in the scale
    that x has beside 100: the points of its table are 0.4 apart, and the last one is cut off."""
    net = Net()
    x = net.input(1, 32)
    y = net("RESHAPE", [x, np.int32([32])], (32,), newShape=(32,))
    product = net("MUL", [y, net("GELU", [y])], fusedActivationFunction=2)
    model = net.model(product, net("CONCATENATION", [x, np.float32([[100]])], (1, 33), axis=1))
    samples = [(np.linspace(0, 6, 32, dtype=np.float32)[None],)] * 2
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    (skipped,) = made.skipped
    assert skipped.op.kind == "GELU"
    assert "points that are too far apart" in skipped.reason


@pytest.mark.parametrize(("mode", "ends"), [("int8", "int8"), ("int16x8", "int16")])
@pytest.mark.parametrize("readers", [(), ("ABS",), ("HARD_SWISH", "ABS"), ("FLOOR", "ABS")], ids="-".join)
def test_floats_that_no_longer_cancel_do_not_wrap(readers: tuple[str, ...], mode: str, ends: str) -> None:
    """What is left of 1e12 when it is rounded on one side and not on the other: in float, nothing. Beyond 2**31 units
    the optimized kernel of QUANTIZE makes the least integer of the greatest floats."""
    net = Net()
    x = net.input(1, 8)
    rest = net("SQUARED_DIFFERENCE", [net("RELU", [x]), net("FLOOR", [x])])
    for reader in readers:
        rest = net(reader, [rest])
    model = net.model(rest)
    samples = [(np.geomspace(1e9, 1e12, 8, dtype=np.float32)[None],)] * 2
    made = zeropoint.quantize(model, mode, data=samples, effort="quick", target="integer", output_type=ends)
    first, second = (outputs_of(made.model, samples, kernels)[0] for kernels in ("optimized", "reference"))
    assert first == pytest.approx(second)
    assert first.min() >= 0  # in int16, both kernels wrap


def test_biases_beside_weights_of_four_bits_leave_room() -> None:
    """Dense layers of the delegate add up 16 times as much there: more than 2**27 wraps."""
    net = Net()
    x = net.input(1, 8)
    biases = np.float32([7e4, -7e4, 1, 0])
    model = net.model(net.dense(x, np.full((4, 8), 1e-3, np.float32), biases))
    samples = [((np.random.default_rng(0).normal(size=(1, 8))).astype(np.float32),) for _ in range(4)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer", weight_bits=4)
    (layer,) = (op for op in made.model.main.ops if op.kind == "FULLY_CONNECTED")
    assert layer.inputs[1].dtype is DType.INT4
    assert np.abs(layer.inputs[2].data).max() <= 2**26
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.01


def test_logarithms_that_the_kernel_would_cut_off_stay_float() -> None:
    """It ends at -16."""
    net = Net()
    model = net.model(net("LOG_SOFTMAX", [net.input(1, 16)]))
    for spread, stays in ((4, False), (100, True)):
        samples = [(np.linspace(-spread, spread, 16, dtype=np.float32)[None],)] * 2
        made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
        assert [s.op.kind for s in made.skipped] == ["LOG_SOFTMAX"] * stays
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.01


@pytest.mark.parametrize("size", [1e3, 1e15])
def test_probabilities_that_a_step_decides_stay_float(size: float) -> None:
    """Numbers that rounding makes equal would be thousands of times as probable as each other."""
    net = Net()
    model = net.model(net("SOFTMAX", [net.input(1, 16)], beta=1.0))
    rng = np.random.default_rng(0)
    samples = [((rng.normal(size=(1, 16)) * size).astype(np.float32),) for _ in range(16)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
    assert [s.code for s in made.skipped] == ["scale"]
    assert worst(outputs_of(model, samples), outputs_of(made.model, samples)) <= 0.01


@pytest.mark.parametrize(("length", "spread", "stays"), [(160, 20, False), (512, 4, False), (512, 20, True)])
def test_long_rows_of_softmax_stay_float_in_16_bits_if_numbers_are_far_below(
    length: int, spread: float, stays: bool
) -> None:
    """The kernel's table ends at e**-10, which 511 numbers turn into 3 % of the whole."""
    net = Net()
    model = net.model(net("SOFTMAX", [net.input(1, length)], beta=1.0))
    row = np.full((1, length), -spread, np.float32)
    row[0, 3] = 0
    samples = [(row,), (row[:, ::-1],)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert [s.op.kind for s in made.skipped] == ["SOFTMAX"] * stays
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.01


def test_long_rows_of_softmax_are_imprecise_only_where_that_was_asked_for_and_said() -> None:
    net = Net()
    model = net.model(net("SOFTMAX", [net.input(1, 512)], beta=1.0))
    samples = [(np.linspace(-20, 0, 512, dtype=np.float32)[None],)]
    named = preset("int16x8").then(Rule(INT16X8, ops="SOFTMAX"))
    for recipe, strict in ((preset("int16x8"), True), (named, False)):
        made = zeropoint.quantize(model, recipe=recipe, data=samples, effort="quick", strict=strict)
        assert made.skipped == ()
        assert any("SOFTMAX" in note and "imprecise" in note for note in made.notes)


@pytest.mark.parametrize("kind", ["SQRT", "RSQRT"])
@pytest.mark.parametrize("squares", [False, True])
def test_roots_stay_float_in_16_bits_unless_nothing_negative_can_come(kind: str, squares: bool) -> None:
    """LiteRT ends the run at a negative number, which samples need not show."""
    net = Net()
    x = net.input(1, 16)
    positive = net("MEAN", [net("MUL", [x, x]), np.int32([1])], (1, 1), keepDims=True) if squares else x
    model = net.model(net(kind, [net("ADD", [positive, np.float32(1)])]))
    samples = [(np.linspace(k, k + 1, 16, dtype=np.float32)[None],) for k in range(4)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert [s.code for s in made.skipped] == ["need"] * (not squares)
    for kernels in ("delegate", "optimized", "reference"):
        outputs_of(made.model, [(np.full((1, 16), -4, np.float32),)], kernels)


@pytest.mark.parametrize("inputs", [512, 2048])
def test_dense_layers_without_a_bias_do_not_overflow_in_16_bits(inputs: int) -> None:
    """LiteRT's optimized kernel sums in 32 bits unless there is a bias, of zeros if need be."""
    net = Net()
    model = net.model(net("FULLY_CONNECTED", [net.input(1, inputs), np.ones((4, inputs), np.float32)], (1, 4)))
    samples = [(np.full((1, inputs), value, np.float32),) for value in (-1, 1, 0.5)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert made.skipped == ()
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.001


@pytest.mark.parametrize(("spread", "stays"), [(0.0, True), (1.0, False)])
def test_sums_of_very_many_products_stay_float_if_they_overflow(spread: float, stays: bool) -> None:
    """Products of 8-bit numbers that all have one sign: 255 * 127 times 80,000 is more than 2**31."""
    net, rng = Net(), np.random.default_rng(0)
    weights = 1 - spread * 2 * rng.integers(0, 2, (2, 80_000))
    model = net.model(net("FULLY_CONNECTED", [net.input(1, 80_000), weights.astype(np.float32)], (1, 2)))
    samples = [(rng.uniform(0.9, 1, (1, 80_000)).astype(np.float32),), (np.zeros((1, 80_000), np.float32),)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
    assert [s.code for s in made.skipped] == ["scale"] * stays
    for kernels in ("delegate", "optimized", "reference"):
        assert worst(outputs_of(model, samples), outputs_of(made.model, samples, kernels)) <= 0.05


def test_means_of_far_finer_numbers_are_the_same_in_all_kernels() -> None:
    """Beside 8e5 numbers below 1 are 0, and so is their mean. In steps of 0.001 it is not, where float32 takes a zero
    point away that is millions of such steps."""
    net = Net()
    least = net("MINIMUM", [net.input(1, 4, 4, 2), net.input(1, 1, 1, 1)], (1, 4, 4, 2))
    model = net.model(net("MEAN", [least, np.int32([1, 2])], (1, 1, 1, 2), keepDims=True))
    small = np.random.default_rng(0).uniform(-0.4, 0.4, (1, 4, 4, 2)).astype(np.float32)
    samples = [(small, np.full((1, 1, 1, 1), 8e5, np.float32))] * 4
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
    for kernels in ("delegate", "optimized", "reference"):
        assert not outputs_of(made.model, samples, kernels)[0].any(), kernels


def test_products_of_scales_that_float32_cannot_hold_are_not_left_to_kernels() -> None:
    """1e-21 * 1e-21 has 8 of 24 bits left, and the kernel's factor would be off by 1/256."""
    net = Net()
    x = net.input(1, 32)
    model = net.model(net("MUL", [x, x]))
    samples = [(np.linspace(1.2e-17, 1.3e-17, 32, dtype=np.float32)[None],)]
    made = zeropoint.quantize(model, "int16x8", data=samples, effort="quick", target="integer")
    assert [(skipped.op.kind, skipped.code) for skipped in made.skipped] == [("MUL", "scale")]
    np.testing.assert_array_equal(outputs_of(made.model, samples)[0], outputs_of(model, samples)[0])


def test_a_range_grows_once_for_all_that_demand_it() -> None:
    """The difference is 0, stays float, and has to fit into 32 bits for three readers that share a scale."""
    net = Net()
    x = net.input(1, 32)
    difference = net("SUB", [net("MUL", [x, np.float32(1e25)]), net("MUL", [x, np.float32(1e25)])])
    twice = net("CONCATENATION", [difference, difference], (1, 64), axis=1)
    model = net.model(twice, net("PACK", [difference, difference], (2, 1, 32), valuesCount=2, axis=0))
    samples = [(np.linspace(-1, 1, 32, dtype=np.float32)[None],)]
    made = zeropoint.quantize(model, "int8", data=samples, effort="quick", target="integer")
    assert {skipped.op.kind for skipped in made.skipped} == {"SUB"}
    assert all(params.scale < 1e24 for params in made.plan.stored.values())
    for kernels in ("delegate", "optimized", "reference"):
        assert not any(found.any() for found in outputs_of(made.model, samples, kernels)), kernels


@pytest.mark.parametrize("ratio", [254.5, 255.1, 255.6])
def test_products_of_matrices_that_cancel_do_not_crash_the_delegate(ratio: float) -> None:
    """What is left of numbers around 1000 is so small that a step of theirs is 255 of its own."""
    net = Net()
    x = net.input(1, 64, 2)
    model = net.model(net("BATCH_MATMUL", [x, np.float32([[[1.0], [-1.0]]])], (1, 64, 1)), net("ABS", [x]))
    large = np.linspace(-1000, 1000, 64, dtype=np.float32)
    rest = np.float32(2000 / 127 / ratio / 2) * np.where(np.arange(64) % 2, 1, -1)
    data = [(np.stack([large, (large - rest).astype(np.float32)], axis=-1)[None],)] * 2
    made = zeropoint.quantize(model, "int8", data=data, effort="quick", target="integer").model
    product = next(op for op in made.main.ops if op.kind == "BATCH_MATMUL")
    if product.outputs[0].params is not None:
        factors = [tensor.params.scale for tensor in product.inputs]
        assert factors[0] * factors[1] / product.outputs[0].params.scale < 255
    assert all(np.isfinite(values).all() for values in outputs_of(made, data))


def test_outputs_whose_error_no_scale_has_room_for_can_be_written() -> None:
    """Rounding moves numbers of thousands by a hundred and more, of which an exponential makes 1e80."""
    net = Net()
    x = net.dense(net.input(1, 16), normal(16, 16, spread=2e3))
    model = net.model(net("EXP", [net("MINIMUM", [x, np.float32(4)])]), net("ABS", [x]))
    samples = [(np.random.default_rng(k).normal(size=(1, 16)).astype(np.float32),) for k in range(8)]
    recipe = preset("int8").then(Rule(FLOAT, ops="EXP"))
    made = zeropoint.quantize(model, recipe=recipe, data=samples, effort="quick", output_type="int8")
    params = made.model.main.outputs[0].params
    assert params is not None
    assert params.scale < 1
    assert np.isfinite(outputs_of(made.model, samples)[0]).all()
