"""The table that a terminal shows during a search."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from zeropoint.report.tuning import live_table
from zeropoint.tuning.search import SearchState


@pytest.mark.parametrize(("done", "shown"), [(0, ""), (2, "about 12 s"), (8, "")])
def test_the_time_left_is_called_an_estimate(done, shown):
    """The trials that are left are often slower than those before, so it is no upper limit."""
    written = StringIO()
    console = Console(file=written, force_terminal=True, width=100, no_color=True)
    with live_table(console) as report:
        report(SearchState((), (SimpleNamespace(),) * done, None, ("int8",), 8, 4.0))
    assert "time left" in written.getvalue()
    assert "at most" not in written.getvalue()
    assert ("about" in written.getvalue()) == bool(shown)
    assert shown in written.getvalue()
