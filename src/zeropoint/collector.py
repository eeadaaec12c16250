"""Python's garbage collector, while many models are built, compared and dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

RARELY = 100
"""Collections of the middle generation for each full one; Python's own number is 10."""

_lock = Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds that each running block found, the outermost first."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Within this, look through all objects of the process less often.

    A model is thousands of objects, and its versions keep making new ones, so that Python looks for garbage every
    second among everything that was ever imported. Hardly any is found: models are freed when the last reference goes.
    Younger objects are looked through as before. Other numbers that someone sets meanwhile stay.
    """
    with _lock:
        found = gc.get_threshold()
        _before.append(found)
        if 0 < found[2] < RARELY:
            gc.set_threshold(*found[:2], RARELY)
    try:
        yield
    finally:
        with _lock:
            first = _before[0]
            _before.pop()
            if not _before and gc.get_threshold() == (*first[:2], RARELY):
                gc.set_threshold(*first)
