"""Functions in a user's own Python files: `file.py:function`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ZeropointError


def function_in(script: Path, name: str, refusal: type[ZeropointError]) -> Callable[..., Any]:
    """The function called `name` that `script` defines; whatever is wrong with it is raised as a `refusal`."""
    if not script.is_file():
        raise refusal(f"there is no {script}; give the path of a Python file and the name of a function in it")
    try:
        names = runpy.run_path(str(script))
    except (Exception, SystemExit) as error:
        raise refusal(f"{script} raised {type(error).__name__}: {error}") from error
    found: Callable[..., Any] | None = names.get(name)
    if not callable(found):
        has = ", ".join(n for n, v in names.items() if getattr(v, "__module__", None) == names["__name__"]) or "none"
        raise refusal(f"{script} has no function '{name}'; it has {has}")
    return found
