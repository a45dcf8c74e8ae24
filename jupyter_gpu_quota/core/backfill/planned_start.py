"""Planned starts: that of an overdue job, and whether that of a backfill reservation is a bound or an estimate.

Source: docs/scheduling.md, section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..lifecycle import RUNS
from ..model import MS_PER_S, WHOLE_DEVICE, Job
from ..queue.job_queue import ClassQueue
from ..queue.order import turn_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState, Running
from ..quota.node_packing import Guarantee, hold_any_ranks
from .reservation import BackfillReservation, longest_time_limit_s


class OverdueJob(NamedTuple):
    """The job, and the instant at which it starts if all running work runs to its time limit."""

    job: Job
    queue: ClassQueue
    starts_at: int

    @property
    def size(self) -> int:
        """The GPU of all its ranks, in milli-GPU."""
        return self.queue.size

    def longest_time_limit_s(self, pool: PoolState) -> int:
        """That of a job that is started now and ends before the planned start."""
        return longest_time_limit_s(pool, self.starts_at)

    def is_overtaken_by(self, job: Job) -> bool:
        """Whether a job was submitted later, and has no higher priority."""
        is_later = (job.submitted_at, job.id) > (self.job.submitted_at, self.job.id)
        return is_later and job.priority <= self.job.priority


def delaying_projects(pool: PoolState, reservation: BackfillReservation) -> tuple[str, ...]:
    """The projects whose jobs may start on the reserved devices first, by name; none if the planned start is a bound.

    A bound counts the training quota of every other project as claimed, except where its work runs beyond the planned
    start. All of that has to fit on the other devices that are free then, whatever ranks it is used for: then a claim
    takes those before it enters a reservation within guarantee. A claim enters a reservation above guarantee before it
    takes devices from other work; so there must be nothing to claim. Above guarantee any project with a weight and no
    more past use per weight may come first, too, because its demand lowers the fair share of the others.

    A failure, and other jobs of the reservation's own project, may delay a bound. The reservation is in the ledger.
    Rule R34.
    """
    unused = {project.name: milli for project, milli in _unused(pool, reservation) if milli > 0}
    if reservation.entitlement is Entitlement.GUARANTEE:
        return () if _fit_beside(pool, reservation, unused) else tuple(sorted(unused))
    turn = turn_of(reservation.project)
    others = (one for one in pool.projects.values() if one is not reservation.project)
    first = {one.name for one in others if one.weight and turn_of(one) <= turn}
    return tuple(sorted(unused.keys() | first))


def _unused(pool: PoolState, reservation: BackfillReservation) -> Iterator[tuple[QuotaState, int]]:
    """The part of each other project's training quota that no work of it uses beyond the planned start.

    What is not in force now may be in force then.
    """
    used = Counter[str]()
    for running in _continuing(pool):
        if not _ends_before(pool, reservation, running):
            used[running.project] += running.size
    return ((one, one.quota - used[one.name]) for one in pool.projects.values() if one is not reservation.project)


def _continuing(pool: PoolState) -> Iterator[Running]:
    """The work that runs and that this plan does not stop, without borrowers."""
    stopped = pool.stopped_jobs()
    for name, running in pool.running.items():
        if running.job.state in RUNS and not running.borrower and name not in stopped:
            yield running


def _ends_before(pool: PoolState, reservation: BackfillReservation, running: Running) -> bool:
    """Whether work has ended at the planned start, by its time limit and its grace."""
    return running.ends_at + pool.policy.preemption.grace_s * MS_PER_S <= reservation.starts_at


def _fit_beside(pool: PoolState, reservation: BackfillReservation, unused: Mapping[str, int]) -> bool:
    """Whether unused guarantees fit beside the reservation at its planned start, in any ranks of whole devices.

    Not sure, and so False, if jobs choose among GPU models, or CPU or memory may be short.
    """
    ledger = pool.ledger
    if not unused:
        return True
    if ledger.score is not None or reservation.takes_cpu_or_memory or len(set(ledger.model)) > 1:
        return False
    room = ledger.all_plain_after()
    for running in _continuing(pool):
        if _ends_before(pool, reservation, running):
            for piece in running.pieces:
                room[piece.device] += piece.gpu_milli
    nodes = Counter(node for node, milli in zip(ledger.node_of, room, strict=True) if milli >= WHOLE_DEVICE)
    largest = max(map(len, ledger.on_node), default=0)
    devices = (-(-milli // WHOLE_DEVICE) for milli in unused.values())
    return hold_any_ranks(Counter(nodes.values()), [Guarantee(count, min(count, largest)) for count in devices])
