"""What people and the hub ask of a store: each is recorded whole, or answered with a Refusal.

People are ULIDs here. Instants are integers, milliseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...core.frozen import fast_frozen
from ...core.model import Device, Job, Node, Policy
from ...core.reasons import Reason
from .activity import KeepNotes, PostponeWarning, RecordReport, WakeNotebook
from .notifications import ChangeNotification, NewNotification


@fast_frozen
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

    def queued(self, job: str, user: str, at: int) -> Job:
        """What the core sees of it once it is submitted."""
        return Job(
            id=job,
            project=self.project,
            user=user,
            pool=self.pool,
            gpu_milli=self.gpu_milli,
            submitted_at=at,
            ranks=self.ranks,
            min_ranks=self.min_ranks,
            gpu_models=self.gpu_models,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
            priority=self.priority,
            preemptible=self.preemptible,
            time_limit_s=self.time_limit_s,
        )


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
class RequestSliceAgain:
    """Ask again for a slice that was released while its server ran on; one that is live is left as it is.

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
    None: whatever it is. A slice that has ended is left alone.
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
    """A notebook does not keep to its share: it is warned (``over_share``; ``too_weak``: the share is held by
    less than the policy accepts), or its server is to be ``stopped``.

    ``why`` of a stop stays with the notebook, and is stored before the hub is asked to; the same stop again changes
    nothing. ``notifications`` are queued in the same transaction. Refused for a slice that has ended.
    """

    notebook: str
    actor: str
    event: Literal["over_share", "too_weak", "stopped"]
    why: Reason
    notifications: tuple[NewNotification, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationLabel:
    """How the share of one allocation is held, as was read back at an instant.

    ``memory`` and ``compute`` are words of ``core.enforcement.EnforcementLevel``; ``why``: why by nothing stronger.
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
class RecordEnforcementLabels:
    """What was read back of shares; where a label changed, the audit says so. Shares that are over are left alone."""

    labels: tuple[AllocationLabel, ...]
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
    | RequestSliceAgain
    | RecordIdleState
    | RecordMemoryEnforcement
    | RecordEnforcementLabels
    | RecordReport
    | PostponeWarning
    | WakeNotebook
    | KeepNotes
    | ChangeNotification
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
