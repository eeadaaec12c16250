"""Work for all cores. LiteRT and NumPy let go of the interpreter while they compute, so threads do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

Part = TypeVar("Part")
Found = TypeVar("Found")


def cores() -> int:
    """How many cores this process may use: a container may have fewer than the machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return available or 1


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
