"""What every store can do, and the records that go in and come out.

People are ULIDs here; their names stand in one side table. Instants are integers, milliseconds since 1970 UTC.
Each mutable record carries ``changed``: the store's version at which it last changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ..core.activity import ProcessUse
from ..core.facts import Fact
from ..core.model import (
    Allocation,
    Device,
    Job,
    JobState,
    Node,
    Notebook,
    NotebookState,
    Policy,
    Reservation,
)
from ..core.plan import Plan, Reason
from .notices import ChangeNotice, NewNotice, NoticeRecord
from .pieces import Piece


# --- what people and the hub ask for: each is recorded whole, or answered with a Refusal -------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What was submitted, as it was charged. ``gpu_asked`` is the text the person wrote ("1/3", "8GiB").

    ``bundle`` is the digest of the code, None for a live job; ``directory`` is relative to the bundle, or, live,
    a path of the submitter's home. ``secret_names`` are the variables whose values stand in the secrets table.
    ``gpu_milli`` is of one rank; ``gpu_asked`` is for one node, which has ``processes`` ranks. An elastic job runs
    with ``min_ranks`` to ``ranks`` of them; None: with all. ``gpu_model`` names one model, or several with commas
    between; ``cpu_milli`` and ``memory_mib`` are of one rank, 0 where not stated.
    """

    command: tuple[str, ...]
    project: str
    pool: str
    gpu_asked: str
    gpu_milli: int
    name: str
    ranks: int = 1
    min_ranks: int | None = None
    processes: int = 1
    gpu_model: str | None = None
    priority: int = 50
    preemptible: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    environment: str | None = None
    directory: str = "."
    live: bool = False
    bundle: str | None = None
    time_limit_s: int = 86_400
    retries: int = 0
    private: bool = False
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models it may run on; any where none is named."""
        return tuple(self.gpu_model.split(",")) if self.gpu_model else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Queue a job; the same user and idempotency key give the same job again. ``clone_of`` names its origin.

    Refused as ``queue_full`` where the user has ``most_waiting`` jobs that are queued, paused or held; None: no limit.
    """

    job: str
    user: str
    account: str | None
    spec: JobSpec
    secrets: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    clone_of: str | None = None
    most_waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJob:
    """Hold, release or cancel a job. Repeating a change that is already so changes nothing.

    ``why``: for what a job is held, where that is no person's wish.
    """

    job: str
    actor: str
    change: str  # hold | release | cancel
    why: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNotebook:
    """Ask for a notebook's slice. ``server`` is the hub's server name ("" for the default server).

    A user's server holds at most one slice: an earlier live one of the same user and server is returned first.
    """

    notebook: str
    user: str
    server: str
    project: str
    pool: str
    gpu_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnNotebook:
    """Give a slice back; repeating it changes nothing. ``why`` is kept in the audit."""

    notebook: str
    actor: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAgain:
    """Ask again for a slice that was released while its server ran on; one that is live is left as it is.

    Refused for a slice whose server ended.
    """

    notebook: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeNotebook:
    """How a notebook's use was judged, and what is under way: the stage as ``core.stages.to_document`` writes it.

    ``activity`` is busy, idle or unknown; ``seen_empty``: a reading showed that nothing of it is on its device.
    ``turn`` and ``why`` are kept in the audit where something happened; ``notices`` are queued with it, all or none.
    A slice that has ended is left alone.
    """

    notebook: str
    activity: str
    seen_empty: bool
    stage: Mapping[str, object]
    actor: str = "system:idle"
    turn: str | None = None
    why: str = ""
    notices: tuple[NewNotice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliceNotebook:
    """A notebook does not keep to its share: it is warned (``over_share``; ``too_weak``: the share is held by
    less than the policy accepts), or its server is to be ``stopped``.

    ``why`` of a stop stays with the notebook, and is stored before the hub is asked to; the same stop again changes
    nothing. ``notices`` are queued with it, all or none. Refused for a slice that has ended.
    """

    notebook: str
    actor: str
    turn: Literal["over_share", "too_weak", "stopped"]
    why: Reason
    notices: tuple[NewNotice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLabel:
    """How the share of one allocation is held, as was read back at an instant.

    ``memory`` and ``compute`` are words of ``enforcement.protocol.Strength``; ``why``: why by nothing stronger.
    """

    allocation: str
    memory: str
    compute: str
    why: str
    read_at: int

    @property
    def says(self) -> tuple[str, str, str]:
        """What is told, whenever it was read."""
        return self.memory, self.compute, self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelShares:
    """What was read back of shares; where a label changed, the audit says so. Shares that are over are left alone."""

    labels: tuple[ShareLabel, ...]
    actor: str = "system:enforcement"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyQuota:
    """Put a quota file in force as the next revision.

    Refused unless ``expected_revision`` is the present one (None: whatever it is).
    """

    actor: str
    text: str
    document: Mapping[str, object]
    policy: Policy
    expected_revision: int | None
    comment: str = ""

    def why_stale(self, present: int) -> str | None:
        """Why it is refused while revision ``present`` is in force; None if it is not for that."""
        if self.expected_revision in (None, present):
            return None
        return (
            f"The quota edit was made on revision {self.expected_revision}, but revision {present} is in force;"
            f" export revision {present}, make the edit there and apply again."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInventory:
    """The nodes and devices that are there now; devices not named any more become unhealthy, never vanish.

    What an admin said of a node is kept, whatever is said of it here.
    """

    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNode:
    """Cordon, uncordon or drain a node. Repeating a change that is already so changes nothing.

    ``drain_by_at``: from then on work that may not be preempted leaves too; None: it drains by itself.
    """

    node: str
    actor: str
    change: str  # cordon | uncordon | drain
    drain_by_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBundle:
    """A bundle was put in place on disk by this user."""

    digest: str
    user: str
    size_bytes: int


Request = (
    SubmitJob
    | ChangeJob
    | RequestNotebook
    | ReturnNotebook
    | AskAgain
    | JudgeNotebook
    | PoliceNotebook
    | LabelShares
    | ChangeNotice
    | ApplyQuota
    | SetInventory
    | ChangeNode
    | KeepBundle
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """It is on disk, at this version. ``id`` is of the job, notebook, revision or digest; ``existed``: it was there."""

    id: str
    version: int
    existed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Nothing was stored. ``code`` is a short word for programs, ``message`` a sentence for people."""

    code: str
    message: str


# --- records ------------------------------------------------------------------------------------------------------
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


# --- the lease and the commit -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to decide until ``expires_at``; ``fencing`` grows with every holder and goes with every order."""

    holder: str
    fencing: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Nothing was written: something the plan rests on changed after the snapshot, or the lease was lost."""

    seen: int
    current: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A window on a listing, newest first."""

    offset: int = 0
    limit: int = 100


FIRST_PAGE = Page()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list. ``projects`` None means all; ``user`` narrows to one owner; ``live`` to unfinished ones.

    ``reader`` sees every job of their own, those of the projects in ``member_of`` (None: of all) that are not private,
    and private ones of the projects in ``led``.
    """

    projects: tuple[str, ...] | None = None
    user: str | None = None
    live: bool = False
    states: tuple[JobState, ...] = ()
    reader: str | None = None
    member_of: tuple[str, ...] | None = None
    led: tuple[str, ...] = ()


class StoreUnavailable(Exception):
    """The database cannot be used now (full, locked, read-only, gone). Nothing of this call was written."""


class Store(Protocol):
    """One door to the database. Every call is one transaction; every call may raise StoreUnavailable."""

    def version(self) -> int: ...

    def record(self, requests: Sequence[Request], *, now: int) -> list[Recorded | Refusal]:
        """Record requests in order, in one transaction; each stands or falls by itself."""

    def changes(self, since: int, *, ended: bool = True) -> Changes:
        """What changed after a version; from 0, everything (``ended`` False: only what has not ended).

        From 0 nothing is told of allocations released and reservations dropped before.
        """

    def acquire_lease(self, holder: str, *, now: int, ttl_ms: int) -> Lease | None:
        """Take or renew the lease; None while another holder's has not expired. A new holder gets a higher fencing."""

    def release_lease(self, lease: Lease) -> None: ...

    def lease(self) -> Lease | None:
        """The lease as it was last taken, over or not; None where nobody holds one."""

    def commit(
        self, plan: Plan | Piece, *, policy: Policy, snapshot_digest: str, lease: Lease, now: int
    ) -> Committed | Stale:
        """Write a whole plan, or one whole piece of it, or nothing.

        Stale if the lease is lost, a row the plan names changed after ``plan.seen_version``, the quota revision
        is not ``policy.revision``, or a device would carry more than it has (allocations of draining work count).
        """

    def observe(self, facts: Sequence[Fact], *, lease: Lease, now: int) -> int | Stale:
        """Record what was seen; applies the lifecycle, frees allocations of ended attempts. Returns the version."""

    def user_id(self, name: str, *, now: int) -> str:
        """The ULID of a person, made at first sight."""

    def user_names(self, ids: Sequence[str]) -> dict[str, str]: ...

    def erase_name(self, user: str, *, actor: str, now: int) -> bool:
        """Forget a person's name; their id stays in records and audit. False if there is no name to erase."""

    def job(self, job: str) -> JobRecord | None: ...

    def jobs(self, which: JobFilter, page: Page) -> tuple[list[JobRecord], int]: ...

    def ranks(self, job: str) -> list[RankRecord]: ...

    def holdings(self, since: int, *, ended_after: int) -> tuple[int, list[Holding]]:
        """The version, and what jobs hold and held, in any order: from 0 that which ended after an instant, or not yet.

        From another version on, whatever began or ended since. What retention removed is not told.
        """

    def secrets(self, job: str) -> dict[str, str]: ...

    def notebook(self, notebook: str) -> NotebookRecord | None: ...

    def notebooks(
        self, *, states: Sequence[NotebookState] = (), ended_since: int | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[NotebookRecord], int]:
        """Slices in every state, newest first, and how many there are; ``ended_since``: that ended then or later."""

    def notices(
        self, channel: str, *, pending: bool = False, page: Page = FIRST_PAGE
    ) -> tuple[list[NoticeRecord], int]:
        """The messages of one channel, newest first, and how many there are; ``pending``: those not ended."""

    def bundle_owned(self, digest: str, user: str) -> bool: ...

    def bundles_of(self, user: str) -> dict[str, int]:
        """Every bundle that this user ever put here, and its size in bytes; some may have been swept since."""

    def bundles_in_use(self) -> set[str]:
        """Digests that a kept job still names; others may be swept."""

    def quota(self) -> QuotaRevision | None: ...

    def quota_revisions(self, page: Page) -> tuple[list[QuotaRevision], int]: ...

    def audit(
        self, *, since: int | None = None, projects: Sequence[str] | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[AuditRow], int]: ...

    def audit_verify(self) -> int | str:
        """The number of rows when the chain holds, else a sentence naming the first row that does not."""

    def add_samples(self, node: str, sequence: int, rows: Sequence[SampleRow], *, now: int) -> bool:
        """Ingest one batch; False if this node's sequence number was seen already. Own tables, own transaction."""

    def latest_samples(self) -> dict[str, SampleRow]: ...

    def usage(self, begin: int, end: int, *, now: int) -> list[UsageHour]:
        """Every hour that begins in [begin, end), by workload and device, in any order; both are whole hours.

        The hour of ``now`` is told as far as it went.
        """

    def labels(self, allocations: Sequence[str]) -> dict[str, ShareLabel]:
        """How shares were found to be held, by allocation; those that nobody looked at yet are left out."""

    def forget(self, *, jobs_ended_before: int, samples_before: int, usage_before: int = 0) -> list[str]:
        """Retention: drops old jobs' rows, samples and hours of use; returns the ids of the jobs. Audit rows stay.

        At most 1,000 jobs at a time: call again while it returns that many.
        """

    def close(self) -> None: ...
