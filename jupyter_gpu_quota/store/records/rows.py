"""The records that a store keeps.

People are ULIDs here; their names stand in one side table. Instants are integers, milliseconds since 1970 UTC. Each
mutable record carries ``changed``: the store's version at which it last changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...core.frozen import fast_frozen
from ...core.model import Allocation, Device, Job, Node, Notebook, Policy, Reservation
from ...core.reasons import Reason
from .commands import JobSpec


@fast_frozen
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


@fast_frozen
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
    """A notebook's slice in every state. ``idle_state``: None before the first classification."""

    notebook: Notebook
    server: str
    reason: Reason | None
    booked_at: int | None
    ended_at: int | None
    changed: int
    cluster: str = "local"
    hub: str = "local"
    idle_state: Mapping[str, object] | None = None


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
