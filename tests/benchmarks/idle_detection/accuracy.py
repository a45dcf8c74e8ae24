"""The accuracy of idle detection on labelled sessions, in virtual time.

``python -m tests.benchmarks --only idle-accuracy`` prints the figures; ``play`` runs one session: the GPU
is read every ten seconds, a server reports every thirty and at each change, and the kernels that the idle state
machine names are shut down.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from jupyter_gpu_quota.backends.local.sampling.process_use import Rows, ends_of_use
from jupyter_gpu_quota.core.idle.activity import (
    GpuSample,
    IdleMode,
    IdlePolicy,
    KernelRecord,
    KernelState,
    NotebookActivity,
)
from jupyter_gpu_quota.core.idle.classification import Busy, classify
from jupyter_gpu_quota.core.idle.state_machine import BEGINNING, Freeing, MachineState, Warned, observe, transition
from tests.benchmarks.figures import Figure
from tests.benchmarks.idle_detection.sessions import COUNTDOWN, LENGTH, MINUTE, SECOND, UNUSED, Session, Span, sessions

SEED, OF_EACH = 1, 12
EPOCH = 1_800_000_000_000
POLICY = IdlePolicy(mode=IdleMode.RECLAIM)
SAMPLE, REPORT = POLICY.sample_every_s * SECOND, POLICY.report_every_s * SECOND
FETCHED, SHUT_DOWN = 300, 400
"""Milliseconds from an order to the report that fetches it, and from there to the kernel's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The time at which the kernel of a session was shut down; None if never."""

    session: Session
    freed_at: int | None

    @property
    def wrong(self) -> bool:
        """Whether a kernel was shut down that was in use, or would have been within the countdown."""
        idle_from = self.session.idle_from
        return self.freed_at is not None and (idle_from is None or self.freed_at < idle_from + UNUSED + COUNTDOWN)

    @property
    def in_time(self) -> bool:
        idle_from = self.session.idle_from
        assert idle_from is not None
        return self.freed_at is not None and self.freed_at <= idle_from + UNUSED + COUNTDOWN + SAMPLE


class _World:
    """What the service has received of one session so far, by its own clock."""

    def __init__(self, session: Session, *, dated: bool) -> None:
        self.session, self.dated = session, dated
        self.random = Random(f"seen {session.kind} {session.number}")
        self.samples: list[GpuSample] = []
        self.reports: list[int] = []
        self.kernels: tuple[KernelRecord, ...] | None = None
        self.read_at = 0
        self.gpu = sorted(session.gpu)

    def clock(self, at: int) -> int:
        return EPOCH + at + sum(by for begin, by in self.session.jumps if at >= begin)

    def read(self, at: int) -> None:
        """One reading: whether anything used the GPU since the one before; one in a hundred is missing."""
        missed = self.random.random() < 0.01
        if missed or _within(self.session.lost, at):
            self.read_at = self.read_at if missed else at
            return
        used = [min(end, at) for begin, end in self.gpu if begin < at and end > self.read_at]
        used_at = self._used_at(at) if used and self.dated and self.read_at else None
        self.read_at = at
        self.samples.append(GpuSample(at=self.clock(at), percent=40 if used else 0, used_at=used_at))
        del self.samples[:-200]

    def _used_at(self, at: int) -> int:
        """As the sampler dates a use from a driver that reports one mean for each process, as 580 does on an H100."""

        def rows_since(since_us: int) -> Rows:
            used = any(begin < at and 1000 * min(end, at) > since_us for begin, end in self.gpu)
            return {0: [(1000 * at, 1)]} if used else {}

        [ended_us] = ends_of_use(rows_since, {0}, 1000 * self.read_at, 1000 * at).values()
        return self.clock(at) - at + ended_us // 1000

    def report(self, at: int) -> None:
        """One report: ages as the server measured them, subtracted from the instant at which it arrives."""
        if _within(self.session.silent, at):
            return
        now, busy = self.clock(at), _within(self.session.busy, at)
        message = _last(self.session.messages, at)
        start = _last(self.session.kernel_starts, at)
        self.reports.append(now)
        del self.reports[:-200]
        state = KernelState.BUSY if busy else KernelState.IDLE
        age_ms, running_ms = (at - message) // SECOND * SECOND, at - start
        self.kernels = (
            KernelRecord(
                id="k", state=state, started_at=now - running_ms, last_message_at=now - age_ms, holds_gpu=True,
                connections=1 if _last(self.session.reconnects, at) else 0,
            ),
        )  # fmt: skip

    def activity(self, state: MachineState) -> NotebookActivity:
        return NotebookActivity(
            notebook=self.session.kind,
            started_at=EPOCH + min(0, *(by for _, by in self.session.jumps), 0),
            samples=tuple(self.samples),
            reports=tuple(self.reports),
            kernels=self.kernels,
            kept_at=state.kept.at,
        )


def _within(spans: Sequence[Span], at: int) -> bool:
    return any(begin <= at < end for begin, end in spans)


def _last(instants: Sequence[int], at: int) -> int:
    place = bisect_right(instants, at)
    return instants[place - 1] if place else 0


def play(session: Session, *, dated: bool = True) -> Result:
    """One session from its begin to its end, or to its kernel's. ``dated``: readings have the time of the last use."""
    world, state, look_at = _World(session, dated=dated), BEGINNING, [0]
    for at, what in _instants(session, look_at):
        if what == "read":
            world.read(at)
        elif what == "report":
            world.report(at)
        activity = world.activity(state)
        classification = classify(activity, POLICY, waiting=True, now=world.clock(at))
        state = transition(state, observe(activity, classification), POLICY, world.clock(at)).state
        if isinstance(state, Freeing):
            gone = at + FETCHED + SHUT_DOWN
            if not _within(session.busy, at + FETCHED) and _last(session.messages, at + FETCHED) <= at:
                return Result(session=session, freed_at=gone)
        due = _due(state, classification.idle_at if isinstance(classification, Busy) else None)
        look_at[0] = 0 if due is None else at + due - world.clock(at)
    return Result(session=session, freed_at=None)


def _due(state: MachineState, idle_at: int | None) -> int | None:
    """The time of the next run of the controller."""
    return state.until if isinstance(state, Warned) else idle_at


def _instants(session: Session, look_at: list[int]) -> Iterator[tuple[int, str]]:
    """Readings (up to half a second early or late), reports (on time and within a second of a change), and looks."""
    random = Random(f"instants {session.kind} {session.number}")
    readings = [(at + random.randint(-500, 500), "read") for at in range(SAMPLE, LENGTH, SAMPLE)]
    changes = {*session.messages, *(at for span in session.busy for at in span), *session.kernel_starts}
    noticed = {(at // SECOND + 1) * SECOND for at in changes if at < LENGTH}
    first = random.randint(0, REPORT)
    reports = [(at, "report") for at in sorted(noticed | set(range(first, LENGTH, REPORT)))]
    for at, what in sorted([*readings, *reports]):
        while 0 < look_at[0] <= at and look_at[0] != at:
            due, look_at[0] = look_at[0], 0
            yield due, "report"  # a server that knows the end of the countdown reports at it, and fetches the order
        yield at, what


def results(seed: int = SEED, of_each: int = OF_EACH, *, dated: bool = True, idle_only: bool = False) -> list[Result]:
    """Every session, or those that are idle in the end and have no gaps."""
    every = sessions(seed, of_each)
    return [play(s, dated=dated) for s in every if not idle_only or (s.label == "idle" and not s.gaps)]


def figures() -> list[Figure]:
    """Busy sessions that were reclaimed, and idle ones that were freed in time; sessions with gaps apart."""
    setting = f"{LENGTH // MINUTE} minutes each, seed {SEED}, virtual time, other work waits"
    found = results()
    plain, gaps = [r for r in found if not r.session.gaps], [r for r in found if r.session.gaps]
    idle, undated = _idle(plain), _idle(results(dated=False, idle_only=True))
    holes = f"{setting}; {len(gaps)} sessions with gaps, {len(_idle(gaps))} of them idle in the end"
    return [
        _count(
            "idle notebooks: busy sessions reclaimed",
            [r for r in plain if r.wrong],
            f"{setting}; {len(plain)} sessions",
            0,
        ),
        _count("idle notebooks: busy sessions reclaimed, with gaps", [r for r in gaps if r.wrong], holes, 0),
        _late(
            "idle notebooks: truly idle ones not freed in time",
            idle,
            f"{setting}; times of this clock",
            5,
        ),
        _late("idle notebooks: the same, with undated samples", undated, setting, None),
        _slowest(idle, setting),
        _count(
            "idle notebooks: truly idle ones freed in the end, with gaps",
            [r for r in _idle(gaps) if r.freed_at],
            holes,
            None,
        ),
    ]


def _idle(found: Sequence[Result]) -> list[Result]:
    return [result for result in found if result.session.label == "idle"]


def _late(name: str, idle: Sequence[Result], setting: str, bound: float | None) -> Figure:
    late = sum(not result.in_time for result in idle)
    timed = (
        f"{setting}; of {len(idle)}: the kernel gone later than gpu_idle_after + warn_for + one reading after the "
        "script's last activity, or never"
    )
    return Figure(name=name, value=100 * late / len(idle), unit="%", timed=timed, bound=bound)


def _count(name: str, found: Sequence[Result], timed: str, bound: float | None) -> Figure:
    return Figure(name=name, value=len(found), unit="sessions", timed=timed, bound=bound)


def _slowest(idle: Sequence[Result], setting: str) -> Figure:
    """The slowest beyond what the policy's own waits take."""
    over = [r.freed_at - (r.session.idle_from or 0) - UNUSED - COUNTDOWN for r in idle if r.freed_at is not None]
    timed = f"{setting}; from the script's last activity to the kernel's end, less gpu_idle_after and warn_for"
    return Figure(
        name="idle notebooks: the slowest beyond the policy's waits", value=max(over) / SECOND, unit="s", timed=timed
    )
