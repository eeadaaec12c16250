"""Names for people: short, no two alike, with what tells tensors apart, and taken wherever a name is asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest

import zeropoint
from zeropoint.demo import digits, digits_model
from zeropoint.graph.model import Model, Signature
from zeropoint.graph.names import LONGEST, short_names
from zeropoint.graph.query import tensor_keys

from .. import build


def chain_of(*names: str, signature: tuple[str, str] | None = None) -> Model:
    """RELUs in a row, whose tensors have these names."""
    tensors = [build.act(name, 1, 4) for name in names]
    ops = [build.op("RELU", [a], b) for a, b in pairwise(tensors)]
    graph = build.graph("main", tensors[:1], tensors[-1:], *ops)
    ends = (
        []
        if signature is None
        else [Signature("serve", graph, {signature[0]: tensors[0]}, {signature[1]: tensors[-1]})]
    )
    return Model([graph], signatures=ends)


def shown(*names: str, signature: tuple[str, str] | None = None) -> list[str]:
    found = short_names(chain_of(*names, signature=signature))
    return [found[name] for name in names]


def test_inputs_and_outputs_have_the_names_that_callers_use():
    names = shown("serve_image:0", "net/conv/Relu", "PartitionedCall:0", signature=("image", "scores"))
    assert names == ["image", "net/conv/Relu", "scores"]


def test_of_names_that_were_joined_the_first_is_shown():
    assert shown("x", "a/Relu;a/norm;a/Conv2D", "b/Relu;b/norm;b/Conv2D1") == ["x", "a/Relu", "b/Relu"]


def test_the_scope_of_nearly_all_names_is_left_out():
    names = [f"functional_1/block_{k}/Relu" for k in range(6)]
    assert shown("x", *names, "Identity") == ["x", *(f"block_{k}/Relu" for k in range(6)), "Identity"]


def test_modules_of_classes_are_left_out():
    names = [f"torch.nn.modules.container.Sequential_body/torch.nn.modules.activation.SiLU_{k}" for k in range(3)]
    assert shown("x", *names) == ["x", "SiLU_0", "SiLU_1", "SiLU_2"]


def test_long_names_keep_what_tells_them_apart():
    long = [f"{'very_' * 12}deep/part_{k}/{'inner_' * 8}Relu" for k in range(3)]
    names = shown("x", *long)
    assert len(set(names)) == 4
    assert max(map(len, names)) <= LONGEST
    tails = [f"head/{'middle/' * 9}block_{k}/Relu" for k in range(3)]
    assert all(f"block_{k}/Relu" in name for k, name in enumerate(shown("x", *tails)[1:]))


def test_where_first_parts_are_alike_others_tell_apart():
    names = shown("x", "Tanh;net/lstm_1/cell/Tanh", "Tanh;net/lstm_2/cell/Tanh")
    assert len(set(names)) == 3
    assert ["lstm_1" in names[1], "lstm_2" in names[2]] == [True, True]


@pytest.mark.parametrize("make", [digits_model, build.names, build.every_type, build.loop, build.branches])
def test_no_two_are_alike_and_all_are_short(make):
    model = zeropoint.load(made) if isinstance(made := make(), bytes) else made
    keys = list(tensor_keys(model).values())
    names = [short_names(model)[key] for key in keys]
    assert len(set(names)) == len(keys)
    assert max(map(len, names)) <= LONGEST + 4  # a number tells apart what is equal


def test_a_quantized_model_has_the_names_of_the_float_one():
    """So that they are the same in `inspect`, `compare` and `doctor`, whichever file is looked at."""
    before = zeropoint.load(digits_model())
    made = zeropoint.quantize(before, data=digits()["calibration"][:20], effort="quick").model
    both = [short_names(before), short_names(made)]
    outputs = {t.name for op in before.main.ops for t in op.outputs} & both[1].keys()
    assert len(outputs) >= len(before.main.ops) - 1
    assert all(both[0][name] == both[1][name] for name in outputs)


def test_short_names_are_names_of_rules():
    model = zeropoint.load(digits_model())
    name = short_names(model)[model.main.ops[0].name]
    assert name != model.main.ops[0].name
    for pattern in (name, name.upper(), f"{name[:6]}*"):
        result = zeropoint.quantize(model, data=digits()["calibration"][:4], effort="quick", keep_float=pattern)
        assert model.main.ops[0].name in [s.op.name for s in result.skipped]
