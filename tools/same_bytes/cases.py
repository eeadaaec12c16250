"""What is asked of each model: every mode, every number of bits and every target, in groups that can be run alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.soak.verdict import MODES as SOAK_MODES
from zeropoint.calibration import METHODS
from zeropoint.recipe import MODES
from zeropoint.targets import TARGETS, Target

from .subjects import Subject, bundled, for_efforts, in_folders, random_graphs, single_ops, test_nets

Options = Mapping[str, Any]
"""Arguments of `quantize` beside the model and its samples."""

QUICK: Options = {"effort": "quick"}
BITS = range(2, 8)
NARROW_MODES = ("int8", "int16x8", "dynamic", "weights")
"""The modes in which weights may have fewer than 8 bits."""

ALL_SIZES: Options = {"min_elements": 1}
"""Weights of any size are quantized: most test models have small ones only."""


@dataclass(frozen=True)
class Case:
    """A model and what to make of it, from statistics or, if `searches`, from samples."""

    group: str
    subject: Subject
    options: Options
    searches: bool = False

    def __str__(self) -> str:
        words = (str(v) if k in ("mode", "effort") else f"{k}={v}" for k, v in self.options.items())
        return f"{self.group}: {self.subject.name}, {' '.join(words)}"


def one_of_each_kind() -> Iterator[str]:
    """Targets, without those that differ from another in size only."""
    kinds: list[Target] = []
    for name, target in TARGETS.items():
        kind = replace(target, name="", about="", tool=None)
        if kind not in kinds:
            kinds.append(kind)
            yield name


def whole_sweep(targets: Sequence[str]) -> Iterator[Options]:
    """Modes by targets, modes by bits, and every other option once."""
    for mode in MODES:
        yield from ({**QUICK, "mode": mode, "target": target} for target in targets)
    for mode in NARROW_MODES:
        yield from ({**QUICK, **_sizes(mode), "mode": mode, "weight_bits": bits} for bits in BITS)
    yield from ({**QUICK, "mode": "int8", "weight_bits": 4, "target": target} for target in targets)
    yield from ({**QUICK, "mode": "int8", "range": method} for method in METHODS)
    yield from ({**QUICK, "mode": "weights", **ALL_SIZES, "range": method} for method in ("minmax", "mse"))
    for input_type, output_type in (("int8", "int8"), ("uint8", "float32"), ("float32", "int8"), ("int16", "int16")):
        mode = "int16x8" if "int16" in input_type else "int8"
        yield {**QUICK, "mode": mode, "input_type": input_type, "output_type": output_type}
    for mode in ("int8", "int16x8", "uint8"):
        yield {**QUICK, "mode": mode, "strict": True}
    for mode in ("dynamic", "weights"):
        yield {**QUICK, "mode": mode, **ALL_SIZES}
    yield {**QUICK, "mode": "dynamic", **ALL_SIZES, "weight_bits": 4, "block": 32}
    yield {**QUICK, "mode": "weights", **ALL_SIZES, "asymmetric": True}
    yield {**QUICK, "mode": "int8", "keep_float": ["ADD", "FULLY_CONNECTED"], "allow_unmatched": True}


def _sizes(mode: str) -> Options:
    return ALL_SIZES if mode in ("dynamic", "weights") else {}


def modes_only() -> Iterator[Options]:
    """The modes of the soak: enough for models of a single op and for random ones, of which there are many."""
    yield from ({**QUICK, **options} for options in SOAK_MODES.values())


def efforts() -> Iterator[Options]:
    """What only samples decide."""
    for effort in ("quick", "standard"):
        for options in EFFORT_MODES:
            yield {"effort": effort, **options}
    yield from ({"effort": "high", **options} for options in EFFORT_MODES[:HIGH])


EFFORT_MODES: tuple[Options, ...] = (
    {"mode": "int8"},
    {"mode": "int8", "weight_bits": 4, "target": "integer"},
    {"mode": "dynamic", "weight_bits": 4, **ALL_SIZES},
    {"mode": "int8", "target": "edgetpu"},
    {"mode": "int16x8"},
    {"mode": "dynamic"},
)
HIGH = 3
"""How many of them are made at high effort, which takes longest."""


@dataclass(frozen=True)
class Group:
    """Models of one origin, and what is made of each."""

    subjects: Callable[[], Iterable[Subject]]
    options: Callable[[], Iterable[Options]]
    searches: bool = False

    def cases(self, name: str) -> Iterator[Case]:
        options = list(self.options())
        return (Case(name, subject, o, self.searches) for subject in self.subjects() for o in options)


def groups(folders: Sequence[Path]) -> Mapping[str, Group]:
    """The groups by name, those with the most to say first."""
    some = list(one_of_each_kind())
    return {
        "bundled": Group(bundled, lambda: whole_sweep(list(TARGETS))),
        "nets": Group(test_nets, lambda: whole_sweep(some)),
        "ops": Group(single_ops, modes_only),
        "random": Group(random_graphs, modes_only),
        "efforts": Group(for_efforts, efforts, searches=True),
        "folders": Group(lambda: in_folders(folders), modes_only),
    }


GROUPS = tuple(groups(()))


def chosen_cases(folders: Sequence[Path], only: str | None = None, limit: int | None = None) -> list[Case]:
    """Return the cases of all groups, or of `only` one; of each at most `limit`, drawn at random but always the same.

    Cases at regular distances would often be one mode of many models.
    """
    cases: list[Case] = []
    for name, group in groups(folders).items():
        if only in (None, name):
            everything = list(group.cases(name))
            count = len(everything) if limit is None else min(limit, len(everything))
            cases += (everything[k] for k in sorted(random.Random(1).sample(range(len(everything)), count)))
    return cases
