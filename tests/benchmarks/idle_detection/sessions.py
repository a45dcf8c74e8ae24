"""Labelled sessions: the events in a notebook over time, and whether it is busy or idle in the end.

A script writes the events and the label, independently of idle detection. Instants are milliseconds from the begin of
the session. The times of the policy are repeated here: twenty minutes unused, five of warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

SECOND = 1_000
MINUTE = 60 * SECOND
LENGTH = 150 * MINUTE
UNUSED, COUNTDOWN = 20 * MINUTE, 5 * MINUTE

Span = tuple[int, int]


@dataclass(slots=True)
class Session:
    """The events. ``idle_from``: the time of the last one; None for a session that is busy to its end.

    ``gpu`` is use by any process of the notebook, ``busy`` a running cell, ``messages`` the outputs of
    its cells and actions of its user. ``lost``: spans without readings; ``silent``: spans without reports; ``jumps``:
    times and sizes of clock changes.
    """

    kind: str
    number: int
    idle_from: int | None = None
    gpu: list[Span] = field(default_factory=list)
    busy: list[Span] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    kernel_starts: list[int] = field(default_factory=list)
    reconnects: list[int] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)
    silent: list[Span] = field(default_factory=list)
    jumps: list[Span] = field(default_factory=list)
    gaps: bool = False

    @property
    def label(self) -> str:
        return "busy" if self.idle_from is None else "idle"

    def cell(self, begin: int, lasts: int, *, gpu: bool = False) -> int:
        """A cell runs, on the GPU or not; returns when it ended."""
        end = begin + lasts
        self.busy.append((begin, end))
        self.messages += [begin, end]
        if gpu:
            self.gpu.append((begin + 200, end - 100))
        return end

    def work(self, random: Random, begin: int, end: int) -> int:
        """Interactive work: cells of seconds to minutes, pauses of some minutes. Returns when the last cell ended."""
        at = ended = begin
        while at < end:
            ended = self.cell(at, random.randint(1, 240) * SECOND, gpu=random.random() < 0.6)
            at = ended + random.randint(5, 12 * 60) * SECOND
        return ended

    def stop(self, at: int) -> None:
        """The last event: the notebook is idle from then on."""
        self.idle_from = at


Script = Callable[[Session, Random], None]


# --- busy to the end ----------------------------------------------------------------------------------------------
def interactive(session: Session, random: Random) -> None:
    """Cells, with pauses of some minutes."""
    session.work(random, 0, LENGTH)


def bursts(session: Session, random: Random) -> None:
    """A cell that runs for hours and uses the GPU for seconds, with up to an hour in between."""
    session.busy.append((0, LENGTH + MINUTE))
    session.messages.append(0)
    at = 0
    while at < LENGTH:
        session.gpu.append((at, at + random.randint(1, 20) * SECOND))
        at += random.randint(1, 60) * MINUTE


def silent_cell(session: Session, random: Random) -> None:
    """A cell that prints nothing for hours, at full load."""
    session.busy.append((0, LENGTH + MINUTE))
    session.messages.append(0)
    session.gpu.append((random.randint(1, 60) * SECOND, LENGTH + MINUTE))


def background_thread(session: Session, random: Random) -> None:
    """The cell returned at once; its thread uses the GPU again and again."""
    session.cell(0, 2 * SECOND)
    at = 5 * SECOND
    while at < LENGTH:
        end = at + random.randint(1, 300) * SECOND
        session.gpu.append((at, end))
        at = end + random.randint(10, 18 * 60) * SECOND


def terminal_job(session: Session, random: Random) -> None:
    """A training in a terminal; all kernels are idle."""
    at = random.randint(1, 10) * MINUTE
    session.gpu.append((0, at))
    while at < LENGTH:
        end = at + random.randint(20, 90) * MINUTE
        session.gpu.append((at, end))
        at = end + random.randint(1, 15) * MINUTE


def download(session: Session, random: Random) -> None:
    """A cell downloads for hours; a model is in GPU memory, and the GPU is unused."""
    loaded = session.cell(0, random.randint(10, 90) * SECOND, gpu=True)
    session.busy.append((loaded + SECOND, LENGTH + MINUTE))
    session.messages += list(range(loaded + SECOND, LENGTH, random.choice([SECOND * 5, MINUTE, 40 * MINUTE])))


def breakpoint_(session: Session, random: Random) -> None:
    """A cell waits at a breakpoint or for input."""
    session.work(random, 0, random.randint(1, 30) * MINUTE)
    at = session.messages[-1] + MINUTE
    session.busy.append((at, LENGTH + MINUTE))
    session.messages.append(at)


def jiggler(session: Session, random: Random) -> None:
    """A script runs an empty cell every few minutes, to appear busy."""
    at, every = 0, random.randint(1, 19) * MINUTE
    while at < LENGTH:
        session.cell(at, SECOND)
        at += every


def returns(session: Session, random: Random) -> None:
    """The user returns just before the warning, or during the countdown, repeatedly."""
    at = 0
    while at < LENGTH:
        ended = session.cell(at, random.randint(1, 60) * SECOND, gpu=True)
        late = random.choice([-3 * MINUTE, -30 * SECOND, MINUTE, COUNTDOWN - 20 * SECOND])
        at = ended + UNUSED + late


def restarts(session: Session, random: Random) -> None:
    """Kernels are restarted in the middle of work."""
    at = 0
    while at < LENGTH:
        session.kernel_starts.append(at)
        session.messages.append(at)
        at = session.cell(at + 5 * SECOND, random.randint(1, 8) * MINUTE, gpu=True) + random.randint(1, 9) * MINUTE


# --- idle in the end----------------------------------------------------------------------------------------------
def walked_away(session: Session, random: Random) -> None:
    """Interactive work has ended; the kernel keeps its memory."""
    session.stop(session.work(random, 0, random.randint(1, 60) * MINUTE))


def open_tab(session: Session, random: Random) -> None:
    """The same, with an open tab that reconnects."""
    walked_away(session, random)
    session.reconnects = list(range(0, LENGTH, random.randint(20, 300) * SECOND))


def after_silent_cell(session: Session, random: Random) -> None:
    """A long silent cell has ended."""
    session.stop(session.cell(0, random.randint(20, 60) * MINUTE, gpu=True))


def after_thread(session: Session, random: Random) -> None:
    """A background thread has ended; the kernel was idle all the time."""
    session.cell(0, SECOND)
    end = random.randint(10 * 60, 60 * 60) * SECOND
    session.gpu.append((3 * SECOND, end))
    session.stop(end)


def after_terminal(session: Session, random: Random) -> None:
    """The job in the terminal has ended."""
    session.cell(0, 20 * SECOND, gpu=True)
    end = random.randint(5 * 60, 60 * 60) * SECOND
    session.gpu.append((MINUTE, end))
    session.stop(end)


def after_download(session: Session, random: Random) -> None:
    """A download has ended."""
    session.cell(0, 30 * SECOND, gpu=True)
    session.stop(session.cell(MINUTE, random.randint(10, 60) * MINUTE))


def model_left(session: Session, random: Random) -> None:
    """A model is loaded and inspected with cells that compute nothing."""
    at = session.cell(0, random.randint(10, 60) * SECOND, gpu=True)
    for _ in range(random.randint(3, 12)):
        at = session.cell(at + random.randint(1, 9) * MINUTE, random.randint(1, 5) * SECOND)
    session.stop(at)


def after_restart(session: Session, random: Random) -> None:
    """A kernel was restarted and loaded its model again."""
    at = session.work(random, 0, random.randint(1, 20) * MINUTE) + MINUTE
    session.kernel_starts.append(at)
    session.messages.append(at)
    session.stop(session.cell(at + 2 * SECOND, random.randint(5, 60) * SECOND, gpu=True))


# --- gaps --------------------------------------------------------------------------------------------------------
def _hole(random: Random, shortest: int, longest: int) -> Span:
    begin = random.randint(10 * MINUTE, 90 * MINUTE)
    return begin, begin + random.randint(shortest, longest)


def busy_in_a_hole(session: Session, random: Random) -> None:
    """Readings are missing just when a background thread does its only work for a long time."""
    session.cell(0, SECOND)
    at = 0
    while at < LENGTH:
        end = at + random.randint(30, 100) * SECOND
        session.gpu.append((at, end))
        if random.random() < 0.5:
            session.lost.append((at - 15 * SECOND, end + 15 * SECOND))
        at = end + random.randint(8, 17) * MINUTE


def busy_and_the_service_restarts(session: Session, random: Random) -> None:
    """Work continues while the service is unavailable for minutes."""
    session.work(random, 0, LENGTH)
    for _ in range(3):
        hole = _hole(random, MINUTE, 30 * MINUTE)
        session.lost.append(hole)
        session.silent.append(hole)


def busy_and_no_reports(session: Session, random: Random) -> None:
    """A cell downloads for hours, and the server's reports stop meanwhile."""
    download(session, random)
    session.silent.append((random.randint(1, 60) * MINUTE, LENGTH))


def busy_and_the_clock_jumps(session: Session, random: Random) -> None:
    """The clock is set during interactive work."""
    session.work(random, 0, LENGTH)
    for _ in range(2):
        session.jumps.append((random.randint(10, 140) * MINUTE, random.choice([-60, -20, -1, 1, 25, 60]) * MINUTE))


def idle_with_holes(session: Session, random: Random) -> None:
    """Idle; readings are missing for some minutes."""
    walked_away(session, random)
    session.lost += [_hole(random, 40 * SECOND, 10 * MINUTE) for _ in range(2)]


def idle_and_the_clock_jumps(session: Session, random: Random) -> None:
    """Idle; the clock is set."""
    walked_away(session, random)
    session.jumps.append((random.randint(5, 100) * MINUTE, random.choice([-60, -5, 5, 60]) * MINUTE))


BUSY: tuple[Script, ...] = (
    interactive, bursts, silent_cell, background_thread, terminal_job, download, breakpoint_, jiggler, returns,
    restarts,
)  # fmt: skip
IDLE: tuple[Script, ...] = (
    walked_away, open_tab, after_silent_cell, after_thread, after_terminal, after_download, model_left, after_restart,
)  # fmt: skip
GAPS: tuple[Script, ...] = (
    busy_in_a_hole, busy_and_the_service_restarts, busy_and_no_reports, busy_and_the_clock_jumps,
    idle_with_holes, idle_and_the_clock_jumps,
)  # fmt: skip


def sessions(seed: int, of_each: int) -> Iterator[Session]:
    """``of_each`` sessions of every script; the same for the same seed."""
    for script in (*BUSY, *IDLE, *GAPS):
        for number in range(of_each):
            session = Session(kind=script.__name__.strip("_"), number=number, gaps=script in GAPS)
            script(session, Random(f"{seed} {script.__name__} {number}"))
            session.messages.sort()
            yield session
