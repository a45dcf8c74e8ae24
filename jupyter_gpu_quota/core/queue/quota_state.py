"""The position of each project and department in one pool: quota, use, fair share, and the work that may be preempted.

Part of :class:`.PoolState`: valid for one tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from ..model import Job, Notebook
from ..placement.place import Piece, Request
from .job_queue import JobQueue

NO_LIMIT = 1 << 62


class Entitlement(IntEnum):
    """The entitlement of a request, strongest first: a notebook slice, guarantee, fair share, or surplus only."""

    NOTEBOOK = -1
    GUARANTEE = 0
    FAIR = 1
    SURPLUS = 2


GUARANTEE, FAIR, SURPLUS = Entitlement.GUARANTEE, Entitlement.FAIR, Entitlement.SURPLUS
"""Module constants for hot code: looking up a member of an enumeration is slow."""


ABOVE = "/above"
"""Ends the key of the part of an elastic job above its minimum."""


@dataclass(slots=True, kw_only=True, eq=False)
class Victim:
    """Work that may lose its devices to a preemptor: a running job, or (``reserved``) one with a reservation."""

    id: str
    project: QuotaState
    user: str
    size: int
    pieces: tuple[Piece, ...]
    request: Request
    preemptible: bool
    priority: int
    lost_ms: int
    started_at: int
    submitted_at: int = 0
    paused_at: int = -1
    """When it was paused last; -1 if never."""
    base: Victim | None = None
    """For the part of an elastic job above its minimum: the minimum."""
    above: Victim | None = None
    """For the minimum of an elastic job: the part above it."""
    elastic: bool = False
    borrower: bool = False
    protected: bool = False
    reserved: bool = False
    restarting: bool = False
    """A part of an elastic job that this plan shrinks: it stops, and devices are reserved for its restart."""
    least_ranks: int = 0
    """For a part of an elastic job that leaves: the ranks of its minimum."""
    first_shrink: Victim | None = None
    """For a further part of an elastic job that this plan shrinks: the part that leaves first."""

    @property
    def total_size(self) -> int:
        """Its size in milli-GPU with the part of an elastic job above its minimum, which stops with the minimum."""
        return self.size if self.above is None else self.size + self.above.size

    @property
    def key(self) -> str:
        """Unique among all victims; the part of an elastic job above its minimum has its own."""
        return self.id if self.base is None else self.id + ABOVE

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """Order inside a project: lowest priority, least work lost, newest."""
        return self.priority, self.lost_ms, -self.started_at, -self.submitted_at, self.id


class PreemptibleUse:
    """Sums over preemptible running work, in milli-GPU."""

    __slots__ = (
        "_by_priority", "_most_on_node", "above_minimum", "all", "elastic", "has_elastic", "largest", "lowest_priority",
    )  # fmt: skip

    def __init__(self) -> None:
        self.all = self.elastic = self.above_minimum = self.largest = 0
        self.lowest_priority = NO_LIMIT
        self.has_elastic = False
        self._most_on_node: int | None = None
        self._by_priority: dict[int, int] = {}

    def add(self, size: int, count: int, priority: int, *, is_elastic: bool, least: int) -> None:
        """Count so many jobs of this size and priority. ``least``: the size of one with its minimum of ranks."""
        milli = size * count
        self.all += milli
        self.largest = max(self.largest, size)
        self.lowest_priority = min(self.lowest_priority, priority)
        if is_elastic:
            self.elastic += milli
            self.above_minimum += milli - least * count
            self.has_elastic = True
        self._by_priority[priority] = self._by_priority.get(priority, 0) + milli

    def most_on_node(self, running: Iterable[Running], node_of: Sequence[int]) -> int:
        """The most on any one node. ``running``: the work; ``node_of``: the node of each device."""
        if self._most_on_node is None:
            on = Counter[int]()
            for one in running:
                for piece in one.pieces:
                    on[node_of[piece.device]] += piece.gpu_milli
            self._most_on_node = max(on.values(), default=0)
        return self._most_on_node

    def below(self, priority: int) -> int:
        return sum(milli for known, milli in self._by_priority.items() if known < priority)


@dataclass(slots=True, kw_only=True, eq=False)
class QuotaState:
    """One project or department in one pool. ``use`` counts running and reserved work, but no work that is stopping."""

    name: str
    priority: int = 0
    known: bool = False
    quota: int = 0
    notebook_quota: int = 0
    limit: int = NO_LIMIT
    weight: int = 0
    guarantee: int = 0
    fair: int = 0
    use: int = 0
    leaving: int = 0
    non_preemptible_use: int = 0
    non_preemptible_on_devices: int = 0
    """Non-preemptible running work on schedulable devices: not available to other projects before it ends."""
    booked: int = 0
    wanted: int = 0
    wanted_non_preemptible: int = 0
    by_user: dict[str, int] = field(default_factory=dict)
    use_before_plan: int = 0
    leaving_by: dict[str, int] = field(default_factory=dict)
    by_user_before_plan: dict[str, int] = field(default_factory=dict)
    """The use before the plan; by user only with a ceiling for each user."""
    is_department: bool = False
    parent: QuotaState | None = None
    """The department, if any."""
    levels: tuple[QuotaState, ...] = field(init=False)
    """The project and its department, if any."""
    ceiling: int = field(init=False)
    """The bound on the use of its jobs: the limit less the notebook quota, which notebooks may request at any time."""
    user_ceiling: int = NO_LIMIT
    user_notebooks: int = NO_LIMIT
    past_use_milli_s: int = 0
    """Its decayed use above its quota, in milli-GPU seconds."""
    booked_by: dict[str, int] = field(default_factory=dict)
    wanted_by: dict[str, int] = field(default_factory=dict)
    """The demand of each user; counted only with a ceiling for each user."""
    wanted_non_preemptible_by: dict[str, int] = field(default_factory=dict)
    """The non-preemptible part of that."""
    returning: list[int] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    """Its preemptible running work without borrowers; the lists of victims are made from it on first use."""
    make_victims: Callable[[QuotaState], None] | None = None
    parts_by_job: dict[str, list[Victim]] = field(default_factory=dict)
    """The victims that were made of its running work so far."""
    not_listed: set[str] = field(default_factory=set)
    """The keys of those that left before the lists were made."""
    preemptible_use: PreemptibleUse = field(default_factory=PreemptibleUse)
    """Sums over that work, as it was read."""
    _victims: list[Victim] = field(default_factory=list)
    _surplus: list[Victim] = field(default_factory=list)
    _protected: list[Victim] = field(default_factory=list)
    queue: JobQueue = field(default_factory=JobQueue)

    def __post_init__(self) -> None:
        self.levels = (self,) if self.parent is None else (self, self.parent)
        self._set_ceiling()

    def _set_ceiling(self) -> None:
        reserved = max(self.notebook_quota, self.booked)
        self.ceiling = NO_LIMIT if self.limit == NO_LIMIT else max(0, self.limit - reserved)

    @property
    def entitled(self) -> int:
        """Its fair share, or its guarantee where that is more: elastic jobs use it that want less."""
        return self.fair if self.fair > self.guarantee else self.guarantee

    @property
    def key(self) -> str:
        """A key that differs between a project and a department of one name; remainders go by it."""
        return f"{self.name}/" if self.is_department else self.name

    @property
    def has_user_ceiling(self) -> bool:
        """Whether there is a ceiling for each user, here or above."""
        parent = self.parent
        return self.user_ceiling != NO_LIMIT or (parent is not None and parent.user_ceiling != NO_LIMIT)

    @property
    def victims(self) -> list[Victim]:
        self._make()
        return self._victims

    @property
    def protected_victims(self) -> list[Victim]:
        self._make()
        return self._protected

    @property
    def elastic_surplus(self) -> list[Victim]:
        """The parts of its elastic jobs above their minimum, in order."""
        self._make()
        return self._surplus

    def _make(self) -> None:
        make, self.make_victims = self.make_victims, None
        if make is not None:
            make(self)

    def release_references(self) -> None:
        """Drop references that form cycles."""
        self.levels, self.make_victims = (), None
        for rows in (self.running, self._victims, self._surplus, self._protected):
            rows.clear()
        self.parts_by_job.clear()
        self.queue.classes.clear()

    def entitlement(self, size: int) -> Entitlement:
        """The entitlement to use ``size`` more, at this level alone. Rule R37."""
        total = self.use + size
        return GUARANTEE if total <= self.guarantee else FAIR if total <= self.fair else SURPLUS

    def at_limit(self, size: int) -> bool:
        """Whether a limit forbids ``size`` more while stopping work is still there. Rule R12."""
        for level in self.levels:
            if level.limit != NO_LIMIT and level.use + level.leaving + size > level.ceiling:
                return True
        return False

    def over_limit(self, size: int) -> bool:
        """Whether a limit forbids ``size`` more even after stopping work is gone."""
        return any(level.limit != NO_LIMIT and level.use + size > level.ceiling for level in self.levels)

    def may_be_restored(self, size: int, user: str) -> bool:
        """Whether a victim of this user may be restored: no limit or user ceiling is exceeded by more than before."""
        return all(
            level.use + size <= max(level.ceiling, level.use_before_plan)
            and level.by_user.get(user, 0) + size <= max(level.user_ceiling, level.by_user_before_plan.get(user, 0))
            for level in self.levels
        )

    def record_use(self) -> None:
        """Remember the use before anything is decided."""
        self.use_before_plan = self.use
        if self.user_ceiling != NO_LIMIT:
            self.by_user_before_plan = dict(self.by_user)

    def fits_non_preemptible(self, size: int) -> bool:
        """Whether ``size`` more non-preemptible work stays within the training quota at every level. Rule R8."""
        return all(level.non_preemptible_use + size <= level.quota for level in self.levels)

    def ceiling_test(self, size: int) -> Callable[[str], bool] | None:
        """A test whether a user may use ``size`` more under the ceiling for each user; None without a ceiling."""
        if not self.has_user_ceiling:
            return None
        levels = [level for level in self.levels if level.user_ceiling != NO_LIMIT]
        return lambda user: all(level.user_total(user) + size <= level.user_ceiling for level in levels)

    def fits_user_later(self, size: int, user: str) -> bool:
        """Whether a user may use ``size`` more when the work that is stopping has ended."""
        return all(level.by_user.get(user, 0) + size <= level.user_ceiling for level in self.levels)

    def user_total(self, user: str) -> int:
        """What a user's jobs have, those that are stopping included."""
        return self.by_user.get(user, 0) + self.leaving_by.get(user, 0)

    def add_demand(self, size: int, user: str, *, preemptible: bool) -> None:
        """Count running, returning or waiting work that could start."""
        self.wanted += size
        if not preemptible:
            self.wanted_non_preemptible += size
        if self.has_user_ceiling:
            for level in self.levels:
                level.wanted_by[user] = level.wanted_by.get(user, 0) + size
                if not preemptible:
                    level.wanted_non_preemptible_by[user] = level.wanted_non_preemptible_by.get(user, 0) + size

    def book(self, notebook: Notebook) -> None:
        for level in self.levels:
            level.booked_by[notebook.user] = level.booked_by.get(notebook.user, 0) + notebook.gpu_milli
            level.booked += notebook.gpu_milli
            level._set_ceiling()

    def add(self, size: int, user: str, *, preemptible: bool) -> None:
        """Count work that starts or gets a reservation."""
        for level in self.levels:
            level.by_user[user] = level.by_user.get(user, 0) + size
            level.use += size
            if not preemptible:
                level.non_preemptible_use += size

    def remove(self, size: int, user: str, *, preemptible: bool = True) -> None:
        """Subtract work that loses its reservation."""
        for level in self.levels:
            level.by_user[user] -= size
            level.use -= size
            if not preemptible:
                level.non_preemptible_use -= size

    def pause(self, size: int, user: str) -> None:
        """Subtract a job that is paused and returns to the queue."""
        self.shrink(size, user)
        self.returning.append(size)

    def shrink(self, size: int, user: str) -> None:
        """Subtract the ranks that an elastic job loses; they do not return to the queue."""
        self.remove(size, user)
        self.add_leaving(size, user)

    def add_leaving(self, size: int, user: str) -> None:
        """Count work that is stopping; below 0: count less of it."""
        for level in self.levels:
            level.leaving += size
            level.leaving_by[user] = level.leaving_by.get(user, 0) + size

    def undo_shrink(self, size: int, user: str) -> None:
        self.add(size, user, preemptible=True)
        self.add_leaving(-size, user)

    def undo_pause(self, size: int, user: str) -> None:
        self.undo_shrink(size, user)
        self.returning.remove(size)


class Running(NamedTuple):
    """A job that runs, or that starts. ``ends_at``: the latest, by its time limit; ``size``: in milli-GPU.

    Rows are ordered by their fields: by their ends first, then by their devices. An id occurs once in what is sorted:
    jobs cannot be compared.
    """

    ends_at: int
    pieces: tuple[Piece, ...]
    project: str
    borrower: bool
    id: str
    size: int
    job: Job

    @classmethod
    def of(cls, job: Job, pieces: tuple[Piece, ...], size: int, ends_at: int, *, borrower: bool) -> Running:
        return cls(ends_at, pieces, job.project, borrower, job.id, size, job)


by_end = attrgetter("ends_at")
