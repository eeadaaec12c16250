"""Runs functions on a Ray cluster. Ray does the scheduling and the networking."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from .errors import MissingExtra, RuntimeFailure, ZeropointError
from .parallel import share_cores

ATTEMPTS = 3
"""How often a job is attempted if its process or machine dies."""

PATIENCE = 10.0
"""Seconds within which a cluster must answer."""

THIS_MACHINE = "ray"
"""The address that means any cluster: the one running on this machine, or else a new one."""


class JobLost(RuntimeFailure):
    """The process of a job died in every attempt."""


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to the cluster at an address (`host:port`), or to one on this machine."""

    def __init__(self, address: str) -> None:
        self._ray = connected(None if address == THIS_MACHINE else address)
        self._call = self._ray.remote(max_retries=ATTEMPTS - 1)(_guarded)

    @property
    def cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def put(self, value: object) -> Any:
        """Return a reference to `value`, which each machine receives once; passed to a job, it stands for the value."""
        return self._ray.put(value)

    def submit(self, job: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return a future for the result of `job`, which is restarted if its process dies."""
        outer: Future[Any] = Future()

        def finish(inner: Future[Any]) -> None:
            lost = inner.exception()
            if isinstance(lost, self._ray.exceptions.RayTaskError):
                outer.set_exception(lost)
            elif lost is not None:
                first = str(lost).strip().partition("\n")[0]
                outer.set_exception(JobLost(f"a worker of the Ray cluster died {ATTEMPTS} times: {first}"))
            else:
                found, refusal = inner.result()
                outer.set_result(found) if refusal is None else outer.set_exception(refusal)

        self._call.remote(job, *given).future().add_done_callback(finish)
        return outer

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()


def _guarded(job: Callable[..., Any], *given: Any) -> tuple[Any, ZeropointError | None]:
    """Run a job on the cores that Ray assigned, returning our errors as values because Ray wraps exceptions."""
    import ray

    here: Any = ray.get_runtime_context()
    share_cores(int(here.get_assigned_resources().get("CPU", 1)))
    try:
        return job(*given), None
    except ZeropointError as error:
        return None, error


def _require_listener(address: str) -> None:
    """Raise if nothing listens at the address: Ray 2.60 itself keeps trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def connected(address: str | None) -> Any:
    """Return the module `ray`, connected to a cluster; without an address, to this machine's, which is started if
    needed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no network access unless requested
    try:
        import ray
    except ImportError:
        raise MissingExtra("running on Ray needs ray; install it with: pip install 'zeropoint[ray]'") from None
    where = "a Ray cluster on this machine" if address is None else f"the Ray cluster at {address}"
    local: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    try:
        if address is not None:
            _require_listener(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RuntimeFailure(f"cannot reach {where}: {first}; is it running, with the same version of Ray?") from None
    return ray
