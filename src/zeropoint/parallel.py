"""Parallel work. LiteRT and NumPy release the interpreter lock while they compute, so threads suffice.

While quantizing they are the only ones: threads within NumPy's matrix products would compete with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801  # a decorator, by the name that everybody knows
        """`functools.cached_property` as in Python 3.12. In earlier versions all objects of a class share a lock that
        is held while a value is computed: threads wait for unrelated work, and a process forked meanwhile deadlocks."""

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
    """Return how many cores this process may use: fewer than the machine has in a container, or as one of several
    workers."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(available or 1, _share or sys.maxsize)


def share_cores(count: int) -> None:
    """Limit this process to `count` cores from now on, because others run beside it."""
    global _share
    _share = max(1, count)


HELD = 1 << 27
"""The limit on activations, in bytes, of interpreters that run in parallel. A single one may exceed it."""


def side_by_side(held: int) -> int:
    """Return how many interpreters of `held` bytes each may run in parallel: one per core, unless they are large.

    A large one gets several threads instead, so that memory use does not grow with the number of cores.
    """
    return max(1, min(cores(), HELD // max(1, held)))


def threads_of_each(held: int) -> int:
    """Return the number of threads for each of the interpreters that run in parallel."""
    return cores() // side_by_side(held)


class Threads(ThreadPoolExecutor):
    """A thread pool whose jobs see the context variables of the caller."""

    def submit(self, job: Callable[..., Found], /, *given: Any, **named: Any) -> Future[Found]:
        return super().submit(copy_context().run, job, *given, **named)


def in_parallel(job: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
    """Return the results of `job` on all parts, in order."""
    if len(parts) < 2 or cores() < 2:
        return [job(part) for part in parts]
    with Threads(min(len(parts), cores())) as pool:
        return list(pool.map(job, parts))


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """NumPy multiplies matrices with one thread meanwhile, in the whole process.

    Threads in products of small matrices gain nothing: they wait for each other in loops that keep all cores busy. And
    sums depend on the number of threads in their last bits, so one more core would change the result.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
