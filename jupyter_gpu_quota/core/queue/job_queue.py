"""The queue of one project in one pool, by shape: jobs that need the same thing stand in one line.

What does not fit for the first of a line does not fit for the rest of it, so a tick ends after as many failures
as there are lines, however many jobs wait. Who waits is kept in order from tick to tick (:class:`Crowd`); a tick only
looks at the heads (:class:`Line`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from ..model import Job
from ..placement.place import Request
from ..plan import Reason

OrderKey = tuple[int, int, int, str]
"""Inside a project: -priority, what the user holds of the project's GPUs, first submit time, id."""


Why = Callable[[], Reason]
"""Tells why a line is blocked; most reasons are never told."""

FitsUser = Callable[[str], bool] | None
"""Whether a user may have one more job of a line; None where there is no ceiling for each user."""

_Row = tuple[int, str, Job]
"""First submit time, id, and the job."""


class Shape(NamedTuple):
    """What decides whether a job of a project can start; ``exhausted``: its pauses are used up."""

    request: Request
    preemptible: bool
    priority: int
    exhausted: bool


class Crowd:
    """Who waits for the same thing, by user, the oldest first.

    Most lines of a full pool are closed before anybody looks who stands there: newcomers are put in order then.
    """

    __slots__ = ("_newcomers", "_shortest_s", "_users", "count")

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._newcomers = list(jobs)
        self._users: dict[str, list[_Row]] = {}
        self.count = len(self._newcomers)
        self._shortest_s = 1 << 62

    def add(self, job: Job) -> None:
        """Let a job wait with the others."""
        self._newcomers.append(job)
        self.count += 1

    def drop(self, job: Job) -> None:
        """Take out a job that waits here."""
        rows = self.users[job.user]
        del rows[bisect_left(rows, (job.submitted_at, job.id))]
        if not rows:
            del self.users[job.user]
        self.count -= 1

    @property
    def users(self) -> dict[str, list[_Row]]:
        """The rows of each user, in order."""
        if self._newcomers:
            self._line_up()
        return self._users

    def _line_up(self) -> None:
        users, shortest_s = self._users, self._shortest_s
        for job in self._newcomers:
            row = job.submitted_at, job.id, job
            rows = users.get(job.user)
            if rows is None:
                users[job.user] = [row]
            elif rows[-1] < row:
                rows.append(row)
            else:
                insort(rows, row)
            if job.time_limit_s < shortest_s:
                shortest_s = job.time_limit_s
        self._shortest_s = shortest_s
        self._newcomers.clear()

    def joined_by(self, jobs: Iterable[Job]) -> Crowd:
        """The same crowd and others, for one tick."""
        joined = Crowd(jobs)
        joined._users = {user: list(rows) for user, rows in self.users.items()}
        joined.count, joined._shortest_s = joined.count + self.count, self._shortest_s
        return joined

    def may_end_within(self, time_limit_s: int) -> bool:
        """False where certainly nobody has a time limit as short as this."""
        return bool(self.users) and self._shortest_s <= time_limit_s

    def jobs(self) -> Iterator[Job]:
        """Everybody, in no particular order."""
        return (row[2] for rows in self.users.values() for row in rows)


class Line:
    """A crowd in one tick, in order: the user who holds least, then first submit time, then id.

    ``turns`` is what each user holds, kept up to date by its owner; empty where age alone decides. ``out``: the jobs
    that do not stand in line.
    """

    __slots__ = (
        "_crowd", "_fits_user", "_heads", "_next", "_out", "_turns", "_users",
        "blocked", "count", "least", "shape", "size",
    )  # fmt: skip

    def __init__(
        self,
        shape: Shape,
        crowd: Crowd,
        turns: Mapping[str, int],
        fits_user: FitsUser = None,
        out: Collection[str] = (),
    ) -> None:
        self.shape = shape
        self.size, self.least = shape.request.size, -shape.priority
        self.blocked: Why | None = None
        self._crowd = crowd
        self._turns = turns
        self._fits_user = fits_user
        self._out = set(out)
        self.count = crowd.count - len(self._out)
        """How many stand in line."""
        self._next: dict[str, int] = {}
        self._users: Mapping[str, list[_Row]] = {}
        """The crowd in order; looked at with the heads, not before."""
        self._heads: list[tuple[int, int, str, str]] | None = None

    def counts(self) -> dict[str, int]:
        """How many of each user stand in line."""
        counts = {user: len(rows) for user, rows in self._crowd.users.items()}
        if self._out:
            for job in self._crowd.jobs():
                counts[job.user] -= job.id in self._out
        return counts

    def first_key(self) -> OrderKey | None:
        """The order key of the first job that its user's ceiling takes; None where there is none."""
        heads = self._sorted()
        while heads:
            used, submitted_at, job, user = heads[0]
            if not self._is_front(user, job) or not self.takes(user):
                heappop(heads)
            elif used != (now := self._turns.get(user, 0)):
                heapreplace(heads, (now, submitted_at, job, user))
            else:
                return -self.shape.priority, used, submitted_at, job
        return None

    def takes(self, user: str) -> bool:
        """Whether the ceiling for each user leaves this one room for a job of the line."""
        return self._fits_user is None or self._fits_user(user)

    def first(self) -> Job:
        """The first job, as :meth:`first_key` found it."""
        user = self._sorted()[0][3]
        return self._users[user][self._next.get(user, 0)][2]

    def take(self) -> Job:
        """Remove and return the first job."""
        job = self.first()
        heappop(self._sorted())
        return self.pick(job)

    def first_within(self, time_limit_s: int) -> Job | None:
        """The first job, in order, that its user's ceiling takes and whose time limit is no longer than this."""
        if not self._crowd.may_end_within(time_limit_s):
            return None
        short = [
            (self._turns.get(job.user, 0), job.submitted_at, job.id, job)
            for job in self.jobs()
            if job.time_limit_s <= time_limit_s and self.takes(job.user)
        ]
        return min(short)[3] if short else None

    def pick(self, job: Job) -> Job:
        """Remove and return a job that need not be the first."""
        self._out.add(job.id)
        self.count -= 1
        self.moved_up(job.user)
        return job

    def put_back(self, job: Job) -> None:
        """A job of the crowd stands in line after all."""
        self._out.discard(job.id)
        self.count = self._crowd.count - len(self._out)
        self._next.pop(job.user, None)
        self.blocked = None
        self.moved_up(job.user)

    def moved_up(self, user: str) -> None:
        """A user holds less than before, or has another first job: it may stand further in front."""
        if self._heads is None or user not in self._users:
            return
        if (front := self._front(user)) is not None:
            heappush(self._heads, (self._turns.get(user, 0), front[0], front[1], user))

    def jobs(self) -> Iterator[Job]:
        """Everybody in line, in no particular order."""
        return (job for job in self._crowd.jobs() if job.id not in self._out)

    def _sorted(self) -> list[tuple[int, int, str, str]]:
        if self._heads is None:
            self._users, turns = self._crowd.users, self._turns
            if self._out:
                fronts = [(user, front) for user in self._users if (front := self._front(user)) is not None]
            else:
                fronts = [(user, rows[0]) for user, rows in self._users.items()]
            self._heads = [(turns.get(user, 0), front[0], front[1], user) for user, front in fronts]
            heapify(self._heads)
        return self._heads

    def _is_front(self, user: str, job: str) -> bool:
        """Whether a job is the first of its user's that still stands in line."""
        at = self._next.get(user, 0)
        if job not in self._out:
            rows = self._users[user]
            if at < len(rows) and rows[at][1] == job:
                return True
        front = self._front(user)
        return front is not None and front[1] == job

    def _front(self, user: str) -> _Row | None:
        """The first of a user's jobs that still stands in line."""
        rows, at = self._users.get(user, ()), self._next.get(user, 0)
        while at < len(rows) and rows[at][1] in self._out:
            at += 1
        self._next[user] = at
        return rows[at] if at < len(rows) else None


class ProjectQueue:
    """The lines of one project in one pool."""

    def __init__(self) -> None:
        self.lines: dict[Shape, Line] = {}

    def open_lines(self) -> list[Line]:
        """The lines in which somebody waits and nothing was found to forbid it yet."""
        return [line for line in self.lines.values() if line.blocked is None and line.count]

    def reopen(self) -> None:
        """Let every line try again."""
        for line in self.lines.values():
            line.blocked = None

    def moved_up(self, user: str) -> None:
        """A user holds less than before."""
        for line in self.lines.values():
            line.moved_up(user)
