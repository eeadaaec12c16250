"""Links between pages lead somewhere, on GitHub as well: to files that are there, and not to pages made by a build."""

from __future__ import annotations

import re

import pytest

from .blocks import DOCS, ROOT, pages

LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#([\w-]+))?\)")


def anchors(text: str) -> set[str]:
    """What headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text("utf-8")):
        target = (page.parent / path).resolve()
        assert target.exists(), path
        assert DOCS / "reference" not in target.parents, f"{path} is not there before the site is built"
        assert not anchor or anchor in anchors(target.read_text("utf-8")), f"{path}#{anchor}"
