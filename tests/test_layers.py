"""Imports point inwards, and each outside library has its place: DESIGN.md, read from the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import zeropoint

SOURCE = Path(zeropoint.__file__).parent
EXEMPT = ("__init__", "__main__")
"""At the top only: the list of public names, and the entry point."""

LAYERS = (
    (
        "cluster",
        "display",
        "errors",
        "dtypes",
        "affine",
        "fixedpoint",
        "packing",
        "parallel",
        "files",
        "streams",
        "json_values",
        "train_bits",
    ),
    ("graph",),
    ("ops", "recipe", "recipe_files"),
    ("targets",),
    ("tflite", "runtime", "sources"),
    ("calibration",),
    ("bench",),
    ("simulation",),
    ("plan",),
    ("improve",),
    ("quantization", "rescaling"),
    ("train",),
    ("comparison",),
    ("diagnosis",),
    ("tuning",),
    ("report", "converter", "converter_settings", "lite", "demo", "c_export", "cli"),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

PLACES = {
    "flatbuffers": {"tflite"},
    "ai_edge_litert.schema_py_generated": {"tflite"},
    "ai_edge_litert": {"tflite", "runtime"},
    "ai_edge_litert.interpreter": {"runtime"},
    "keras": {"train", "sources"},
    "tensorflow": {"sources", "train"},
    "litert_torch": {"sources"},
    "litert_converter": {"sources"},
    "tflite_micro": {"runtime"},
    "ethosu": {"runtime"},
    "ray": {"cluster"},
}
"""Where an outside module, or anything below it, may be imported."""


DOORS = {"display": "zeropoint.report.notebook", "improve": "zeropoint.train.reconstruction"}
"""The ways out, one for each part: notebooks ask a value itself how it looks, and the report knows. One step of those
that make models better learns, with the plan carried out in Keras."""


def modules() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    return [p for p in found if not (p.parent == SOURCE and p.stem in EXEMPT)]


def part_of(path: Path) -> str:
    """The box of the house that a file is in."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> frozenset[str]:
    """Absolute names of what a module imports, wherever in it: late imports count as well."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = ("zeropoint", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            start = [*base, *(node.module.split(".") if node.module else ())]
            yield from (".".join([*start, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in DYNAMIC:
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


DYNAMIC = {"import_module", "__import__"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_inwards(path):
    part = part_of(path)
    assert part in LEVEL, f"{part} has no layer yet"
    for name in imports(path):
        package, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if package == "zeropoint" and target and not target.startswith("__") and DOORS.get(part) != name:
            assert target in LEVEL, f"{path} imports {name}"
            assert LEVEL[target] <= LEVEL[part], f"{path} imports {name}, which is further out"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_outside_libraries_stay_in_their_place(path):
    for name in imports(path):
        for outside, places in PLACES.items():
            if name == outside or name.startswith(f"{outside}."):
                assert part_of(path) in places, f"{path} imports {name}"


def test_the_reading_of_imports_works():
    """Or else the laws above would hold for nothing."""
    everything = {name for path in modules() for name in imports(path)}
    assert {"zeropoint.tflite.schema", "zeropoint.errors.InvalidModel", "flatbuffers", "numpy"} <= everything
    assert "ai_edge_litert.interpreter.Interpreter" in everything
    assert "ai_edge_litert.schema_py_generated" in everything


def test_no_module_hides_a_public_function():
    """Importing `zeropoint.name` binds that name in the package, so it must not be a function's."""
    parts = {part_of(path) for path in modules()}
    functions = {name for name in zeropoint.__all__ if inspect.isfunction(getattr(zeropoint, name))}
    assert {"quantize", "calibrate", "compare", "doctor", "load", "inspect"} <= functions
    assert not parts & functions


def test_public_functions_show_their_parameters():
    for name in ("quantize", "calibrate", "compare", "doctor"):
        function = getattr(zeropoint, name)
        assert function.__doc__
        assert next(iter(inspect.signature(function).parameters)) == "model"
