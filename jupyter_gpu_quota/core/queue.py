"""The queue of one project in one pool, by shape: jobs that need the same thing stand in one line.

What does not fit for the first of a line does not fit for the rest of it, so a tick ends after as many failures
as there are lines, however many jobs wait; a line in which nobody can start is not even sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from .model import Job
from .placement import Request
from .plan import Reason

OrderKey = tuple[int, int, int, str]
"""Inside a project: -priority, what the user holds of the project's GPUs, first submit time, id."""


FitsUser = Callable[[str], bool] | None
"""Whether a user may have one more job of a line; None where there is no ceiling for each user."""


class Shape(NamedTuple):
    """What decides whether a job of a project can start; ``exhausted``: its pauses are used up."""

    request: Request
    preemptible: bool
    priority: int
    exhausted: bool


class Line:
    """The waiting jobs of one shape, in order: the user who holds least, then first submit time, then id.

    ``turns`` is what each user holds, kept up to date by its owner; empty where age alone decides.
    """

    __slots__ = ("_fits_user", "_heads", "_jobs", "_turns", "_users", "blocked", "count", "shape", "size")

    def __init__(self, shape: Shape, jobs: list[Job], turns: Mapping[str, int], fits_user: FitsUser = None) -> None:
        self.shape = shape
        self.size = shape.request.size
        self.count = len(jobs)
        self.blocked: Reason | None = None
        self._jobs = jobs
        self._turns = turns
        self._fits_user = fits_user
        self._users: dict[str, list[Job]] = {}
        self._heads: list[tuple[int, int, str, str]] | None = None

    def first_key(self) -> OrderKey | None:
        """The order key of the first job that its user's ceiling takes; None where there is none."""
        heads = self._sorted()
        while heads:
            used, submitted_at, job, user = heads[0]
            if not self._users[user] or self._users[user][-1].id != job or not self.takes(user):
                heappop(heads)
            elif used != self._turns.get(user, 0):
                heapreplace(heads, self._head(user))
            else:
                return -self.shape.priority, used, submitted_at, job
        return None

    def takes(self, user: str) -> bool:
        """Whether the ceiling for each user leaves this one room for a job of the line."""
        return self._fits_user is None or self._fits_user(user)

    def first(self) -> Job:
        """The first job, as :meth:`first_key` found it."""
        return self._users[self._sorted()[0][3]][-1]

    def take(self) -> Job:
        """Remove and return the first job."""
        heads = self._sorted()
        user = heappop(heads)[3]
        job = self._users[user].pop()
        self.count -= 1
        self.moved_up(user)
        return job

    def first_within(self, time_limit_s: int) -> Job | None:
        """The first job, in order, that its user's ceiling takes and whose time limit is no longer than this."""
        self._sorted()
        short = [
            (self._turns.get(user, 0), job.submitted_at, job.id, job)
            for user, jobs in self._users.items()
            if self.takes(user)
            for job in jobs
            if job.time_limit_s <= time_limit_s
        ]
        return min(short)[3] if short else None

    def pick(self, job: Job) -> Job:
        """Remove and return a job that need not be the first."""
        self._sorted()
        self._users[job.user].remove(job)
        self.count -= 1
        self.moved_up(job.user)
        return job

    def moved_up(self, user: str) -> None:
        """A user holds less than before, so his first job may stand further in front."""
        if self._heads is not None and self._users.get(user):
            heappush(self._heads, self._head(user))

    def jobs(self) -> Iterator[Job]:
        """Everybody in line, in no particular order."""
        if self._heads is None:
            yield from self._jobs
        for jobs in self._users.values():
            yield from jobs

    def _sorted(self) -> list[tuple[int, int, str, str]]:
        if self._heads is None:
            for job in sorted(self._jobs, key=lambda job: (job.submitted_at, job.id), reverse=True):
                self._users.setdefault(job.user, []).append(job)
            self._heads = [self._head(user) for user in self._users]
            heapify(self._heads)
        return self._heads

    def _head(self, user: str) -> tuple[int, int, str, str]:
        job = self._users[user][-1]
        return self._turns.get(user, 0), job.submitted_at, job.id, user


class ProjectQueue:
    """The lines of one project in one pool."""

    def __init__(self) -> None:
        self.lines: dict[Shape, Line] = {}

    def add(self, shape: Shape, jobs: Sequence[Job], turns: Mapping[str, int], fits_user: FitsUser = None) -> None:
        """Put jobs of one shape in line, all of them at once."""
        line = self.lines.get(shape)
        waiting = [*line.jobs(), *jobs] if line else list(jobs)
        self.lines[shape] = Line(shape, waiting, turns, fits_user)

    def open_lines(self) -> list[Line]:
        """The lines in which somebody waits and nothing was found to forbid it yet."""
        return [line for line in self.lines.values() if line.count and line.blocked is None]

    def reopen(self) -> None:
        """Let every line try again."""
        for line in self.lines.values():
            line.blocked = None

    def moved_up(self, user: str) -> None:
        """A user holds less than before."""
        for line in self.lines.values():
            line.moved_up(user)
