"""The notebook servers of a simulation. Their users run cells in bursts, and leave the servers idle in between.

The shipped idleness controller classifies the notebooks from the reports of their servers. The servers carry out its
orders: they shut kernels down, and are stopped. A server reports every change at once, and every 30 s otherwise. The
reports are made, and the controller runs, at the instants at which a classification can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..controllers.idleness import CHECK_EVERY_MS, Idleness, machine_state_of
from ..controllers.leadership.lease import FencedStore, Leadership
from ..controllers.notifications import NotificationQueue
from ..core.idle.activity import IdleMode, IdlePolicy
from ..core.idle.classification import Busy, Idle, Unknown
from ..core.idle.state_machine import BEGINNING, Freed, Freeing, InUse, MachineState, Stopping, Warned
from ..core.lifecycle import HOLDS_SLICE
from ..core.model import NotebookState
from ..store.reads.followed_store import FollowedStore
from ..store.records.activity import NotebookReport, WakeNotebook
from ..store.records.commands import Request, RequestNotebook, RequestSliceAgain, ReturnNotebook
from ..store.records.rows import Changes, NotebookRecord
from .simulation_store import SimulationStore
from .tracefile import NotebookWork

USER = "system:simulation"
REPORT_MS = 30_000
ORDER_MS = 1_000
"""The time that a server takes to carry out an order, and the hub to stop a server."""

KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """Something that happens to a server at ``at``.

    ``check``: its classification can change, or its next burst begins; ignored where another check was set since.
    ``free``: it shuts its idle kernel down. ``stop``: the hub stops it. ``close``: its user closes it for good.
    """

    server: str
    kind: Literal["check", "free", "stop", "close"]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """A user requested a freed GPU. ``allocated_at`` None: still waits. ``released``: the slice was returned."""

    notebook: str
    asked_at: int
    allocated_at: int | None
    released: bool

    @property
    def wait_ms(self) -> int | None:
        return None if self.allocated_at is None else self.allocated_at - self.asked_at


@dataclass(slots=True, kw_only=True)
class _Server:
    """One server of the hub; ``notebook`` is the id of its slice.

    ``used``: the bursts that began on this slice, as (from, to). ``next`` is the number of the first burst that did
    not begin; bursts are planned from ``opened_at``. ``cpu_ms``: the CPU time of the kernel up to ``reported_at``.
    """

    name: str
    work: NotebookWork
    notebook: str
    state: NotebookState
    opened_at: int
    started_at: int
    booked_at: int
    reported_at: int
    idle_state: MachineState = BEGINNING
    kernel_since: int | None = None
    wake: Wake | None = None
    check_at: int | None = None
    is_running: bool = True
    starts: int = 1
    next: int = 0
    used: list[tuple[int, int]] = field(default_factory=list)
    sequence: int = 0
    cpu_ms: int = 0

    @property
    def used_until(self) -> int:
        return self.used[-1][1] if self.used else self.started_at

    def planned(self) -> Iterator[tuple[int, int]]:
        """The bursts that did not begin, as (planned begin, length)."""
        for begin, end in (self.work.bursts_ms or ())[self.next :]:
            yield self.opened_at + begin, end - begin

    def next_at(self) -> int | None:
        """When the next burst is planned."""
        return next((at for at, _ in self.planned()), None)

    def begin_bursts(self, now: int) -> None:
        """Begin the bursts that were planned until now; each waits for the slice, and for the previous burst."""
        for planned_at, length in self.planned():
            begins_at = max(planned_at, self.booked_at, self.used_until)
            if planned_at > now or begins_at > now:
                return
            self.used.append((begins_at, begins_at + length))
            self.next += 1
            if self.kernel_since is None:
                self.kernel_since, self.cpu_ms = begins_at, 0

    def burst_at(self, at: int) -> tuple[int, int] | None:
        """The newest burst that began until then."""
        return next((burst for burst in reversed(self.used) if burst[0] <= at), None)

    def is_busy(self, at: int) -> bool:
        burst = self.burst_at(at)
        return burst is not None and at < burst[1]

    def count_use_until(self, at: int) -> None:
        """Count the CPU time until ``at``."""
        for begin, end in reversed(self.used):
            if end <= self.reported_at:
                break
            self.cpu_ms += max(0, min(end, at) - max(begin, self.reported_at))
        self.reported_at = at


@dataclass(eq=False)
class NotebookServers:
    """All notebook servers, and the idleness controller. ``schedule`` plans an event.

    ``wakes`` are those that ended. ``slices_lent`` counts slices that were lent, ``freed`` kernels that were shut down.
    """

    work: Mapping[str, NotebookWork]
    policy: IdlePolicy
    store: SimulationStore
    leadership: Leadership
    clock: Callable[[], int]
    schedule: Callable[[int, ServerEvent], None]
    wakes: list[Wake] = field(default_factory=list)
    slices_lent: int = 0
    freed: int = 0
    idleness: Idleness = field(init=False)
    _open: dict[str, _Server] = field(default_factory=dict)
    _used: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set)
    _due: set[str] = field(default_factory=set)
    _checked: list[_Server] = field(default_factory=list)
    _waiting: set[str] = field(default_factory=set)
    _committed: bool = False

    def __post_init__(self) -> None:
        fenced = FencedStore(self.store, self.leadership, self.clock, committed=self._note_commit)
        queue = NotificationQueue([], (), str)
        self.idleness = Idleness(FollowedStore(self.store), fenced, queue, self._stop, lends_slices=True)
        self.idleness.run_once(self.clock())
        longest_s = max(self.policy.gpu_after_s(waiting=False), self.policy.kernel_after_s(waiting=False))
        self._window_ms = longest_s * 1000 + 2 * REPORT_MS

    def used(self, now: int) -> dict[str, list[tuple[int, int]]]:
        """When the cells of each notebook whose bursts are known used the GPU until now, as (from, to)."""
        found = dict(self._used)
        for server in self._open.values():
            if server.work.bursts_ms is not None:
                if server.state is NotebookState.BOOKED:
                    server.begin_bursts(now)
                found[server.notebook] = _clipped(server.used, now)
        return found

    def waiting_wakes(self) -> list[Wake]:
        """The wakes of users that still wait."""
        return [server.wake for server in self._open.values() if server.wake is not None]

    # --- the idleness controller ----------------------------------------------------------------------------------
    def classify(self, now: int) -> bool:
        """Send the due reports and run the controller for them. Returns whether it changed the store."""
        if not self._due:
            return False
        view, self._committed = self.idleness.view, False
        view.refresh()
        found = (self._open[name] for name in sorted(self._due) if name in self._open)
        self._checked = [server for server in found if server.state in HOLDS_SLICE]
        self._due.clear()
        for server in self._checked:
            self.store.add_reports(self._reports(server, now))
        live = view.mirror.notebooks
        self.idleness.classify_due([live[each.notebook] for each in self._checked if each.notebook in live], now)
        return self._committed

    def _note_commit(self) -> None:
        self._committed = True

    def _stop(self, record: NotebookRecord) -> None:
        """Stop a server, as the hub does."""
        self._schedule(record.server, "stop", self.clock() + ORDER_MS)

    def _reports(self, server: _Server, now: int) -> Iterator[NotebookReport]:
        """The reports since the last one: of each change, and every 30 s.

        Reports from before the newest use, or before the window of a classification, are left out: they change nothing.
        """
        used_at = min(server.used_until, now)
        server.count_use_until(max(server.reported_at, now - self._window_ms, used_at - REPORT_MS))
        edges = {at for at in (used_at, now) if at > server.reported_at}
        for edge in sorted(edges):
            while server.reported_at + REPORT_MS < edge:
                yield _report(server, server.reported_at + REPORT_MS)
            yield _report(server, edge)

    def _next_check(self, server: _Server, now: int) -> int | None:
        """When the classification can next change without an event; for an unused notebook at its next burst too."""
        known = self.idleness.states.get(server.notebook)
        is_in_use = isinstance(server.idle_state, InUse) and server.kernel_since is not None
        ahead = [] if is_in_use or server.wake is not None else [server.next_at()]
        match None if known is None else known.classification:
            case Busy() as busy:
                ahead.append(self._after_bursts(server, busy.idle_at or max(now, server.used_until) + REPORT_MS))
            case Unknown() | None:
                ahead.append(now + REPORT_MS)
            case Idle() as idle:
                ahead.append(self._end_of(server.idle_state, idle, now))
        return min((each for each in ahead if each is not None), default=None)

    def _after_bursts(self, server: _Server, at: int) -> int:
        """The given instant, or that after the bursts that a live kernel begins before it."""
        free_at = server.used_until
        for planned_at, length in server.planned() if server.kernel_since is not None else ():
            if planned_at > at:
                break
            free_at = max(planned_at, free_at) + length
            at = max(at, free_at + REPORT_MS)
        return at

    def _end_of(self, state: MachineState, idle: Idle, now: int) -> int | None:
        """When the next state of an idle notebook is due. A stop is carried out by the run after its decision."""
        match state:
            case Warned():
                return state.until
            case Freed():
                return (state.idle_since or idle.since) + self.policy.stop_server_after_s * 1000
            case Stopping():
                return now + CHECK_EVERY_MS
            case _:
                return None

    # --- changes of the store -------------------------------------------------------------------------------------
    def observe(self, changes: Changes, now: int) -> None:
        """Apply the changes up to ``now``, and schedule the next checks."""
        for record in changes.notebooks:
            self._update_server(record, now)
        if any(map(self._is_watched, self._open.values())):
            self._update_waiting_pools(now)
        for server in self._checked:
            if server.state in HOLDS_SLICE and server.name in self._open:
                self._schedule_check(server, self._next_check(server, now))
        self._checked = []

    def _update_server(self, record: NotebookRecord, now: int) -> None:
        server, state = self._open.get(record.server), record.notebook.state
        if server is None:
            if state is NotebookState.BOOKED and record.server not in self._closed:
                self._open_server(record, now)
            return
        if record.notebook.id != server.notebook:
            return
        before, was, server.state, server.idle_state = server.state, server.idle_state, state, machine_state_of(record)
        if isinstance(server.idle_state, Freeing) and not isinstance(was, Freeing):
            self._schedule(server.name, "free", now + ORDER_MS)
        if before is state:
            return
        self.slices_lent += state is NotebookState.LENT
        if state is NotebookState.BOOKED:
            self._take_slice(server, now)
        elif state is NotebookState.REFUSED:
            self._skip_bursts(server, now)
        if state not in HOLDS_SLICE:
            self.idleness.forget_others({each.notebook for each in self._open.values() if each.state in HOLDS_SLICE})

    def _open_server(self, record: NotebookRecord, now: int) -> None:
        server = _Server(
            name=record.server, work=self.work[record.server], notebook=record.notebook.id, state=NotebookState.BOOKED,
            opened_at=now, started_at=now, booked_at=now, reported_at=now - REPORT_MS, kernel_since=now,
        )  # fmt: skip
        self._open[server.name] = server
        self._schedule(server.name, "close", now + server.work.duration_ms)
        self._take_slice(server, now)

    def _take_slice(self, server: _Server, now: int) -> None:
        """Begin the bursts that waited for the slice, which is allocated now."""
        server.booked_at = now
        if not server.is_running:
            server.is_running, server.started_at, server.reported_at = True, now, now - REPORT_MS
        if server.wake is not None:
            self.wakes.append(replace(server.wake, allocated_at=now))
            server.wake = None
        if self._is_watched(server):
            server.begin_bursts(now)
            busy_until = max(server.started_at + self.policy.grace_s * 1000, server.used_until + REPORT_MS)
            self._schedule_check(server, self._after_bursts(server, busy_until))

    def _skip_bursts(self, server: _Server, now: int) -> None:
        """Drop the bursts that were planned until now, because the slice was refused."""
        server.wake = None
        server.next += sum(at <= now for at, _ in server.planned())
        self._schedule_check(server, server.next_at())

    def _update_waiting_pools(self, now: int) -> None:
        """Schedule checks in pools where work began or ceased to wait, because that changes when notebooks are idle."""
        self.idleness.view.refresh()
        waiting, short_ms = self.idleness.pools_with_waiting_work(), self.policy.gpu_after_s(waiting=True) * 1000
        changed, self._waiting = waiting ^ self._waiting, waiting
        live = self.idleness.view.mirror.notebooks
        for server in self._open.values() if changed else ():
            record = live.get(server.notebook)
            if record is None or record.notebook.pool not in changed or server.check_at is None:
                continue
            if server.state is NotebookState.BOOKED and isinstance(server.idle_state, InUse | Warned):
                server.begin_bursts(now)
                self._schedule_check(server, min(server.check_at, max(now, server.used_until + short_ms)))

    def _is_watched(self, server: _Server) -> bool:
        """Whether it may become idle: its bursts are known, and the policy reclaims."""
        return server.work.bursts_ms is not None and self.policy.mode is IdleMode.RECLAIM

    def _schedule_check(self, server: _Server, at: int | None) -> None:
        server.check_at = at
        if at is not None:
            self._schedule(server.name, "check", at)

    def _schedule(self, server: str, kind: Literal["check", "free", "stop", "close"], at: int) -> None:
        self.schedule(at, ServerEvent(server=server, kind=kind, at=at))

    # --- events ---------------------------------------------------------------------------------------------------
    def apply(self, event: ServerEvent) -> list[Request]:
        """Apply an event. Returns the requests that follow."""
        server = self._open.get(event.server)
        if server is None:
            return []
        match event.kind:
            case "check":
                return self._check(server, event.at) if server.check_at == event.at else []
            case "free":
                return self._shut_kernel_down(server, event.at)
            case "stop":
                return self._end_slice(server, event.at, "stopped, because it was idle")
            case "close":
                del self._open[server.name]
                self._closed.add(server.name)
                return self._end_slice(server, event.at, "closed")

    def _check(self, server: _Server, at: int) -> list[Request]:
        """Report; a kernel that is about to start requests the GPU first."""
        server.check_at = None
        self._due.add(server.name)
        next_at = server.next_at()
        requests = self._wake(server, at) if server.kernel_since is None and (next_at or at + 1) <= at else []
        if server.state is NotebookState.BOOKED:
            server.begin_bursts(at)
        return requests

    def _wake(self, server: _Server, at: int) -> list[Request]:
        wake = WakeNotebook(notebook=server.notebook, actor=USER)
        if server.state is not NotebookState.BOOKED:
            released = server.state is not NotebookState.LENT
            server.wake = Wake(notebook=server.notebook, asked_at=at, allocated_at=None, released=released)
        if not server.is_running:
            return [self._request_new_slice(server)]
        if server.state in HOLDS_SLICE:
            return [wake]
        return [RequestSliceAgain(notebook=server.notebook, actor=USER), wake]

    def _request_new_slice(self, server: _Server) -> RequestNotebook:
        """The request for a new slice of a server that was stopped and is started again."""
        record = self.store.notebook(server.notebook)
        assert record is not None
        server.starts, server.state = server.starts + 1, NotebookState.REQUESTED
        server.notebook = f"{server.name}+{server.starts}"
        before = record.notebook
        return RequestNotebook(
            notebook=server.notebook, user=before.user, server=server.name, project=before.project, pool=before.pool,
            gpu_milli=before.gpu_milli,
        )  # fmt: skip

    def _shut_kernel_down(self, server: _Server, at: int) -> list[Request]:
        """Carry out the order to free the GPU, unless the kernel is in use again."""
        if isinstance(server.idle_state, Freeing) and not server.is_busy(at):
            self.freed += 1
            server.kernel_since = None
        self._due.add(server.name)
        return []

    def _end_slice(self, server: _Server, at: int, reason: str) -> list[Request]:
        if server.state is NotebookState.BOOKED:
            server.begin_bursts(at)
        if server.work.bursts_ms is not None and server.is_running:
            self._used[server.notebook] = _clipped(server.used, at)
        server.is_running, server.kernel_since, server.used = False, None, []
        self._schedule_check(server, server.next_at())
        return [ReturnNotebook(notebook=server.notebook, actor=USER, why=reason)]


def _clipped(used: list[tuple[int, int]], now: int) -> list[tuple[int, int]]:
    return [(begin, min(end, now)) for begin, end in used]


def _report(server: _Server, at: int) -> NotebookReport:
    """The report of a server whose kernel is the only user of its GPU: a burst is CPU time, one core of it."""
    server.count_use_until(at)
    server.sequence += 1
    has_kernel = server.kernel_since is not None and server.kernel_since <= at
    return NotebookReport(
        notebook=server.notebook,
        instance=str(server.starts),
        sequence=server.sequence,
        at=at,
        body={
            "running_ms": at - server.started_at,
            "kernels": [_kernel(server, at)] if has_kernel else [],
            "programs": [],
            "asks_first": True,
            "server_quiet_ms": at - server.started_at,
            "suspension": "off",
            "suspension_why": "",
            "namespace": None,
            "ticks": None,
        },
    )


def _kernel(server: _Server, at: int) -> dict[str, object]:
    burst, busy = server.burst_at(at), server.is_busy(at)
    spoke_at = max(server.kernel_since or 0, 0 if burst is None else burst[0] if busy else burst[1])
    return {
        "id": KERNEL,
        "state": "busy" if busy else "idle",
        "running_ms": at - (server.kernel_since or 0),
        "quiet_ms": at - spoke_at,
        "asks_gpu": True,
        "connections": 1,
        "cpu_ms": server.cpu_ms,
        "pid": None,
        "started": None,
        "suspended": False,
    }
