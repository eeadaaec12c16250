"""Work in threads: results in order, contexts that go along, and nobody who waits for somebody else's lock."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from contextvars import ContextVar

from zeropoint import parallel
from zeropoint.parallel import Threads, cached_property, in_parallel
from zeropoint.runtime import Session
from zeropoint.streams import captured

from .runtime.test_runner import two_inputs


class Slow:
    """A value that takes until somebody says so."""

    def __init__(self, start: threading.Event, go: threading.Event) -> None:
        self.start, self.go = start, go

    @cached_property
    def value(self) -> int:
        """What it is."""
        self.start.set()
        assert self.go.wait(60)
        return 5


def test_results_are_in_order():
    assert in_parallel(lambda k: k * k, range(7)) == [k * k for k in range(7)]


def test_a_worker_among_others_uses_its_share(monkeypatch):
    monkeypatch.setattr(parallel, "_share", None)
    before = parallel.cores()
    parallel.share_cores(0)
    assert parallel.cores() == 1
    parallel.share_cores(before + 1)
    assert parallel.cores() == before


def test_contexts_go_along():
    variable = ContextVar("variable", default=0)
    variable.set(3)
    with Threads(2) as pool:
        assert list(pool.map(lambda _: variable.get(), range(4))) == [3] * 4


def test_values_are_computed_once_and_for_each_object():
    start, go = threading.Event(), threading.Event()
    go.set()
    one = Slow(start, go)
    assert (one.value, one.__dict__["value"]) == (5, 5)
    start.clear()
    assert one.value == 5
    assert not start.is_set()
    assert Slow.value.__doc__ == "What it is."


def forked(job) -> int:
    """The exit code of a process forked from here, in which `job` ran; it is ended if that takes long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # to fork beside threads is what is tried here
        process = os.fork()
    if process == 0:  # pragma: no cover  # another process
        signal.alarm(60)
        job()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_a_forked_process_waits_for_no_thread_of_its_parent():
    """At the moment of the fork, threads are computing a value, and hold the descriptors."""
    start, go, held = threading.Event(), threading.Event(), threading.Event()
    ready = threading.Event()
    ready.set()

    def hold() -> None:
        with captured():
            held.set()
            go.wait(60)

    threads = [threading.Thread(target=lambda: Slow(start, go).value), threading.Thread(target=hold)]
    for thread in threads:
        thread.start()
    assert start.wait(60)
    assert held.wait(60)

    def job() -> None:
        assert Slow(threading.Event(), ready).value == 5
        with captured():
            print("mine")

    try:
        assert forked(job) == 0
    finally:
        go.set()
        for thread in threads:
            thread.join()


def test_loading_models_takes_no_lines_from_other_threads(capfd):
    done = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not done.is_set():
            os.write(2, b"a line of mine\n")
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(5):
        Session(two_inputs()).resize([(1, 4), (1, 4)])
    done.set()
    thread.join()
    err = capfd.readouterr().err
    assert err.count("a line of mine\n") == written
    assert "XNNPACK" not in err
