"""JAX functions, with a stand-in for LiteRT's converter: what it is given, and what is refused."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

from zeropoint.errors import ConversionFailed, InvalidModel, MissingExtra
from zeropoint.sources.models import load

IMAGE = jax.ShapeDtypeStruct((1, 8, 8, 1), jnp.float32)


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch, digits: bytes) -> dict[str, Any]:
    """A litert-converter that makes the embedded model of everything; what it was given."""
    seen: dict[str, Any] = {}

    def parse(text: str) -> Any:
        seen["text"] = text
        return types.SimpleNamespace(operation="op")

    def run(module: Any, passes: Any, config: Any) -> None:
        seen["framework"] = config.model_origin_framework
        print("converting")
        if "cosine" in seen["text"]:
            raise RuntimeError("error: no lowering for stablehlo.cosine\nand much more")

    api = types.SimpleNamespace(
        prepare_mlir_context=lambda _: None,
        set_signature=lambda _, **named: seen.update(named),
        merge_modules=lambda modules: modules[0],
        ConvertToTFLConfig=types.SimpleNamespace,
        run_convert_to_tfl_passes=run,
        export_flatbuffer_to_bytes=lambda _: digits,
    )
    ir = types.SimpleNamespace(Context=contextlib.nullcontext, Module=types.SimpleNamespace(parse=parse))
    passes = types.SimpleNamespace(PassManager=object)
    mlir = types.SimpleNamespace(ir=ir, passmanager=passes)
    names = {"": None, ".mlir": mlir, ".mlir.passmanager": passes, ".mlir._mlir_libs": None}
    for name, module in {**names, ".mlir._mlir_libs.converter_api_ext": api}.items():
        monkeypatch.setitem(sys.modules, f"litert_converter{name}", module or types.ModuleType(name))
    return seen


@jax.jit
def network(image: Any, gains: Any) -> Any:
    return {"scores": image.mean((1, 2)) * gains["a"] + gains["b"], "image": image * 2}


@pytest.mark.parametrize("by_name", [False, True])
def test_jitted_functions_are_exported_with_the_names_of_their_arguments(converter, by_name: bool, capfd) -> None:
    gains = {"b": jnp.float32(1), "a": jnp.float32(2)}
    given: Any = {"image": IMAGE, "gains": gains} if by_name else (IMAGE, gains)
    assert load(network, sample_inputs=given).main.ops
    assert set(converter["input_names"]) == {"image", "gains_a", "gains_b"}
    assert converter["output_names"] == ["image", "scores"]
    assert converter["signature_name"] == "serving_default"
    assert "stablehlo.multiply" in converter["text"]
    assert capfd.readouterr() == ("", "")


def test_exported_functions_need_no_inputs_and_single_results_no_names(converter) -> None:
    made = export.export(jax.jit(lambda x: (x + 1, x)))(IMAGE)
    assert load(made).main.ops
    assert (converter["input_names"], converter["output_names"]) == (["args_0"], ["output_0", "output_1"])
    assert load(jax.jit(lambda x: x + 1), sample_inputs=IMAGE).main.ops
    assert (converter["input_names"], converter["output_names"]) == (["x"], ["output_0"])
    assert converter["framework"] == "JAX"


def test_refusals_say_what_is_missing(converter, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidModel, match="sample_inputs"):
        load(network)
    with pytest.raises(ConversionFailed, match=r"litert-converter refused the model: no lowering for stablehlo.cosine"):
        load(jax.jit(jnp.cos), sample_inputs=IMAGE)
    with pytest.raises(InvalidModel, match=r"jax.jit returned"):
        load(jnp.zeros(3))
    monkeypatch.setitem(sys.modules, "litert_converter", None)
    with pytest.raises(MissingExtra, match=r"pip install litert-converter. A .tflite does not need it"):
        load(network, sample_inputs=(IMAGE, {"a": jnp.float32(1), "b": jnp.float32(1)}))
