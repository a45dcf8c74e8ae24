"""The JSON of the REST API, as pydantic models of the service and the client.

Amounts are integers (milli-GPU, MiB); instants are ISO-8601 with Z. Unknown keys are refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from .reason_schema import reasons_schema

Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ @+-]*$")]
Models = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ @+,-]*$")]
"""One or several device models, separated by commas."""
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NoNul = r"^[^\x00]*$"
Argument = Annotated[str, StringConstraints(max_length=32_768, pattern=NoNul)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Priority = Annotated[int, Field(strict=True, ge=0, le=100)]
Gpu = Annotated[str, StringConstraints(min_length=1, max_length=32)]
Duration = Annotated[str, StringConstraints(max_length=32)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NoNul)]
LARGEST_TEXT = 65_536
"""Characters of a job's command, variables and secrets together."""

SHOWN = 40
"""Characters of a wrong command in the message."""

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Wire(BaseModel):
    """The base of every message: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobRequest(Wire):
    """``POST jobs``. ``gpu`` is per node: "0.5", "1/3", "2" or "8GiB"; a node's ``processes`` share it evenly.

    ``cpu_milli`` and ``memory_mib`` are per node too; 0 is the GPU's part of its node. ``gpu_model`` is one or several,
    separated by commas. The job has ``nodes`` x ``processes`` ranks, each with devices on one node. With ``min_nodes``
    it is elastic: it runs with the ranks of at least so many nodes, and with more if GPUs are idle.

    ``project`` and ``pool`` default to the user's only or default ones. ``time_limit`` is seconds or "90m", "24h".
    ``idempotency_key`` may also be the header ``Idempotency-Key``.
    """

    command: Annotated[list[Argument], Field(min_length=1, max_length=1000)]
    gpu: Gpu = "1"
    project: Name | None = None
    pool: Name | None = None
    gpu_model: Models | None = None
    cpu_milli: Annotated[int, Field(strict=True, ge=0, le=1 << 30)] = 0
    memory_mib: Annotated[int, Field(strict=True, ge=0, le=1 << 30)] = 0
    name: Name | None = None
    priority: Priority = 50
    preemptible: Flag = True
    variables: Annotated[dict[VariableName, Argument], Field(max_length=500)] = {}
    secrets: Annotated[dict[VariableName, Argument], Field(max_length=100)] = {}
    environment: Name | None = None
    directory: Annotated[str, StringConstraints(max_length=4096)] = "."
    live: Flag = False
    bundle: Digest | None = None
    time_limit: Duration | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 0
    private: Flag = False
    nodes: Count = 1
    processes: Count = 1
    min_nodes: Count | None = None
    idempotency_key: IdempotencyKey | None = None
    dry_run: Flag = False

    @field_validator("command", mode="before")
    @classmethod
    def _check_array(cls, given: object) -> object:
        """Refuse a command line as one text, since no shell splits it."""
        if isinstance(given, list | tuple):
            return given
        value = f"the text {given[:SHOWN]!r}" if isinstance(given, str) else f"{given!r:.{SHOWN}}"
        raise ValueError(f'{value} was given; it is the array of a program and its arguments: ["python", "train.py"]')

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        """Limit the size, since every queued job is in the service's memory and in listings."""
        named = (*self.variables.items(), *self.secrets.items())
        size = sum(map(len, self.command)) + sum(len(name) + len(value) for name, value in named)
        if size > LARGEST_TEXT:
            raise ValueError(f"the command, variables and secrets have {size} characters; at most {LARGEST_TEXT} fit")
        return self


def _reason_schema(schema: dict[str, Any]) -> None:
    schema.clear()
    schema.update(reasons_schema())


class ReasonView(Wire):
    """A reason: a code of :class:`core.reasons.ReasonCode`, its figures and its sentence."""

    model_config = ConfigDict(json_schema_extra=_reason_schema)

    code: str
    figures: dict[str, int | str]
    message: str


class ProgressView(Wire):
    """The progress that a job reported."""

    done: int
    total: int


class AllocationView(Wire):
    """One rank's share of one device; ``device_uuid`` is null until it is read back."""

    rank: int
    device: str
    device_uuid: str | None
    gpu_milli: int
    memory_mib: int


class RankView(Wire):
    """One rank of one attempt, with its node and its end.

    ``handle`` is the backend's name for its first process, such as a process id; null before it began.
    """

    attempt: int
    rank: int
    node: str
    handle: str | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None


class Enforcement(Wire):
    """The enforcement that was read back: hardware, driver, mps, policed, cooperative or none.

    ``why``: why it is not stronger, and present faults; null if there are none.
    """

    memory: str
    compute: str
    why: str | None = None


class JobView(Wire):
    """One job in listings and events, without values of variables and secrets.

    ``private`` jobs are visible to their owner, leads and admins. ``gpu_milli`` is of one rank. An elastic job runs
    with ``min_ranks`` to ``ranks`` ranks, at present with ``held_ranks``; both are null for other jobs. ``reason``
    explains the present state; ``paused_because`` is the cause of a pause, independent of the present reason.
    ``utilised_milli`` is the use of its devices by the newest readings; null with the cause in ``utilised_unknown`` if
    it is unknown, and null without devices.
    """

    id: str
    name: str
    project: str
    pool: str
    user: str
    state: str
    target: str
    reason: ReasonView | None
    paused_because: ReasonView | None = None
    command: list[str]
    gpu: str
    gpu_milli: int
    ranks: int
    min_ranks: int | None = None
    held_ranks: int | None = None
    gpu_model: str | None
    cpu_milli: int = 0
    memory_mib: int = 0
    priority: int
    preemptible: bool
    private: bool
    live: bool
    bundle: str | None
    directory: str
    environment: str | None
    secret_names: list[str]
    time_limit_s: int
    retries: int
    retries_left: int
    attempt: int
    pauses: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None
    progress: ProgressView | None
    metrics: dict[str, float]
    allocations: list[AllocationView]
    borrower: bool
    enforcement: Enforcement | None
    clone_of: str | None
    simulated: bool
    cluster: str
    hub: str
    utilised_milli: int | None = None
    utilised_unknown: str | None = None

    @property
    def whole_milli(self) -> int:
        """The GPU of its present ranks, or of all ranks while it does not run."""
        return self.gpu_milli * (self.held_ranks or self.ranks)


class JobDetail(JobView):
    """``GET jobs/{id}``: the job with its variables and the ranks of all attempts."""

    variables: dict[str, str]
    rank_records: list[RankView]


class NotebookRequest(Wire):
    """``POST notebooks``, only for the hub's spawner.

    ``user`` is the hub's user name, ``server`` "" for the default server.
    """

    user: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    server: Annotated[str, StringConstraints(max_length=255, pattern=NoNul)] = ""
    project: Name
    pool: Name | None = None
    gpu: Gpu


class IdleView(Wire):
    """The idle state of a notebook.

    ``verdict`` is busy, idle or unknown, with ``reason`` and ``message``; ``stage`` is the state of the countdown:
    in_use, reported, warned, freeing, freed or stopping. ``free_in_ms``: remaining time of the countdown, null without
    one. ``used_ms``: time since the last use of the GPU, null if unknown; ``keeps_left``: how often the warning can
    still be postponed. ``noticed``: the user was notified that a busy kernel does not use the GPU.
    """

    verdict: Literal["busy", "idle", "unknown"]
    reason: str
    message: str
    stage: Literal["in_use", "reported", "warned", "freeing", "freed", "stopping"]
    mode: Literal["report", "reclaim"]
    free_in_ms: int | None = None
    kernels: list[str] = []
    keeps_left: int = 0
    used_ms: int | None = None
    noticed: bool = False


class NotebookView(Wire):
    """One notebook's slice.

    ``state`` is requested, booked, lent (booked and idle), refused or returned; ``activity`` is busy, idle or unknown.
    ``idle`` is the idle state, null before the first classification. ``utilised_milli`` is the use of its slice by the
    newest reading; null with the cause in ``utilised_unknown`` if unknown.
    ``warning``: the warning of memory enforcement to a notebook that uses more memory than its share.
    """

    id: str
    user: str
    server: str
    project: str
    pool: str
    gpu_milli: int
    state: str
    reason: ReasonView | None
    requested_at: datetime
    booked_at: datetime | None
    ended_at: datetime | None
    allocations: list[AllocationView]
    activity: str
    enforcement: Enforcement | None
    simulated: bool
    cluster: str
    hub: str
    idle: IdleView | None = None
    utilised_milli: int | None = None
    utilised_unknown: str | None = None
    warning: str | None = None


class ChoiceView(Wire):
    """A project and pool in which a user may start a notebook, with the quota for its size.

    ``devices``: available devices of the pool; null from an older service. ``user_left_milli``: the user's remaining
    amount under the limits per user of project and department; null without such a limit.
    """

    project: str
    pool: str
    quota_milli: int
    used_milli: int
    device_model: str | None
    device_memory_mib: int | None
    devices: int | None = None
    user_left_milli: int | None = None


class ErrorView(Wire):
    """The body of every 4xx and 5xx answer."""

    status: int
    message: str
    reason: str


class Pagination(Wire):
    offset: int
    limit: int
    total: int


class ProjectPoolView(Wire):
    """One project or department in one pool: its quotas, its use and its fair share.

    ``in_force_training_milli`` is its training quota, reduced while the quotas do not fit the pool.
    ``fair_share_milli`` is the amount that its jobs may claim: the quota in force and its part of the surplus.
    ``utilised_milli`` is the use of its devices by the newest readings; null with the cause in ``utilised_unknown`` if
    a part of it is unknown.
    """

    pool: str
    notebook_milli: int
    training_milli: int
    limit_milli: int | None
    weight: int
    notebook_used_milli: int
    training_used_milli: int
    borrowed_milli: int
    fair_share_milli: int
    in_force_training_milli: int
    queued_jobs: int
    utilised_milli: int | None = None
    utilised_unknown: str | None = None


class DepartmentView(Wire):
    """A department with the use of all its projects."""

    name: str
    priority: int
    pools: list[ProjectPoolView]


class ProjectView(Wire):
    """A project; ``department`` is null if the quota file has none."""

    name: str
    priority: int
    pools: list[ProjectPoolView]
    role: str | None
    department: DepartmentView | None = None


class HolderView(Wire):
    """One allocation on a device; ``user`` and ``workload`` are null (``hidden``) for work of other projects.

    ``name`` is a job's; null for a notebook, for hidden work, and from an older service. ``enforcement`` is null for
    hidden work. ``utilised_milli`` is its use of the device by the newest reading; null for hidden work, and with the
    cause in ``utilised_unknown`` if unknown.
    """

    kind: Literal["notebook", "job", "hidden"]
    workload: str | None
    user: str | None
    project: str | None
    gpu_milli: int
    state: str
    name: str | None = None
    enforcement: Enforcement | None = None
    utilised_milli: int | None = None
    utilised_unknown: str | None = None


class DeviceView(Wire):
    """One device. ``trouble`` is the cause of its bad health, ``utilisation_unknown`` that of an unknown use.

    ``foreign_why`` explains foreign use. ``upkeep`` is that of its node: no new work starts while it is cordoned or
    draining.
    """

    id: str
    uuid: str | None
    node: str
    index: int
    model: str
    memory_mib: int
    pool: str | None
    health: str
    trouble: str | None = None
    upkeep: str = "none"
    simulated: bool
    foreign_milli: int
    foreign_why: str | None = None
    free_milli: int
    holders: list[HolderView]
    utilisation_percent: int | None
    utilisation_unknown: str | None = None
    memory_used_mib: int | None = None
    sampled_at: datetime | None
    cluster: str
    hub: str


class UsageView(Wire):
    """``GET usage``: allocated and used GPU of a project, user, pool, device or workload, or of an hour.

    Amounts are milli-GPU hours. ``coverage_percent`` is the part of the allocated time with readings;
    ``used_milli_h`` and ``utilisation_percent`` are of that part, and null with the cause in ``used_unknown`` without
    readings. Milli-GPU seconds are exact, where hours round small amounts to 0; null from an older service.
    """

    name: str
    allocated_milli_h: int
    used_milli_h: int | None
    utilisation_percent: int | None
    used_unknown: str | None
    coverage_percent: int
    simulated: bool
    allocated_milli_s: int | None = None
    used_milli_s: int | None = None


class NodeView(Wire):
    """A node. ``schedulable``: new work may start there; ``upkeep`` is set by an admin."""

    id: str
    name: str
    cpu_milli: int
    memory_mib: int
    schedulable: bool
    upkeep: str = "none"
    drain_by: datetime | None = None
    devices: int
    cluster: str
    hub: str


class NodeEdit(Wire):
    """``POST nodes/{id}/actions/drain``: after the deadline (a duration) non-preemptible work is stopped too."""

    deadline: Annotated[str, StringConstraints(max_length=100)] | None = None
    dry_run: Flag = False


class NodeChangeView(Wire):
    """A node after a change, the affected work, and the reduced training quotas."""

    node: NodeView
    changed: bool
    affected: list[AffectedView]
    guarantees: list[str]


class PoolView(Wire):
    """One pool. ``utilised_milli`` is the use of its healthy devices, null if one of them is unknown."""

    name: str
    devices: int
    capacity_milli: int
    free_milli: int
    models: list[str]
    simulated: bool
    utilised_milli: int | None = None
    utilised_unknown: str | None = None


class AffectedView(Wire):
    """An affected job or notebook; ``job`` is its id, null if the reader may not see it."""

    kind: Literal["job", "notebook"] = "job"
    job: str | None
    project: str | None
    user: str | None
    effect: Literal[
        "paused", "restarts", "over_quota", "drains", "stays", "runs_on", "starts", "waits", "refused",
        "loses_membership", "held", "stopped",
    ]  # fmt: skip
    message: str


class AuditView(Wire):
    """One decision or edit. ``who`` and ``what`` make a sentence; the chain of hashes is over the other fields."""

    seq: int
    at: datetime
    actor: str
    who: str
    what: str
    kind: str
    subject: str
    project: str | None
    payload: dict[str, object]
    previous: str
    hash: str


class WouldStart(Wire):
    """The smallest change of one kind that would start a workload, as a sentence."""

    kind: str
    message: str


class ExplainView(Wire):
    """``GET explain/{id}``: the reason of a workload's state, changes that would start it, and its latest start."""

    id: str
    state: str
    reason: ReasonView
    would_start: list[WouldStart]
    estimate_at: datetime | None


class DryRunView(Wire):
    """The answer to a job request with ``dry_run``.

    ``charged_milli`` is the charge with all ranks, ``charged_least_milli`` that with the fewest ranks of an elastic
    job, null for other jobs.
    """

    starts_now: bool
    pauses: list[AffectedView]
    reason: ReasonView
    charged_milli: int
    charged_least_milli: int | None = None


class OutputView(Wire):
    path: str
    size_bytes: int
    modified_at: datetime


class CloneRequest(Wire):
    """``POST jobs/{id}/actions/clone`` and ``rerun``: the changes for the new job.

    ``cpu_milli`` and ``memory_mib`` are per node, as in :class:`JobRequest`. With ``dry_run`` nothing is stored.
    """

    name: Name | None = None
    gpu: Gpu | None = None
    priority: Priority | None = None
    cpu_milli: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] | None = None
    memory_mib: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] | None = None
    nodes: Count | None = None
    time_limit: Duration | None = None
    dry_run: Flag = False
    idempotency_key: IdempotencyKey | None = None


class BundleView(Wire):
    """The answer to ``PUT bundles/{digest}``."""

    digest: str
    size_bytes: int
    existed: bool


class VerifiedView(Wire):
    """``GET audit/verify``: whether the hash chain of the audit is intact, with a sentence."""

    whole: bool
    rows: int | None
    message: str


class ChangedView(Wire):
    """The data of the event ``changed``: the complete views of visible changes."""

    version: int
    jobs: list[JobView]
    notebooks: list[NotebookView]
    devices: list[DeviceView]
