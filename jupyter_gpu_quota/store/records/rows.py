"""The records that a store keeps.

People are ULIDs; their names are in one side table. Instants are integers, milliseconds since 1970 UTC. Each
mutable record carries ``changed``: the store's version at which it last changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.frozen import fast_frozen
from ...core.model import Allocation, Device, Job, Node, Notebook, NotebookState, Policy, Reservation
from ...core.reason_codes import SERVER_STOPPED, ReasonCode
from ...core.reasons import ByUser, Reason
from .commands import JobSpec


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank of one attempt; ``fencing`` is the number of the leader that started it.

    ``handle``, ``why_lost`` and ``trouble``: as in :class:`...core.facts.RankFact`. Four fields decide how the attempt
    ended, from ``tree_gone`` on: ``refused`` is why its backend did not start the rank.
    """

    job: str
    attempt: int
    rank: int
    node: str
    handle: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    exit_status: int | None = None
    fencing: int = 0
    tree_gone: bool = False
    pause_requested: bool = False
    completed: bool = False
    refused: str | None = None
    why_lost: str | None = None
    trouble: str | None = None


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job in every state, ended ones included. ``job`` is its part that the core schedules.

    ``first_started_at``: the start of its first attempt that started.
    """

    job: Job
    spec: JobSpec
    account: str | None
    reason: Reason | None = None
    retries_left: int
    ended_at: int | None = None
    exit_status: int | None = None
    done: int | None = None
    total: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    clone_of: str | None = None
    pauses: int = 0
    first_started_at: int | None = None
    changed: int = 0
    cluster: str = "local"
    hub: str = "local"

    @property
    def people(self) -> tuple[str, ...]:
        """The users in the record: its owner, and the user who held or cancelled the job."""
        by = self.reason.by if isinstance(self.reason, ByUser) else None
        return (self.job.user,) if by is None else (self.job.user, by)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRecord:
    """A notebook's slice in every state.

    ``idle_state``: None before the first classification. ``token_digest``: as in the request.
    """

    notebook: Notebook
    server: str
    reason: Reason | None = None
    booked_at: int | None = None
    ended_at: int | None = None
    changed: int
    cluster: str = "local"
    hub: str = "local"
    idle_state: Mapping[str, object] | None = None
    token_digest: str = ""

    @property
    def people(self) -> tuple[str, ...]:
        """The users in the record: its owner."""
        return (self.notebook.user,)

    @property
    def is_stopped(self) -> bool:
        """Whether the service decided that the notebook's server is stopped."""
        return self.reason is not None and self.reason.code in SERVER_STOPPED

    @property
    def may_request_again(self) -> bool:
        """Whether the server of an ended slice still runs: the slice was released, or refused when requested again."""
        released = self.reason is not None and self.reason.code is ReasonCode.SLICE_RELEASED
        refused = self.notebook.state is NotebookState.REFUSED and self.booked_at is not None
        return released or refused


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRevision:
    """One revision of the quota file; the newest is in force."""

    revision: int
    text: str
    document: Mapping[str, object]
    policy: Policy
    actor: str
    at: int
    comment: str


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One decision or edit. ``payload`` is canonical JSON; ``hash`` covers it and ``previous``."""

    seq: int
    at: int
    actor: str
    kind: str
    subject: str
    project: str | None
    payload: str
    previous: str
    hash: str


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHour:
    """One workload's allocation and use of one device within one hour, which begins at ``hour_at``.

    ``used_milli_s`` is milli-GPU times seconds, by readings that cover ``seen_s`` of the ``allocated_s`` seconds. In a
    stored row, the allocated figures count only allocations that retention removed.
    """

    hour_at: int
    workload: str
    device: str
    user: str
    project: str
    pool: str
    allocated_milli_s: int = 0
    allocated_s: int = 0
    used_milli_s: int = 0
    seen_s: int = 0


Slot = tuple[int, int, float, float, float]
"""The number of a slot, and the count, the mean, the minimum and the maximum of its points."""


METRIC, USE, MEMORY, DONE = "metric ", "use ", "memory ", "done"
"""Prefixes of the names of series; the name of the metric or the id of the device follows. ``done`` is the progress."""


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeries:
    """The series of one job by name, as slots in order; a slot without points is left out.

    Slot n covers ``width_ms`` from ``begins_at`` plus n widths.
    """

    job: str
    begins_at: int
    width_ms: int
    series: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """When a job was submitted, and when its first process started; None: it never did."""

    submitted_at: int
    started_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a database in its history: the number and the hash of the newest row of the audit chain.

    A restored backup lacks the rows that were written after it. Row 0 is before the first one.
    """

    audit_seq: int = 0
    audit_hash: str = ""


BEGINNING = Position()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The present rows that changed since a version, ended ones included. ``fencing`` is that of the leader.

    Changes since a version of an earlier leader may lack rows that a restored backup removed: read all again.
    ``gone_nodes`` and ``gone_devices``: of those, since when no reading reports them. Removed ones are only in
    ``removed_nodes`` and ``removed_devices``.
    """

    version: int
    fencing: int = 0
    position: Position = BEGINNING
    jobs: tuple[JobRecord, ...] = ()
    notebooks: tuple[NotebookRecord, ...] = ()
    nodes: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    gone_nodes: Mapping[str, int] = field(default_factory=dict)
    gone_devices: Mapping[str, int] = field(default_factory=dict)
    removed_nodes: tuple[str, ...] = ()
    removed_devices: tuple[str, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    released: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    unreserved: tuple[str, ...] = ()
    quota: QuotaRevision | None = None

    @property
    def people(self) -> list[str]:
        """The users in the jobs and notebooks."""
        records: tuple[JobRecord | NotebookRecord, ...] = (*self.jobs, *self.notebooks)
        return [user for record in records for user in record.people]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A part of a device that an attempt of a job held; ``ended_at`` None: it still holds it."""

    id: str
    project: str
    pool: str
    gpu_milli: int
    began_at: int
    ended_at: int | None
