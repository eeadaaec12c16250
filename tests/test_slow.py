"""The list of slow tests: what it names is there, and nothing beside it is slow."""

from __future__ import annotations

import ast

from tools.children import ROOT

from .slow import FILES, FOLDERS, SLOW, TESTS, is_slow


def test_what_is_slow_is_there():
    assert all((ROOT / folder).is_dir() for folder in FOLDERS)
    assert all((ROOT / file).is_file() for file in FILES)
    for place in TESTS:
        file, _, test = place.partition("::")
        functions = ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
        assert test in {node.name for node in functions if isinstance(node, ast.FunctionDef)}


def test_nothing_is_listed_twice():
    assert len(SLOW) == len(FOLDERS) + len(FILES) + len(TESTS)
    assert not any(is_slow(place.rpartition("/")[0]) for place in (*FILES, *TESTS))
    assert not any(is_slow(place.partition("::")[0]) for place in TESTS)


def test_a_test_is_slow_where_it_its_file_or_its_folder_is():
    folder, file, test = FOLDERS[0], FILES[0], TESTS[0]
    for place in (folder, f"{folder}/test_x.py", f"{folder}/test_x.py::test_y[1]", file, f"{file}::test_x", test):
        assert is_slow(place)
    assert is_slow(f"{test}[a::b/c]")
    for place in ("tests", f"{folder}_more/test_x.py", f"{test}_more", test.partition("::")[0]):
        assert not is_slow(place)
