"""What holds a notebook server to its slice on the hub's own machine: its control group, and the driver's limit on it.

Only a hub that may make control groups has either, which as a rule is one that runs as root. Every hub records which
process the server is: what is used under the slice's name is held against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial

from ..backends.local.enforcement.cgroup import Cgroups, notebook_cgroup
from ..backends.local.enforcement.cgroup_entry import join
from ..backends.local.enforcement.cooperative import variables_of
from ..backends.local.enforcement.limiter import Limiter
from ..backends.local.enforcement.limits_client import limits
from ..backends.local.host.servers import Servers
from ..backends.rendering.variables import SHARE_VARIABLE
from ..core.enforcement import DeviceShare
from ..wire import NotebookView

LIMIT_WITHIN_S = 10.0
EMPTY_WITHIN_S, LOOK_S = 2.0, 0.05

_LIMITERS: dict[str, Limiter] = {}


def limiter_of(state_dir: str, cgroup: str = "") -> Limiter:
    """The one limiter of a state folder: it remembers for all servers whether the driver limits anything."""
    key = os.path.abspath(state_dir)  # noqa: PTH100
    if key not in _LIMITERS:
        _LIMITERS[key] = Limiter(Cgroups(key, within=cgroup), partial(limits, timeout_s=LIMIT_WITHIN_S))
    return _LIMITERS[key]


class ServerHold:
    """The hold on one server. ``devices`` are those that its group was limited on, and may be recalled after a restart.

    ``path`` is the group to begin in, None where none could be made; ``limited``: the driver limits it.
    """

    def __init__(self, limiter: Limiter, servers: Servers) -> None:
        self._limiter, self._servers = limiter, servers
        self.path: str | None = None
        self.limited = False
        self.devices: list[str] = []

    async def take(self, view: NotebookView) -> None:
        """Make the group of a booked slice and limit it, if that can be. Whatever fails, the server can start."""
        cgroups, name = self._limiter.cgroups, notebook_cgroup(view.id)
        self.path, self.limited = None, False
        if view.simulated or not view.allocations or cgroups.make(name):
            return
        self.path = str(cgroups.path(name))
        self.devices = [part.device_uuid for part in view.allocations if part.device_uuid]
        self.limited = await asyncio.to_thread(self._limiter.limit, name, _parts(view))

    def note(self, notebook: str, pid: int) -> str:
        """Record which process the server is. Returns why it could not be; empty where it is recorded."""
        return self._servers.note(notebook, pid)

    def note_again(self, notebook: str, pid: int) -> None:
        """Record a server that ran before the hub did, unless it is recorded or is not that notebook's any more."""
        if self._servers.of(notebook) is None and f'"{notebook}"' in (variables_of(pid) or {}).get(SHARE_VARIABLE, ""):
            self._servers.note(notebook, pid)

    async def let_go(self, notebook: str) -> None:
        """Kill what a server that ended left behind in its group, and remove the group and the record."""
        cgroups, name = self._limiter.cgroups, notebook_cgroup(notebook)
        self.path, self.limited = None, False
        self._servers.forget(notebook)
        if not cgroups.exists(name):
            return
        cgroups.kill(name)
        until = asyncio.get_running_loop().time() + EMPTY_WITHIN_S
        while cgroups.processes(name) and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(self._limiter.release, name, self.devices)


def _parts(view: NotebookView) -> Sequence[DeviceShare]:
    return [
        DeviceShare(
            workload=view.id, device=part.device_uuid, gpu_milli=part.gpu_milli, memory_mib=part.memory_mib,
            notebook=True, simulated=view.simulated,
        )
        for part in view.allocations
    ]  # fmt: skip


def entering(path: str, before: Callable[[], object] | None) -> Callable[[], None]:
    """What a server's process does between fork and exec: enter its group, then whatever it did before."""

    def enter() -> None:
        with contextlib.suppress(OSError):  # it begins outside, and is seen to be there
            join(path)
        if before is not None:
            before()

    return enter
