"""What makes the package hard to find one's way in gets less. `python -m tools.house_counts` prints the counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house_counts import LIMITS, SLACK, counts, to_change


def test_the_counts_only_go_down():
    """A count above its limit is to be undone; one that fell lowers its limit, in `tools/house_counts.py`."""
    assert to_change(counts()) == []


SAMPLES = {
    "lines of code": ('"""Text.\n\nMore."""\n\nx = (\n    1,\n)  # one\n# two\n', 3),
    "statements": ('"""Text."""\nx = 1\nif x: y = 2; z = 3\n', 4),
    "op tables as parameters or fields": ("def f(ops: Mapping[str, OpSpec], x: Mapping[str, int]): ...\n", 1),
    "`spec is None`": ("a = spec is None or x.spec is not None or (spec := f()) is None or specs is None\n", 3),
    "`Uses(` outside graph/": ("a = Uses(graph).of(x)\n", 1),
    "`default_options(` outside graph/": ("a = schema.default_options('AddOptions')\n", 1),
    "`replace(request`": ("a = replace(request, x=1), replace(best.request, x=1), replace(x, request=y)\n", 2),
    "vague names of variables": ("found = f(known=1)\nfor made in g(found): pass\n", 2),
    "functions of complexity above 15": (f"def f(x):\n    return {' or '.join('x' * 16)}\n", 1),
    "functions with more than 8 parameters": ("class C:\n    def f(self, a, b, c, d, *, e, f, g, h, i): ...\n", 1),
}


def package(folder: Path, **files: str) -> dict[str, int]:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return counts(folder)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_counted(name, tmp_path):
    text, count = SAMPLES[name]
    assert package(tmp_path, plan__module=text)[name] == count
    assert package(tmp_path, plan__module="", graph__module=text)[name] == (0 if "outside graph" in name else count)


def test_a_folder_is_large_from_its_fifteenth_module_on(tmp_path):
    name = "folders of more than 14 modules"
    assert package(tmp_path, **{f"plan__m{k}": "" for k in range(14)}, plan____init__="")[name] == 0
    assert package(tmp_path, plan__m14="")[name] == 1


def test_every_count_has_a_limit(tmp_path):
    assert counts(tmp_path).keys() == LIMITS.keys() == {*SAMPLES, "folders of more than 14 modules"}


@pytest.mark.parametrize(("count", "advice"), [(5, ""), (6, "above the limit of 5"), (4, "lower the limit of 5 to 4")])
def test_limits_follow_what_was_reached(count, advice):
    lines = to_change({"x": count}, {"x": 5})
    assert [advice in line for line in lines] == ([True] if advice else [])


@pytest.mark.parametrize(("count", "limit"), [(SLACK, SLACK), (SLACK + 1, 2 * SLACK), (2 * SLACK, 2 * SLACK)])
def test_sizes_have_slack(count, limit):
    assert to_change({"statements": count}, {"statements": limit}) == []
    assert to_change({"statements": count}, {"statements": limit - SLACK}) != []
    assert to_change({"statements": count}, {"statements": limit + SLACK}) != []
