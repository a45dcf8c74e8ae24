"""The backfill reservation: devices and a planned start for one waiting job of a pool, and who may have it.

Source: docs/scheduling.md, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial

from ..model import MS_PER_S, WHOLE_DEVICE, Amounts
from ..placement.place import Piece, Request
from ..queue.job_queue import ClassQueue
from ..queue.order import first_of, turn_of
from ..queue.pool_state import PoolState, has_checked_shape, wanted_by_project
from ..queue.quota_state import Entitlement, QuotaState
from ..quota.fit import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReservation:
    """Devices for one job, and the instant from which they are planned to be free."""

    job: str
    project: QuotaState
    queue: ClassQueue
    pieces: tuple[Piece, ...]
    starts_at: int

    @property
    def entitlement(self) -> Entitlement:
        """The entitlement of its job at the present use of its project."""
        return self.project.entitlement(self.queue.size)

    @property
    def takes_cpu_or_memory(self) -> bool:
        """Whether CPU or memory is reserved, too."""
        request = self.queue.job_class.request
        return bool(request.cpu_milli or request.memory_mib)

    def longest_time_limit_s(self, pool: PoolState) -> int:
        """That of a job that is started now and ends before the planned start."""
        return longest_time_limit_s(pool, self.starts_at)

    def is_preceded_by(self, pool: PoolState, queue: ClassQueue) -> bool:
        """Whether the first job of a class of its own project has precedence over its job."""
        job, mine = queue.first(), pool.waiting[self.job]
        return (-job.priority, job.submitted_at, job.id) < (-mine.priority, mine.submitted_at, mine.id)

    def has_better_right(
        self, pool: PoolState, project: QuotaState, queue: ClassQueue, entitlement: Entitlement
    ) -> bool:
        """Whether a job without another free place may start there for as long as it runs. Rule R32."""
        if project is self.project:
            return self.is_preceded_by(pool, queue)
        if entitlement is Entitlement.GUARANTEE:
            return has_checked_shape(pool, project, queue.job_class.request)
        is_above = self.entitlement is Entitlement.SURPLUS
        return is_above and entitlement is Entitlement.FAIR and turn_of(project) <= turn_of(self.project)

    def gives_way_to(self, pool: PoolState, project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> bool:
        """Whether it passes to a job that is let in to its devices and cannot start.

        The entitlement of its job never becomes weaker. Jobs could take it from each other without end otherwise: the
        order inside a project has a large job above the fair share before a small one within it, and R32 lets in the
        small one of another project.
        """
        is_no_worse = entitlement <= self.entitlement if project is self.project else entitlement < self.entitlement
        return is_no_worse and self.has_better_right(pool, project, queue, entitlement)


def longest_time_limit_s(pool: PoolState, ends_at: int) -> int:
    """The longest time limit, in seconds, with which a job that is started now ends, grace included, by an instant."""
    return (ends_at - pool.now) // MS_PER_S - pool.policy.preemption.grace_s


def may_hold(pool: PoolState, project: QuotaState, queue: ClassQueue) -> bool:
    """Whether a class may have the reservation: its jobs wait for devices only, and fit beside the guarantees."""
    return not project.over_limit(queue.size) and waits_for_devices_or_own_limit(pool, project, queue)


def waits_for_devices_or_own_limit(pool: PoolState, project: QuotaState, queue: ClassQueue) -> bool:
    """Whether nothing but devices or the limit of their project keeps the jobs of a class waiting.

    At the limit of a department other projects may take what this one leaves there.
    """
    job_class, department = queue.job_class, project.parent
    return (
        not job_class.exhausted
        and (job_class.preemptible or project.fits_non_preemptible(queue.size))
        and (department is None or not department.over_limit(queue.size))
        and fits_beside_guarantees(pool, project, job_class.request)
    )


def fits_beside_guarantees(pool: PoolState, project: QuotaState, request: Request) -> bool:
    """Whether a request would fit if the other projects had no more than min(training quota, wanted), packed."""
    key = project.name, request
    if key not in pool.beside_guarantees:
        pool.beside_guarantees[key] = _fits_beside(pool, project, request)
    return pool.beside_guarantees[key]


def _fits_beside(pool: PoolState, project: QuotaState, request: Request) -> bool:
    """Packed only where neither of two bounds decides it: the sum, and every amount on devices of its own."""
    if not pool.wanted_quotas:
        pool.wanted_quotas |= {one.name: _wanted_quotas(one) for one in pool.projects.values()}
        parts = [milli for row in pool.wanted_quotas.values() for milli in (row.notebook_milli, row.training_milli)]
        pool.wanted_total = sum(parts), sum(map(_devices_for, parts))
    own = pool.wanted_quotas.get(project.name, Amounts()).training_milli
    total, alone = pool.wanted_total
    if total - own + request.size > pool.ledger.whole_devices * WHOLE_DEVICE:
        return False
    if alone - _devices_for(own) + request.ranks * _devices_for(request.gpu_milli) <= pool.ledger.whole_devices:
        return True
    return pack(_beside(pool, project, request)).devices <= pool.ledger.whole_devices


def _wanted_quotas(project: QuotaState) -> Amounts:
    """All notebook quota of a project, and what it wants within its training quota."""
    training = min(project.guarantee, wanted_by_project(project))
    return Amounts(notebook_milli=max(project.notebook_quota, project.booked), training_milli=training)


def _devices_for(milli: int) -> int:
    return -(-milli // WHOLE_DEVICE)


def _beside(pool: PoolState, project: QuotaState, request: Request) -> dict[str, Amounts]:
    """The ranks of a request, all notebook quota, and what others want within their training quotas, by name."""
    rows = dict(pool.wanted_quotas)
    if project.name in rows:
        rows[project.name] = Amounts(notebook_milli=rows[project.name].notebook_milli)
    ranks = {
        f"rank {rank} of /{project.name}": Amounts(training_milli=request.gpu_milli) for rank in range(request.ranks)
    }
    return rows | ranks


def first_blocked(pool: PoolState, unplanned: Container[ClassQueue] = ()) -> tuple[QuotaState, ClassQueue] | None:
    """The project and class of the first job that cannot start and may have the reservation.

    ``unplanned``: classes for which no devices were found in this plan.
    Rule R27.
    """
    return _first(pool, lambda one: one.blocked is not None and one not in unplanned)


def first_waiting(pool: PoolState, unplanned: Container[ClassQueue] = ()) -> tuple[QuotaState, ClassQueue] | None:
    """:func:`first_blocked` or, if that comes before it, the first that is still to be served."""
    return _first(pool, lambda one: one not in unplanned)


def _first(pool: PoolState, is_eligible: Callable[[ClassQueue], bool]) -> tuple[QuotaState, ClassQueue] | None:
    classes = {
        project: [one for one in project.queue.classes.values() if not one.is_preceded and is_eligible(one)]
        for project in pool.projects.values()
    }
    found = first_of(classes, partial(may_hold, pool))
    return None if found is None else (found.project, found.queue)
