"""The models that are quantized, each with samples: bundled ones, those that the tests build, random ones, folders."""

from __future__ import annotations

import ast
import importlib
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage import samples_of
from tests.conformance.samples import HYBRID_SAMPLES, SAMPLES, Sample
from tests.nets import samples_for
from zeropoint import demo
from zeropoint.errors import ZeropointError
from zeropoint.graph import Model
from zeropoint.sources.ports import entries
from zeropoint.tflite import load, to_bytes

from ..children import ROOT
from ..soak.campaigns import Graphs
from ..soak.graphs import random_graph

FEW, SEVERAL = 6, 48
"""Samples for statistics, and for the search at higher efforts."""

RANDOM_GRAPHS = 300

TEST_FOLDERS = ("plan", "improve", "calibration", "diagnosis", "targets")
"""Whose tests build models that something special happens to in planning. Those of `tests/build.py` come with them."""


@dataclass(frozen=True)
class Content:
    """The bytes of a model and its samples, in any form that `quantize` takes; None if none can be drawn."""

    model: bytes
    samples: Any


@dataclass(frozen=True)
class Subject:
    """A model that is built when it is asked for: not every run needs all."""

    name: str
    build: Callable[[], Content]

    @contextmanager
    def files(self) -> Iterator[Files]:
        """Model and samples in a folder of their own, for both trees to read the same."""
        content = self.build()
        with tempfile.TemporaryDirectory(prefix="same_bytes_") as name:
            files = Files(*(Path(name) / part for part in ("model.tflite", "samples", "stats")))
            files.model.write_bytes(content.model)
            if content.samples is not None:
                files.samples.write_bytes(pickle.dumps(content.samples))
            yield files


@dataclass(frozen=True)
class Files:
    """Where a subject is; there are no files of samples and statistics if it has none."""

    model: Path
    samples: Path
    stats: Path


def bundled() -> Iterator[Subject]:
    def images(model: bytes) -> Content:
        return Content(model, [(image[None],) for image in demo.digits()["calibration"][:SEVERAL]])

    yield Subject("digits", lambda: images(demo.digits_model()))
    yield Subject("lenet", lambda: images(to_bytes(demo.lenet_model())))


def test_nets() -> Iterator[Subject]:
    """Every model that a module of tests builds from nothing, found by its signature."""
    modules = [ROOT / "tests" / "build.py"]
    modules += (path for name in TEST_FOLDERS for path in sorted((ROOT / "tests" / name).glob("*.py")))
    for path in modules:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in _builders(ast.parse(path.read_text("utf-8"))):
            yield net(module, name)


def _builders(tree: ast.Module) -> Iterator[str]:
    """The names of functions that give a model and need no argument."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "Model":
            required = len(node.args.args) - len(node.args.defaults) + node.args.kw_defaults.count(None)
            if not required and node.args.vararg is None and not node.decorator_list:
                yield node.name


def net(module: str, name: str, count: int = FEW) -> Subject:
    def build() -> Content:
        model = getattr(importlib.import_module(module), name)()
        return Content(to_bytes(model), normal_samples(model, count))

    return Subject(f"{module.removeprefix('tests.')}.{name}", build)


def normal_samples(model: Model, count: int) -> Any:
    """Normally distributed samples, by signature if there are several; None for inputs that are no numbers."""
    by_graph = {entry.graph: entry.key or "" for entry in entries(model)}
    if any(t.dtype.storage is None for graph in by_graph for t in graph.inputs):
        return None
    by_key = {key: samples_for(Model([graph]), count) for graph, key in by_graph.items()}
    return by_key if len(by_key) > 1 else next(iter(by_key.values()), None)


def single_ops() -> Iterator[Subject]:
    """Every op of the table, in the models of the conformance tests."""

    def built(sample: Sample) -> Callable[[], Content]:
        return lambda: Content(to_bytes(sample.model()), sample.draw(FEW))

    for sample in (*SAMPLES, *HYBRID_SAMPLES):
        yield Subject(str(sample), built(sample))


def random_graphs() -> Iterator[Subject]:
    """The first that the soak tries, so that a difference can be looked at there."""
    soak = Graphs(seed=1)

    def built(seed: int) -> Callable[[], Content]:
        def build() -> Content:
            with np.errstate(all="ignore"):
                graph = random_graph(seed)
            return Content(to_bytes(graph.model), graph.samples)

        return build

    return (Subject(f"graph {number}", built(soak.number(number))) for number in range(RANDOM_GRAPHS))


def in_folders(folders: Sequence[Path]) -> Iterator[Subject]:
    """Files of others, with samples from NAME.npz beside NAME.tflite, or random ones."""

    def samples(path: Path) -> Any:
        try:
            model: Model = load(path)
            signatures = {e.graph: e for e in entries(model)}.values()
            by_key = {e.key or "": samples_of(e, path, path.parent, FEW) for e in signatures}
        except ZeropointError:
            return None
        return by_key if len(by_key) > 1 else next(iter(by_key.values()), None)

    def built(path: Path) -> Callable[[], Content]:
        return lambda: Content(path.read_bytes(), samples(path))

    for folder in folders:
        for path in sorted(folder.rglob("*.tflite")):
            yield Subject(str(path.relative_to(folder)), built(path))


def for_efforts() -> Iterator[Subject]:
    """Small networks of different kinds, for what only a search over samples does."""
    yield from bundled()
    yield net("tests.plan.test_placement", "image_net", SEVERAL)
    yield net("tests.plan.test_placement", "transformer", SEVERAL)
    yield net("tests.improve.test_gated_weights", "network", SEVERAL)
    yield net("tests.improve.test_mixed_precision", "network", SEVERAL)
