"""One pool as ``decide`` works on it: the ledger of its devices and where each project stands.

This is scratch paper: read from the snapshot at the start of a tick, changed while the plan is made, thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from .ledger import Ledger
from .model import (
    Allocation,
    Amounts,
    Device,
    Job,
    JobState,
    JobTarget,
    Notebook,
    NotebookState,
    Policy,
    Project,
    Reservation,
    Snapshot,
)
from .placement import EmptyPool, Piece, Request
from .queue import ProjectQueue, Shape

NO_LIMIT = 1 << 62
SECOND = 1000
"""Milliseconds."""


class Right(IntEnum):
    """By what right something asks, strongest first."""

    NOTEBOOK = -1
    GUARANTEE = 0
    FAIR = 1
    SURPLUS = 2


@dataclass(slots=True, kw_only=True, eq=False)
class Holder:
    """A job that holds devices and stays, or (``promised``) waits for ones that are reserved for it."""

    id: str
    project: Standing
    user: str
    size: int
    pieces: tuple[Piece, ...]
    preemptible: bool
    priority: int
    lost_ms: int
    started_at: int
    borrower: bool = False
    protected: bool = False
    promised: bool = False

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Who is asked first inside a project: lowest priority, least work lost, newest."""
        return self.priority, self.lost_ms, -self.started_at, self.id


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
    booked: int = 0
    wanted: int = 0
    wanted_fixed: int = 0
    by_user: dict[str, int] = field(default_factory=dict)
    returning: list[int] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    shielded: list[Holder] = field(default_factory=list)
    queue: ProjectQueue = field(default_factory=ProjectQueue)

    @property
    def ceiling(self) -> int:
        """What its jobs may use: the limit, less the notebook quota, which notebooks may ask for at any time."""
        return NO_LIMIT if self.limit == NO_LIMIT else max(0, self.limit - max(self.notebook_quota, self.booked))

    def right(self, size: int) -> Right:
        """By what right it would use ``size`` more."""
        total = self.use + size
        return Right.GUARANTEE if total <= self.guarantee else Right.FAIR if total <= self.fair else Right.SURPLUS

    def add(self, size: int, user: str, *, fixed: bool) -> None:
        """Count work that starts, or is promised a place. ``fixed``: not preemptible."""
        self.use += size
        self.by_user[user] = self.by_user.get(user, 0) + size
        self.fixed_use += size if fixed else 0

    def remove(self, size: int, user: str) -> None:
        """Count preemptible work out that is asked to leave."""
        self.use -= size
        self.by_user[user] -= size


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """One pool in one tick."""

    name: str
    now: int
    policy: Policy
    ledger: Ledger
    empty: EmptyPool
    standings: dict[str, Standing]
    waiting: dict[str, Job] = field(default_factory=dict)
    requested: list[Notebook] = field(default_factory=list)
    borrowers: list[Holder] = field(default_factory=list)
    promised: list[Holder] = field(default_factory=list)
    booked_milli: int = 0
    home: set[int] = field(default_factory=set)
    reservations: list[Reservation] = field(default_factory=list)
    hopeless: list[Job] = field(default_factory=list)

    def standing(self, project: str) -> Standing:
        """Where a project stands; one that is gone from the policy has nothing."""
        if project not in self.standings:
            self.standings[project] = Standing(name=project)
        return self.standings[project]

    def turns(self, standing: Standing) -> dict[str, int]:
        """What each user of a project holds, where users take turns; nothing where age alone decides."""
        return standing.by_user if self.policy.within_project == "users_in_turn" else {}


@dataclass(slots=True)
class _Part:
    """The rows of the snapshot that belong to one pool; ``owned`` by job, ``other`` by notebooks and unknown work."""

    devices: list[Device] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    notebooks: list[Notebook] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    owned: dict[str, list[Allocation]] = field(default_factory=dict)
    other: list[Allocation] = field(default_factory=list)


def read_pools(snapshot: Snapshot, policy: Policy, stopping: frozenset[str]) -> list[Pool]:
    """Every pool of the policy, in name order. ``stopping``: jobs that this plan asks to leave for good."""
    parts = _parts(snapshot, policy)
    return [_read_pool(name, part, snapshot, policy, stopping) for name, part in parts.items()]


def _parts(snapshot: Snapshot, policy: Policy) -> dict[str, _Part]:
    parts: dict[str, _Part] = {name: _Part() for name in sorted(set(policy.pools))}
    nowhere = _Part()
    of_device: dict[str, _Part] = {}
    of_work: dict[str, _Part] = {}
    for device in snapshot.devices:
        of_device[device.id] = part = parts.get(device.pool or "", nowhere)
        part.devices.append(device)
    for job in snapshot.jobs:
        of_work[job.id] = part = parts.get(job.pool, nowhere)
        part.jobs.append(job)
        part.owned[job.id] = []
    for notebook in snapshot.notebooks:
        of_work[notebook.id] = part = parts.get(notebook.pool, nowhere)
        part.notebooks.append(notebook)
    for reservation in sorted(snapshot.reservations, key=lambda r: (r.reserved_at, r.workload)):
        of_work.get(reservation.workload, nowhere).reservations.append(reservation)
    for one in snapshot.allocations:
        part = of_device.get(one.device, nowhere)
        part.owned.get(one.workload, part.other).append(one)
    return parts


def _read_pool(name: str, part: _Part, snapshot: Snapshot, policy: Policy, stopping: frozenset[str]) -> Pool:
    ledger = Ledger(part.devices, snapshot.nodes)
    pool = Pool(
        name=name,
        now=snapshot.now,
        policy=policy,
        ledger=ledger,
        empty=EmptyPool(ledger),
        standings={project.name: _standing(project, name) for project in policy.projects},
        reservations=part.reservations,
    )
    for notebook in part.notebooks:
        _read_notebook(pool, notebook)
    _read_other(pool, part)
    _read_jobs(pool, part, stopping)
    pool.borrowers.sort(key=lambda holder: holder.order)
    pool.requested.sort(key=lambda notebook: (notebook.requested_at, notebook.id))
    for standing in pool.standings.values():
        standing.holders.sort(key=lambda holder: holder.order)
        standing.shielded.sort(key=lambda holder: holder.order)
    return pool


def _read_jobs(pool: Pool, part: _Part, stopping: frozenset[str]) -> None:
    for job in part.jobs:
        owned = part.owned[job.id]
        if job.state is JobState.QUEUED or job.state is JobState.PAUSED:
            _read_waiting(pool, job, owned)
        else:
            _read_holding(pool, job, owned, stopping=job.id in stopping)
    reserved = {reservation.workload for reservation in part.reservations}
    enqueue(pool, (job for name, job in pool.waiting.items() if name not in reserved))


def _standing(project: Project, pool: str) -> Standing:
    amounts = project.amounts.get(pool) or Amounts(limit_milli=0, weight=0)
    return Standing(
        name=project.name,
        known=True,
        priority=project.priority,
        quota=amounts.training_milli,
        notebook_quota=amounts.notebook_milli,
        limit=NO_LIMIT if amounts.limit_milli is None else amounts.limit_milli,
        weight=amounts.weight,
    )


def _read_other(pool: Pool, part: _Part) -> None:
    """What is not a job's: a booked slice stays, anything else leaves and occupies its device until it is gone."""
    booked = {notebook.id for notebook in part.notebooks if notebook.state is NotebookState.BOOKED}
    for allocation in part.other:
        at = pool.ledger.number.get(allocation.device)
        if at is None:
            continue
        if allocation.workload in booked:
            pool.ledger.firm[at] += allocation.gpu_milli
            pool.booked_milli += allocation.gpu_milli
            pool.home.add(at)
        else:
            _leave(pool.ledger, at, allocation.gpu_milli)


def _leave(ledger: Ledger, at: int, milli: int) -> None:
    ledger.leaving[at] += milli


def _read_notebook(pool: Pool, notebook: Notebook) -> None:
    if notebook.state is NotebookState.BOOKED:
        pool.standing(notebook.project).booked += notebook.gpu_milli
    elif notebook.state is NotebookState.REQUESTED:
        pool.requested.append(notebook)


def _read_waiting(pool: Pool, job: Job, owned: Sequence[Allocation]) -> None:
    if job.target is JobTarget.RUNNING or job.target is JobTarget.PAUSED:
        pool.waiting[job.id] = job
    for allocation in owned:
        _read_stray(pool, allocation)


def _read_holding(pool: Pool, job: Job, owned: Sequence[Allocation], *, stopping: bool) -> None:
    standing = pool.standing(job.project)
    if job.state is JobState.PAUSING or stopping:
        _read_leaving(pool, standing, job, owned)
    elif job.state is JobState.STARTING or job.state is JobState.RUNNING:
        _read_running(pool, standing, job, owned)
    else:
        for allocation in owned:
            _read_stray(pool, allocation)


def _read_stray(pool: Pool, allocation: Allocation) -> None:
    at = pool.ledger.number.get(allocation.device)
    if at is not None:
        _leave(pool.ledger, at, allocation.gpu_milli)


def _read_running(pool: Pool, standing: Standing, job: Job, owned: Sequence[Allocation]) -> None:
    ledger, pieces = pool.ledger, list[Piece]()
    column = ledger.lent if job.borrower else ledger.firm
    for allocation in owned:
        at = ledger.number.get(allocation.device)
        if at is not None:
            column[at] += allocation.gpu_milli
            pieces.append(Piece(allocation.rank, at, allocation.gpu_milli))
    size = job.gpu_milli * job.ranks
    standing.add(size, job.user, fixed=not job.preemptible)
    standing.wanted += size
    standing.wanted_fixed += 0 if job.preemptible else size
    if job.preemptible:
        holder = _holder(pool, standing, job, tuple(sorted(pieces)))
        rows_of(pool, holder).append(holder)


def rows_of(pool: Pool, holder: Holder) -> list[Holder]:
    """The list that a holder is in."""
    if holder.promised:
        return pool.promised
    if holder.borrower:
        return pool.borrowers
    return holder.project.shielded if holder.protected else holder.project.holders


def _holder(pool: Pool, standing: Standing, job: Job, pieces: tuple[Piece, ...]) -> Holder:
    started_at = pool.now if job.started_at is None else job.started_at
    saved_at = max(started_at, job.checkpoint_at or started_at)
    return Holder(
        id=job.id,
        project=standing,
        user=job.user,
        size=job.gpu_milli * job.ranks,
        pieces=pieces,
        preemptible=job.preemptible,
        priority=job.priority,
        lost_ms=max(0, pool.now - saved_at),
        started_at=started_at,
        borrower=job.borrower,
        protected=is_protected(pool.policy, job, started_at, pool.now),
    )


def is_protected(policy: Policy, job: Job, started_at: int, now: int) -> bool:
    """Whether a job is within its minimum run time, or was paused as often as it may be."""
    return now - started_at < policy.preemption.min_runtime_s * SECOND or is_exhausted(policy, job, now)


def is_exhausted(policy: Policy, job: Job, now: int) -> bool:
    """Whether a job has used up its pauses in the window that ends now."""
    if len(job.paused_at) < policy.preemption.max_pauses:
        return False
    begins = now - policy.preemption.per_s * SECOND
    return sum(begins < at for at in job.paused_at) >= policy.preemption.max_pauses


def _read_leaving(pool: Pool, standing: Standing, job: Job, owned: Iterable[Allocation]) -> None:
    size = job.gpu_milli * job.ranks
    standing.leaving += size
    standing.fixed_use += 0 if job.preemptible else size
    for allocation in owned:
        _read_stray(pool, allocation)
    if job.state is JobState.PAUSING and job.target in (JobTarget.PAUSED, JobTarget.RUNNING):
        standing.wanted += size
        standing.wanted_fixed += 0 if job.preemptible else size
        standing.returning.append(size)


def enqueue(pool: Pool, jobs: Iterable[Job]) -> None:
    """Put waiting jobs in their projects' queues and count what they want, where they could start in the empty pool."""
    rows: dict[tuple[str, int, int, str | None, bool, int, bool], list[Job]] = {}
    for job in jobs:
        exhausted = bool(job.paused_at) and is_exhausted(pool.policy, job, pool.now)
        key = (job.project, job.gpu_milli, job.ranks, job.gpu_model, job.preemptible, job.priority, exhausted)
        if key in rows:
            rows[key].append(job)
        else:
            rows[key] = [job]
    for (project, milli, ranks, model, preemptible, priority, exhausted), row in rows.items():
        shape = Shape(Request(milli, ranks, model), preemptible, priority, exhausted)
        _enqueue_shape(pool, pool.standing(project), shape, row)


def _enqueue_shape(pool: Pool, standing: Standing, shape: Shape, jobs: list[Job]) -> None:
    if not standing.known or not could_start_alone(pool, standing, shape.request, preemptible=shape.preemptible):
        pool.hopeless += jobs
        return
    standing.queue.add(shape, jobs, pool.turns(standing))
    standing.wanted += shape.request.size * len(jobs)
    standing.wanted_fixed += 0 if shape.preemptible else shape.request.size * len(jobs)


def could_start_alone(pool: Pool, standing: Standing, request: Request, *, preemptible: bool) -> bool:
    """Whether a request could start if nothing else ran: it fits the devices, the limit and, if fixed, the quota."""
    within = request.size <= standing.ceiling and (preemptible or request.size <= standing.quota)
    return within and pool.empty.takes(request)


def demand(standing: Standing) -> int:
    """What a project wants: what runs, comes back or waits, under its limit; fixed work within the quota only."""
    fixed = min(standing.wanted_fixed, max(standing.quota, standing.fixed_use))
    return min(standing.ceiling, standing.wanted - standing.wanted_fixed + fixed)


def waiting_sizes(standing: Standing) -> Iterable[int]:
    """The sizes of everything of a project that could claim something back."""
    yield from standing.returning
    yield from (line.size for line in standing.queue.lines.values() if line.count)
