"""Build the pool state that ``decide`` works on from one pool's part of the snapshot, once in a tick."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from ..lifecycle import HOLDS_SLICE
from ..model import (
    NO_AMOUNTS,
    Department,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    NotebookState,
    Policy,
    Project,
    Snapshot,
)
from ..placement.ledger import Ledger
from ..placement.place import Piece, node_needs, with_cpu_memory
from ..preemption.victims import make_victims, victim_of
from ..queue.job_class import class_of, is_exhausted, queue_of
from ..queue.job_queue import ClassQueue, JobClass, WaitingJobs
from ..queue.pool_state import PoolState, could_start_alone
from ..queue.quota_state import NO_LIMIT, QuotaState
from ..queue.running_jobs import RunningJobs, UseGroup
from ..quota.in_force import in_force
from .cache.snapshot_index import ClassKey, PoolSnapshot, SnapshotIndex, class_key


def read_pools(snapshot: Snapshot, policy: Policy) -> list[PoolState]:
    """Every pool of the policy, in name order, with the amounts of this instant."""
    index = SnapshotIndex(policy.pools, snapshot.devices, snapshot.nodes)
    index.update(snapshot)
    policy = in_force(policy, snapshot.now)
    return [read_pool(part, index, snapshot, policy) for part in index.of.values()]


def read_pool(
    part: PoolSnapshot,
    index: SnapshotIndex,
    snapshot: Snapshot,
    policy: Policy,
    stopping: Collection[str] = (),
    evicted: Mapping[str, Job] | None = None,
) -> PoolState:
    """The state of one pool under the amounts of ``policy``.

    ``stopping``: jobs that this plan stops for good; ``evicted``: jobs that it evicts, by id, as they are then.
    """
    departments = {one.name: _quota_state(one, part.name) for one in policy.departments}
    part.set_demand(snapshot.demand)
    backfill = [one for one in part.reservations if one.starts_at is not None]
    stopped = {name: part.busy[name] for name in sorted(stopping) if name in part.busy}
    stopped |= {name: job for name, job in (evicted or {}).items() if name in part.busy}
    running = part.read_running_jobs(snapshot.now, without=stopped)
    pool = PoolState(
        name=part.name,
        now=snapshot.now,
        policy=policy,
        ledger=part.bare.with_use(running.firm, running.borrowed),
        empty=part.empty,
        checked=part.checked,
        projects={
            one.name: _project_state(one, part.name, departments) for one in policy.projects if part.name in one.amounts
        },
        unknown_project=partial(_project_without_amounts, part.name, policy, departments),
        devices=len(part.devices),
        departments=departments,
        reservations=[one for one in part.reservations if one.starts_at is None],
        backfill=backfill[0] if backfill else None,
        more_backfill=backfill[1:],
        quarantined=_quarantined(part, snapshot.nodes) if part.reservations else frozenset(),
        waiting=part.waiting,
        work_on=part.work_on,
        running_before=running,
    )
    _read_past_use(pool, snapshot)
    _read_notebooks(pool, part)
    _read_other_allocations(pool, part, index)
    _read_running(pool, running)
    for name, job in (part.not_running | stopped).items():
        _read_ending(pool, job, part.pieces(name), stops=name in stopping)
    _read_waiting(pool, part)
    pool.borrowers.sort(key=lambda victim: victim.order)
    for project in pool.projects.values():
        project.make_victims = partial(make_victims, policy, pool.now)
    return pool


def _quarantined(part: PoolSnapshot, nodes: Iterable[Node]) -> frozenset[str]:
    """The quarantined devices on nodes that take new work."""
    found = [one for one in part.devices if one.health is Health.QUARANTINED]
    closed = {node.id for node in nodes if not node.is_open} if found else set()
    return frozenset(one.id for one in found if one.node not in closed)


def _read_past_use(pool: PoolState, snapshot: Snapshot) -> None:
    for used in snapshot.usage:
        if used.pool == pool.name and used.project in pool.projects:
            pool.projects[used.project].past_use_milli_s = used.milli_s


def _read_notebooks(pool: PoolState, part: PoolSnapshot) -> None:
    for notebook in part.notebooks:
        if notebook.state in HOLDS_SLICE:
            pool.project(notebook.project).book(notebook)
            pool.slices.append(notebook)
        elif notebook.state is NotebookState.REQUESTED:
            pool.requested.append(notebook)
    pool.requested.sort(key=lambda notebook: (notebook.requested_at, notebook.id))


# --- projects and departments ---------------------------------------------------------------------------------------
def _project_without_amounts(pool: str, policy: Policy, departments: Mapping[str, QuotaState], name: str) -> QuotaState:
    """The state of a project without amounts in this pool; one that the policy does not have has a limit of 0.

    Rule R68.
    """
    owner = next((one for one in policy.projects if one.name == name), None)
    return QuotaState(name=name, limit=0) if owner is None else _project_state(owner, pool, departments)


def _project_state(project: Project, pool: str, departments: Mapping[str, QuotaState]) -> QuotaState:
    return _quota_state(project, pool, departments.get(project.department or ""))


def _quota_state(owner: Project | Department, pool: str, parent: QuotaState | None = None) -> QuotaState:
    amounts = owner.amounts.get(pool) or NO_AMOUNTS
    return QuotaState(
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


# --- notebooks and running work -------------------------------------------------------------------------------------
def _read_other_allocations(pool: PoolState, part: PoolSnapshot, index: SnapshotIndex) -> None:
    """Read the allocations of no job of the pool: booked slices and work of other pools stay until they end.

    Anything else is leaving, and occupies its device until it is gone.
    """
    booked = {notebook.id for notebook in part.notebooks if notebook.state is NotebookState.BOOKED}
    here = {notebook.id for notebook in part.notebooks}
    for one in part.other_allocations():
        at = pool.ledger.number.get(one.device)
        if at is None:
            continue
        if one.workload in booked or (one.workload not in here and index.stays(one.workload)):
            pool.ledger.firm[at] += one.gpu_milli
            pool.booked_milli += one.gpu_milli
        else:
            pool.ledger.leaving[at] += one.gpu_milli
        if one.workload in booked:
            pool.slice_devices.add(at)
            pool.placed_slices.add(one.workload)


def _read_running(pool: PoolState, running: RunningJobs) -> None:
    """Count what running jobs use and want, group by group. Their devices are in the ledger."""
    for node, used in running.on_nodes.items():
        pool.ledger.node_resources.add(node, used=used)
    for group in running.use_groups.values():
        _count_use(pool.project(group.job.project), group)
    for name, rows in running.preemptible.items():
        pool.project(name).running = list(rows.values())
    for one in running.borrowers.values():
        pool.borrowers.append(victim_of(pool.policy, pool.now, pool.project(one.project), one))


def _count_use(project: QuotaState, group: UseGroup) -> None:
    """Count what the jobs of a group use and want."""
    job, size, preemptible = group.job, group.size, group.job.preemptible
    wanted = job.gpu_milli * job.least_ranks if preemptible else size  # non-preemptible work does not shrink
    project.add(size * group.count, job.user, preemptible=preemptible)
    project.add_demand(wanted * group.count, job.user, preemptible=preemptible)
    for level in project.levels:
        level.non_preemptible_on_devices += group.non_preemptible_on_devices
    if preemptible and not job.borrower:
        is_elastic = job.min_ranks is not None
        project.preemptible_use.add(size, group.count, job.priority, is_elastic=is_elastic, least=wanted)


def _add_leaving(ledger: Ledger, job: Job, pieces: tuple[Piece, ...]) -> None:
    """Count as leaving what a job still occupies that is being stopped, or that waits again."""
    for piece in pieces:
        ledger.leaving[piece.device] += piece.gpu_milli
        ledger.leaving_borrowed[piece.device] += piece.gpu_milli if job.borrower else 0
    if job.cpu_milli or job.memory_mib:
        for node, needs in node_needs(with_cpu_memory(pieces, job.cpu_milli, job.memory_mib), ledger).items():
            ledger.node_resources.add(node, leaving=needs)


def _read_ending(pool: PoolState, job: Job, pieces: tuple[Piece, ...], *, stops: bool) -> None:
    """Read a busy job that does not go on. ``stops``: by this plan."""
    if stops or job.state is JobState.PAUSING:
        _read_leaving(pool, job, pieces)
    else:
        _add_leaving(pool.ledger, job, pieces)


def _read_leaving(pool: PoolState, job: Job, pieces: tuple[Piece, ...]) -> None:
    size, project = job.held_milli, pool.project(job.project)
    project.add_leaving(size, job.user)
    for level in project.levels:
        level.non_preemptible_use += 0 if job.preemptible else size
    _add_leaving(pool.ledger, job, pieces)
    if job.state is JobState.PAUSING and job.target in (JobTarget.PAUSED, JobTarget.RUNNING):
        least = job.gpu_milli * job.least_ranks
        project.add_demand(least, job.user, preemptible=job.preemptible)
        project.returning.append(least)
        pool.returning[job.id] = job


# --- waiting jobs ---------------------------------------------------------------------------------------------------
def _read_waiting(pool: PoolState, part: PoolSnapshot) -> None:
    """Fill the job queues: one class for each kind of waiting job. Jobs with reserved devices are not queued."""
    for name in part.other_work:
        if (left := part.waiting.get(name)) is not None:
            _add_leaving(pool.ledger, left, part.pieces(name))
    paused: dict[tuple[ClassKey, bool], list[Job]] = {}
    for job in part.paused.values():
        paused.setdefault((class_key(job), is_exhausted(pool.policy, job, pool.now)), []).append(job)
    reserved: dict[ClassKey, list[Job]] = {}
    for reservation in pool.reservations:
        if (waiting := part.waiting.get(reservation.workload)) is not None:
            reserved.setdefault(class_key(waiting), []).append(waiting)
    for key, waiting_jobs in part.waiting_by_class.items():
        _queue_class(pool, key, waiting_jobs, reserved.get(key, ()), paused=False, exhausted=False)
    for (key, exhausted), jobs in paused.items():
        _queue_class(pool, key, WaitingJobs(jobs), reserved.get(key, ()), paused=True, exhausted=exhausted)


def _queue_class(
    pool: PoolState,
    key: ClassKey,
    waiting_jobs: WaitingJobs,
    reserved: Collection[Job],
    *,
    paused: bool,
    exhausted: bool,
) -> None:
    """Queue the jobs of one class and count their demand, if they could start in the empty pool."""
    name, request, preemptible, priority = key
    project, job_class = pool.project(name), JobClass(request, preemptible, priority, paused, exhausted)
    out = {job.id for job in reserved if class_of(pool, job) == job_class}
    if not project.known or not could_start_alone(pool, project, request, preemptible=preemptible):
        pool.unstartable += (job for job in waiting_jobs.jobs() if job.id not in out)
        return
    fits_user = project.ceiling_test(request.size)
    queue = project.queue.classes[job_class] = ClassQueue(
        job_class, waiting_jobs, pool.use_by_user(project), fits_user, out
    )
    counts = queue.counts() if fits_user else {"": queue.count}  # what each user wants is counted for ceilings only
    for user, count in counts.items():
        project.add_demand(queue.size * count, user, preemptible=preemptible)


def enqueue(pool: PoolState, job: Job) -> None:
    """Queue a job again that had devices reserved."""
    queue = queue_of(pool, job)
    if queue is None:
        pool.unstartable.append(job)
        return
    queue.put_back(job)
    queue.blocked = None
    pool.project(job.project).add_demand(queue.size, job.user, preemptible=job.preemptible)
