"""Properties of every plan and of what is made of it, on networks that hypothesis draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zeropoint
from zeropoint.calibration import Range, Ranges, calibrate
from zeropoint.errors import UnsupportedOp
from zeropoint.graph import Model, Tensor
from zeropoint.graph.query import tensor_keys
from zeropoint.recipe import FLOAT, INT8, INT16X8, Recipe, Rule, preset
from zeropoint.tflite import load, to_bytes

from .. import build
from ..nets import KERNELS, Net, kinds, normal, outputs_of, quantized, samples_for
from .laws import broken_laws

WIDTH = 8
UNARY = ("RELU", "RELU6", "TANH", "LOGISTIC", "SOFTMAX", "RESHAPE", "MEAN", "SIN", "FULLY_CONNECTED", "TRANSPOSE")
BINARY = ("ADD", "SUB", "MUL", "MAXIMUM", "CONCATENATION")


def step(net: Net, kind: str, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """One more op; every tensor is a row of WIDTH values."""
    shape = (1, WIDTH)
    if kind == "FULLY_CONNECTED":
        return net.dense(x, normal(WIDTH, WIDTH, seed=seed, spread=0.4), normal(WIDTH, seed=seed + 1))
    if kind == "RESHAPE":
        return net(kind, [net(kind, [x, np.int32([2, 4])], (2, 4)), np.int32(shape)], shape)
    if kind == "TRANSPOSE":
        return net("RESHAPE", [net(kind, [x, np.int32([1, 0])], (WIDTH, 1)), np.int32(shape)], shape)
    if kind == "MEAN":
        return net("SUB", [x, net(kind, [x, np.int32([1])], (1, 1), keepDims=True)])
    if kind == "SIN":
        return net("MAXIMUM", [net(kind, [x]), y])
    if kind == "CONCATENATION":
        both = net(kind, [x, y], (1, 2 * WIDTH), axis=1)
        return net("SLICE", [both, np.int32([0, WIDTH // 2]), np.int32(shape)], shape)
    if kind in BINARY:
        return net(kind, [x, y])
    return net(kind, [x], **({"beta": 1.0} if kind == "SOFTMAX" else {}))


Program = list[tuple[str, int, int]]
"""Ops in order, each with the two values it reads: counted back from the last one made."""

PROGRAMS: st.SearchStrategy[Program] = st.lists(
    st.tuples(st.sampled_from(UNARY + BINARY), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=10
)
OUTPUTS = st.lists(st.integers(0, 9), max_size=2)
"""Which values are outputs beside the last; the first is an input."""


def network(program: Program, outputs: Sequence[int] = ()) -> Model:
    net = Net()
    constant = build.const("constant", normal(1, WIDTH, seed=9))
    x = net.input(1, WIDTH)
    values: list[Tensor] = [constant, x, net.dense(x, normal(WIDTH, WIDTH, seed=8, spread=0.4))]
    for seed, (kind, x, y) in enumerate(program):
        first, second = (values[max(-k, -len(values))] for k in (x, y))
        values.append(step(net, kind, values[-1] if first is constant else first, second, seed))
    return net.model(values[-1], *(values[min(k + 1, len(values) - 1)] for k in outputs))


SCHEMES = {
    "int8": INT8,
    "int16x8": INT16X8,
    "float": FLOAT,
    "symmetric": dataclasses.replace(INT8, symmetric=True),
    "minmax": dataclasses.replace(INT8, range="minmax"),
}
RULES = st.lists(st.tuples(st.sampled_from(("*", *UNARY, *BINARY)), st.sampled_from(sorted(SCHEMES))), max_size=3)
MODES = st.sampled_from(["int8", "int16x8"])


def recipe_of(mode: str, rules: list[tuple[str, str]]) -> Recipe:
    return preset(mode).then(*(Rule(SCHEMES[scheme], ops=kind) for kind, scheme in rules))


TYPES = st.sampled_from(["float32", "int8"])


@given(PROGRAMS, OUTPUTS, MODES, RULES, TYPES, TYPES)
@settings(max_examples=60)
def test_every_network_is_quantized_lawfully(program, outputs, mode, rules, input_type, output_type):
    model = network(program, outputs)
    before, samples = to_bytes(model), samples_for(model, 4)
    options = {"input_type": input_type, "output_type": output_type, "allow_unmatched": True}
    result = zeropoint.quantize(model, stats=calibrate(model, samples), recipe=recipe_of(mode, rules), **options)
    assert broken_laws(result) == []
    assert to_bytes(model) == before
    for kernels in KERNELS:
        assert all(np.isfinite(values).all() for values in outputs_of(result.model, samples, kernels))


@given(PROGRAMS)
@settings(max_examples=25)
def test_sixteen_bits_are_close_to_float(program):
    """Up to what eight bits of the weights cost."""
    model = network(program)
    samples = samples_for(model, 8)
    quantized(model, samples, bound=0.1, mode="int16x8", data=None, stats=calibrate(model, samples))


@given(PROGRAMS, MODES, RULES)
@settings(max_examples=15)
def test_the_same_input_gives_the_same_bytes(program, mode, rules):
    made = []
    for _ in range(2):
        model = network(program)
        recipe = recipe_of(mode, rules)
        result = zeropoint.quantize(model, data=samples_for(model, 4), recipe=recipe, allow_unmatched=True)
        made.append(to_bytes(result.model))
    assert made[0] == made[1]


@given(PROGRAMS, MODES, RULES)
@settings(max_examples=15)
def test_strict_is_all_or_nothing(program, mode, rules):
    """With `strict` every op that would stay float is named; without any, it changes nothing."""
    model = network(program)
    stats = calibrate(model, samples_for(model, 4))
    options = {"stats": stats, "recipe": recipe_of(mode, rules), "allow_unmatched": True}
    result = zeropoint.quantize(model, target="integer", **options)
    if not result.skipped:
        assert to_bytes(zeropoint.quantize(model, strict=True, **options).model) == to_bytes(result.model)
        return
    with pytest.raises(UnsupportedOp) as refused:
        zeropoint.quantize(model, strict=True, **options)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{len(result.skipped)} op")
    assert [line.strip() for line in lines[1:-1]] == [str(s) for s in result.skipped]


# The plan.


def even_ranges(model: Model) -> Ranges:
    """A range of its own for each tensor, in round numbers: the same on every machine."""
    named = enumerate(tensor_keys(model).items())
    return Ranges({name: Range(-1.0 - k / 8, 2.0 + k / 4, "test") for k, (t, name) in named if t.data is None})


def plan_text(model: bytes) -> str:
    source = load(model)
    recipe = preset("int8").then(Rule(INT16X8, ops="ADD"), Rule(FLOAT, ops="SOFTMAX"))
    return f"{zeropoint.quantize(source, recipe=recipe, ranges=even_ranges(source), target='integer').plan}\n"


def test_the_plan_is_the_golden_one(digits, golden):
    """`--update-golden` writes it anew; read the diff."""
    golden("digits_plan.txt", plan_text(digits))


def test_the_plan_says_what_the_model_is():
    result = quantized(build.float_cnn(), bound=0.1, keep_float=["MEAN"])
    text = str(result.plan)
    assert text.startswith("plan for 'main': 6 int8, 1 float")
    for op in result.plan.graph.ops:
        assert f"  {op.kind} {'float' if op.kind == 'MEAN' else 'int8'}  '{op.name}'" in text
    assert "because the recipe keeps it in float" in text
    stored = {t.params for t in result.model.main.tensors if t.params is not None}
    assert all(str(params) in text for params in stored)


def test_few_conversions_for_many_readers():
    """One conversion serves every reader that wants the same form."""
    net = Net()
    x = net.dense(net.input(1, 8), normal(8, 8))
    model = net.model(*(net("SIN", [x]) for _ in range(4)), *(net("RELU", [x]) for _ in range(4)))
    made = quantized(model, bound=0.05).model
    assert kinds(made).count("DEQUANTIZE") == 1 + 4
    assert kinds(made).count("QUANTIZE") == 1


# Ties between tensors of very different size.


def state_and_sum(*, read_twice: bool) -> Model:
    """A value of about 1 that is joined with one of about 1000 and, if `read_twice`, goes into a layer as well."""
    net = Net()
    x, large = net.input(1, WIDTH), net.input(1, WIDTH)
    small = net("RELU", [x])
    joined = net("CONCATENATION", [small, net("ABS", [large])], (1, 2 * WIDTH), axis=1)
    outputs = [joined, net.dense(small, normal(4, WIDTH, seed=3), name="dense")] if read_twice else [joined]
    return net.model(*outputs)


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_small_tensor_is_not_drowned_where_others_read_it(read_twice):
    model = state_and_sum(read_twice=read_twice)
    samples = [(normal(1, WIDTH, seed=k), normal(1, WIDTH, seed=50 + k, spread=1000.0)) for k in range(8)]
    stats = calibrate(model, samples)
    result = zeropoint.quantize(model, "int8", stats=stats, output_type="int8")  # else there would be 16 bits for it
    assert broken_laws(result) == []
    inner = [op for op in result.model.main.ops if op.kind == "QUANTIZE" and op.inputs[0].is_quantized]
    assert len(inner) == read_twice
    if read_twice:
        wanted, got = (outputs_of(m, samples)[1] for m in (model, result.model))
        assert np.abs(wanted - got).max() < 0.05 * np.abs(wanted).max()


def test_branches_that_are_always_zero_cost_their_sum_no_precision():
    """No scale follows from zeros, and ADD limits how much coarser than its result its inputs may be."""
    net = Net()
    x = net.input(1, 4, 4, 4)
    off = net.conv(x, normal(4, 1, 1, 4), np.full(4, -100, np.float32), name="off", activation=3)
    small = net.conv(x, normal(4, 1, 1, 4, spread=1e-3), name="small")
    result = quantized(net.model(net("ADD", [off, small], name="sum")), bound=0.05)
    stored = {t.name: params for t, params in result.plan.stored.items()}
    assert not result.repairs
    assert stored["off"] == stored["sum"]
    assert stored["sum"].scale < 1e-3


def test_zeros_that_a_symmetric_kernel_reads_have_zero_point_0():
    net = Net()
    x = net.input(1, 4, 4, 4)
    off = net.conv(x, normal(4, 1, 1, 4), np.full(4, -100, np.float32), name="off", activation=3)
    result = quantized(net.model(net("ADD", [off, net("TANH", [x])], name="sum")), mode="int16x8")
    params = {t.name: params for t, params in result.plan.stored.items()}["off"]
    assert params.is_symmetric
    assert params.scale < 1
