"""Counts of what makes the package hard to find one's way in, with limits: `python -m tools.house_counts`.

`tests/test_house_counts.py` fails if a count is above its limit, and if it has fallen below: then the limit follows it,
so that what was gained stays. Comments and docstrings count for nothing; whoever joins lines to have fewer has as many
statements as before.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from .children import ROOT

SOURCE = ROOT / "src" / "zeropoint"

VAGUE = frozenset({"found", "made", "known", "own", "given", "told", "held", "kept", "asked", "wanted"})
"""Names that say how a value came about instead of what it is."""

MOST_BRANCHED, MOST_PARAMETERS, MOST_MODULES = 15, 8, 14

SLACK, SLACKENED = 250, ("lines of code", "statements")
"""Lines and statements change with every commit. Their limits are multiples of this, the next above the count."""

LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "lines of code": 37500,
        "statements": 32250,
        "op tables as parameters or fields": 165,
        "`spec is None`": 32,
        "`Uses(` outside graph/": 58,
        "`default_options(` outside graph/": 54,
        "`replace(request`": 36,
        "vague names of variables": 921,
        "functions of complexity above 15": 9,
        "functions with more than 8 parameters": 10,
        "folders of more than 14 modules": 9,
    }
)

BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.IfExp,
    ast.Assert,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    path: Path
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    def of(self, kind: type[Node]) -> list[Node]:
        return [node for node in self.nodes if isinstance(node, kind)]

    @property
    def functions(self) -> list[Function]:
        return [*self.of(ast.FunctionDef), *self.of(ast.AsyncFunctionDef)]

    @property
    def is_in_graph(self) -> bool:
        return "graph" in self.path.parts[:-1]


def modules(source: Path) -> list[Module]:
    paths = sorted(source.rglob("*.py"))
    return [Module(path.relative_to(source), path.read_text("utf-8")) for path in paths]


def _is_text(node: ast.AST) -> bool:
    """Whether it is a statement that only holds a string: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def lines_of_code(module: Module) -> int:
    """Lines that are not blank, no comment and no docstring; those within other texts count, whatever is in them."""
    lines = enumerate(module.text.split("\n"), 1)
    written = {number for number, line in lines if line.strip() and not line.lstrip().startswith("#")}
    texts = (*module.of(ast.JoinedStr), *(c for c in module.of(ast.Constant) if isinstance(c.value, str)))
    within_texts = {number for text in texts for number in _lines(text)}
    described = {number for node in module.of(ast.Expr) if _is_text(node) for number in _lines(node)}
    return len((written | within_texts) - described)


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def statements(module: Module) -> int:
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in module.nodes)


def op_tables(module: Module) -> int:
    """Annotations `Mapping[str, OpSpec]`."""
    keyed = (node.slice for node in module.of(ast.Subscript) if _name(node.value) == "Mapping")
    return sum(isinstance(types, ast.Tuple) and [*map(_name, types.elts)] == ["str", "OpSpec"] for types in keyed)


def questions_of_none(module: Module) -> int:
    """`spec is None` and `spec is not None`, of a variable or an attribute."""
    of_spec = (node for node in module.of(ast.Compare) if _name(node.left) == "spec")
    return sum(isinstance(node.ops[0], ast.Is | ast.IsNot) for node in of_spec)


def _name(node: ast.AST) -> str:
    """The last part of a dotted name; of `(name := value)`, the name."""
    if isinstance(node, ast.NamedExpr):
        node = node.target
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def calls(module: Module, name: str) -> list[ast.Call]:
    return [node for node in module.of(ast.Call) if _name(node.func) == name]


def calls_outside_graph(name: str) -> Callable[[Module], int]:
    return lambda module: 0 if module.is_in_graph else len(calls(module, name))


def replaced_requests(module: Module) -> int:
    return sum(bool(call.args) and _name(call.args[0]) == "request" for call in calls(module, "replace"))


def vague_names(module: Module) -> int:
    return sum(node.id in VAGUE and isinstance(node.ctx, ast.Store) for node in module.of(ast.Name))


def complexity(function: Function) -> int:
    """Cyclomatic: one more than the places where the next statement depends on a value."""
    nodes = list(ast.walk(function))
    alternatives = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + sum(isinstance(node, BRANCHES) for node in nodes) + alternatives


def parameters(function: Function) -> int:
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return sum(argument.arg not in ("self", "cls") for argument in named)


def branched(module: Module) -> int:
    return sum(complexity(function) > MOST_BRANCHED for function in module.functions)


def wide(module: Module) -> int:
    return sum(parameters(function) > MOST_PARAMETERS for function in module.functions)


def large_folders(all_modules: list[Module]) -> int:
    sizes = Counter(module.path.parent for module in all_modules if module.path.name != "__init__.py")
    return sum(size > MOST_MODULES for size in sizes.values())


BY_MODULE: Mapping[str, Callable[[Module], int]] = {
    "lines of code": lines_of_code,
    "statements": statements,
    "op tables as parameters or fields": op_tables,
    "`spec is None`": questions_of_none,
    "`Uses(` outside graph/": calls_outside_graph("Uses"),
    "`default_options(` outside graph/": calls_outside_graph("default_options"),
    "`replace(request`": replaced_requests,
    "vague names of variables": vague_names,
    "functions of complexity above 15": branched,
    "functions with more than 8 parameters": wide,
}


def counts(source: Path = SOURCE) -> dict[str, int]:
    """Return every count, by its name in LIMITS."""
    everything = modules(source)
    sums = {name: sum(map(count, everything)) for name, count in BY_MODULE.items()}
    return {**sums, "folders of more than 14 modules": large_folders(everything)}


def to_change(counted: Mapping[str, int], limits: Mapping[str, int] = LIMITS) -> list[str]:
    """Return what has to be done about each count that is not where its limit is."""
    return [line for name, limit in limits.items() if (line := _advice(name, counted[name], limit))]


def _advice(name: str, count: int, limit: int) -> str:
    if count > limit:
        return f"{name}: {count:,} is above the limit of {limit:,}; change the code rather than the limit"
    step = SLACK if name in SLACKENED else 1
    lowest = -(-count // step) * step
    return f"{name}: {count:,} now; lower the limit of {limit:,} to {lowest:,}" if lowest < limit else ""


def main() -> int:
    counted = counts()
    for name, limit in LIMITS.items():
        print(f"{counted[name]:>8,} of {limit:>6,}  {name}")
    lines = to_change(counted)
    print("\n".join(lines) or "all at their limits")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
