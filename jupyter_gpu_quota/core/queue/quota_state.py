"""Where each project and department stands in one pool, and the work that holds or waits for its devices.

Scratch paper of one tick, as the pool that it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ..model import Job, Notebook
from ..placement.place import Piece, Request
from .job_queue import ProjectQueue

NO_LIMIT = 1 << 62
SECOND = 1000
"""Milliseconds."""


class Right(IntEnum):
    """By what right something asks, strongest first."""

    NOTEBOOK = -1
    GUARANTEE = 0
    FAIR = 1
    SURPLUS = 2


GUARANTEE, FAIR, SURPLUS = Right.GUARANTEE, Right.FAIR, Right.SURPLUS
"""Members of an enumeration are looked up slowly, and this is asked more often than anything else."""


@dataclass(slots=True, kw_only=True, eq=False)
class Holder:
    """A job that holds devices and stays, or (``promised``) waits for ones that are reserved for it."""

    id: str
    project: Standing
    user: str
    size: int
    pieces: tuple[Piece, ...]
    request: Request
    preemptible: bool
    priority: int
    lost_ms: int
    started_at: int
    submitted_at: int = 0
    base: Holder | None = None
    """Of what an elastic job runs with above its minimum: the minimum, which stays."""
    above: Holder | None = None
    """The other way round."""
    elastic: bool = False
    borrower: bool = False
    protected: bool = False
    promised: bool = False

    @property
    def whole(self) -> int:
        """Its size with what leaves with it: an elastic job's minimum takes along what the job has above."""
        return self.size if self.above is None else self.size + self.above.size

    @property
    def key(self) -> str:
        """Names it among all holders: what an elastic job has above its minimum is one of its own."""
        return self.id if self.base is None else f"{self.id}/above"

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """Who is asked first inside a project: lowest priority, least work lost, newest."""
        return self.priority, self.lost_ms, -self.started_at, -self.submitted_at, self.id


@dataclass(slots=True, kw_only=True, eq=False)
class Standing:
    """One project in one pool. ``use`` counts what runs and what is reserved for it, not what leaves.

    ``holders`` are its preemptible jobs in the order in which they are asked to leave, except ``shielded`` ones, which
    are protected, and borrowers, which the pool lists.
    """

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
    fixed_use: int = 0
    fixed_here: int = 0
    """What runs on devices that can be given out and may not be preempted: it is nobody else's before it ends."""
    booked: int = 0
    wanted: int = 0
    wanted_fixed: int = 0
    by_user: dict[str, int] = field(default_factory=dict)
    use_at_first: int = 0
    by_user_at_first: dict[str, int] = field(default_factory=dict)
    """As they were before the plan; the second only where there is a ceiling for each user."""
    is_department: bool = False
    parent: Standing | None = None
    """The department, None where the policy has none."""
    levels: tuple[Standing, ...] = field(init=False)
    """The project, and its department where there is one."""
    ceiling: int = field(init=False)
    """What its jobs may use: the limit, less the notebook quota, which notebooks may ask for at any time."""
    user_ceiling: int = NO_LIMIT
    user_notebooks: int = NO_LIMIT
    used_before: int = 0
    """Decayed surplus use, for the history rule."""
    booked_by: dict[str, int] = field(default_factory=dict)
    wanted_by: dict[str, int] = field(default_factory=dict)
    """What each user wants, counted only where there is a ceiling for each user."""
    wanted_fixed_by: dict[str, int] = field(default_factory=dict)
    """How much of that may not be preempted."""
    returning: list[int] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    """Its preemptible work, borrowers left out; the lists of holders are made from it when one is first asked for."""
    lowest: int = NO_LIMIT
    """The lowest job priority of that work."""
    make_holders: Callable[[Standing], None] | None = None
    _movable: Movable | None = None
    _holders: list[Holder] = field(default_factory=list)
    _surplus: list[Holder] = field(default_factory=list)
    _shielded: list[Holder] = field(default_factory=list)
    queue: ProjectQueue = field(default_factory=ProjectQueue)

    def __post_init__(self) -> None:
        self.levels = (self,) if self.parent is None else (self, self.parent)
        self._set_ceiling()

    def _set_ceiling(self) -> None:
        reserved = max(self.notebook_quota, self.booked)
        self.ceiling = NO_LIMIT if self.limit == NO_LIMIT else max(0, self.limit - reserved)

    @property
    def has_user_ceiling(self) -> bool:
        """Whether there is a ceiling for each user, here or above."""
        parent = self.parent
        return self.user_ceiling != NO_LIMIT or (parent is not None and parent.user_ceiling != NO_LIMIT)

    @property
    def holders(self) -> list[Holder]:
        """Its preemptible jobs in the order in which they are asked to leave."""
        if self.make_holders is not None:
            self._make()
        return self._holders

    @property
    def shielded(self) -> list[Holder]:
        """Those that are protected."""
        if self.make_holders is not None:
            self._make()
        return self._shielded

    @property
    def surplus(self) -> list[Holder]:
        """What its elastic jobs run with above their minimum."""
        if self.make_holders is not None:
            self._make()
        return self._surplus

    @property
    def movable(self) -> Movable:
        """How much of its work could be asked to leave at most, as it was read."""
        if self._movable is None:
            self._movable = Movable(self.running)
        return self._movable

    def _make(self) -> None:
        make, self.make_holders = self.make_holders, None
        if make is not None:
            make(self)

    def throw_away(self) -> None:
        """Let go of what refers back to it."""
        self.levels, self._movable, self.make_holders = (), None, None
        for rows in (self.running, self._holders, self._surplus, self._shielded):
            rows.clear()
        self.queue.lines.clear()

    def right(self, size: int) -> Right:
        """By what right it would use ``size`` more, looking at this level alone."""
        total = self.use + size
        return GUARANTEE if total <= self.guarantee else FAIR if total <= self.fair else SURPLUS

    def at_limit(self, size: int) -> bool:
        """Whether a limit forbids ``size`` more while what leaves is still there."""
        for level in self.levels:
            if level.limit != NO_LIMIT and level.use + level.leaving + size > level.ceiling:
                return True
        return False

    def over_limit(self, size: int) -> bool:
        """Whether a limit forbids ``size`` more even when what leaves is gone."""
        return any(level.limit != NO_LIMIT and level.use + size > level.ceiling for level in self.levels)

    def may_stay(self, size: int, user: str) -> bool:
        """Whether work of this user that was asked to leave may stay after all.

        Not where the plan has given what it leaves to others: no limit, and no ceiling for the user, is broken by more
        than it was before.
        """
        return all(
            level.use + size <= max(level.ceiling, level.use_at_first)
            and level.by_user.get(user, 0) + size <= max(level.user_ceiling, level.by_user_at_first.get(user, 0))
            for level in self.levels
        )

    def begin(self) -> None:
        """Remember what is used before anything is decided."""
        self.use_at_first = self.use
        if self.user_ceiling != NO_LIMIT:
            self.by_user_at_first = dict(self.by_user)

    def fixed_fits(self, size: int) -> bool:
        """Whether so much more non-preemptible work stays within the training quota of every level."""
        return all(level.fixed_use + size <= level.quota for level in self.levels)

    def has_room_for(self, size: int) -> Callable[[str], bool] | None:
        """Whether a user's jobs may take ``size`` more under the ceiling for each user; None where there is none."""
        if not self.has_user_ceiling:
            return None
        levels = [level for level in self.levels if level.user_ceiling != NO_LIMIT]
        return lambda user: all(level.by_user.get(user, 0) + size <= level.user_ceiling for level in levels)

    def want(self, size: int, user: str, *, fixed: bool) -> None:
        """Count what runs, comes back or waits, and could start."""
        self.wanted += size
        if fixed:
            self.wanted_fixed += size
        if self.has_user_ceiling:
            for level in self.levels:
                level.wanted_by[user] = level.wanted_by.get(user, 0) + size
                if fixed:
                    level.wanted_fixed_by[user] = level.wanted_fixed_by.get(user, 0) + size

    def book(self, notebook: Notebook) -> None:
        """Count a slice that is booked."""
        for level in self.levels:
            level.booked_by[notebook.user] = level.booked_by.get(notebook.user, 0) + notebook.gpu_milli
            level.booked += notebook.gpu_milli
            level._set_ceiling()

    def add(self, size: int, user: str, *, fixed: bool) -> None:
        """Count work that starts, or is promised a place. ``fixed``: not preemptible."""
        for level in self.levels:
            level.by_user[user] = level.by_user.get(user, 0) + size
            level.use += size
            if fixed:
                level.fixed_use += size

    def remove(self, size: int, user: str) -> None:
        """Count work out that gives up a promised place."""
        for level in self.levels:
            level.by_user[user] -= size
            level.use -= size

    def begin_leaving(self, size: int, user: str) -> None:
        """Count preemptible work out that is asked to leave and comes back."""
        self.remove(size, user)
        self.returning.append(size)
        for level in self.levels:
            level.leaving += size

    def give_up(self, size: int, user: str) -> None:
        """Count out what an elastic job gives up: it leaves and does not come back by itself."""
        self.remove(size, user)
        for level in self.levels:
            level.leaving += size

    def keeps_all(self, size: int, user: str) -> None:
        """Take :meth:`give_up` back."""
        self.add(size, user, fixed=False)
        for level in self.levels:
            level.leaving -= size

    def stays_after_all(self, size: int, user: str) -> None:
        """Take :meth:`begin_leaving` back."""
        self.add(size, user, fixed=False)
        self.returning.remove(size)
        for level in self.levels:
            level.leaving -= size


class Movable:
    """Sums over preemptible work that runs, in milli-GPU."""

    __slots__ = ("_by_priority", "_most_on_node", "_running", "all", "elastic", "has_elastic", "largest")

    def __init__(self, running: Sequence[Running]) -> None:
        self.all = self.elastic = self.largest = 0
        self._running = running
        self._most_on_node: int | None = None
        self.has_elastic = False
        self._by_priority: dict[int, int] = {}
        for job, _, _, size in running:
            self.all += size
            if size > self.largest:
                self.largest = size
            if job.min_ranks is not None:
                self.elastic += size
                self.has_elastic = True
            self._by_priority[job.priority] = self._by_priority.get(job.priority, 0) + size

    def most_on_node(self, node_of: Sequence[int]) -> int:
        """The most that is on one node; ``node_of`` says where each device is."""
        if self._most_on_node is None:
            on = Counter[int]()
            for running in self._running:
                for piece in running.pieces:
                    on[node_of[piece.device]] += piece.gpu_milli
            self._most_on_node = max(on.values(), default=0)
        return self._most_on_node

    def below(self, priority: int) -> int:
        """What has a lower job priority than this."""
        return sum(milli for known, milli in self._by_priority.items() if known < priority)


class Running(NamedTuple):
    """Work that holds devices and stays: where, for whom, and how much it is."""

    job: Job
    pieces: tuple[Piece, ...]
    standing: Standing
    size: int

    def ends_at(self, now: int) -> int:
        """When it ends at the latest, by its time limit."""
        since = now if self.job.started_at is None else self.job.started_at
        return since + self.job.time_limit_s * SECOND
