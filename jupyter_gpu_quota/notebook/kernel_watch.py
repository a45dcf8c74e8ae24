"""What a Jupyter server's kernels, terminals and other programs do: read from the server itself, never from a clock.

Ages are counted on the monotonic clock from the moment a change is seen, so that they are too short rather than too
long, and nobody who sets the machine's clock changes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..wire.activity import ActivityReport, KernelReport, ProgramReport

STATES = {"idle": "idle", "busy": "busy", "starting": "busy", "restarting": "busy", "autorestarting": "busy"}
"""What a kernel's state means for its use; any other is unknown. A dead kernel is none."""

DEAD = "dead"
STARTING = frozenset({"starting", "restarting", "autorestarting"})
STARTS_WITHIN_MS = 60_000
"""A kernel says nothing before the first client asks: one that starts for longer than this has run nothing so far.

Whether a client comes is up to people, so it is idle from its start on, and is judged as any other idle kernel."""

LONGEST_NAME = 128
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Ages:
    """How long ago a value last changed, by name."""

    clock: Callable[[], int]
    seen: dict[str, tuple[object, int]] = field(default_factory=dict)

    def of(self, name: str, value: object) -> int:
        """Milliseconds since this value was first seen in a row."""
        now = self.clock()
        known, since = self.seen.get(name, (None, now))
        if name not in self.seen or known != value:
            since = now
            self.seen[name] = (value, now)
        return now - since

    def forget_all_but(self, names: set[str]) -> None:
        for name in self.seen.keys() - names:
            del self.seen[name]


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Watch:
    """Looks at one server. ``server`` is its ServerApp; ``instance`` names this start of it."""

    def __init__(self, server: Any, instance: str, clock: Callable[[], int] = monotonic_ms) -> None:
        self.server, self.instance, self.clock = server, instance, clock
        self.began = clock()
        self.messages, self.starts = Ages(clock), Ages(clock)

    def look(self, sequence: int = 0) -> ActivityReport:
        """The server as it is now."""
        ticks = boot_ticks()  # before anything is listed: what is listed was there by then
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
        )

    def quiet_ms(self, kernel: str) -> int | None:
        """How long a kernel has been idle without a message now; None where it is not idle, or not there."""
        return next((k.quiet_ms for k in self.look().kernels if k.id == kernel and k.state == "idle"), None)

    def _kernels(self) -> Iterator[KernelReport]:
        kernels = self.server.kernel_manager
        for name in kernels.list_kernel_ids():
            kernel = kernels.get_kernel(name)
            state = getattr(kernel, "execution_state", None)
            if state != DEAD:
                yield self._kernel(name, kernel, state, getattr(kernels, "_kernel_connections", {}).get(name, 0))

    def _kernel(self, name: str, kernel: Any, state: str | None, connections: int) -> KernelReport:
        last, provisioner = getattr(kernel, "last_activity", None), getattr(kernel, "provisioner", None)
        pid = getattr(provisioner, "pid", None)
        spec = getattr(kernel, "kernel_spec", None)
        age = self.messages.of(name, (last, state))
        if state in STARTING and age >= STARTS_WITHIN_MS:
            state = "idle"
        running = self.starts.of(name, pid)
        return KernelReport(
            id=name,
            name=plain(str(getattr(kernel, "kernel_name", "")))[:LONGEST_NAME],
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
        terminals = dict(self._terminals())
        for name, pid in terminals.items():
            yield ProgramReport(name=name, kind="terminal", pid=pid, cpu_ms=cpu_ms_below(pid), started=started_of(pid))
        for pid in children_of(os.getpid()) - kernels - set(terminals.values()):
            yield ProgramReport(
                name=command_of(pid), kind="proxied", pid=pid, cpu_ms=cpu_ms_below(pid), started=started_of(pid)
            )

    def _terminals(self) -> Iterator[tuple[str, int]]:
        found = self.server.web_app.settings.get("terminal_manager")
        for name, terminal in getattr(found, "terminals", {}).items():
            pid = getattr(getattr(terminal, "ptyproc", None), "pid", None)
            if pid:
                yield plain(f"terminal {name}")[:LONGEST_NAME], int(pid)


def children_of(pid: int) -> set[int]:
    """The living processes that a process started itself, from any of its threads."""
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue
    return {child for child in found if _is_alive(child)}


def _is_alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def cpu_ms_below(pid: object) -> int | None:
    """The CPU time of a process, of those below it, and of those it saw end; None where it cannot be read."""
    stat = _stat(pid) if isinstance(pid, int) else None
    if stat is None or not isinstance(pid, int):
        return None
    own = sum(map(int, stat[11:15])) * 1000 // TICKS_PER_S
    return own + sum(cpu_ms_below(child) or 0 for child in children_of(pid))


def started_of(pid: object) -> int | None:
    """When a process started, in clock ticks since its machine did; None where it cannot be read."""
    stat = _stat(pid) if isinstance(pid, int) else None
    return None if stat is None else int(stat[19])


def boot_ticks() -> int:
    """Now, by the clock of :func:`started_of`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, which may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a long name is cut within a letter
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def command_of(pid: int) -> str:
    """What a process calls itself, with its number: names repeat."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        name = "program"
    return f"{plain(name)} {pid}"


def plain(name: str) -> str:
    """A name that somebody chose, without what a page or a terminal would not show as it is."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def pid_namespace() -> str:
    """Which namespace this server's pids are of; empty where the machine does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
