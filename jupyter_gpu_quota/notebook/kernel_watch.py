"""The activity of a Jupyter server's kernels, terminals and other programs, as its own server knows it.

Ages begin when a change is observed and use the monotonic clock: they are never too long, and independent of the
machine's time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..wire.activity import ActivityReport, KernelReport, ProgramReport
from .open_requests import OpenRequests
from .service import monotonic_ms

STATES = {"idle": "idle", "busy": "busy", "starting": "busy", "restarting": "busy", "autorestarting": "busy"}
"""The activity in a kernel's state; others are unknown. Dead kernels are left out, and those that failed to start."""

DEAD = "dead"
STARTING = frozenset({"starting", "restarting", "autorestarting"})
STARTS_WITHIN_MS = 60_000
"""A kernel reports no state before its first client: after this time a starting kernel counts as idle since its start.
"""

MAX_NAME_LENGTH = 128
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class ChangeTimes:
    """The time since the last change of a value, by name."""

    clock: Callable[[], int]
    seen: dict[str, tuple[object, int]] = field(default_factory=dict)

    def of(self, name: str, value: object) -> int:
        """Milliseconds since the name has this value."""
        now = self.clock()
        known, since = self.seen.get(name, (None, now))
        if name not in self.seen or known != value:
            since = now
            self.seen[name] = (value, now)
        return now - since

    def forget_all_but(self, names: set[str]) -> None:
        for name in self.seen.keys() - names:
            del self.seen[name]


class Watch:
    """Observes one server. ``server`` is its ServerApp; ``instance`` identifies this start of it.

    Kernels that ``requests`` does not have are as busy as the server has them.
    """

    def __init__(
        self, server: Any, instance: str, clock: Callable[[], int] = monotonic_ms, requests: OpenRequests | None = None
    ) -> None:
        self.server, self.instance, self.clock = server, instance, clock
        self.requests = requests or OpenRequests(server.kernel_manager)
        self.began = clock()
        self.messages, self.starts, self.uses = ChangeTimes(clock), ChangeTimes(clock), ChangeTimes(clock)

    def observe(self, sequence: int = 0) -> ActivityReport:
        """The present activity."""
        ticks = boot_ticks()  # before the listing, so that no listed process is younger
        kernels = list(self._kernels())
        names = {kernel.id for kernel in kernels}
        self.messages.forget_all_but(names)
        self.starts.forget_all_but(names)
        return ActivityReport(
            instance=self.instance,
            sequence=sequence,
            running_ms=self.clock() - self.began,
            namespace=pid_namespace(),
            ticks=ticks,
            kernels=kernels[:200],
            programs=list(self._programs({kernel.pid for kernel in kernels}))[:200],
            server_quiet_ms=self.uses.of("server", self._server_used_at()),
        )

    def quiet_ms(self, kernel: str) -> int | None:
        """How long a kernel has been idle without a message; None if it is not idle, or gone."""
        return next((k.quiet_ms for k in self.observe().kernels if k.id == kernel and k.state == "idle"), None)

    def _server_used_at(self) -> datetime | None:
        """When the server last had a request of a user, or traffic of a terminal or a proxied program."""
        settings = self.server.web_app.settings
        return max((at for key, at in settings.items() if key.endswith("_last_activity")), default=None)

    def _kernels(self) -> Iterator[KernelReport]:
        kernels = self.server.kernel_manager
        for name in kernels.list_kernel_ids():
            kernel = kernels.get_kernel(name)
            if getattr(kernel, "execution_state", None) != DEAD and not has_failed_start(kernel):
                yield self._kernel(name, kernel, getattr(kernels, "_kernel_connections", {}).get(name, 0))

    def _kernel(self, name: str, kernel: Any, connections: int) -> KernelReport:
        last, state = self.requests.activity(name, kernel)
        pid = getattr(getattr(kernel, "provisioner", None), "pid", None)
        spec = getattr(kernel, "kernel_spec", None)
        age = self.messages.of(name, (last, state))
        if state in STARTING and age >= STARTS_WITHIN_MS:
            state = "idle"
        running = self.starts.of(name, pid)
        return KernelReport(
            id=name,
            name=printable(str(getattr(kernel, "kernel_name", "")))[:MAX_NAME_LENGTH],
            state=STATES.get(state or ""),  # type: ignore[arg-type]
            quiet_ms=None if last is None else age,
            running_ms=running,
            pid=pid if isinstance(pid, int) and pid > 0 else None,
            asks_gpu=getattr(spec, "metadata", {}).get("gpu") is not False,
            cpu_ms=cpu_ms_below(pid),
            started=started_of(pid),
            connections=max(0, connections),
        )

    def _programs(self, kernels: set[int | None]) -> Iterator[ProgramReport]:
        terminals = {pid: name for name, pid in self._terminals()}
        for pid in (*terminals, *children_of(os.getpid()) - kernels - terminals.keys()):
            yield ProgramReport(
                name=terminals.get(pid) or command_of(pid),
                kind="terminal" if pid in terminals else "proxied",
                pid=pid,
                cpu_ms=cpu_ms_below(pid),
                started=started_of(pid),
            )

    def _terminals(self) -> Iterator[tuple[str, int]]:
        found = self.server.web_app.settings.get("terminal_manager")
        for name, terminal in getattr(found, "terminals", {}).items():
            pid = getattr(getattr(terminal, "ptyproc", None), "pid", None)
            if pid:
                yield printable(f"terminal {name}")[:MAX_NAME_LENGTH], int(pid)


def has_failed_start(kernel: Any) -> bool:
    """Whether a kernel of this server has no process, and none is being started, as after a restart without a slice.

    The server continues to list it, in its last state.
    """
    is_own = getattr(kernel, "owns_kernel", False) and not getattr(kernel, "has_kernel", True)
    return is_own and kernel.ready.done()


def children_of(pid: int) -> set[int]:
    """The living child processes of a process, from all of its threads."""
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue
    return {child for child in found if (stat := _stat(child)) is not None and stat[0] not in "ZX"}


def cpu_ms_below(pid: object) -> int | None:
    """The CPU time of a process, its descendants, and its ended children, in ms; None if it cannot be read."""
    stat = _stat(pid) if isinstance(pid, int) else None
    if stat is None or not isinstance(pid, int):
        return None
    own = sum(map(int, stat[11:15])) * 1000 // TICKS_PER_S
    return own + sum(cpu_ms_below(child) or 0 for child in children_of(pid))


def started_of(pid: object) -> int | None:
    """The start of a process in clock ticks since the boot; None if it cannot be read."""
    stat = _stat(pid) if isinstance(pid, int) else None
    return None if stat is None else int(stat[19])


def boot_ticks() -> int:
    """The present time on the clock of :func:`started_of`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may have any characters."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a long name may be cut inside a character
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def command_of(pid: int) -> str:
    """The name of a process with its pid, since names repeat."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        name = "program"
    return f"{printable(name)} {pid}"


def printable(name: str) -> str:
    """A name without characters that a page or a terminal does not show."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def pid_namespace() -> str:
    """The pid namespace of this server; empty if unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
