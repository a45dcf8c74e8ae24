"""Requests of people, the hub and the controllers: each is recorded as a whole, or answered with a Refusal.

People are ULIDs here. Instants are integers, milliseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from ...core.amounts import counted
from ...core.frozen import fast_frozen
from ...core.model import Device, Job, Node, Policy
from ...core.reasons import Reason
from .activity import KeepNotes, PostponeWarning, RecordReport, WakeNotebook
from .notifications import ChangeNotification, NewNotification, QueueJobNotifications
from .recovery import AcceptRecovery, ForgetUnknownWork, HoldDecisions

MAX_NUMBER = 2**31 - 1
"""The largest number in a request: every database can hold it."""


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The specification of a submitted job. ``gpu_asked`` is the amount as it was written ("1/3", "8GiB").

    ``bundle`` is the digest of the code, None for a live job; ``directory`` is relative to the bundle, or, live,
    a path of the submitter's home. ``secret_names`` are the variables whose values are in the secrets table.
    ``gpu_milli`` is of one rank; ``gpu_asked`` is for one node, which has ``processes`` ranks. An elastic job runs
    with ``min_ranks`` to ``ranks`` of them; None: with all. ``gpu_model`` names one model, or several with commas
    between; ``cpu_milli`` and ``memory_mib`` are of one rank, 0 where not stated. ``notify``: the events of which its
    owner is notified; None: those of the service's settings. ``data``: names of the quota file; ``data_groups``: the
    groups of the submitter by which they may be used.
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
    notify: tuple[str, ...] | None = None
    data: tuple[str, ...] = ()
    data_groups: tuple[str, ...] = ()

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models it may run on; any where none is named."""
        return tuple(self.gpu_model.split(",")) if self.gpu_model else ()

    def queued(self, job: str, user: str, at: int) -> Job:
        """The job as the core schedules it: each field that both have, from its submission at an instant (ms)."""
        same = {name: getattr(self, name) for name in SCHEDULED}
        return Job(id=job, user=user, submitted_at=at, gpu_models=self.gpu_models, **same)


SCHEDULED = [field.name for field in fields(JobSpec) if field.name in {each.name for each in fields(Job)}]
"""Fields of a specification that the core's job has too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Queue a job; the same user and idempotency key give the same job again. ``clone_of`` names its origin.

    ``sent`` is kept with the key: a digest of each field of the request before the quota file completed it.
    Refused as ``queue_full`` where the user has ``most_waiting`` jobs that are queued, paused or held; None: no limit.
    """

    job: str
    user: str
    account: str | None
    spec: JobSpec
    secrets: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    sent: Mapping[str, str] = field(default_factory=dict)
    clone_of: str | None = None
    most_waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJob:
    """Hold, release or cancel a job. Repeating a change that is already so changes nothing.

    ``why``: the reason of a hold that no person requested.
    """

    job: str
    actor: str
    change: str  # hold | release | cancel
    why: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOutputs:
    """Remove the outputs of a job that has ended; repeating it changes nothing."""

    job: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsExpired:
    """The outputs of a job were removed after the time for which its project keeps them."""

    job: str
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNotebook:
    """Request a notebook's slice. ``server`` is the hub's server name ("" for the default server).

    A user's server has at most one slice: an earlier live one of the same user and server ends first.
    ``token_digest``: the SHA-256 of the token that this start of the server has; empty if it is not known.
    """

    notebook: str
    user: str
    server: str
    project: str
    pool: str
    gpu_milli: int
    token_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnNotebook:
    """Return a slice; repeating it changes nothing. ``why`` goes to the audit."""

    notebook: str
    actor: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSliceAgain:
    """Request a released slice again for a server that still runs; a live slice is left unchanged.

    Refused for a slice whose server ended.
    """

    notebook: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIdleState:
    """Store the classification of a notebook and its idle state, as ``core.idle.state_document`` writes it.

    ``activity`` is busy, idle or unknown; ``seen_empty``: a reading showed that nothing of it is on its device.
    ``event`` and ``why`` go to the audit; without an event nothing is audited. ``notifications`` are queued in the same
    transaction.
    Refused as ``stale`` where the notebook's state is not ``expected`` any more: a person or their server changed it.
    None: any state. Refused for a slice that has ended.
    """

    notebook: str
    activity: str
    seen_empty: bool
    state: Mapping[str, object]
    actor: str = "system:idle"
    event: str | None = None
    why: str = ""
    notifications: tuple[NewNotification, ...] = ()
    expected: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMemoryEnforcement:
    """Warn a notebook or stop its server: ``over_share``: it uses more than its share; ``too_weak``: its enforcement is
    weaker than the policy requires; ``stopped``: its server is to be stopped.

    ``why`` of a stop is stored with the notebook before the hub stops the server; the same stop again changes nothing.
    ``notifications`` are queued in the same transaction. Refused for a slice that has ended.
    """

    notebook: str
    actor: str
    event: Literal["over_share", "too_weak", "stopped"]
    why: Reason
    notifications: tuple[NewNotification, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationLabel:
    """How one allocation is enforced, as it was read back at an instant.

    ``memory`` and ``compute`` are of ``core.enforcement.levels.EnforcementLevel``; ``why``: why none is higher.
    """

    allocation: str
    memory: str
    compute: str
    why: str
    read_at: int

    @property
    def content(self) -> tuple[str, str, str]:
        """The label without the instant at which it was read."""
        return self.memory, self.compute, self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEnforcementLabels:
    """Labels that were read back; the audit has their changes. Those of released allocations are ignored."""

    labels: tuple[AllocationLabel, ...]
    actor: str = "system:enforcement"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyQuota:
    """Put a quota file in force as the next revision.

    Refused unless ``expected_revision`` is the present one (None: whatever it is), and if work in what it removes
    changed after version ``checked`` of the store: ``removed`` has the names of projects and pools that it removes.
    """

    actor: str
    text: str
    document: Mapping[str, object]
    policy: Policy
    expected_revision: int | None
    comment: str = ""
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checked: int = 0

    def why_stale(self, present: int) -> str | None:
        """Why it is stale while revision ``present`` is in force; None if it is not."""
        if self.expected_revision in (None, present):
            return None
        return (
            f"The quota edit was made on revision {self.expected_revision}, but revision {present} is in force;"
            f" export revision {present}, make the edit there and apply again."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInventory:
    """The present nodes and devices; devices that it does not name become unhealthy and stay.

    Cordons and drains of an admin stay in force.
    """

    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGone:
    """Remove a device that is gone, or a node that is gone with its devices; refused while work holds one of them."""

    actor: str
    node: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetGone:
    """Remove the nodes and devices that are gone since before an instant, but those that work holds."""

    gone_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNode:
    """Cordon, uncordon or drain a node. Repeating a change that is already so changes nothing.

    ``drain_by_at``: from then on, work that is not preemptible is stopped too; None: never.
    """

    node: str
    actor: str
    change: str  # cordon | uncordon | drain
    drain_by_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBundle:
    """Record that this user stored a bundle on disk."""

    digest: str
    user: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetBundles:
    """Remove the records of bundles that are no longer on disk, each by its digest and user.

    A bundle that was stored again at ``kept_before`` or later keeps its record.
    """

    bundles: tuple[tuple[str, str], ...]
    kept_before: int


Request = (
    SubmitJob
    | ChangeJob
    | RemoveOutputs
    | OutputsExpired
    | RequestNotebook
    | ReturnNotebook
    | RequestSliceAgain
    | RecordIdleState
    | RecordMemoryEnforcement
    | RecordEnforcementLabels
    | RecordReport
    | PostponeWarning
    | WakeNotebook
    | KeepNotes
    | ChangeNotification
    | QueueJobNotifications
    | ApplyQuota
    | SetInventory
    | ChangeNode
    | RemoveGone
    | ForgetGone
    | KeepBundle
    | ForgetBundles
    | HoldDecisions
    | AcceptRecovery
    | ForgetUnknownWork
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The request is stored, at this version. ``id``: the job, notebook, revision or digest; ``existed``: as before."""

    id: str
    version: int
    existed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Nothing was stored. ``code`` is a short word for programs, ``message`` a sentence for people."""

    code: str
    message: str


def queue_full(user: str, waiting: int, most: int) -> Refusal | None:
    """The refusal of one more job of a user who has so many that wait; None below the limit."""
    if waiting < most:
        return None
    message = (
        f"{user} has {counted(waiting, 'job')} queued, paused or held, and {most} is the limit for one user; cancel"
        " some, or submit again when some have started. Nothing was stored."
    )
    return Refusal(code="queue_full", message=message)


class Refused(Exception):
    """Raised while a request is recorded: it is refused, and changes nothing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message)

    @classmethod
    def unknown(cls, kind: str, id: str) -> Refused:
        """The refusal of a request on something that is not there."""
        return cls("unknown", f"There is no {kind} {id}; it was never recorded, or retention removed it.")
