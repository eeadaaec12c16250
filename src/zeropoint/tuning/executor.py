"""Where trials run: in this process, in others on this machine, or on a Ray cluster.

All give the same results, and all continue if a process dies: its trial is repeated.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.process import BaseProcess
from uuid import uuid4

from ..cluster import ATTEMPTS, Cluster, JobLost
from ..errors import InvalidRecipe
from ..parallel import cores, share_cores
from .trial import Configuration, Outcome, Workpiece

DIED = f"the process that made it ended, {ATTEMPTS} times; perhaps for lack of memory"


class Executor(AbstractContextManager["Executor"]):
    """Runs candidates for one workpiece."""

    @abstractmethod
    def outcomes(self, candidates: Sequence[Configuration]) -> Iterator[tuple[int, Outcome]]:
        """Yield each candidate's position and outcome, as they complete."""


class InProcess(Executor):
    """Runs candidates one after the other in this process."""

    def __init__(self, workpiece: Workpiece) -> None:
        self._workpiece = workpiece

    def outcomes(self, candidates: Sequence[Configuration]) -> Iterator[tuple[int, Outcome]]:
        for place, candidate in enumerate(candidates):
            yield place, self._workpiece.carry_out(candidate)

    def __exit__(self, *_: object) -> None:
        pass


_workpiece: Workpiece | None = None
"""In a worker process: the workpiece, sent once rather than with every trial."""


def _receive(workpiece: Workpiece, share: int) -> None:
    global _workpiece
    _workpiece = workpiece
    share_cores(share)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes: avoid a traceback from each
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the end: a process that is half started would show a traceback of its own.

    Processes that are started meanwhile have it blocked, until they are ready.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))  # other threads may get it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if waiting:
        raise KeyboardInterrupt


def _carry_out(candidate: Configuration) -> Outcome:
    assert _workpiece is not None
    return _workpiece.carry_out(candidate)


class Processes(Executor):
    """Runs several candidates at a time, each in a separate process on this machine."""

    def __init__(
        self, workpiece: Workpiece, workers: int, job: Callable[[Configuration], Outcome] = _carry_out
    ) -> None:
        self._workpiece, self._workers, self._job = workpiece, workers, job
        self._pool: ProcessPoolExecutor | None = None
        self._others: list[BaseProcess] = []
        self._is_busy = False

    def outcomes(self, candidates: Sequence[Configuration]) -> Iterator[tuple[int, Outcome]]:
        left = dict(enumerate(candidates))
        attempts = dict.fromkeys(left, 0)
        self._is_busy = True
        while left:
            pool = self._pool = self._pool or self._started()
            # After a process has died, one at a time: otherwise it is unclear which candidate it was.
            alone = any(attempts.values())
            begun = dict(list(left.items())[: 1 if alone else None])
            with uninterrupted():
                futures = {pool.submit(self._job, candidate): place for place, candidate in begun.items()}
            try:
                for future in as_completed(futures):
                    outcome = future.result()
                    del left[futures[future]]
                    yield futures[future], outcome
            except BrokenProcessPool:
                self._pool = None
                for place in begun.keys() & left.keys():
                    attempts[place] += 1
                    if attempts[place] >= ATTEMPTS:
                        del left[place]
                        yield place, Outcome(refusal=DIED)
        self._is_busy = False

    def _started(self) -> ProcessPoolExecutor:
        self._others = multiprocessing.active_children()
        context = multiprocessing.get_context("spawn")  # forking a process with threads can deadlock
        return ProcessPoolExecutor(self._workers, context, _receive, (self._workpiece, cores() // self._workers))

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=not self._is_busy, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - set(self._others) if self._is_busy else ():
                process.terminate()


class OnCluster(Executor):
    """Runs candidates on a Ray cluster. The model and the samples are sent to its object store once."""

    def __init__(self, workpiece: Workpiece, address: str) -> None:
        self._cluster = Cluster(address)
        self._name, self._workpiece = uuid4().hex, self._cluster.put(workpiece)

    def outcomes(self, candidates: Sequence[Configuration]) -> Iterator[tuple[int, Outcome]]:
        given = self._name, self._workpiece
        begun = {self._cluster.submit(_carry_out_of, *given, c): k for k, c in enumerate(candidates)}
        for future in as_completed(begun):
            is_lost = isinstance(future.exception(), JobLost)
            yield begun[future], Outcome(refusal=DIED) if is_lost else future.result()

    def __exit__(self, *error: object) -> None:
        self._cluster.__exit__(*error)


_kept: dict[str, Workpiece] = {}
"""In a cluster worker: the last search it worked for, with what was measured for it there."""


def _carry_out_of(name: str, workpiece: Workpiece, candidate: Configuration) -> Outcome:
    if name not in _kept:
        _kept.clear()
        _kept[name] = workpiece
    return _kept[name].carry_out(candidate)


def executor(workpiece: Workpiece, on: str | None = None, workers: int = 1) -> Executor:
    """Return the executor for `on`: None for this machine, "ray", or the address of a Ray cluster."""
    if workers < 1:
        raise InvalidRecipe(f"workers must be at least 1, not {workers}")
    if on is not None:
        return OnCluster(workpiece, on)
    return InProcess(workpiece) if workers == 1 else Processes(workpiece, workers)
