"""Short, unique display names for tensors, the same wherever a model is shown.

Converters put whole call stacks into names, join the names of all ops that they fused, and prefix each with the name
of the network. Only the part that tells tensors apart is kept; inputs and outputs have the names that callers use.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from .model import Model, Tensor
from .query import tensor_keys

LONGEST = 40
"""Maximum length of a short name: with an op kind and a number or two, it fits in 80 columns."""

USUAL = 0.75
"""A scope is dropped if at least this share of the names begin with it."""

_MODULE = re.compile(r"^(?:[A-Za-z_]\w*\.){2,}(?=[A-Za-z_])")
"""The module path before a class name, such as `torch.nn.modules.activation.`."""


_TYPE = re.compile(r"/(?:u?int|float)[0-9]+$")
"""Suffix of a tensor that a conversion op made from another tensor."""


def short_names(model: Model) -> dict[str, str]:
    """Map each tensor key (see `tensor_keys`), and each tensor name in the file, to its short display name."""
    keys = tensor_keys(model)
    shown: dict[Tensor, str] = {}
    named = [t for g in model.graphs for t in (*g.inputs, *(t for op in g.ops for t in op.outputs))]
    for group in (list(dict.fromkeys(named)), [t for t in keys if t not in set(named)]):  # weights are the second input
        _name_all(group, _ways(model, keys, group), shown)
    short = {key: shown[t] for t, key in keys.items()}
    return {**{t.name: shown[t] for t in reversed(keys)}, **short}


Way = Callable[[Tensor], str | None]


def _ways(model: Model, keys: Mapping[Tensor, str], group: list[Tensor]) -> Iterator[Way]:
    """Yield naming functions, best first; each may return nothing for a tensor, or the same name for several."""
    types = {t: found[0] if (found := _TYPE.search(keys[t])) else "" for t in group}
    bare = {t: keys[t].removesuffix(types[t]) for t in group}
    parts = {t: [part for part in bare[t].split(";") if part] or [""] for t in group}
    scope = _common_scope(list(chain.from_iterable(parts.values())))
    plain = {t: [f"{_plain(part.removeprefix(scope))}{types[t]}" for part in parts[t]] for t in group}
    for known in _port_names(model, keys):
        yield lambda t, known=known: f"{known[bare[t]]}{types[t]}" if bare[t] in known else None  # type: ignore[misc]
    yield lambda t: _end(plain[t][0])
    yield lambda t: _tail(plain[t][0])
    yield lambda t: _both_ends(plain[t][0])
    yield lambda t: _tail(plain[t][-1])
    yield lambda t: _both_ends(";".join(plain[t]))


def _port_names(model: Model, keys: Mapping[Tensor, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return, by tensor key, the names that signatures give to inputs and outputs, without and with their own name."""
    ends = [
        (t, name, s.key) for s in reversed(model.signatures) for e in (s.outputs, s.inputs) for name, t in e.items()
    ]
    return {keys[t]: name for t, name, _ in ends}, {keys[t]: f"{key}/{name}" for t, name, key in ends}


def _name_all(tensors: list[Tensor], ways: Iterator[Way], shown: dict[Tensor, str]) -> None:
    """Give each tensor the first name that is unique; append a number where no naming function yields one."""
    taken, left, last = set(shown.values()), tensors, dict[Tensor, str]()
    for way in ways:
        found = {t: name for t in left if (name := way(t))}
        counts = Counter(found.values())
        accepted = {t: name for t, name in found.items() if counts[name] == 1 and name not in taken}
        shown |= accepted
        taken |= set(accepted.values())
        last |= found
        left = [t for t in left if t not in accepted]
    numbers: Counter[str] = Counter()
    for tensor in left:
        name = last.get(tensor, "")
        while True:
            numbers[name] += 1
            numbered = f"{name}#{numbers[name]}"
            if numbered not in taken:
                break
        shown[tensor] = numbered
        taken.add(numbered)


def _common_scope(names: list[str]) -> str:
    """Return the leading path, such as `functional_1/`, that most of the names with a path share."""
    scope = ""
    while True:
        heads = Counter(n[len(scope) :].split("/")[0] for n in names if n.startswith(scope) and "/" in n[len(scope) :])
        (head, count), *_ = heads.most_common(1) or [("", 0)]
        if count < 2 or count < USUAL * len([n for n in names if "/" in n]):
            return scope
        scope += f"{head}/"


def _plain(name: str) -> str:
    """Strip the module paths of classes, which are long and mostly alike."""
    return "/".join(_MODULE.sub("", part) for part in name.split("/"))


def _end(name: str) -> str:
    """Return as many trailing path components as fit."""
    if len(name) <= LONGEST:
        return name
    parts = name.split("/")
    ends = ("/".join(parts[k:]) for k in range(1, len(parts)))
    end = next((end for end in ends if len(end) <= LONGEST - 2), None)
    return _tail(name) if end is None else f"…/{end}"


def _tail(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _both_ends(name: str) -> str:
    half = (LONGEST - 1) // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"
