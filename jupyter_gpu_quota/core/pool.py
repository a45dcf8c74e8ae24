"""One pool as ``decide`` works on it: the ledger of its devices and where each project stands.

This is scratch paper: read from the snapshot at the start of a tick, changed while the plan is made, thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from .amounts import in_force
from .holders import holder_of, is_exhausted, make_holders
from .ledger import Ledger
from .model import (
    WHOLE_DEVICE,
    Allocation,
    Amounts,
    Department,
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
from .placement import EmptyPool, Piece, Request, host_needs, request_of, with_host
from .queue import Shape
from .standing import NO_LIMIT, Holder, Running, Standing


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """One pool in one tick."""

    name: str
    now: int
    policy: Policy
    ledger: Ledger
    empty: EmptyPool
    standings: dict[str, Standing]
    devices: int = 0
    """How many it has, those that cannot be given out now among them."""
    departments: dict[str, Standing] = field(default_factory=dict)
    waiting: dict[str, Job] = field(default_factory=dict)
    returning: dict[str, Job] = field(default_factory=dict)
    """Jobs that are being paused; one with a reservation only changes its place or size."""
    requested: list[Notebook] = field(default_factory=list)
    borrowers: list[Holder] = field(default_factory=list)
    promised: list[Holder] = field(default_factory=list)
    booked_milli: int = 0
    home: set[int] = field(default_factory=set)
    reservations: list[Reservation] = field(default_factory=list)
    hopeless: list[Job] = field(default_factory=list)
    searches_left: int = 8
    """How often a plan looks for work to move; it is the only step that looks at everything."""
    room_came_back: bool = False
    """A place that was kept was given up again, after others had been decided beside it."""
    unmovable: set[Request] = field(default_factory=set)
    """For what nothing was found to move: the room only shrinks."""
    running: list[Running] = field(default_factory=list)
    """All that holds devices and stays, and what this plan starts."""
    _reach: dict[Request, int] = field(default_factory=dict)

    def may_free(self, request: Request) -> bool:
        """Whether a request could find room if all preemptible work left: a bound that is cheap, and never too low."""
        if request not in self._reach:
            self._reach[request] = self._reachable_ranks(request)
        return self._reach[request] >= request.ranks

    def _reachable_ranks(self, request: Request) -> int:
        ledger, need, many = self.ledger, min(request.gpu_milli, WHOLE_DEVICE), request.devices_per_rank
        movable: dict[int, int] = {}
        for running in self.running:
            for piece in running.pieces if running.job.preemptible else ():
                movable[piece.device] = movable.get(piece.device, 0) + piece.gpu_milli
        free = [
            capacity - firm - lent + movable.get(at, 0)
            for at, (capacity, firm, lent) in enumerate(zip(ledger.capacity, ledger.firm, ledger.lent, strict=True))
        ]
        fitting = [room // need if request.takes(model) else 0 for room, model in zip(free, ledger.model, strict=True)]
        if many == 1:
            return sum(fitting)
        return sum(sum(fitting[at] > 0 for at in devices) // many for devices in ledger.on_node)

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
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Nodes that have devices elsewhere too: (devices here, of all)."""
    owned: dict[str, list[Allocation]] = field(default_factory=dict)
    other: list[Allocation] = field(default_factory=list)


def read_pools(snapshot: Snapshot, policy: Policy, stopping: frozenset[str]) -> list[Pool]:
    """Every pool of the policy, in name order, with the amounts of this instant.

    ``stopping``: jobs that this plan asks to leave for good.
    """
    policy = in_force(policy, snapshot.now)
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
    _share_nodes(parts, snapshot)
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


def _share_nodes(parts: Mapping[str, _Part], snapshot: Snapshot) -> None:
    """A node whose devices are in several pools gives each its part of CPU and memory."""
    homes = {(device.node, device.pool) for device in snapshot.devices}
    if len(homes) == len({node for node, _ in homes}):
        return
    among = Counter(device.node for device in snapshot.devices)
    for part in parts.values():
        here = Counter(device.node for device in part.devices)
        part.nodes = {node: (count, among[node]) for node, count in here.items() if count < among[node]}


def _read_pool(name: str, part: _Part, snapshot: Snapshot, policy: Policy, stopping: frozenset[str]) -> Pool:
    ledger = Ledger(part.devices, snapshot.nodes, demand=snapshot.demand, parts=part.nodes)
    pool = Pool(
        name=name,
        now=snapshot.now,
        policy=policy,
        ledger=ledger,
        empty=EmptyPool(ledger),
        standings={project.name: _standing(project, name) for project in policy.projects},
        devices=len(part.devices),
        departments={department.name: _standing(department, name) for department in policy.departments},
        reservations=part.reservations,
    )
    for project in policy.projects:
        pool.standings[project.name].parent = pool.departments.get(project.department or "")
    for used in snapshot.usage if policy.history.k_milli else ():
        if used.pool == name and used.project in pool.standings:
            pool.standings[used.project].used_before = used.milli_s
    for notebook in part.notebooks:
        _read_notebook(pool, notebook)
    _read_other(pool, part)
    _read_jobs(pool, part, stopping)
    pool.borrowers.sort(key=lambda holder: holder.order)
    pool.requested.sort(key=lambda notebook: (notebook.requested_at, notebook.id))
    for standing in pool.standings.values():
        standing.make_holders = partial(make_holders, policy, pool.now)
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


def _standing(owner: Project | Department, pool: str) -> Standing:
    amounts = owner.amounts.get(pool) or Amounts(limit_milli=0, weight=0)
    return Standing(
        name=owner.name,
        known=True,
        priority=owner.priority,
        quota=amounts.training_milli,
        notebook_quota=amounts.notebook_milli,
        limit=_ceiling(amounts.limit_milli),
        weight=amounts.weight,
        is_department=isinstance(owner, Department),
        user_ceiling=_ceiling(amounts.user_jobs_milli),
        user_notebooks=_ceiling(amounts.user_notebook_milli),
    )


def _ceiling(milli: int | None) -> int:
    return NO_LIMIT if milli is None else milli


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
        book(pool.standing(notebook.project), notebook)
    elif notebook.state is NotebookState.REQUESTED:
        pool.requested.append(notebook)


def book(standing: Standing, notebook: Notebook) -> None:
    """Count a slice that is booked."""
    standing.booked_by[notebook.user] = standing.booked_by.get(notebook.user, 0) + notebook.gpu_milli
    for level in standing.levels:
        level.booked += notebook.gpu_milli


def _read_waiting(pool: Pool, job: Job, owned: Sequence[Allocation]) -> None:
    if job.target is JobTarget.RUNNING or job.target is JobTarget.PAUSED:
        pool.waiting[job.id] = job
    _read_strays(pool, job, owned)


def _read_holding(pool: Pool, job: Job, owned: Sequence[Allocation], *, stopping: bool) -> None:
    standing = pool.standing(job.project)
    if job.state is JobState.PAUSING or stopping:
        _read_leaving(pool, standing, job, owned)
    elif job.state is JobState.STARTING or job.state is JobState.RUNNING:
        _read_running(pool, standing, job, owned)
    else:
        _read_strays(pool, job, owned)


def _read_strays(pool: Pool, job: Job, owned: Iterable[Allocation]) -> None:
    """What a job still occupies that is asked to leave, or was before it began to wait."""
    ledger, pieces = pool.ledger, list[Piece]()
    for allocation in owned:
        at = ledger.number.get(allocation.device)
        if at is not None:
            _leave(ledger, at, allocation.gpu_milli)
            pieces.append(Piece(allocation.rank, at, allocation.gpu_milli))
    if job.cpu_milli or job.memory_mib:
        for node, host in host_needs(with_host(pieces, job.cpu_milli, job.memory_mib), ledger).items():
            ledger.hosts.add(node, leaving=host)


def _read_running(pool: Pool, standing: Standing, job: Job, owned: Sequence[Allocation]) -> None:
    ledger, pieces = pool.ledger, list[Piece]()
    column = ledger.lent if job.borrower else ledger.firm
    for allocation in owned:
        at = ledger.number.get(allocation.device)
        if at is not None:
            column[at] += allocation.gpu_milli
            pieces.append(Piece(allocation.rank, at, allocation.gpu_milli))
    if len(pieces) > 1:
        pieces.sort()
    if job.cpu_milli or job.memory_mib:
        pieces = with_host(pieces, job.cpu_milli, job.memory_mib)
        for node, host in host_needs(pieces, ledger).items():
            ledger.hosts.add(node, used=host)
    running = Running(job, tuple(pieces), standing, job.held_milli)
    pool.running.append(running)
    standing.add(running.size, job.user, fixed=not job.preemptible)
    standing.want(job.gpu_milli * job.least_ranks, job.user, fixed=not job.preemptible)
    if not job.preemptible:
        return
    if job.borrower:
        pool.borrowers.append(holder_of(pool.policy, pool.now, running))
    else:
        standing.running.append(running)
        standing.lowest = min(standing.lowest, job.priority)


def _read_leaving(pool: Pool, standing: Standing, job: Job, owned: Sequence[Allocation]) -> None:
    size = job.held_milli
    for level in standing.levels:
        level.leaving += size
        level.fixed_use += 0 if job.preemptible else size
    _read_strays(pool, job, owned)
    if job.state is JobState.PAUSING and job.target in (JobTarget.PAUSED, JobTarget.RUNNING):
        least = job.gpu_milli * job.least_ranks
        standing.want(least, job.user, fixed=not job.preemptible)
        standing.returning.append(least)
        pool.returning[job.id] = job


def enqueue(pool: Pool, jobs: Iterable[Job]) -> None:
    """Put waiting jobs in their projects' queues and count what they want, where they could start in the empty pool."""
    rows: dict[tuple[str, Request, bool, int, bool], list[Job]] = {}
    for job in jobs:
        exhausted = bool(job.paused_at) and is_exhausted(pool.policy, job, pool.now)
        key = (job.project, request_of(job, job.least_ranks), job.preemptible, job.priority, exhausted)
        if key in rows:
            rows[key].append(job)
        else:
            rows[key] = [job]
    for (project, request, preemptible, priority, exhausted), row in rows.items():
        shape = Shape(request, preemptible, priority, exhausted)
        _enqueue_shape(pool, pool.standing(project), shape, row)


def _enqueue_shape(pool: Pool, standing: Standing, shape: Shape, jobs: list[Job]) -> None:
    if not standing.known or not could_start_alone(pool, standing, shape.request, preemptible=shape.preemptible):
        pool.hopeless += jobs
        return
    standing.queue.add(shape, jobs, pool.turns(standing), standing.has_room_for(shape.request.size))
    for user, count in Counter(job.user for job in jobs).items():
        standing.want(shape.request.size * count, user, fixed=not shape.preemptible)


def could_start_alone(pool: Pool, standing: Standing, request: Request, *, preemptible: bool) -> bool:
    """Whether a request could start if nothing else ran: it fits the devices, the limit and, if fixed, the quota."""
    size = request.size
    within = size <= standing.user_ceiling and all(
        size <= level.ceiling and (preemptible or size <= level.quota) for level in standing.levels
    )
    return within and pool.empty.takes(request)


def demand(standing: Standing) -> int:
    """What a project wants: what runs, comes back or waits, under its limit; fixed work within the quota only."""
    fixed = min(standing.wanted_fixed, max(standing.quota, standing.fixed_use))
    wanted = standing.wanted - standing.wanted_fixed + fixed
    if standing.user_ceiling != NO_LIMIT:
        wanted = min(wanted, sum(_under_ceiling(standing, user) for user in standing.wanted_by))
    return min(standing.ceiling, wanted)


def _under_ceiling(standing: Standing, user: str) -> int:
    return min(standing.wanted_by[user], max(standing.user_ceiling, standing.by_user.get(user, 0)))


def waiting_sizes(pool: Pool, level: Standing) -> Iterable[int]:
    """The sizes of everything of a project or department that could claim something back."""
    for standing in pool.standings.values() if level.is_department else (level,):
        if level in standing.levels:
            yield from standing.returning
            yield from (line.size for line in standing.queue.lines.values() if line.count)


def rows_of(pool: Pool, holder: Holder) -> list[Holder]:
    """The list that a holder is in."""
    if holder.promised:
        return pool.promised
    if holder.base is not None:
        return holder.project.surplus
    if holder.borrower:
        return pool.borrowers
    return holder.project.shielded if holder.protected else holder.project.holders
