# ruff: noqa: E701 - records with equal figures are a table
"""Reasons of actions and of waiting: one typed record for each code (:mod:`.reason_codes`), with its figures.

The name of a figure ends in its unit. A figure that is None is not shown. :mod:`..messages.reasons` renders sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, get_args

from .job_ends import JobEnd
from .reason_codes import ReasonCode
from .reason_record import record

Figure = int | str
Pairs = tuple[tuple[str, Figure], ...]


@record
class Position:
    """A project's request, use, guarantee and fair share in a pool."""

    code: ClassVar[ReasonCode]
    project: str
    asked_milli: int
    used_milli: int
    guarantee_milli: int
    fair_milli: int


# fmt: off
class WithinGuarantee(Position): __slots__ = ()
class WithinFairShare(Position): __slots__ = ()
class IdleSurplus(Position): __slots__ = ()
class BorrowsNotebookQuota(Position): __slots__ = ()
class BorrowsReservedDevices(Position): __slots__ = ()
# fmt: on


@record
class NonPreemptibleWithinQuota:
    """A start by R8 in a project over quota. ``non_preemptible_milli`` is the project's other use of this kind."""

    code: ClassVar[ReasonCode] = ReasonCode.NON_PREEMPTIBLE_WITHIN_QUOTA
    project: str
    asked_milli: int
    used_milli: int
    non_preemptible_milli: int
    quota_milli: int


@record
class WithinNotebookQuota:
    """``was`` is "lent" for a lent slice that returns to its notebook."""

    code: ClassVar[ReasonCode] = ReasonCode.WITHIN_NOTEBOOK_QUOTA
    project: str
    asked_milli: int
    used_milli: int
    quota_milli: int
    was: str | None = None


@record
class Preempted:
    """The preemptor, the victim's project, and the protection that the rule set aside, if any."""

    code: ClassVar[ReasonCode]
    preemptor: str
    preemptor_project: str
    asked_milli: int
    preemptor_used_milli: int
    preemptor_guarantee_milli: int
    preemptor_fair_milli: int
    project: str
    used_milli: int
    guarantee_milli: int
    fair_milli: int
    priority: int
    preemptor_priority: int
    grace_s: int
    ran_s: int | None = None
    min_runtime_s: int | None = None
    max_pauses: int | None = None
    per_s: int | None = None


# fmt: off
class Reclaimed(Preempted): __slots__ = ()
class FairShareReclaimed(Preempted): __slots__ = ()
class PreemptedInProject(Preempted): __slots__ = ()
class BorrowerReturns(Preempted): __slots__ = ()
class ReservationBegins(Preempted): __slots__ = ()
# fmt: on


@record
class Moved:
    code: ClassVar[ReasonCode] = ReasonCode.MOVED
    preemptor: str
    preemptor_project: str
    asked_milli: int
    project: str
    grace_s: int


@record
class Shrunk:
    code: ClassVar[ReasonCode] = ReasonCode.SHRUNK
    preemptor: str
    preemptor_project: str
    asked_milli: int
    project: str
    given_milli: int
    kept_milli: int
    grace_s: int


@record
class Grown:
    code: ClassVar[ReasonCode] = ReasonCode.GROWN
    project: str
    given_milli: int
    kept_milli: int
    grace_s: int


@record
class TimeLimit:
    code: ClassVar[ReasonCode] = ReasonCode.TIME_LIMIT
    ran_s: int
    time_limit_s: int
    grace_s: int


@record
class RankFailed:
    code: ClassVar[ReasonCode] = ReasonCode.RANK_FAILED
    user: str
    grace_s: int


@record
class ByUser:
    """``by`` held or cancelled the job of ``user``; the other figures are None once the job has stopped."""

    code: ClassVar[ReasonCode]
    by: str | None = None
    user: str | None = None
    grace_s: int | None = None


# fmt: off
class HeldByUser(ByUser): __slots__ = ()
class CancelledByUser(ByUser): __slots__ = ()
# fmt: on


@record
class MemoryOverShare:
    """``stop_at`` (ms since 1970) belongs to a warning, ``warned_s`` to what follows it."""

    code: ClassVar[ReasonCode]
    used_mib: int
    device: str
    share_mib: int
    stop_at: int | None = None
    warned_s: int | None = None


# fmt: off
class OverShare(MemoryOverShare): __slots__ = ()
class StoppedOverShare(MemoryOverShare): __slots__ = ()
# fmt: on


@record
class WeakEnforcement:
    """The enforcement levels of a share and the least that the policy accepts. ``stop_at`` belongs to a warning."""

    code: ClassVar[ReasonCode]
    device: str
    memory: str
    compute: str
    least_memory: str
    least_compute: str
    stop_at: int | None = None


# fmt: off
class EnforcementTooWeak(WeakEnforcement): __slots__ = ()
class EnforcementUnavailable(WeakEnforcement): __slots__ = ()
class StoppedTooWeak(WeakEnforcement): __slots__ = ()
# fmt: on


@record
class DataUnavailable:
    """Data of the job, and its last day; None where the quota file does not give it to the job's user any more."""

    code: ClassVar[ReasonCode] = ReasonCode.DATA_UNAVAILABLE
    data: str
    last_day: str | None = None


@record
class CodeUnavailable:
    code: ClassVar[ReasonCode] = ReasonCode.CODE_UNAVAILABLE


@record
class StoppedIdle:
    code: ClassVar[ReasonCode] = ReasonCode.STOPPED_IDLE
    freed_s: int


@record
class DeviceUnhealthy:
    code: ClassVar[ReasonCode] = ReasonCode.DEVICE_UNHEALTHY
    device: str
    pool: str
    node: str
    kind: str
    trouble: str


@record
class NodeDrained:
    """``left_s``: the time until the drain's deadline."""

    code: ClassVar[ReasonCode] = ReasonCode.NODE_DRAINED
    device: str
    pool: str
    node: str
    kind: str
    left_s: int | None = None


@record
class DrainDeadline:
    code: ClassVar[ReasonCode] = ReasonCode.DRAIN_DEADLINE
    project: str
    pool: str
    used_milli: int
    quota_milli: int
    grace_s: int


@record
class Removed:
    """``kind`` of workload: it decides how long the devices stay occupied."""

    code: ClassVar[ReasonCode]
    project: str
    pool: str
    kind: str


# fmt: off
class ProjectGone(Removed): __slots__ = ()
class PoolGone(Removed): __slots__ = ()
# fmt: on


@record
class IdleSlice:
    code: ClassVar[ReasonCode]
    project: str
    pool: str
    gpu_milli: int
    release_after_s: int
    lent_grace_s: int


# fmt: off
class LentWhileIdle(IdleSlice): __slots__ = ()
class SliceReleased(IdleSlice): __slots__ = ()
# fmt: on


# --- waiting or refused ---------------------------------------------------------------------------------------------
@record
class Waiting:
    """A project's position. ``limit_milli``, with its ``notebook_milli``, may be that of the ``department``. A notebook
    has its project's notebook quota as ``notebook_milli``, and no limit.

    ``within_s``: the planned start of a backfill reservation; ``delaying``: the number of projects whose jobs may start
    there first, some of them in ``delayed_by``, 0 for a bound. ``others_milli``: the quotas of others, beside which it
    does not fit into ``capacity_milli``. ``waited_s``: the wait of an overdue job, planned to start in ``planned_s``.
    ``cpu_milli``, ``memory_mib``: what each rank needs and no node has beside free GPUs. ``ahead``: the number of jobs
    of its project with a higher priority that wait, too, some of them in ``workloads``.
    """

    code: ClassVar[ReasonCode]
    project: str
    asked_milli: int
    used_milli: int
    guarantee_milli: int
    fair_milli: int
    limit_milli: int | None = None
    notebook_milli: int | None = None
    department: str | None = None
    within_s: int | None = None
    delaying: int | None = None
    delayed_by: tuple[str, ...] = ()
    others_milli: int | None = None
    capacity_milli: int | None = None
    waited_s: int | None = None
    planned_s: int | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None
    ahead: int | None = None
    workloads: tuple[str, ...] = ()


# fmt: off
class NoFreeGpu(Waiting): __slots__ = ()
class BehindOthers(Waiting): __slots__ = ()
class BehindHigherPriority(Waiting): __slots__ = ()
class BackfillReserved(Waiting): __slots__ = ()
class AboveFairShare(Waiting): __slots__ = ()
class VictimsProtected(Waiting): __slots__ = ()
# fmt: on


@record
class BehindOverdueJob:
    """``workload`` is the overdue job, planned to start in ``planned_s``; a time limit of ``most_s`` ends before."""

    code: ClassVar[ReasonCode] = ReasonCode.BEHIND_OVERDUE_JOB
    project: str
    asked_milli: int
    workload: str
    waited_s: int
    planned_s: int
    most_s: int | None = None


@record
class PausesUsedUp:
    code: ClassVar[ReasonCode] = ReasonCode.PAUSES_USED_UP
    project: str
    asked_milli: int
    used_milli: int
    guarantee_milli: int
    fair_milli: int
    max_pauses: int
    per_s: int
    within_s: int | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None


@record
class AboveLimit:
    """Where the limit is too small for the job alone, it has the ``pool`` and no use."""

    code: ClassVar[ReasonCode] = ReasonCode.ABOVE_LIMIT
    project: str
    pool: str | None = None
    asked_milli: int
    used_milli: int | None = None
    guarantee_milli: int | None = None
    fair_milli: int | None = None
    limit_milli: int | None = None
    notebook_milli: int | None = None
    department: str | None = None
    within_s: int | None = None


@record
class WaitsForDrain:
    """``leaving``: how many workloads are still stopping there; ``took_over_from``: the previous reservations."""

    code: ClassVar[ReasonCode] = ReasonCode.WAITS_FOR_DRAIN
    project: str | None = None
    pool: str | None = None
    asked_milli: int
    leaving: int | None = None
    grace_s: int | None = None
    took_over_from: tuple[str, ...] = ()
    within_s: int | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None


@record
class AboveTrainingQuota:
    code: ClassVar[ReasonCode] = ReasonCode.ABOVE_TRAINING_QUOTA
    project: str
    asked_milli: int
    used_milli: int
    quota_milli: int
    within_s: int | None = None


@record
class AboveNotebookQuota:
    code: ClassVar[ReasonCode] = ReasonCode.ABOVE_NOTEBOOK_QUOTA
    project: str
    pool: str
    asked_milli: int
    used_milli: int
    quota_milli: int


@record
class AboveUserCeiling:
    """``used_milli`` is None where the ceiling is below what was asked for."""

    code: ClassVar[ReasonCode] = ReasonCode.ABOVE_USER_CEILING
    project: str
    user: str
    asked_milli: int
    used_milli: int | None = None
    ceiling_milli: int
    within_s: int | None = None


@record
class DeviceQuarantined:
    """``workload`` and its ``attempt``: the processes that are still on the device."""

    code: ClassVar[ReasonCode] = ReasonCode.DEVICE_QUARANTINED
    project: str
    pool: str
    asked_milli: int
    device: str
    devices: int
    workload: str | None = None
    attempt: int | None = None


@record
class DeviceUnavailable:
    """``device`` is the first of the unavailable ``devices``, ``trouble`` the cause of it.

    ``cluster`` is a further cluster that cannot be read since ``unread_since_at``, and has the device.
    """

    code: ClassVar[ReasonCode] = ReasonCode.DEVICE_UNAVAILABLE
    project: str
    pool: str
    asked_milli: int
    device: str
    devices: int
    trouble: str
    cluster: str | None = None
    unread_since_at: int | None = None


@record
class NeverFits:
    """A job has ranks and the capacity of its pool, a notebook's slice its quota."""

    code: ClassVar[ReasonCode] = ReasonCode.NEVER_FITS
    project: str
    pool: str
    asked_milli: int
    used_milli: int | None = None
    quota_milli: int | None = None
    capacity_milli: int | None = None
    ranks: int | None = None
    possible_ranks: int | None = None
    gpu_model: str | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None


@record
class NoSuchProject:
    code: ClassVar[ReasonCode] = ReasonCode.NO_SUCH_PROJECT
    project: str
    pool: str | None = None
    asked_milli: int | None = None
    used_milli: int | None = None
    quota_milli: int | None = None


@record
class NoSuchPool:
    code: ClassVar[ReasonCode] = ReasonCode.NO_SUCH_POOL
    pool: str


@record
class NoDevice:
    code: ClassVar[ReasonCode] = ReasonCode.NO_DEVICE
    project: str
    pool: str
    asked_milli: int


@record
class ClaimEnded:
    code: ClassVar[ReasonCode] = ReasonCode.CLAIM_ENDED


@record
class ReservedDeviceLost:
    code: ClassVar[ReasonCode] = ReasonCode.RESERVED_DEVICE_LOST


@record
class DrainTakenOver:
    code: ClassVar[ReasonCode] = ReasonCode.DRAIN_TAKEN_OVER
    preemptor: str
    preemptor_project: str


# --- stored rows of another release ---------------------------------------------------------------------------------
@record
class OtherReason:
    """A stored reason that none of the records describes: its code and figures as they were written."""

    code: str
    figures: Pairs = ()


Reason = (
    WithinGuarantee | WithinFairShare | IdleSurplus | BorrowsNotebookQuota | BorrowsReservedDevices
    | NonPreemptibleWithinQuota | WithinNotebookQuota
    | Reclaimed | FairShareReclaimed | PreemptedInProject | BorrowerReturns | ReservationBegins
    | Moved | Shrunk | Grown | TimeLimit | RankFailed | HeldByUser | CancelledByUser | JobEnd
    | OverShare | StoppedOverShare | EnforcementTooWeak | EnforcementUnavailable | StoppedTooWeak | StoppedIdle
    | DataUnavailable | CodeUnavailable
    | DeviceUnhealthy | NodeDrained | DrainDeadline | ProjectGone | PoolGone | LentWhileIdle | SliceReleased
    | NoFreeGpu | WaitsForDrain | BehindOthers | BehindHigherPriority | BehindOverdueJob | BackfillReserved
    | AboveFairShare | AboveLimit | AboveTrainingQuota | AboveNotebookQuota | AboveUserCeiling | VictimsProtected
    | PausesUsedUp | DeviceQuarantined | DeviceUnavailable | NeverFits | NoSuchProject | NoSuchPool | NoDevice
    | ClaimEnded | ReservedDeviceLost | DrainTakenOver | OtherReason
)  # fmt: skip

RECORDS: Mapping[ReasonCode, type[Reason]] = {kind.code: kind for kind in get_args(Reason) if kind is not OtherReason}
"""The record of each code."""
