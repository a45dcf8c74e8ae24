"""Reading: from a part of the snapshot to the pool as ``decide`` works on it, once in a tick."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from functools import partial

from ..model import NO_AMOUNTS, Department, Job, JobState, JobTarget, Notebook, NotebookState, Policy, Project, Snapshot
from ..placement.ledger import Ledger
from ..placement.place import Piece, host_needs, with_host
from ..queue.job_queue import Crowd, Line, Shape
from ..queue.pool_state import Pool, could_start_alone
from ..queue.quota_state import NO_LIMIT, Running, Standing
from ..queue.victims import holder_of, is_exhausted, make_holders
from ..quota.in_force import in_force
from .cache.snapshot_index import Kind, Part, Parts, kind_of


def read_pools(snapshot: Snapshot, policy: Policy, stopping: Container[str]) -> list[Pool]:
    """Every pool of the policy, in name order, with the amounts of this instant.

    ``stopping``: jobs that this plan asks to leave for good.
    """
    parts = Parts(policy.pools, snapshot.devices, snapshot.nodes)
    parts.follow(snapshot)
    policy = in_force(policy, snapshot.now)
    return [read_pool(part, parts, snapshot, policy, stopping) for part in parts.of.values()]


def read_pool(
    part: Part,
    parts: Parts,
    snapshot: Snapshot,
    policy: Policy,
    stopping: Container[str],
    changed: Mapping[str, Job] | None = None,
) -> Pool:
    """One pool under the amounts of ``policy``. ``changed``: jobs that are to be read as these."""
    departments = {one.name: _standing(one, part.name) for one in policy.departments}
    part.learn(snapshot.demand)
    pool = Pool(
        name=part.name,
        now=snapshot.now,
        policy=policy,
        ledger=part.bare.emptied(),
        empty=part.empty,
        standings={one.name: _of(one, part.name, departments) for one in policy.projects if part.name in one.amounts},
        newcomer=_newcomer(part.name, policy, departments),
        devices=len(part.devices),
        departments=departments,
        reservations=part.reservations,
        waiting=part.waiting,
    )
    for used in snapshot.usage if policy.history.k_milli else ():
        if used.pool == part.name and used.project in pool.standings:
            pool.standings[used.project].used_before = used.milli_s
    for notebook in part.notebooks:
        _read_notebook(pool, notebook)
    _read_strangers(pool, part, parts)
    _read_busy(pool, part, stopping, changed or {})
    _read_waiting(pool, part)
    pool.borrowers.sort(key=lambda holder: holder.order)
    pool.requested.sort(key=lambda notebook: (notebook.requested_at, notebook.id))
    for standing in pool.standings.values():
        standing.make_holders = partial(make_holders, policy, pool.now)
    return pool


# --- whose the pool is ----------------------------------------------------------------------------------------------
def _newcomer(pool: str, policy: Policy, departments: Mapping[str, Standing]) -> Callable[[str], Standing]:
    """Where a project stands that has nothing in a pool; one that is gone from the policy may have nothing either."""

    def standing(name: str) -> Standing:
        project = next((one for one in policy.projects if one.name == name), None)
        return Standing(name=name, limit=0) if project is None else _of(project, pool, departments)

    return standing


def _of(project: Project, pool: str, departments: Mapping[str, Standing]) -> Standing:
    return _standing(project, pool, departments.get(project.department or ""))


def _standing(owner: Project | Department, pool: str, parent: Standing | None = None) -> Standing:
    amounts = owner.amounts.get(pool) or NO_AMOUNTS
    return Standing(
        name=owner.name,
        known=True,
        priority=owner.priority,
        quota=amounts.training_milli,
        notebook_quota=amounts.notebook_milli,
        limit=_ceiling(amounts.limit_milli),
        weight=amounts.weight,
        is_department=isinstance(owner, Department),
        parent=parent,
        user_ceiling=_ceiling(amounts.user_jobs_milli),
        user_notebooks=_ceiling(amounts.user_notebook_milli),
    )


def _ceiling(milli: int | None) -> int:
    return NO_LIMIT if milli is None else milli


# --- what is there --------------------------------------------------------------------------------------------------
def _read_notebook(pool: Pool, notebook: Notebook) -> None:
    if notebook.state is NotebookState.BOOKED or notebook.state is NotebookState.LENT:
        pool.standing(notebook.project).book(notebook)
        pool.slices.append(notebook)
    elif notebook.state is NotebookState.REQUESTED:
        pool.requested.append(notebook)


def _read_strangers(pool: Pool, part: Part, parts: Parts) -> None:
    """What is not a job's of the pool: a booked slice stays, and so does work of other pools, until it ends.

    Anything else leaves, and occupies its device until it is gone.
    """
    booked = {notebook.id for notebook in part.notebooks if notebook.state is NotebookState.BOOKED}
    here = {notebook.id for notebook in part.notebooks}
    for one in part.strangers():
        at = pool.ledger.number.get(one.device)
        if at is None:
            continue
        if one.workload in booked or (one.workload not in here and parts.stays(one.workload)):
            pool.ledger.firm[at] += one.gpu_milli
            pool.booked_milli += one.gpu_milli
        else:
            pool.ledger.leaving[at] += one.gpu_milli
        if one.workload in booked:
            pool.home.add(at)


_PAUSING, _HOLDS = JobState.PAUSING, frozenset({JobState.STARTING, JobState.RUNNING})


def _read_busy(pool: Pool, part: Part, stopping: Container[str], changed: Mapping[str, Job]) -> None:
    for job in part.busy.values():
        job = changed.get(job.id, job)
        pieces = part.pieces(job.id)
        if job.state is _PAUSING or job.id in stopping:
            _read_leaving(pool, job, pieces)
        elif job.state in _HOLDS:
            _read_running(pool, job, pieces)
        else:
            _read_strays(pool.ledger, job, pieces)


def _read_strays(ledger: Ledger, job: Job, pieces: tuple[Piece, ...]) -> None:
    """What a job still occupies that is asked to leave, or was before it began to wait."""
    for piece in pieces:
        ledger.leaving[piece.device] += piece.gpu_milli
    if job.cpu_milli or job.memory_mib:
        for node, host in host_needs(with_host(pieces, job.cpu_milli, job.memory_mib), ledger).items():
            ledger.hosts.add(node, leaving=host)


def _read_running(pool: Pool, job: Job, pieces: tuple[Piece, ...]) -> None:
    ledger, standing = pool.ledger, pool.standing(job.project)
    column = ledger.lent if job.borrower else ledger.firm
    for piece in pieces:
        column[piece.device] += piece.gpu_milli
    if job.cpu_milli or job.memory_mib:
        pieces = tuple(with_host(pieces, job.cpu_milli, job.memory_mib))
        for node, host in host_needs(pieces, ledger).items():
            ledger.hosts.add(node, used=host)
    size = job.held_milli
    running = Running(job, pieces, standing, size)
    pool.running.append(running)
    standing.add(size, job.user, fixed=not job.preemptible)
    wanted = size if not job.preemptible else job.gpu_milli * job.least_ranks  # what is fixed shrinks for nobody
    standing.want(wanted, job.user, fixed=not job.preemptible)
    if not job.preemptible:
        for level in standing.levels:
            level.fixed_here += sum(piece.gpu_milli for piece in pieces)
        return
    if job.borrower:
        pool.borrowers.append(holder_of(pool.policy, pool.now, running))
    else:
        standing.running.append(running)
        if job.priority < standing.lowest:
            standing.lowest = job.priority


def _read_leaving(pool: Pool, job: Job, pieces: tuple[Piece, ...]) -> None:
    size, standing = job.held_milli, pool.standing(job.project)
    for level in standing.levels:
        level.leaving += size
        level.fixed_use += 0 if job.preemptible else size
    _read_strays(pool.ledger, job, pieces)
    if job.state is JobState.PAUSING and job.target in (JobTarget.PAUSED, JobTarget.RUNNING):
        least = job.gpu_milli * job.least_ranks
        standing.want(least, job.user, fixed=not job.preemptible)
        standing.returning.append(least)
        pool.returning[job.id] = job


# --- who waits ------------------------------------------------------------------------------------------------------
def _read_waiting(pool: Pool, part: Part) -> None:
    """The lines: one for each kind of job that waits. Who has a place reserved does not stand in line."""
    for name in part.held.keys() & part.waiting.keys():
        _read_strays(pool.ledger, part.waiting[name], part.pieces(name))
    paused = _paused_before(pool, part)
    reserved: dict[Kind, list[Job]] = {}
    for reservation in part.reservations:
        job = part.waiting.get(reservation.workload)
        if job is not None:
            reserved.setdefault(kind_of(job), []).append(job)
    for kind, crowd in part.crowds.items():
        fresh = paused.pop((kind, False), None)
        _line_up(pool, kind, crowd.joined_by(fresh) if fresh else crowd, reserved.get(kind, ()), exhausted=False)
    for (kind, exhausted), jobs in paused.items():
        _line_up(pool, kind, Crowd(jobs), reserved.get(kind, ()), exhausted=exhausted)


def _paused_before(pool: Pool, part: Part) -> dict[tuple[Kind, bool], list[Job]]:
    """Who waits and was paused before, by kind and whether their pauses are used up."""
    rows: dict[tuple[Kind, bool], list[Job]] = {}
    for job in part.paused.values():
        rows.setdefault((kind_of(job), is_exhausted(pool.policy, job, pool.now)), []).append(job)
    return rows


def _line_up(pool: Pool, kind: Kind, crowd: Crowd, reserved: Collection[Job], *, exhausted: bool) -> None:
    """Let a crowd stand in its project's queue and count what it wants, where it could start in the empty pool."""
    project, request, preemptible, priority = kind
    standing, shape = pool.standing(project), Shape(request, preemptible, priority, exhausted)
    out = {job.id for job in reserved if _is_exhausted(pool, job) == exhausted} if reserved else ()
    if not standing.known or not could_start_alone(pool, standing, request, preemptible=preemptible):
        pool.hopeless += (job for job in crowd.jobs() if job.id not in out)
        return
    fits_user = standing.has_room_for(request.size)
    line = standing.queue.lines[shape] = Line(shape, crowd, pool.turns(standing), fits_user, out)
    counts = line.counts() if fits_user else {"": line.count}  # what each user wants is counted for ceilings only
    for user, count in counts.items():
        standing.want(line.size * count, user, fixed=not preemptible)


def _is_exhausted(pool: Pool, job: Job) -> bool:
    return bool(job.paused_at) and is_exhausted(pool.policy, job, pool.now)


def enqueue(pool: Pool, job: Job) -> None:
    """Let a job that had a place reserved stand in line again."""
    _, request, preemptible, priority = kind_of(job)
    standing, exhausted = pool.standing(job.project), is_exhausted(pool.policy, job, pool.now)
    line = standing.queue.lines.get(Shape(request, preemptible, priority, exhausted))
    if line is None:
        pool.hopeless.append(job)
        return
    line.put_back(job)
    standing.want(request.size, job.user, fixed=not preemptible)
