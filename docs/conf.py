"""How the documentation is built: `sphinx-build -W -b html docs build/site`."""

import sys
from pathlib import Path
from typing import Any

import zeropoint

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

project = "zeropoint"
author = "the authors of zeropoint"
version = release = zeropoint.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"zeropoint {release}"
html_static_path: list[str] = []
html_copy_source = False

# Links such as `training.md#if-you-know-other-tools` work on GitHub and here.
myst_heading_anchors = 3

# Docstrings are plain text with `names` in backquotes.
default_role = "code"
add_module_names = False
autodoc_typehints = "signature"
# A description of Keras's own methods, and the seconds it takes to import it, are not wanted here.
autodoc_mock_imports = ["keras", "tensorflow"]


def setup(app: Any) -> None:
    """Write the reference pages before Sphinx looks for pages."""
    from make_pages import write_pages

    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference"))
    app.connect("source-read", _leave_results_out_of_the_contents)


def _leave_results_out_of_the_contents(app: Any, name: str, source: list[str]) -> None:  # noqa: ARG001
    """Pages that a benchmark wrote are reached from the page on measurements; there may be many, or none."""
    if name.startswith("results/"):
        source[0] = f"---\norphan: true\n---\n{source[0]}"
