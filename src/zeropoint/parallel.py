"""Work for all cores. LiteRT and NumPy let go of the interpreter while they compute, so threads do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801  # a decorator, by the name that everybody knows
        """As in Python 3.12. Before, all objects of a class share a lock that is held while a value is computed: one
        thread waits for another that works on something else, and a process forked meanwhile waits forever."""

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            kept = instance.__dict__
            if self._name not in kept:
                kept[self._name] = self._compute(instance)
            return kept[self._name]


Part = TypeVar("Part")
Found = TypeVar("Found")


_share: int | None = None


def cores() -> int:
    """How many cores this process may use: a container may have fewer than the machine, a worker among others its
    share."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(available or 1, _share or sys.maxsize)


def share_cores(count: int) -> None:
    """From now on, this process uses at most so many cores, as others work beside it."""
    global _share
    _share = max(1, count)


HELD = 1 << 27
"""Bytes of activations that interpreters may hold side by side. One by itself may hold more: it has to."""


def side_by_side(held: int) -> int:
    """How many interpreters that hold so many bytes each may run at a time: one for each core, unless they are large.

    A large one is given several threads instead, so that memory does not grow with the number of cores.
    """
    return max(1, min(cores(), HELD // max(1, held)))


def threads_of_each(held: int) -> int:
    """How many threads each of these interpreters is given."""
    return cores() // side_by_side(held)


class Threads(ThreadPoolExecutor):
    """Threads in which context variables are what they were where a job was handed over."""

    def submit(self, job: Callable[..., Found], /, *given: Any, **named: Any) -> Future[Found]:
        return super().submit(copy_context().run, job, *given, **named)


def in_parallel(job: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
    """The results of `job` on all parts, in order."""
    if len(parts) < 2 or cores() < 2:
        return [job(part) for part in parts]
    with Threads(min(len(parts), cores())) as pool:
        return list(pool.map(job, parts))
