"""What a user asks for: ordered rules "ops that match this get this scheme", and presets by name."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .dtypes import DType
from .errors import InvalidRecipe
from .files import PathLike, describe_os_error
from .graph.model import Op


@dataclass(frozen=True)
class Scheme:
    """How an op is computed. `activations` None is float; the rest is for integers."""

    activations: DType | None
    weights: DType = DType.INT8
    symmetric: bool = False
    per_tensor: bool = False
    range: str | None = None

    @property
    def label(self) -> str:
        if self.activations is None:
            return "float"
        return "int8" if self.activations is DType.INT8 else "int16x8"


FLOAT = Scheme(None)
INT8 = Scheme(DType.INT8)
INT16X8 = Scheme(DType.INT16, symmetric=True)

PRESETS: Mapping[str, Scheme] = {"int8": INT8, "int16x8": INT16X8, "float": FLOAT}


@dataclass(frozen=True)
class Rule:
    """Ops of a kind (glob), whose output's name fits `name` (glob), `regex` (anywhere) and `scope` (a leading part).

    `either` is a glob for the kind, as it is spelt, or for the name.
    """

    scheme: Scheme
    ops: str = "*"
    name: str | None = None
    regex: str | None = None
    scope: str | None = None
    either: str | None = None

    def matches(self, op: Op) -> bool:
        if not fnmatch.fnmatchcase(op.label.upper(), self.ops.upper()):
            return False
        names = [t.name for t in op.outputs]
        # Converters join the names of what they fused with semicolons; people know any of the parts.
        parts = [part for name in names for part in (name, *name.split(";"))]
        if self.name is not None and not any(_fits(p, self.name) for p in parts):
            return False
        if self.either is not None and not any(_fits(text, self.either) for text in (op.label, *parts)):
            return False
        if self.regex is not None and not any(re.search(self.regex, n) for n in names):
            return False
        return self.scope is None or any(p == self.scope or p.startswith(self.scope.rstrip("/") + "/") for p in parts)

    def __str__(self) -> str:
        asked = {"ops": self.ops if self.ops != "*" else None, "name": self.name, "regex": self.regex}
        asked |= {"scope": self.scope, "kind or name": self.either}
        text = ", ".join(f"{k} {v!r}" for k, v in asked.items() if v is not None)
        return f"{text or 'everything'} -> {self.scheme.label}"


def _fits(text: str, pattern: str) -> bool:
    return text == pattern or fnmatch.fnmatchcase(text, pattern)  # names may hold brackets, which globs interpret


@dataclass(frozen=True)
class Recipe:
    """Rules in order: the last one that matches an op decides. An op that none matches stays float."""

    rules: tuple[Rule, ...]

    def rule(self, op: Op) -> Rule | None:
        """The rule that decides."""
        return next((rule for rule in reversed(self.rules) if rule.matches(op)), None)

    def scheme(self, op: Op) -> Scheme:
        rule = self.rule(op)
        return FLOAT if rule is None else rule.scheme

    def then(self, *rules: Rule) -> Recipe:
        return Recipe((*self.rules, *rules))

    def unmatched(self, ops: list[Op]) -> list[Rule]:
        """Rules that no op matches: most likely a misspelt name."""
        return [rule for rule in self.rules if not any(rule.matches(op) for op in ops)]


WEIGHT_TYPES = ("int8", "int4")


def preset(name: str, weight_bits: int = 8) -> Recipe:
    """The recipe called `name`: "int8" or "int16x8" for every op that has such a kernel, weights in 8 or 4 bits."""
    if f"int{weight_bits}" not in WEIGHT_TYPES:
        raise InvalidRecipe(f"weights of {weight_bits} bits are not supported; choose 8 or 4")
    if name not in PRESETS or name == "float":
        choices = ", ".join(n for n in PRESETS if n != "float")
        raise InvalidRecipe(f"unknown mode {name!r}; choose from {choices}")
    return Recipe((Rule(dataclasses.replace(PRESETS[name], weights=DType.parse(f"int{weight_bits}"))),))


def keep_float(pattern: str) -> Rule:
    """Ops whose kind or output name fits the glob stay float."""
    return Rule(FLOAT, either=pattern)


def load_recipe(path: PathLike) -> Recipe:
    """A recipe from JSON or TOML: `{"rules": [{"ops": "CONV_2D", "name": "head/*", "scheme": "int16x8"}, ...]}`."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRecipe(f"cannot read {path}: {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise InvalidRecipe(f"{path} is not text") from None
    try:
        content = _toml(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecipe(f"{path} is not valid {'TOML' if file.suffix == '.toml' else 'JSON'}: {error}") from None
    return recipe_from(content, str(path))


def recipe_from(content: Any, origin: str = "the recipe") -> Recipe:
    """A recipe from plain values."""
    rules = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(rules, list) or not rules or set(content) != {"rules"}:
        raise InvalidRecipe(f"{origin} needs one list called 'rules' with at least one rule in it")
    return Recipe(tuple(_rule(rule, f"rule {k} of {origin}") for k, rule in enumerate(rules, 1)))


def _rule(content: Any, where: str) -> Rule:
    known = {"ops", "name", "regex", "scope", "scheme", "symmetric", "per_tensor", "range", "weights"}
    if not isinstance(content, dict) or "scheme" not in content:
        raise InvalidRecipe(f"{where} needs a 'scheme': {', '.join(PRESETS)}")
    if unknown := set(content) - known:
        raise InvalidRecipe(f"{where} has {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    if not isinstance(content["scheme"], str) or content["scheme"] not in PRESETS:
        raise InvalidRecipe(f"{where} asks for the scheme {content['scheme']!r}; choose from {', '.join(PRESETS)}")
    scheme = PRESETS[content["scheme"]]
    changes = {k: content[k] for k in ("symmetric", "per_tensor", "range") if k in content}
    for flag in ("symmetric", "per_tensor"):
        if not isinstance(changes.get(flag, False), bool):
            raise InvalidRecipe(f"{where}: '{flag}' is true or false")
    if not isinstance(changes.get("range", ""), str):
        raise InvalidRecipe(f"{where}: 'range' is a text")
    if "weights" in content:
        if content["weights"] not in WEIGHT_TYPES:
            choices = ", ".join(WEIGHT_TYPES)
            raise InvalidRecipe(f"{where}: weights of type {content['weights']!r} are not supported; choose {choices}")
        changes["weights"] = DType.parse(content["weights"])
    match = {k: content[k] for k in ("ops", "name", "regex", "scope") if k in content}
    if not all(isinstance(v, str) for v in match.values()):
        raise InvalidRecipe(f"{where}: ops, name, regex and scope are texts")
    if "regex" in match:
        try:
            re.compile(match["regex"])
        except re.error as error:
            raise InvalidRecipe(f"{where}: {match['regex']!r} is no regular expression: {error}") from None
    return Rule(dataclasses.replace(scheme, **changes), **match)


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
