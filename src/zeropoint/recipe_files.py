"""Recipe files: reading and writing JSON and TOML."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import InvalidRecipe
from .files import PathLike, reading
from .recipe import PRESETS, WEIGHT_TYPES, Recipe, Rule, changed_scheme


def load_recipe(path: PathLike) -> Recipe:
    """Read a recipe from JSON or TOML: `{"rules": [{"ops": "CONV_2D", "name": "head/*", "scheme": "int16x8"},
    ...]}`."""
    kind, parse = ("TOML", _toml) if Path(path).suffix == ".toml" else ("JSON", json.loads)
    with reading(path, f"valid {kind}", InvalidRecipe):
        content = parse(Path(path).read_text(encoding="utf-8"))
    return recipe_from(content, str(path))


def recipe_from(content: Any, origin: str = "the recipe") -> Recipe:
    """Build a recipe from plain values, as in a JSON file."""
    rules = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(rules, list) or not rules or not set(content) <= {"rules", "target"}:
        raise InvalidRecipe(
            f"{origin} needs a list 'rules' with at least one rule, and may have a 'target'; nothing else is allowed"
        )
    if not isinstance(target := content.get("target", ""), str):
        raise InvalidRecipe(f"{origin}: 'target' is the name of a target, such as \"cpu\"")
    return Recipe(tuple(_rule(rule, f"rule {k} of {origin}") for k, rule in enumerate(rules, 1)), target or None)


_MATCHES = {"ops": str, "name": str, "regex": str, "scope": str, "either": str}
_CHANGES = {
    "symmetric": bool,
    "per_tensor": bool,
    "range": str,
    "weights": str,
    "mixed": bool,
    "block": int,
    "asymmetric": bool,
    "min_elements": int,
    "effort": str,
    "train_bits": str,
}
_KINDS = {str: "a text", bool: "true or false", int: "a whole number"}


def _rule(content: Any, where: str) -> Rule:
    kinds = _MATCHES | _CHANGES
    known = sorted({"scheme", *kinds})
    if isinstance(content, dict) and (unknown := content.keys() - {*known}):
        near = get_close_matches(str(min(unknown)), known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        listed = f"known are {', '.join(known)}"
        raise InvalidRecipe(f"{where} has unknown keys {', '.join(sorted(unknown))}; {hint}{listed}")
    if not isinstance(content, dict) or "scheme" not in content:
        raise InvalidRecipe(f"{where} needs a 'scheme': {', '.join(PRESETS)}")
    scheme, asked = content["scheme"], {key: value for key, value in content.items() if key != "scheme"}
    if scheme not in tuple(PRESETS):
        raise InvalidRecipe(f"{where} asks for the scheme {scheme!r}; choose from {', '.join(PRESETS)}")
    for key, value in asked.items():
        if type(value) is not kinds[key]:
            raise InvalidRecipe(f"{where}: '{key}' is {_KINDS[kinds[key]]}")
    weights = asked.get("weights")
    if weights is not None and (weights not in WEIGHT_TYPES or scheme in ("float", "float16")):
        choices = f"{', '.join(WEIGHT_TYPES)}, with an integer scheme"
        raise InvalidRecipe(f"{where}: weights of type {weights!r} are not supported; choose {choices}")
    try:
        re.compile(asked.get("regex", ""))
    except re.error as error:
        raise InvalidRecipe(f"{where}: {asked['regex']!r} is not a regular expression: {error}") from None
    match = {key: asked.pop(key) for key in _MATCHES if key in asked}
    return Rule(changed_scheme(PRESETS[scheme], asked, where), **match)


PlainRules = tuple[Mapping[str, Any], ...]
"""The rules of a recipe as plain values, as in a file."""


def plain_rules(recipe: Recipe) -> PlainRules:
    return tuple(map(_plain, recipe.rules))


def recipe_content(rules: PlainRules, target: str | None = None) -> dict[str, Any]:
    """Return the content of a recipe file with these rules, as `recipe_from` reads it."""
    return {**({} if target is None else {"target": target}), "rules": [dict(rule) for rule in rules]}


def toml_text(content: Mapping[str, Any]) -> str:
    """Return the content of a recipe file as TOML."""
    lines = [f"target = {_toml_value(content['target'])}", ""] if "target" in content else []
    for rule in content["rules"]:
        lines += ["[[rules]]", *(f"{key} = {_toml_value(value)}" for key, value in rule.items()), ""]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    # A JSON string is a TOML string, except for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(rule: Rule) -> Mapping[str, Any]:
    scheme, usual = rule.scheme, PRESETS[rule.scheme.label]
    content: dict[str, Any] = {"scheme": scheme.label}
    content |= {"ops": rule.ops} if rule.ops != "*" else {}
    matches = ("name", "regex", "scope", "either")
    content |= {key: value for key in matches if (value := getattr(rule, key)) is not None}
    changes = {name: getattr(scheme, name) for name in _CHANGES if getattr(scheme, name) != getattr(usual, name)}
    content |= {name: value for name, value in changes.items() if name != "weights"}
    if scheme.levels is not None and scheme.levels != usual.levels:
        content["weights"] = f"int{scheme.levels.bits}"
    return content


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
