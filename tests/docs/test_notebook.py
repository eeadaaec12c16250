"""The notebook in docs/ runs from top to bottom, and each cell ends with a value that a notebook can show.

A notebook is JSON with cells of Python, so no other package is needed to run one.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from .blocks import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of the expression that it ends with."""
    tree = ast.parse(source)
    *statements, last = tree.body
    assert isinstance(last, ast.Expr), source
    exec(compile(ast.Module(statements, []), NOTEBOOK.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    content = json.loads(NOTEBOOK.read_text("utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "leave outputs out: they grow old"
    shown = [run_cell("".join(cell["source"]), names)._repr_html_() for cell in cells]
    assert len(shown) == 5
    assert all("<svg" in html for html in shown if "Ops by their own SNR" not in html)
    assert [path.name for path in tmp_path.iterdir()] == ["digits_int8.tflite"]
