"""Recipes as plain values, as `recipe_from` reads them and files hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..dtypes import DType
from ..recipe import PRESETS, Recipe, Rule

CHANGES = ("symmetric", "per_tensor", "range", "weights", "block", "asymmetric", "min_elements", "effort")
"""What a rule may say beside its scheme."""


def plain_rules(recipe: Recipe) -> tuple[Mapping[str, Any], ...]:
    """The rules of a recipe, to be saved as JSON or TOML."""
    return tuple(plain for rule in recipe.rules for plain in _plain(rule))


def _plain(rule: Rule) -> Iterator[Mapping[str, Any]]:
    scheme = rule.scheme
    usual = PRESETS[scheme.label]
    content: dict[str, Any] = {"scheme": scheme.label}
    content |= {"ops": rule.ops} if rule.ops != "*" else {}
    content |= {key: value for key in ("name", "regex", "scope") if (value := getattr(rule, key)) is not None}
    for name in CHANGES:
        value = getattr(scheme, name)
        if value != getattr(usual, name):
            content[name] = value.label if isinstance(value, DType) else value
    if rule.either is None:
        yield content
    else:  # a kind or a name: files know either by itself
        yield {**content, "ops": rule.either}
        yield {**content, "name": rule.either}
