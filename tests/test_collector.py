"""The garbage collector has its own thresholds again after a block that changes them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from zeropoint.collector import RARELY, rare_full_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("fails", [False, True])
def test_thresholds_are_restored(fails: bool) -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ZeroDivisionError) if fails else rare_full_collections(), rare_full_collections():
        assert gc.get_threshold() == (700, 10, RARELY)
        with rare_full_collections():
            assert gc.get_threshold() == (700, 10, RARELY)
        assert gc.get_threshold() == (700, 10, RARELY)
        if fails:
            raise ZeroDivisionError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(700, 10, 0), (700, 10, RARELY), (700, 10, 5000), (0, 10, 10)])
def test_who_wants_fewer_collections_or_none_gets_them(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rare_full_collections():
        assert gc.get_threshold()[2] in (own[2], RARELY)
    assert gc.get_threshold() == own


def test_what_is_set_meanwhile_stays() -> None:
    gc.set_threshold(700, 10, 10)
    with rare_full_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
