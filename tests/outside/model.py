"""The records of a world, and what a check reads: a state of the cluster in own dataclasses.

Amounts are thousandths of a GPU (milli) and MiB, instants are milliseconds since 1970, durations seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field

WHOLE = 1000
MIB_OF_A_DEVICE = 80_000
ENDLESS_S = 30 * 86400


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of one device that one rank has."""

    rank: int
    device: str
    gpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What a project or department has in a pool."""

    training: int = 0
    notebook: int = 0
    limit: int | None = None
    weight: int = 1
    user_jobs: int | None = None
    user_notebooks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A project, or a department."""

    name: str
    amounts: dict[str, Amounts]
    priority: int = 50
    department: str | None = None

    def of(self, pool: str) -> Amounts:
        return self.amounts.get(pool, NOTHING)


NOTHING = Amounts(weight=0, limit=0)
"""A pool that a project does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The amounts and durations that the quota file gives."""

    pools: tuple[str, ...]
    projects: dict[str, Owner]
    departments: dict[str, Owner] = field(default_factory=dict)
    grace_s: int = 1
    lent_grace_s: int = 1
    max_pauses: int = 1_000_000
    min_runtime_s: int = 0
    per_s: int = 86400
    half_life_s: int = 172_800
    k_milli: int = 0
    lending: bool = False
    release_after_s: int = 7200
    patience_s: int = 86400
    within_project: str = "first_come"
    drain_by_at: int | None = None

    def project(self, name: str) -> Owner:
        """A project of the file; one that was taken out has quota 0 and weight 0 everywhere (R68)."""
        return self.projects.get(name) or Owner(name=name, amounts={})

    def is_gone(self, name: str) -> bool:
        return name not in self.projects


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU on its node."""

    id: str
    node: str
    pool: str
    health: str = "healthy"
    foreign: int = 0
    model: str = "X"
    memory_mib: int = MIB_OF_A_DEVICE
    upkeep: str = "none"
    """Of its node: none, cordoned or draining."""
    drain_by_at: int | None = None
    """When what may not be preempted is to leave the node."""
    reported: bool = True

    @property
    def healthy(self) -> bool:
        """Whether it takes work (R69, R70)."""
        return self.health == "healthy" and self.reported and self.upkeep == "none"

    @property
    def quarantined(self) -> bool:
        """Whether it takes work again once the work there is gone (R58)."""
        return self.health == "quarantined" and self.reported and self.upkeep == "none"

    @property
    def loses_work(self) -> bool:
        """Whether what may be preempted has to leave it."""
        return self.health == "unhealthy" or self.upkeep == "draining"


@dataclass(slots=True, kw_only=True)
class Job:
    """A job as the snapshot shows it."""

    id: str
    project: str
    gpu_milli: int
    pool: str = "gpu"
    user: str = "u"
    ranks: int = 1
    min_ranks: int | None = None
    priority: int = 50
    preemptible: bool = True
    time_limit_s: int = ENDLESS_S
    submitted_at: int = 0
    state: str = "queued"
    target: str = "running"
    attempt: int = 0
    started_at: int | None = None
    checkpoint_at: int | None = None
    pausing_since_at: int | None = None
    paused_at: tuple[int, ...] = ()
    paused_for: str | None = None
    borrower: bool = False
    held_ranks: int | None = None
    gpu_models: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def least(self) -> int:
        """The ranks that it needs to start."""
        return self.ranks if self.min_ranks is None else self.min_ranks

    @property
    def milli(self) -> int:
        """The amount that it needs to start."""
        return self.least * self.gpu_milli

    @property
    def needs_host(self) -> bool:
        """Whether it requests CPU or memory beside its GPUs (R73)."""
        return self.cpu_milli > 0 or self.memory_mib > 0

    @property
    def waits(self) -> bool:
        return self.state in ("queued", "paused") and self.target == "running"

    @property
    def leaves(self) -> bool:
        """Whether it has devices and is being stopped."""
        return self.state == "pausing"

    @property
    def runs(self) -> bool:
        return self.state in ("running", "starting")


@dataclass(slots=True, kw_only=True)
class Notebook:
    """A notebook's slice."""

    id: str
    project: str
    gpu_milli: int
    pool: str = "gpu"
    user: str = "u"
    state: str = "requested"
    activity: str = "busy"
    seen_empty: bool = False
    device: str | None = None
    lent_at: int | None = None
    requested_at: int = 0

    @property
    def woken(self) -> bool:
        return self.state == "lent" and self.activity != "idle"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that are reserved for a workload: by a claim, or as a backfill reservation, which has a planned start."""

    workload: str
    placements: tuple[Placement, ...]
    reserved_at: int = 0
    starts_at: int | None = None

    @property
    def planned_start(self) -> int:
        """When the job of a backfill reservation is to start."""
        assert self.starts_at is not None, "only a backfill reservation has a planned start"
        return self.starts_at


@dataclass(slots=True, kw_only=True)
class State:
    """All that a snapshot says."""

    policy: Policy
    devices: dict[str, Device]
    jobs: dict[str, Job] = field(default_factory=dict)
    notebooks: dict[str, Notebook] = field(default_factory=dict)
    held: dict[str, tuple[Placement, ...]] = field(default_factory=dict)
    """The placements of each workload that has devices."""
    reserved: dict[str, Reservation] = field(default_factory=dict)
    """The devices that each claim waits for, by workload."""
    backfill: dict[str, Reservation] = field(default_factory=dict)
    """The recorded backfill reservation of each pool."""
    usage: dict[tuple[str, str], int] = field(default_factory=dict)
    """Past use above quota by (project, pool), in milli-seconds of GPU."""
    now: int = 0
    version: int = 1

    def copy(self) -> State:
        return State(
            policy=self.policy,
            devices=self.devices,
            jobs={name: copy(job) for name, job in self.jobs.items()},
            notebooks={name: copy(one) for name, one in self.notebooks.items()},
            held=dict(self.held),
            reserved=dict(self.reserved),
            backfill=dict(self.backfill),
            usage=dict(self.usage),
            now=self.now,
            version=self.version,
        )

    def in_pool(self, pool: str) -> Iterator[Job]:
        return (job for job in self.jobs.values() if job.pool == pool)

    def slices(self, pool: str) -> Iterator[Notebook]:
        return (one for one in self.notebooks.values() if one.pool == pool)

    def healthy(self, pool: str) -> list[Device]:
        return [one for one in self.devices.values() if one.pool == pool and one.healthy]

    def is_lost(self, kept: Reservation) -> bool:
        """Whether a claim's reservation ends before the plan is made: a device of it is out of use (R25)."""
        out = [self.devices[one.device] for one in kept.placements if not self.devices[one.device].healthy]
        return bool(out) and not (all(one.quarantined for one in out) and self._is_kept(kept))

    def _is_kept(self, kept: Reservation) -> bool:
        """R25: whether a reservation stays although devices of it are quarantined."""
        job = self.jobs.get(kept.workload)
        several = len({one.device for one in kept.placements}) > 1
        return job is not None and (several or job.leaves) and self.now < self.kept_until(kept)

    def kept_until(self, kept: Reservation) -> int:
        """Ten times the time to die (R58) after it was made."""
        return kept.reserved_at + 10_000 * (max(self.policy.grace_s, self.policy.lent_grace_s) + 10)

    def held_milli(self, workload: str) -> int:
        return total(self.held.get(workload, ()))

    def waiting(self, pool: str) -> list[Job]:
        return [job for job in self.in_pool(pool) if job.waits]


def total(placements: Iterable[Placement]) -> int:
    """The sum of placements, in milli."""
    return sum(one.gpu_milli for one in placements)


def by_device(placements: Iterable[Placement]) -> Counter[str]:
    """The sum of placements of each device, in milli."""
    found = Counter[str]()
    for one in placements:
        found[one.device] += one.gpu_milli
    return found


def ranks_of(placements: Iterable[Placement]) -> int:
    return len({one.rank for one in placements})


def is_protected(job: Job, state: State) -> bool:
    """Whether a running job is before its minimum run time, or has used up its pauses (R53)."""
    policy = state.policy
    young = job.started_at is not None and state.now < job.started_at + policy.min_runtime_s * 1000
    return young or used_up(job, state)


def used_up(job: Job, state: State) -> bool:
    """Whether a job has been paused ``max_pauses`` times within the window; a waiting one at least once."""
    since = state.now - state.policy.per_s * 1000
    most = state.policy.max_pauses or (1 if job.waits else 0)
    return sum(1 for at in job.paused_at if at > since) >= most
