"""The records that a store keeps.

People are ULIDs here; their names stand in one side table. Instants are integers, milliseconds since 1970 UTC. Each
mutable record carries ``changed``: the store's version at which it last changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...core.frozen import quickly_made
from ...core.idle.activity import ProcessUse
from ...core.model import Allocation, Device, Job, Node, Notebook, Policy, Reservation
from ...core.plan import Reason
from .commands import JobSpec


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What is known of one rank of one attempt; ``fencing`` is that of the leader that started it."""

    job: str
    attempt: int
    rank: int
    node: str
    pid: int | None
    pid_started: int | None
    started_at: int | None
    ended_at: int | None
    exit_status: int | None
    fencing: int = 0


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job in every state, ended ones included. ``job`` is what the core sees of it."""

    job: Job
    spec: JobSpec
    account: str | None
    reason: Reason | None
    retries_left: int
    ended_at: int | None
    exit_status: int | None
    done: int | None
    total: int | None
    metrics: Mapping[str, float]
    clone_of: str | None
    pauses: int
    changed: int
    cluster: str = "local"
    hub: str = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRecord:
    """A notebook's slice in every state. ``stage``: where it is on the idle ladder, None before it was judged."""

    notebook: Notebook
    server: str
    reason: Reason | None
    booked_at: int | None
    ended_at: int | None
    changed: int
    cluster: str = "local"
    hub: str = "local"
    stage: Mapping[str, object] | None = None


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


@quickly_made
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One reading of one device; None is unknown. ``coverage`` is the part of expected readings seen, in permille.

    ``workloads`` is the percentage that each holder used, ``workload_memory_mib`` what it held; ``foreign_mib`` is held
    by processes of nobody of ours. ``processes`` are those of each holder of which all are known; a holder that is not
    there may have others. They are kept with the newest reading only. ``why`` has a sentence for each figure, and for
    each holder, that is unknown.
    """

    node: str
    device: str
    at: int
    utilisation_percent: int | None
    memory_used_mib: int | None
    coverage_permille: int | None
    simulated: bool
    workloads: Mapping[str, int | None] = field(default_factory=dict)
    workload_memory_mib: Mapping[str, int | None] = field(default_factory=dict)
    processes: Mapping[str, tuple[ProcessUse, ...]] = field(default_factory=dict)
    foreign_mib: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    why: Mapping[str, str] = field(default_factory=dict)


class UsageHour(NamedTuple):
    """What one workload had and used of one device within one hour, which begins at ``hour_at``.

    ``used_milli_s`` is milli-GPU times seconds, by readings that speak for ``seen_s`` of the ``allocated_s`` seconds.
    """

    hour_at: int
    workload: str
    device: str
    user: str
    project: str
    pool: str
    allocated_milli_s: int
    allocated_s: int
    used_milli_s: int
    seen_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed since a version: the whole present rows of everything touched, ended ones included."""

    version: int
    jobs: tuple[JobRecord, ...]
    notebooks: tuple[NotebookRecord, ...]
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    allocations: tuple[Allocation, ...]
    released: tuple[str, ...]
    reservations: tuple[Reservation, ...]
    unreserved: tuple[str, ...]
    quota: QuotaRevision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A part of a device that an attempt of a job held, from when until when; None: it does still."""

    id: str
    project: str
    pool: str
    gpu_milli: int
    began_at: int
    ended_at: int | None
