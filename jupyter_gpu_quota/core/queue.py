"""The queue of one project in one pool, by shape: jobs that need the same thing stand in one line.

What does not fit for the first of a line does not fit for the rest of it, so a tick ends after as many failures
as there are lines, however many jobs wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from .model import Job
from .placement import Request
from .plan import Reason

OrderKey = tuple[int, int, int, str]
"""Inside a project: -priority, what the user holds of the project's GPUs, first submit time, id."""


class Shape(NamedTuple):
    """What decides whether a job of a project can start; ``exhausted``: its pauses are used up."""

    request: Request
    preemptible: bool
    priority: int
    exhausted: bool


class Line:
    """The waiting jobs of one shape, in order: the user who holds least, then first submit time, then id."""

    __slots__ = ("_heads", "_turns", "_users", "blocked", "shape", "size")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.size = shape.request.size
        self.blocked: Reason | None = None
        self._users: dict[str, list[Job]] = {}
        self._heads: list[tuple[int, int, str, str]] = []
        self._turns: Mapping[str, int] = {}

    def add(self, job: Job) -> None:
        """Put a job in line, before :meth:`close`."""
        self._users.setdefault(job.user, []).append(job)

    def close(self, turns: Mapping[str, int]) -> None:
        """Order the line. ``turns`` is what each user holds, kept up to date by its owner; empty where age decides."""
        self._turns = turns
        for jobs in self._users.values():
            jobs.sort(key=lambda job: (job.submitted_at, job.id), reverse=True)
        self.reorder()

    def reorder(self) -> None:
        """Look at every user again, after one holds less than before."""
        self._heads = [self._head(user) for user, jobs in self._users.items() if jobs]
        heapify(self._heads)

    def first_key(self) -> OrderKey | None:
        """The order key of the first job, None when nobody waits."""
        while self._heads:
            used, submitted_at, job, user = self._heads[0]
            if used == self._turns.get(user, 0):
                return -self.shape.priority, used, submitted_at, job
            heapreplace(self._heads, self._head(user))
        return None

    def first(self) -> Job:
        """The first job, where :meth:`first_key` is not None."""
        return self._users[self._heads[0][3]][-1]

    def take(self) -> Job:
        """Remove and return the first job."""
        user = heappop(self._heads)[3]
        job = self._users[user].pop()
        if self._users[user]:
            heappush(self._heads, self._head(user))
        return job

    def __bool__(self) -> bool:
        return bool(self._heads)

    def jobs(self) -> Iterator[Job]:
        """Everybody in line, in no particular order."""
        for jobs in self._users.values():
            yield from jobs

    def _head(self, user: str) -> tuple[int, int, str, str]:
        job = self._users[user][-1]
        return self._turns.get(user, 0), job.submitted_at, job.id, user


class ProjectQueue:
    """The lines of one project in one pool."""

    def __init__(self) -> None:
        self.lines: dict[Shape, Line] = {}

    def add(self, job: Job, *, exhausted: bool) -> Shape:
        """Put a waiting job in its line and return the line's shape."""
        request = Request(job.gpu_milli, job.ranks, job.gpu_model)
        shape = Shape(request, job.preemptible, job.priority, exhausted)
        if shape not in self.lines:
            self.lines[shape] = Line(shape)
        self.lines[shape].add(job)
        return shape

    def close(self, turns: Mapping[str, int]) -> None:
        """Order every line."""
        for line in self.lines.values():
            line.close(turns)

    def open_lines(self) -> list[Line]:
        """The lines in which somebody waits and nothing was found to forbid it yet."""
        return [line for line in self.lines.values() if line and line.blocked is None]

    def reopen(self) -> None:
        """Let every line try again."""
        for line in self.lines.values():
            line.blocked = None

    def reorder(self) -> None:
        """Look at every user of every line again."""
        for line in self.lines.values():
            line.reorder()
