"""The queue of one project in one pool, by job class: jobs with equal requests, priority and preemptibility.

If the first job of a class does not fit, no other job of it does: a tick ends after as many failures as there are
classes, however many jobs wait. :class:`WaitingJobs` keeps the jobs in order between ticks; a tick reads the heads only
(:class:`ClassQueue`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from ..model import Job
from ..placement.place import Request
from ..reasons import Reason


class OrderKey(NamedTuple):
    """Order inside a project; ``use``: the user's, of the project's GPUs, in milli-GPU."""

    negative_priority: int
    use: int
    submitted_at: int
    id: str


MakeReason = Callable[[], Reason]
"""Makes the reason why a class is blocked; most are never made."""

FitsUser = Callable[[str], bool] | None
"""Whether a user may start one more job of a class; None without a ceiling for each user."""

_Row = tuple[int, str, Job]
"""First submit time, id, and the job."""
Head = tuple[int, int, str, str]
"""The use of a user, and of the user's first job the first submit time and the id; then the user."""

_NEVER = 1 << 62
"""Later than every instant."""
_submitted_at = attrgetter("submitted_at")


class JobClass(NamedTuple):
    """The common properties of the jobs of a class. ``paused``: before; ``exhausted``: their pauses are used up."""

    request: Request
    preemptible: bool
    priority: int
    paused: bool
    exhausted: bool


class WaitingJobs:
    """The waiting jobs of one class by user, the oldest first.

    New jobs are sorted in when the order is first read: most classes of a full pool are blocked without it.
    """

    __slots__ = ("_oldest_at", "_read", "_shortest_s", "_unsorted", "_users", "count")

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._unsorted = list(jobs)
        self._users: dict[str, list[_Row]] = {}
        self.count = len(self._unsorted)
        self._shortest_s = 1 << 62
        self._oldest_at: int | None = _NEVER
        """Without the unsorted jobs from ``_read`` on; None where it is not known."""
        self._read = 0

    def add(self, job: Job) -> None:
        self._unsorted.append(job)
        self.count += 1

    def drop(self, job: Job) -> None:
        rows = self.users[job.user]
        submitted_at, *_ = rows.pop(bisect_left(rows, (job.submitted_at, job.id)))
        if not rows:
            del self.users[job.user]
        if submitted_at == self._oldest_at:
            self._oldest_at = None
        self.count -= 1

    @property
    def oldest_at(self) -> int:
        """The first submit time of the class; far in the future for a class without jobs."""
        if self._oldest_at is None:
            self._oldest_at = min((rows[0][0] for rows in self.users.values()), default=_NEVER)
        elif self._read < len(self._unsorted):
            new = self._unsorted[self._read :] if self._read else self._unsorted
            self._oldest_at = min(chain((self._oldest_at,), map(_submitted_at, new)))
            self._read = len(self._unsorted)
        return self._oldest_at

    def first_submitted_after(self, at: int) -> int | None:
        """The first submit time of the class after an instant; None where there is none."""
        if self.oldest_at > at:
            return self.oldest_at if self.count else None
        later = (rows[bisect_right(rows, at, key=itemgetter(0)) :][:1] for rows in self.users.values())
        return min((row[0] for rows in later for row in rows), default=None)

    @property
    def users(self) -> dict[str, list[_Row]]:
        """The rows of each user, in order."""
        if self._unsorted:
            self._sort_in()
        return self._users

    def _sort_in(self) -> None:
        users, shortest_s = self._users, self._shortest_s
        if self._oldest_at is not None:
            self._oldest_at = self.oldest_at
        for job in self._unsorted:
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
        self._unsorted.clear()
        self._read = 0

    def may_end_within(self, time_limit_s: int) -> bool:
        """False only if no job has a time limit as short as this."""
        return bool(self.users) and self._shortest_s <= time_limit_s

    def jobs(self) -> Iterator[Job]:
        return (row[2] for rows in self.users.values() for row in rows)


class ClassQueue:
    """The jobs of one class in one tick, in order: the user with the least use, then first submit time, then id.

    ``use_by_user`` is updated by the project; empty where users do not take turns. ``out``: jobs that are not queued.
    Rule R23.
    """

    __slots__ = (
        "_chosen", "_fits_user", "_heads", "_next", "_out", "_use_by_user", "_users", "_waiting",
        "blocked", "count", "is_overtaking", "is_preceded", "job_class", "priority_key", "size",
    )  # fmt: skip

    def __init__(
        self,
        job_class: JobClass,
        waiting_jobs: WaitingJobs,
        use_by_user: Mapping[str, int],
        fits_user: FitsUser = None,
        out: Collection[str] = (),
    ) -> None:
        self.job_class = job_class
        self.size, self.priority_key = job_class.request.size, -job_class.priority
        self.blocked: MakeReason | None = None
        self._chosen: Job | None = None
        self.is_overtaking = False
        """It is blocked because its jobs would overtake an overdue job."""
        self.is_preceded = False
        """An overdue job has precedence over its first job, which gets no backfill reservation."""
        self._waiting = waiting_jobs
        self._use_by_user = use_by_user
        self._fits_user = fits_user
        self._out = set(out)
        self.count = waiting_jobs.count - len(self._out)
        """The number of queued jobs."""
        self._next: dict[str, int] = {}
        self._users: Mapping[str, list[_Row]] = {}
        """The jobs in order; read with the heads."""
        self._heads: list[Head] | None = None

    @property
    def oldest_at(self) -> int:
        """No job of the class was submitted earlier."""
        return self._waiting.oldest_at

    def counts(self) -> dict[str, int]:
        counts = {user: len(rows) for user, rows in self._waiting.users.items()}
        if self._out:
            for job in self._waiting.jobs():
                counts[job.user] -= job.id in self._out
        return counts

    def first_key(self) -> OrderKey | None:
        """The order key of the first job within its user's ceiling; None if there is none."""
        head = self.head()
        return None if head is None else OrderKey(self.priority_key, *head[:3])

    def head(self) -> Head | None:
        """The first job within its user's ceiling, as it is ordered among jobs of the same priority."""
        chosen = self._chosen
        if chosen is not None and self.has_room_for(chosen.user):
            return self._use_by_user.get(chosen.user, 0), chosen.submitted_at, chosen.id, chosen.user
        heads, fits_user = self._heads or self._sorted(), self._fits_user
        while heads:
            used, submitted_at, job, user = heads[0]
            if not self._is_front(user, job) or (fits_user is not None and not fits_user(user)):
                heappop(heads)
            elif used != (now := self._use_by_user.get(user, 0)):
                heapreplace(heads, (now, submitted_at, job, user))
            else:
                return heads[0]
        return None

    def has_room_for(self, user: str) -> bool:
        """Whether the ceiling for each user admits one more job of a user."""
        return self._fits_user is None or self._fits_user(user)

    def first(self) -> Job:
        """The first job, as :meth:`first_key` found it."""
        if self._chosen is not None and self.has_room_for(self._chosen.user):
            return self._chosen
        user = (self._heads or self._sorted())[0][3]
        return self._users[user][self._next.get(user, 0)][2]

    def choose(self, job: Job) -> None:
        """Let a queued job be the first of the class until it is served."""
        self._chosen = job

    def take(self) -> Job:
        job = self.first()
        if job is self._chosen:
            return self.pick(job)
        self._out.add(job.id)
        self.count -= 1
        front, heads = self._front(job.user), self._sorted()
        if front is None:
            heappop(heads)
        else:
            heapreplace(heads, (self._use_by_user.get(job.user, 0), front[0], front[1], job.user))
        return job

    def first_within(self, time_limit_s: int) -> Job | None:
        """The first job, in order, that is within its user's ceiling and has no longer time limit than this."""
        if not self._waiting.may_end_within(time_limit_s):
            return None
        return self._first_where(lambda job: job.time_limit_s <= time_limit_s)

    def first_beside(self, overdue: Job, time_limit_s: int) -> Job | None:
        """The first job, in order, that is within its user's ceiling, and short, or submitted before an overdue job."""
        fronts = (front[2] for user in self._waiting.users if (front := self._front(user)) is not None)
        older = [one for one in fronts if (one.submitted_at, one.id) < (overdue.submitted_at, overdue.id)]
        short = self.first_within(time_limit_s)
        return self._first_of(older if short is None else [*older, short])

    def first_not_paused_for(self, preemptor: str) -> Job | None:
        """The first job, in order, that is within its user's ceiling and was not paused for this preemptor."""
        return self._first_where(lambda job: job.paused_for != preemptor)

    def _first_where(self, is_wanted: Callable[[Job], bool]) -> Job | None:
        """The first of the wanted jobs, in order, that is within its user's ceiling; it reads no more than it needs."""
        if self._chosen is None:
            if self.first_key() is None:
                return None
            if is_wanted(first := self.first()):
                return first
        best: tuple[int, _Row] | None = None
        for used, user in sorted((self._use_by_user.get(user, 0), user) for user in self._waiting.users):
            if best is not None and used > best[0]:
                break
            rows = self._waiting.users[user] if self.has_room_for(user) else ()
            for row in islice(rows, self._next.get(user, 0), None):
                if best is not None and row > best[1]:
                    break
                if row[1] not in self._out and is_wanted(row[2]):
                    best = used, row
                    break
        return None if best is None else best[1][2]

    def _first_of(self, jobs: Iterable[Job]) -> Job | None:
        """The first of these jobs, in order, that is within its user's ceiling."""
        use = self._use_by_user
        rows = [(use.get(one.user, 0), one.submitted_at, one.id, one) for one in jobs if self.has_room_for(one.user)]
        return min(rows)[3] if rows else None

    def oldest(self, submitted_by: int, *, besides: str) -> Job | None:
        """The queued job that waits longest of those that never started, were submitted by then, and fit their user.

        ``besides``: the id of a job that is not looked for.
        """
        if self._waiting.oldest_at > submitted_by:
            return None
        users = [user for user in self._waiting.users if self.has_room_for(user)]
        oldest = [self._oldest_of(user, submitted_by, besides) for user in users]
        return min((row for row in oldest if row is not None), default=(0, "", None))[2]

    def _oldest_of(self, user: str, submitted_by: int, besides: str) -> _Row | None:
        """The first queued job of a user that never started and was submitted by then."""
        for row in islice(self._waiting.users[user], self._next.get(user, 0), None):
            if row[0] > submitted_by:
                return None
            if not row[2].attempt and row[1] != besides and row[1] not in self._out:
                return row
        return None

    def pick(self, job: Job) -> Job:
        """Remove and return a job, not necessarily the first."""
        self._out.add(job.id)
        self.count -= 1
        if job is self._chosen:
            self._chosen = None
        self.reorder(job.user)
        return job

    def has(self, job: Job) -> bool:
        """Whether a job of this class is queued."""
        return job.id not in self._out

    def put_back(self, job: Job) -> None:
        self._out.discard(job.id)
        self.count = self._waiting.count - len(self._out)
        self._next.pop(job.user, None)
        self.blocked = None
        self.reorder(job.user)

    def reopen(self) -> None:
        """Unblock the class, so that its first job can be served again."""
        self.blocked, self.is_overtaking, self.is_preceded = None, False, False

    def reorder(self, user: str) -> None:
        """Reorder a user whose use fell or whose first job changed."""
        if self._heads is None or user not in self._users:
            return
        if (front := self._front(user)) is not None:
            heappush(self._heads, (self._use_by_user.get(user, 0), front[0], front[1], user))

    def jobs(self) -> Iterator[Job]:
        return (job for job in self._waiting.jobs() if job.id not in self._out)

    def _sorted(self) -> list[Head]:
        if self._heads is None:
            self._users, use_by_user = self._waiting.users, self._use_by_user
            if self._out:
                fronts = [(user, front) for user in self._users if (front := self._front(user)) is not None]
            else:
                fronts = [(user, rows[0]) for user, rows in self._users.items()]
            self._heads = [(use_by_user.get(user, 0), front[0], front[1], user) for user, front in fronts]
            heapify(self._heads)
        return self._heads

    def _is_front(self, user: str, job: str) -> bool:
        """Whether a job is the first queued job of its user."""
        at = self._next.get(user, 0)
        if job not in self._out:
            rows = self._users[user]
            if at < len(rows) and rows[at][1] == job:
                return True
        front = self._front(user)
        return front is not None and front[1] == job

    def _front(self, user: str) -> _Row | None:
        """The first queued job of a user."""
        rows, at = self._waiting.users.get(user, ()), self._next.get(user, 0)
        while at < len(rows) and rows[at][1] in self._out:
            at += 1
        self._next[user] = at
        return rows[at] if at < len(rows) else None


class JobQueue:
    """The class queues of one project in one pool."""

    __slots__ = ("classes",)

    def __init__(self) -> None:
        self.classes: dict[JobClass, ClassQueue] = {}

    def open_classes(self) -> list[ClassQueue]:
        """The classes with queued jobs that are not blocked."""
        return [queue for queue in self.classes.values() if queue.blocked is None and queue.count]

    def reopen(self) -> None:
        for queue in self.classes.values():
            queue.reopen()

    def reorder(self, user: str) -> None:
        """Reorder a user whose use fell, in every class."""
        for queue in self.classes.values():
            queue.reorder(user)
