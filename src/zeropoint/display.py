"""How values display themselves: a few lines at a prompt, a picture in a notebook."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

FEW, LONGEST = 3, 72
"""The maximum number of elements of a collection, and of characters of a string, that are shown."""

PAUSE = 0.1
"""Seconds between updates of a progress line."""


class Brief:
    """A dataclass whose `repr` fits on a screen, however much it holds; declare it with `repr=False`."""

    def __repr__(self) -> str:
        assert dataclasses.is_dataclass(self)
        held = ((field, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr)
        shown = (f"{field.name}={_brief(value)}" for field, value in held if not _is_default(field, value))
        return f"{type(self).__name__}({', '.join(shown)})"


class Displayed(Brief):
    """A `Brief` value that is also shown as a picture in notebooks.

    Notebooks look for a method on the value itself, so this is the one place where inner values refer to the report,
    which knows how to draw them.
    """

    def _repr_html_(self) -> str:
        return str(import_module("zeropoint.report.notebook").html(self))


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    return value is field.default or (isinstance(value, Collection) and len(value) == 0)


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")
    if isinstance(value, Mapping):
        return f"<{len(value)} {'entry' if len(value) == 1 else 'entries'}>"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<array {value.dtype}{list(value.shape)}>"
    if isinstance(value, tuple | list | set | frozenset):
        if len(value) > FEW:
            return f"<{len(value)} × {type(next(iter(value))).__name__}>"
        return f"({', '.join(map(_brief, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Brief):
        name = getattr(value, "name", None)
        return f"{type(value).__name__}({'' if name is None else f'{name!r}, '}…)"
    text = repr(value)
    return text if len(text) <= 2 * LONGEST else f"{text[: 2 * LONGEST]}…"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: `1 op`, `2 ops`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(size: float) -> str:
    """Format a size such as `26.7 kB`, in powers of ten, as file managers do."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def share_text(share: float, is_all: bool = True) -> str:
    """Format a share such as `99.9%`; 100.0% is shown only if nothing is missing, even things that the share does not
    count."""
    return "100.0%" if share >= 1 and is_all else f"{min(share, 0.999):.1%}"


def notebook_line(title: str) -> Callable[..., None] | None:
    """Return a function that updates a progress line in a notebook; None outside notebooks."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from html import escape  # outside notebooks, half a megabyte for nothing

    line = import_module("IPython.display").display({"text/plain": title}, raw=True, display_id=True)
    last = -PAUSE

    def show(*done: object) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= PAUSE:
            last = now
            text = " ".join([title, *(f"{one:.4g}" if isinstance(one, float) else str(one) for one in done)])
            line.update({"text/plain": text, "text/html": f"<code>{escape(text)}</code>"}, raw=True)

    return show
