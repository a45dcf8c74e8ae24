"""Enforcement of a notebook server's slice on the hub's machine: its cgroup, and the driver's memory limit.

Both need a hub that may make cgroups, usually as root. Every hub records the server's process, so that its GPU use is
attributed to the slice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial

from ..backends.local.enforcement.cgroup import Cgroups, notebook_cgroup
from ..backends.local.enforcement.cgroup_entry import join
from ..backends.local.enforcement.limiter import Limiter
from ..backends.local.enforcement.limits_client import limits
from ..backends.local.host.servers import Servers
from ..core.enforcement.levels import DeviceShare
from ..wire import NotebookView

LIMIT_TIMEOUT_S = 10.0
EMPTY_TIMEOUT_S, POLL_S = 2.0, 0.05

_LIMITERS: dict[str, Limiter] = {}


def limiter_of(state_dir: str, cgroup: str = "") -> Limiter:
    """The limiter of a state folder. All servers share it, since it knows whether the driver's limits work."""
    key = os.path.abspath(state_dir)  # noqa: PTH100
    if key not in _LIMITERS:
        _LIMITERS[key] = Limiter(Cgroups(key, within=cgroup), partial(limits, timeout_s=LIMIT_TIMEOUT_S))
    return _LIMITERS[key]


class ServerEnforcement:
    """The enforcement of one server. ``devices``: those with a limit for its cgroup, kept over a restart of the hub.

    ``path`` is the cgroup to start in, None if none could be made; ``limited``: the driver limits it.
    """

    def __init__(self, limiter: Limiter, servers: Servers) -> None:
        self._limiter, self._servers = limiter, servers
        self.path: str | None = None
        self.limited = False
        self.devices: list[str] = []

    async def prepare(self, view: NotebookView) -> None:
        """Make and limit the cgroup of a booked slice, if possible. After a failure the server starts without it."""
        cgroups, name = self._limiter.cgroups, notebook_cgroup(view.id)
        self.path, self.limited = None, False
        if view.simulated or not view.allocations or cgroups.make(name):
            return
        self.path = str(cgroups.path(name))
        self.devices = [part.device_uuid for part in view.allocations if part.device_uuid]
        self.limited = await asyncio.to_thread(self._limiter.limit, name, _device_shares(view))

    def record_start(self, notebook: str, pid: int) -> str:
        """Record the server's process. Returns the cause of a failure, or an empty text."""
        return self._servers.record_start(notebook, pid)

    def record_running(self, notebook: str, pid: int) -> None:
        """Record a server that is older than the hub, unless it is recorded or is of another notebook."""
        self._servers.record_running(notebook, pid)

    async def release(self, notebook: str) -> None:
        """Kill the remaining processes of an ended server, and remove its cgroup and record."""
        cgroups, name = self._limiter.cgroups, notebook_cgroup(notebook)
        self.path, self.limited = None, False
        self._servers.forget(notebook)
        if not cgroups.exists(name):
            return
        cgroups.kill(name)
        until = asyncio.get_running_loop().time() + EMPTY_TIMEOUT_S
        while cgroups.processes(name) and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self._limiter.release, name, self.devices)


class NoEnforcement:
    """For servers that do not run on the hub's machine: nothing is made, limited, recorded or released."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.limited = False
        self.devices: list[str] = []

    async def prepare(self, view: NotebookView) -> None: ...

    def record_start(self, notebook: str, pid: int) -> str:
        return ""

    def record_running(self, notebook: str, pid: int) -> None: ...

    async def release(self, notebook: str) -> None: ...


def _device_shares(view: NotebookView) -> Sequence[DeviceShare]:
    return [
        DeviceShare(
            workload=view.id, device=part.device_uuid, gpu_milli=part.gpu_milli, memory_mib=part.memory_mib,
            notebook=True, simulated=view.simulated,
        )
        for part in view.allocations
    ]  # fmt: skip


def enter_cgroup_first(path: str, before: Callable[[], object] | None) -> Callable[[], None]:
    """A ``preexec_fn`` that enters a cgroup and then calls ``before``."""

    def enter() -> None:
        with contextlib.suppress(OSError):  # then it starts outside the cgroup, and its enforcement level is weaker
            join(path)
        if before is not None:
            before()

    return enter
