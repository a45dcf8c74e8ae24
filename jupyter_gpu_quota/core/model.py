"""The frozen records of the scheduler's input: jobs, notebooks, devices, policy, snapshot; and their units.

Amounts are integers: milli-GPU (1000 is one whole device) and MiB. An instant is an integer, milliseconds
since 1970-01-01 UTC, and its name ends in ``_at`` (``now`` is one too). A duration names its unit (``_s``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .frozen import fast_frozen

WHOLE_DEVICE = 1000
"""Milli-GPU of one device."""

MS_PER_S = 1000
"""Instants are in milliseconds, durations in seconds."""

OWN_CLUSTER = "local"
"""The cluster of records that name none: this machine, or the cluster of the hub."""


class JobState(StrEnum):
    """The state of a job; the transitions are in :mod:`.lifecycle`."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobTarget(StrEnum):
    """The desired state of a job, which the apply step brings about."""

    RUNNING = "running"
    PAUSED = "paused"
    HELD = "held"
    CANCELLED = "cancelled"
    FAILED = "failed"


class NotebookState(StrEnum):
    """The state of a notebook's request for a slice."""

    REQUESTED = "requested"
    BOOKED = "booked"
    LENT = "lent"
    REFUSED = "refused"
    RETURNED = "returned"


class Activity(StrEnum):
    """The idle classification of a notebook; unknown is never idle."""

    UNKNOWN = "unknown"
    BUSY = "busy"
    IDLE = "idle"


class Health(StrEnum):
    """Whether a device may be allocated."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    QUARANTINED = "quarantined"


class Upkeep(StrEnum):
    """The maintenance of a node: none, no new work, or no work at all."""

    NONE = "none"
    CORDONED = "cordoned"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with devices. ``schedulable``: its readings arrive.

    From ``drain_by_at`` on, non-preemptible work on a draining node is stopped too; None: it ends by itself.
    ``topology``: the names of its groups of close nodes, such as its NVLink domain and its rack, the closest group
    first; empty where it is in no group of that level.
    ``unread_since_at``: since when its cluster cannot be read; None: it is read, or not long enough unread to matter.
    """

    id: str
    name: str
    cpu_milli: int
    memory_mib: int
    schedulable: bool = True
    upkeep: Upkeep = Upkeep.NONE
    drain_by_at: int | None = None
    topology: tuple[str, ...] = ()
    cluster: str = OWN_CLUSTER
    unread_since_at: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether new work may start on it."""
        return self.schedulable and self.upkeep is Upkeep.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. ``id`` is our slot id; ``uuid`` may be unknown until it is read back. It is in at most one pool.

    ``trouble``: why it is not healthy ("XID 79"), or its node takes no work; None where that is not known.
    """

    id: str
    node: str
    index: int
    model: str
    memory_mib: int
    pool: str | None
    uuid: str | None = None
    health: Health = Health.HEALTHY
    foreign_milli: int = 0
    simulated: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The quotas of one project or department in one pool. ``limit_milli`` None means the whole pool.

    ``user_notebook_milli`` and ``user_jobs_milli`` are ceilings for each single user; None: no ceiling.
    """

    notebook_milli: int = 0
    training_milli: int = 0
    limit_milli: int | None = None
    weight: int = 1
    user_notebook_milli: int | None = None
    user_jobs_milli: int | None = None


NO_AMOUNTS = Amounts(limit_milli=0, weight=0)
"""The amounts of a project or department in a pool that it does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """A group of projects with quotas of its own. ``amounts`` is by pool name."""

    name: str
    priority: int = 50
    amounts: Mapping[str, Amounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """An owner of quota. ``amounts`` is by pool name; a pool that is missing gives nothing there.

    ``department`` is named by every project where the policy has departments, and by none where it has not.
    """

    name: str
    priority: int = 50
    amounts: Mapping[str, Amounts] = field(default_factory=dict)
    department: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Amounts of one project or department (``owner``) in one pool while a window is open; None changes nothing."""

    owner: str
    pool: str
    department: bool = False
    notebook_milli: int | None = None
    training_milli: int | None = None
    limit_milli: int | None = None
    weight: int | None = None
    user_notebook_milli: int | None = None
    user_jobs_milli: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One opening of a calendar window, as instants: open from ``begins_at`` up to, not including, ``ends_at``.

    Of two that are open and change the same amount the later one in the policy's order wins.
    """

    name: str
    begins_at: int
    ends_at: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The weight of past use in dividing the surplus. ``k_milli`` is thousandths, 0 turns it off."""

    k_milli: int = 0
    half_life_s: int = 172_800
    window_s: int = 604_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The past use of a project in a pool, decayed by the half-life: milli-GPU times seconds above its quota."""

    project: str
    pool: str
    milli_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPolicy:
    """Protections of running work: durations in seconds, at most ``max_pauses`` per ``per_s`` and job."""

    min_runtime_s: int = 600
    grace_s: int = 60
    lent_grace_s: int = 10
    max_pauses: int = 4
    per_s: int = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """Whether the slices of idle notebooks are lent, and after how long a lent one returns to its project's quota."""

    enabled: bool = False
    release_after_s: int = 7_200


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One revision of the quota file. ``within_project``: users_in_turn or first_come.

    From ``drain_by_at`` on, non-preemptible work above its quota is stopped; None: it ends by itself. A job that has
    waited for ``patience_s`` and never started is not overtaken by younger jobs of its project.
    """

    revision: int
    pools: tuple[str, ...] = ()
    projects: tuple[Project, ...] = ()
    preemption: PreemptionPolicy = PreemptionPolicy()
    within_project: str = "users_in_turn"
    departments: tuple[Department, ...] = ()
    windows: tuple[Window, ...] = ()
    history: History = History()
    drain_by_at: int | None = None
    lending: Lending = Lending()
    patience_s: int = 86_400


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training workload that has not ended: 1..n ranks, each of ``gpu_milli``.

    ``gpu_milli`` is 1..1000 on one device, or whole thousands for several devices of one node.
    ``submitted_at`` is the first submit time and survives every pause. ``checkpoint_at`` is when the job last
    saved, None when it never did. ``paused_at`` holds the instants of the pauses that count against
    ``max_pauses``. ``borrower``: it runs on unused notebook quota and stops within ``lent_grace_s``.
    ``paused_for``: the preemptor, while it stops and while it is paused.
    ``min_ranks``: an elastic job runs with any number of ranks from there to ``ranks``; None is not elastic.
    ``held_ranks``: how many it has now, None where it has no devices or all ranks.
    ``gpu_models``: it runs on these, on any where none is named. ``cpu_milli`` and ``memory_mib`` are what each rank
    needs of its node, 0 where that is not stated.
    """

    id: str
    project: str
    user: str
    pool: str
    gpu_milli: int
    submitted_at: int
    ranks: int = 1
    gpu_models: tuple[str, ...] = ()
    priority: int = 50
    preemptible: bool = True
    time_limit_s: int = 86_400
    state: JobState = JobState.QUEUED
    target: JobTarget = JobTarget.RUNNING
    attempt: int = 0
    started_at: int | None = None
    checkpoint_at: int | None = None
    pausing_since_at: int | None = None
    paused_for: str | None = None
    paused_at: tuple[int, ...] = ()
    borrower: bool = False
    min_ranks: int | None = None
    held_ranks: int | None = None
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def least_ranks(self) -> int:
        """The number of ranks that it needs to start."""
        return self.ranks if self.min_ranks is None else self.min_ranks

    def unsaved_ms(self, now: int) -> int:
        """How long it has run since its last checkpoint, or its start: the work that a stop without a save loses."""
        started_at = now if self.started_at is None else self.started_at
        return now - max(started_at, self.checkpoint_at or started_at)

    def ends_at(self, begins_at: int) -> int:
        """The latest end, by the time limit, of an attempt that begins at this instant."""
        return begins_at + self.time_limit_s * MS_PER_S

    @property
    def held_milli(self) -> int:
        """Its GPU while it has devices: all its ranks, or those that an elastic job runs with."""
        return self.gpu_milli * (self.held_ranks or self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """A notebook's slice, requested or booked: at most one whole device.

    ``seen_empty``: a reading showed that none of its processes has memory on the device. For a lent slice ``device`` is
    the device to which it returns, and ``lent_at`` the start of the lending; a lent slice owns no allocation.
    """

    id: str
    project: str
    user: str
    pool: str
    gpu_milli: int
    requested_at: int
    state: NotebookState = NotebookState.REQUESTED
    activity: Activity = Activity.UNKNOWN
    seen_empty: bool = False
    device: str | None = None
    lent_at: int | None = None


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A part of one rank on one device."""

    rank: int
    device: str
    gpu_milli: int
    memory_mib: int


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A placement that is owned by a workload, until its processes are seen gone."""

    id: str
    workload: str
    rank: int
    device: str
    gpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Devices reserved for a waiting workload.

    ``starts_at``: the planned start of a backfill reservation, of which each pool has at most one; None where the
    devices drain for a claim.
    """

    workload: str
    placements: tuple[Placement, ...]
    reserved_at: int
    starts_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One request per rank, and how often it was made so far; GPU 0 is work that needs none."""

    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    gpu_models: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole input of ``decide``, as it was at ``now``; ``version`` is the store's."""

    version: int
    now: int
    cluster: str = "local"
    hub: str = "local"
    nodes: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    jobs: tuple[Job, ...] = ()
    notebooks: tuple[Notebook, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    usage: tuple[Usage, ...] = ()
    demand: tuple[Demand, ...] = ()
