"""The pictures can be drawn again from the code, and the committed ones are those that the script draws."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from .blocks import DOCS, ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_pictures

SVG = "{http://www.w3.org/2000/svg}"


def texts(path):
    """What is written in a picture: numbers and labels, which do not depend on the version of Matplotlib."""
    return [t.text for t in ElementTree.parse(path).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", sorted(make_pictures.PICTURES))
def test_picture_is_up_to_date(name, tmp_path):
    drawn = make_pictures.draw(name, tmp_path)
    committed = DOCS / "pictures" / f"{name}.svg"
    assert texts(committed) == texts(drawn), f"run tools/make_pictures.py to draw {name} again"
    assert committed.stat().st_size < 50_000


def test_every_picture_is_shown():
    pages = "".join(p.read_text("utf-8") for p in DOCS.rglob("*.md"))
    committed = {p.name for p in (DOCS / "pictures").glob("*.svg")}
    assert committed == {f"{name}.svg" for name in make_pictures.PICTURES}
    assert all(f"pictures/{name}" in pages for name in committed)
