"""A Ray cluster as a place to run functions. Ray does the scheduling and the network; nothing of that is here."""

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
"""How often a job is begun whose process or machine dies."""

PATIENCE = 10.0
"""Seconds in which a cluster has to answer."""

THIS_MACHINE = "ray"
"""Where users say that any cluster will do: the one that runs on this machine, or else one that is started."""


class JobLost(RuntimeFailure):
    """The process of a job died as often as it was begun."""


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to the cluster at an address (`host:port`), or to one on this machine."""

    def __init__(self, address: str) -> None:
        self._ray = connected(None if address == THIS_MACHINE else address)
        self._call = self._ray.remote(max_retries=ATTEMPTS - 1)(_guarded)

    @property
    def cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def put(self, value: object) -> Any:
        """A reference to `value`, which each machine gets once; as an argument of a job it stands for the value."""
        return self._ray.put(value)

    def submit(self, job: Callable[..., Any], *given: Any) -> Future[Any]:
        """The result of `job`, which is begun again if its process dies."""
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
    """Errors of ours come back as they are; Ray wraps whatever is raised. No more cores are used than Ray assigned."""
    import ray

    here: Any = ray.get_runtime_context()
    share_cores(int(here.get_assigned_resources().get("CPU", 1)))
    try:
        return job(*given), None
    except ZeropointError as error:
        return None, error


def _require_listener(address: str) -> None:
    """Raise if nobody listens there: Ray 2.60 itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def connected(address: str | None) -> Any:
    """The module `ray`, connected to a cluster; without an address to that of this machine, started if need be."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing touches the network unasked
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
