"""The working state of one pool: the ledger of its devices and the quota state of each project.

It is read from the snapshot at the start of a tick, changed while the plan is made, and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..model import Amounts, Job, Notebook, Policy, Reservation
from ..placement.ledger import Ledger, Models
from ..placement.place import EmptyPool, Piece, Request
from ..quota.checked_ranks import CheckedRanks, checked_ranks, pool_shape
from .quota_state import ABOVE, NO_LIMIT, QuotaState, Running, Victim
from .running_jobs import RunningJobs


@dataclass(slots=True, kw_only=True, eq=False)
class PoolState:
    """One pool in one tick."""

    name: str
    now: int
    policy: Policy
    ledger: Ledger
    empty: EmptyPool
    running_before: RunningJobs
    """The work that runs before this plan and continues; kept between decisions, so that a plan does not change it."""
    projects: dict[str, QuotaState]
    """The projects with amounts in the pool; :meth:`project` adds any other that has work there."""
    unknown_project: Callable[[str], QuotaState]
    devices: int = 0
    """The number of all its devices, unschedulable ones included."""
    departments: dict[str, QuotaState] = field(default_factory=dict)
    waiting: Mapping[str, Job] = field(default_factory=dict)
    """The jobs that wait for devices, with a reservation or without."""
    returning: dict[str, Job] = field(default_factory=dict)
    """Jobs that are being paused; a job with a reservation only changes its devices or size."""
    restarting: list[tuple[Job, tuple[Piece, ...], int]] = field(default_factory=list)
    """Those of them with a reservation, with their reserved pieces and the milli-GPU of the whole reservation."""
    quarantined: frozenset[str] = frozenset()
    """The quarantined devices on open nodes, by id; a reservation of one may be kept (R25)."""
    incomplete: set[str] = field(default_factory=set)
    """The workloads whose reservation is kept although some of its devices are quarantined."""
    requested: list[Notebook] = field(default_factory=list)
    slices: list[Notebook] = field(default_factory=list)
    """The booked slices, lent ones included."""
    placed_slices: set[str] = field(default_factory=set)
    """Those of them that occupy a schedulable device."""
    borrowers: list[Victim] = field(default_factory=list)
    reserved: list[Victim] = field(default_factory=list)
    booked_milli: int = 0
    slice_devices: set[int] = field(default_factory=set)
    reservations: list[Reservation] = field(default_factory=list)
    """Devices that drain for claims and moves."""
    backfill: Reservation | None = None
    """The recorded backfill reservation."""
    more_backfill: Sequence[Reservation] = ()
    """Those that were recorded beside it, which the plan drops: a pool has one at most."""
    unstartable: list[Job] = field(default_factory=list)
    searches_left: int = 8
    """The number of searches for work to move that are left, the only step that reads all work."""
    searches: int = 0
    """The number of searches for victims so far."""
    search_work: int = 0
    """The number of tests of room in them."""
    room_came_back: bool = False
    """A backfill reservation was dropped after other decisions, or a preemptor was at a limit."""
    unmovable: set[Request] = field(default_factory=set)
    """Requests for which no work to move was found; room only shrinks during a plan."""
    beside_guarantees: dict[tuple[str, Request], bool] = field(default_factory=dict)
    """Whether a request of a project fits beside the guarantees of the others."""
    wanted_quotas: dict[str, Amounts] = field(default_factory=dict)
    """All notebook quota, and what is wanted within the training quotas, by project; computed when first needed."""
    wanted_total: tuple[int, int] = (0, 0)
    """The sum of those amounts, and the number of devices if each had its own."""
    checked: dict[Models, CheckedRanks] = field(default_factory=dict)
    """The largest ranks that the quotas were checked for, by the GPU models that a rank may run on."""
    work_on: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The workloads with an allocation on each device, by its id."""
    stopped: set[str] = field(default_factory=set)
    """The keys of the work that this plan stops."""
    running: dict[str, Running] = field(init=False)
    """The jobs of ``running_before`` in the order of their ends, then those that this plan starts, by their ids."""
    started: dict[str, Running] = field(default_factory=dict)
    """The jobs that this plan starts."""
    ranks_without_preemptible: dict[Request, int] = field(default_factory=dict)
    free_without_preemptible: list[int] | None = None
    has_protected: bool | None = None
    """These are computed by :mod:`.preemption` when first needed."""
    _has_elastic: bool | None = None

    def __post_init__(self) -> None:
        self.running = dict(self.running_before.jobs)

    @property
    def has_elastic(self) -> bool:
        """Whether a preemptible elastic job runs."""
        if self._has_elastic is None:
            self._has_elastic = any(one.preemptible_use.has_elastic for one in self.projects.values())
        return self._has_elastic

    def project(self, name: str) -> QuotaState:
        """The quota state of a project; a removed project has no amounts and a limit of 0."""
        if name not in self.projects:
            self.projects[name] = self.unknown_project(name)
        return self.projects[name]

    def preemptible_job(self, name: str) -> Running | None:
        """A preemptible running job, no borrower, with which the pool began; None for other work."""
        return self.running_before.preemptible_job(name)

    def stopped_jobs(self) -> set[str]:
        """The jobs that this plan stops, as a whole or in part."""
        return {key.removesuffix(ABOVE) for key in self.stopped}

    def add_started(self, job: Job, pieces: tuple[Piece, ...], *, borrowed: bool) -> None:
        """Note work that this plan starts; its time limit begins now."""
        size = sum([piece.gpu_milli for piece in pieces])
        ends_at = job.ends_at(self.now)
        self.running[job.id] = self.started[job.id] = Running.of(job, pieces, size, ends_at, borrower=borrowed)

    def remove_started(self, workload: str) -> None:
        """Forget work that this plan does not start any more."""
        self.running.pop(workload, None)
        self.started.pop(workload, None)

    def release_references(self) -> None:
        """Break reference cycles: collecting them would cost a fifth of a decide."""
        for project in (*self.projects.values(), *self.departments.values()):
            project.release_references()

    def use_by_user(self, project: QuotaState) -> dict[str, int]:
        """The use of each user of a project where users take turns; empty otherwise."""
        return project.by_user if self.policy.within_project == "users_in_turn" else {}


def has_checked_shape(pool: PoolState, project: QuotaState, request: Request) -> bool:
    """Whether a rank of this size can always be had on one node within the project's training quota."""
    if request.devices_per_rank == 1:
        return True
    return checked_shapes(pool, request.gpu_models).covers(project.name, request.gpu_milli)


def checked_shapes(pool: PoolState, models: Models) -> CheckedRanks:
    """The largest ranks on one node that the quotas always allow, on devices of these models."""
    if models not in pool.checked:
        shape = pool_shape(device for device in pool.ledger.devices if not device.foreign_milli)
        pool.checked[models] = checked_ranks(pool.policy, pool.name, shape, models)
    return pool.checked[models]


def could_start_alone(pool: PoolState, project: QuotaState, request: Request, *, preemptible: bool) -> bool:
    """Whether a request could start in the empty pool: it fits devices, limits and, if not preemptible, the quota."""
    size = request.size
    for level in project.levels:
        if (
            (level.limit != NO_LIMIT and size > level.ceiling)
            or size > level.user_ceiling
            or (not preemptible and size > level.quota)
        ):
            return False
    return pool.empty.fits(request)


def wanted_by_project(project: QuotaState) -> int:
    """The demand of a project: running, returning and waiting work, within its limit.

    Non-preemptible work counts within the quota; what runs of it, even if the quota was lowered below it.
    Rule R17.
    """
    quota = max(project.quota, project.non_preemptible_use)
    wanted = project.wanted - project.wanted_non_preemptible + min(project.wanted_non_preemptible, quota)
    if project.wanted_by:
        preemptible = wanted_by_users(project, without=project.wanted_non_preemptible_by)
        wanted = min(wanted, wanted_by_users(project), preemptible + quota)
    return max(project.non_preemptible_on_devices, min(project.ceiling, wanted))


def wanted_by_users(level: QuotaState, *, without: Mapping[str, int] | None = None) -> int:
    """The demand of the users, each up to the lowest ceiling for one user or to what they use already.

    ``without``: amounts to leave out, by user.
    """
    ceiling, left_out = min(one.user_ceiling for one in level.levels), without or {}
    return sum(
        min(milli - left_out.get(user, 0), max(ceiling, level.by_user.get(user, 0)))
        for user, milli in level.wanted_by.items()
    )


def waiting_sizes(pool: PoolState, level: QuotaState) -> Iterable[int]:
    """The sizes of all work of a project or department that could reclaim devices."""
    for project in pool.projects.values() if level.is_department else (level,):
        if level in project.levels:
            yield from project.returning
            yield from (queue.size for queue in project.queue.classes.values() if queue.count)


def victim_list(pool: PoolState, victim: Victim) -> list[Victim]:
    """The list with a victim."""
    if victim.reserved:
        return pool.reserved
    if victim.base is not None:
        return victim.project.elastic_surplus
    if victim.borrower:
        return pool.borrowers
    return victim.project.protected_victims if victim.protected else victim.project.victims


def remove_victim(pool: PoolState, victim: Victim) -> None:
    """Remove a victim from its list; one of running work that was not listed yet is left out of it."""
    project = victim.project
    if project.make_victims is None or victim.reserved or victim.borrower:
        victim_list(pool, victim).remove(victim)
    else:
        project.not_listed.add(victim.key)
