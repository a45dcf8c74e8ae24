"""The owners of notebooks in a simulated world: they run cells in bursts, go away, and want their GPU back.

The shipped judge and ladder say when a notebook is idle and when its GPU is freed; whether its slice is lent, and how
it comes back, decides the shipped controller. The store is told what a plan can rest on: that a slice may be lent, and
that its owner asks for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..core.idle.activity import GpuSample, IdleMode, IdlePolicy, KernelRecord, KernelState, NotebookActivity
from ..core.idle.classification import Busy, Classification, Idle, Unknown, classify
from ..core.idle.state_document import to_document
from ..core.idle.state_machine import (
    BEGINNING,
    Freeing,
    IdleEvent,
    InUse,
    MachineState,
    Warned,
    asked,
    is_lendable,
    seen,
    transition,
)
from ..core.lifecycle import WAITING
from ..core.model import NotebookState
from ..store.records.commands import RecordIdleState, Request, RequestSliceAgain, ReturnNotebook
from ..store.records.rows import Changes, NotebookRecord
from .tracefile import Sitting

PERSON = "system:simulation"
EVERY_S = 60
"""How often simulated notebooks are read and report."""
KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """It is time to look at a notebook; stale where another time was set since."""

    notebook: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Somebody closes a notebook."""

    notebook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """An owner asked for a GPU that was freed, and had it; None: not yet. ``released``: it had gone back by then."""

    notebook: str
    asked_at: int
    had_at: int | None
    released: bool


@dataclass(slots=True, kw_only=True)
class _Owner:
    """One notebook. Bursts that began are in ``used``; ``next`` is the first that did not."""

    name: str
    sitting: Sitting
    pool: str
    state: NotebookState
    had_at: int | None = None
    booked_at: int = 0
    stage: MachineState = BEGINNING
    kernel_since: int | None = None
    lendable: bool = False
    wake: Wake | None = None
    due: int | None = None
    next: int = 0
    used: list[tuple[int, int]] = field(default_factory=list)

    @property
    def used_until(self) -> int:
        return self.used[-1][1] if self.used else self.had_at or 0

    def next_at(self) -> int | None:
        """When its next burst is planned."""
        bursts = self.sitting.bursts_ms or ()
        return (self.had_at or 0) + bursts[self.next][0] if self.next < len(bursts) else None

    def catch_up(self, now: int) -> None:
        """Begin the bursts that were planned until now; each waits for the slice, and for the one before it."""
        while (planned := self.next_at()) is not None and planned <= now:
            begins_at = max(planned, self.booked_at, self.used_until)
            if begins_at > now:
                return
            begin, end = (self.sitting.bursts_ms or ())[self.next]
            self.used.append((begins_at, begins_at + end - begin))
            self.next += 1
            self.kernel_since = begins_at if self.kernel_since is None else self.kernel_since


@dataclass(eq=False)
class Owners:
    """Everybody at a notebook. ``expect`` is told what is to happen when; ``wakes`` are those that have ended.

    ``loans`` counts slices that were lent, ``freed`` kernels that were shut down with their variables.
    """

    sittings: Mapping[str, Sitting]
    idle: IdlePolicy
    expect: Callable[[int, Look | Leave], None]
    wakes: list[Wake] = field(default_factory=list)
    loans: int = 0
    freed: int = 0
    _open: dict[str, _Owner] = field(default_factory=dict)
    _used: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _waiting: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self.idle = replace(self.idle, sample_every_s=EVERY_S, report_every_s=EVERY_S)

    def used(self, notebook: str, now: int) -> list[tuple[int, int]]:
        """When its cells used the GPU until now, as (from, to)."""
        owner = self._open.get(notebook)
        if owner is None:
            return self._used.get(notebook, [])
        if owner.state is NotebookState.BOOKED:
            owner.catch_up(now)
        return [(begin, min(end, now)) for begin, end in owner.used]

    def under_way(self) -> list[Wake]:
        """Who waits for a GPU that was freed."""
        return [owner.wake for owner in self._open.values() if owner.wake is not None]

    # --- what is seen ---------------------------------------------------------------------------------------------
    def see(self, changes: Changes, now: int) -> None:
        """Take in what changed by now; where somebody began to wait, or nobody does any more, idleness is another."""
        before = {pool for pool, names in self._waiting.items() if names}
        for job in changes.jobs:
            self._note(job.job.id, job.job.pool, waits=job.job.state in WAITING)
        for book in changes.notebooks:
            waits = book.notebook.state is NotebookState.REQUESTED
            self._note(book.notebook.id, book.notebook.pool, waits=waits)
            self._see_notebook(book, now)
        for pool in sorted(before ^ {pool for pool, names in self._waiting.items() if names}):
            self._look_again(pool, now)

    def _note(self, workload: str, pool: str, *, waits: bool) -> None:
        (self._waiting[pool].add if waits else self._waiting[pool].discard)(workload)

    def _see_notebook(self, record: NotebookRecord, now: int) -> None:
        name, state = record.notebook.id, record.notebook.state
        owner = self._open.get(name)
        if owner is None:
            if name in self._used or state is not NotebookState.BOOKED:
                return
            sitting = self.sittings[name]
            owner = _Owner(name=name, sitting=sitting, pool=record.notebook.pool, state=NotebookState.REQUESTED)
            self._open[name] = owner
        before, owner.state = owner.state, state
        if before is state:
            return
        self.loans += state is NotebookState.LENT
        if state is NotebookState.BOOKED:
            self._has_it(owner, now)
        elif state is NotebookState.REFUSED:
            self._does_without(owner, now)

    def _has_it(self, owner: _Owner, now: int) -> None:
        if owner.had_at is None:
            owner.had_at = owner.kernel_since = now
            self.expect(now + owner.sitting.duration_ms, Leave(notebook=owner.name))
        owner.booked_at = now
        if owner.wake is not None:
            self.wakes.append(replace(owner.wake, had_at=now))
            owner.wake = None
        if owner.sitting.bursts_ms is not None and self.idle.mode is IdleMode.RECLAIM:
            self._expect_look(owner, now)

    def _does_without(self, owner: _Owner, now: int) -> None:
        """Refused: the cells that were to run by now run never."""
        owner.wake = None
        while (planned := owner.next_at()) is not None and planned <= now:
            owner.next += 1
        self._expect_look(owner, planned)

    def _look_again(self, pool: str, now: int) -> None:
        """Look at all notebooks of a pool that somebody else's waiting makes idle, or whose warning it withdraws."""
        short_ms = self.idle.gpu_after_s(waiting=True) * 1000
        for owner in self._open.values():
            if owner.pool == pool and owner.state is NotebookState.BOOKED and owner.due is not None:
                owner.catch_up(now)
                if isinstance(owner.stage, InUse | Warned) and now - owner.used_until >= short_ms:
                    self._expect_look(owner, now)

    def _expect_look(self, owner: _Owner, at: int | None) -> None:
        owner.due = at
        if at is not None:
            self.expect(at, Look(notebook=owner.name, at=at))

    # --- what they do ---------------------------------------------------------------------------------------------
    def leave(self, notebook: str, at: int) -> list[Request]:
        """Close a notebook for good."""
        self._used[notebook] = self.used(notebook, at)
        del self._open[notebook]
        return [ReturnNotebook(notebook=notebook, actor=PERSON, why="closed")]

    def look(self, look: Look) -> list[Request]:
        """What comes of looking at a notebook: it climbs the ladder, or its owner asks for the GPU that was freed."""
        owner = self._open.get(look.notebook)
        if owner is None or owner.due != look.at:
            return []
        owner.due = None
        if owner.state is NotebookState.BOOKED:
            owner.catch_up(look.at)
            return list(self._climb(owner, look.at))
        return [self._ask(owner, look.at)]

    def _ask(self, owner: _Owner, at: int) -> Request:
        """A cell is run, and its kernel needs the GPU before it starts."""
        released = owner.state is not NotebookState.LENT
        owner.wake = Wake(notebook=owner.name, asked_at=at, had_at=None, released=released)
        owner.stage, owner.lendable = asked(owner.stage, at).stage, False
        if released:
            return RequestSliceAgain(notebook=owner.name, actor=PERSON)
        return _told(owner, "busy", IdleEvent.WOKEN)

    def _climb(self, owner: _Owner, now: int) -> Iterator[Request]:
        classification = self._step(owner, now)
        if isinstance(owner.stage, Freeing):
            owner.kernel_since = None
            self.freed += 1
            classification = self._step(owner, now)
        lendable = is_lendable(owner.stage, classification)
        if lendable != owner.lendable:
            owner.lendable = lendable
            yield _told(owner, _word(classification), None)
        self._expect_look(owner, self._next_look(owner, classification, now))

    def _step(self, owner: _Owner, now: int) -> Classification:
        activity = self._activity(owner, now)
        classification = classify(activity, self.idle, waiting=bool(self._waiting[owner.pool]), now=now)
        owner.stage = transition(owner.stage, seen(activity, classification), self.idle, now).stage
        return classification

    def _next_look(self, owner: _Owner, classification: Classification, now: int) -> int | None:
        """When time alone may change a judgement; the next burst matters where something is under way."""
        ahead = [] if isinstance(owner.stage, InUse) else [owner.next_at()]
        match classification:
            case Busy():
                ahead.append(classification.idle_at or max(now, owner.used_until) + EVERY_S * 1000)
            case Unknown():
                ahead.append(now + EVERY_S * 1000)
            case Idle():
                ahead.append(owner.stage.until if isinstance(owner.stage, Warned) else None)
        return min((each for each in ahead if each is not None), default=None)

    # --- what the judge looks at ----------------------------------------------------------------------------------
    def _activity(self, owner: _Owner, now: int) -> NotebookActivity:
        """Everything read and reported on time, as far back as the judge looks."""
        began_at, every_ms = owner.had_at or 0, EVERY_S * 1000
        longest_ms = self.idle.gpu_after_s(waiting=False) * 1000 + 3 * every_ms
        at = range(now, max(began_at, now - longest_ms) - 1, -every_ms)
        return NotebookActivity(
            notebook=owner.name,
            started_at=began_at,
            samples=tuple(reversed([_sample(owner, each, every_ms) for each in at])),
            reports=tuple(reversed(at)),
            kernels=() if owner.kernel_since is None else (_kernel(owner, now),),
        )


def _sample(owner: _Owner, at: int, every_ms: int) -> GpuSample:
    used = bool(owner.used) and owner.used[-1][0] < at and owner.used_until > at - every_ms
    in_use = bool(owner.used) and owner.used[-1][0] <= at < owner.used_until
    return GpuSample(at=at, percent=100 if used or in_use else 0, used_at=min(at, owner.used_until) if used else None)


def _kernel(owner: _Owner, now: int) -> KernelRecord:
    busy = bool(owner.used) and owner.used[-1][0] <= now < owner.used_until
    spoke_at = owner.used[-1][0] if busy else owner.used_until
    return KernelRecord(
        id=KERNEL,
        state=KernelState.BUSY if busy else KernelState.IDLE,
        started_at=owner.kernel_since,
        last_message_at=spoke_at,
        holds_gpu=True,
    )


def _told(owner: _Owner, activity: str, turn: IdleEvent | None) -> RecordIdleState:
    stage = to_document(owner.stage)
    told = None if turn is None else turn.value
    return RecordIdleState(
        notebook=owner.name, activity=activity, seen_empty=owner.lendable, state=stage, event=told, why=""
    )


def _word(classification: Classification) -> str:
    return {Busy: "busy", Idle: "idle", Unknown: "unknown"}[type(classification)]
