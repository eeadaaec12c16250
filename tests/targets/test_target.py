"""A target is asked about every op that would compute in integers, and what it refuses stays float with its reason."""

from __future__ import annotations

import zeropoint
from zeropoint.dtypes import DType
from zeropoint.improve.pipeline import run
from zeropoint.ops import OPS
from zeropoint.plan.request import Request
from zeropoint.recipe import INT8, INT16X8, preset
from zeropoint.targets import INT8_ONLY, INTEGER, LITERT, Target, TargetRule, TypedOp

from .. import build
from ..nets import Net, normal, samples_for


def test_what_a_target_refuses_stays_float() -> None:
    net = Net()
    hidden = net.dense(net.input(1, 8), normal(6, 8), name="first")
    model = net.model(net.dense(net("TANH", [hidden], name="bend"), normal(4, 6), name="last"))
    stats = zeropoint.calibrate(model, samples_for(model, 8))
    no_tanh = TargetRule(("TANH",), (DType.INT8,), speed="refused", reason="has no table here")
    picky = Target("picky", "", "the device", (no_tanh,), source="", fallback=LITERT)
    for target, refused in ((INTEGER, []), (picky, [("bend", "target", "picky refuses it: it has no table here")])):
        result = run(model, Request(preset("int8"), stats, target=target))
        assert [(s.op.name, s.code, s.reason) for s in result.skipped] == refused
        kinds = {op.kind: op.outputs[0].dtype.label for op in result.model.main.ops}
        assert kinds["TANH"] == ("float32" if refused else "int8")
        assert kinds["FULLY_CONNECTED"] == "int8"


def test_int8_takes_no_16_bits_instead():
    x, y = (build.act(name, 1, 4) for name in "xy")
    op = build.op("RELU", [x], y)
    for target, speed in ((INTEGER, "fast"), (INT8_ONLY, "slow")):
        assert target.verdict(TypedOp.of_scheme(op, INT16X8, OPS)).speed == speed
        assert target.verdict(TypedOp.of_scheme(op, INT8, OPS)).speed == "fast"
