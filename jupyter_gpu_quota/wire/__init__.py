"""The JSON of the REST door, as pydantic models that the service and the client share.

Amounts are integers (milli-GPU, MiB); instants are ISO-8601 with Z. Unknown keys are refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from .reason_schema import reasons_schema

Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ @+-]*$")]
Models = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ @+,-]*$")]
"""One model of devices, or several with commas between."""
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NoNul = r"^[^\x00]*$"
Argument = Annotated[str, StringConstraints(max_length=32_768, pattern=NoNul)]
LARGEST_TEXT = 65_536
"""Characters of a job's command, variables and secrets together."""

SHOWN = 40
"""How much of a value that is no command is repeated to its author."""

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Wire(BaseModel):
    """The base of every message: strict about keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobRequest(Wire):
    """``POST jobs``. ``gpu`` is per node: "0.5", "1/3", "2" or "8GiB"; a node's ``processes`` share it evenly.

    ``cpu_milli`` and ``memory_mib`` are per node too; 0 is the GPU's part of its node. ``gpu_model`` is one or several,
    with commas. The job has ``nodes`` x ``processes`` ranks, each with devices on one node. With ``min_nodes`` it is
    elastic: it runs with the ranks of so many nodes at least, and more while they are idle.

    ``project`` and ``pool`` default to the person's only or default ones.

    ``idempotency_key`` may also come as the header ``Idempotency-Key``. ``time_limit`` is seconds or "90m", "24h".
    """

    command: Annotated[list[Argument], Field(min_length=1, max_length=1000)]
    gpu: Annotated[str, StringConstraints(min_length=1, max_length=32)] = "1"
    project: Name | None = None
    pool: Name | None = None
    gpu_model: Models | None = None
    cpu_milli: Annotated[int, Field(strict=True, ge=0, le=1 << 30)] = 0
    memory_mib: Annotated[int, Field(strict=True, ge=0, le=1 << 30)] = 0
    name: Name | None = None
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] = 50
    preemptible: Annotated[bool, Field(strict=True)] = True
    variables: Annotated[dict[VariableName, Argument], Field(max_length=500)] = {}
    secrets: Annotated[dict[VariableName, Argument], Field(max_length=100)] = {}
    environment: Name | None = None
    directory: Annotated[str, StringConstraints(max_length=4096)] = "."
    live: Annotated[bool, Field(strict=True)] = False
    bundle: Digest | None = None
    time_limit: Annotated[str, StringConstraints(max_length=32)] | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 0
    private: Annotated[bool, Field(strict=True)] = False
    nodes: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    processes: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    min_nodes: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NoNul)] | None = None
    dry_run: Annotated[bool, Field(strict=True)] = False

    @field_validator("command", mode="before")
    @classmethod
    def _an_array(cls, given: object) -> object:
        """A command line as one text is the likeliest slip; no shell is there to take it apart."""
        if isinstance(given, list | tuple):
            return given
        what = f"the text {given[:SHOWN]!r}" if isinstance(given, str) else f"{given!r:.{SHOWN}}"
        raise ValueError(f'{what} was given; it is the array of a program and its arguments: ["python", "train.py"]')

    @model_validator(mode="after")
    def _of_a_size_that_is_kept(self) -> Self:
        """Every queued job stands in the memory of the service and in every listing."""
        named = (*self.variables.items(), *self.secrets.items())
        size = sum(map(len, self.command)) + sum(len(name) + len(value) for name, value in named)
        if size > LARGEST_TEXT:
            raise ValueError(f"the command, variables and secrets have {size} characters; at most {LARGEST_TEXT} fit")
        return self


def _as_reason(schema: dict[str, Any]) -> None:
    schema.clear()
    schema.update(reasons_schema())


class ReasonView(Wire):
    """Why: a code of :class:`core.reasons.ReasonCode`, its figures and the sentence that people read."""

    model_config = ConfigDict(json_schema_extra=_as_reason)

    code: str
    figures: dict[str, int | str]
    message: str


class ProgressView(Wire):
    """How far a job is, as it reported itself."""

    done: int
    total: int


class AllocationView(Wire):
    """The part of one device that one rank has; ``device_uuid`` is null until it was read back."""

    rank: int
    device: str
    device_uuid: str | None
    gpu_milli: int
    memory_mib: int


class RankView(Wire):
    """One rank of one attempt: where it ran, and how it ended."""

    attempt: int
    rank: int
    node: str
    pid: int | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None


class Enforcement(Wire):
    """What was read back, never what was configured: hardware, driver, mps, policed, cooperative or none.

    ``why``: why by nothing stronger, and what is wrong now; null where there is nothing to say.
    """

    memory: str
    compute: str
    why: str | None = None


class JobView(Wire):
    """One job as its project sees it in listings and events, without values of variables and secrets.

    ``private`` jobs show only to their owner, leads and admins. ``gpu_milli`` is of one rank. An elastic job runs
    with ``min_ranks`` to ``ranks`` of them, now with ``held_ranks``; both are null for others. ``reason`` is why it is
    where it is now; ``paused_because``, of a paused one, why it was paused, whatever it waits for since.
    ``utilised_milli`` is what it uses of what it holds by the newest readings, null with ``utilised_unknown`` as the
    reason where that is not known, and null where it holds nothing.
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
        """What it has while it runs, or would have with all its ranks: the GPU of every table."""
        return self.gpu_milli * (self.held_ranks or self.ranks)


class JobDetail(JobView):
    """``GET jobs/{id}``: with its variables and every rank of every attempt."""

    variables: dict[str, str]
    rank_records: list[RankView]


class NotebookRequest(Wire):
    """``POST notebooks``, from the hub's spawner alone.

    ``user`` is the hub's user name, ``server`` "" for the default server.
    """

    user: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    server: Annotated[str, StringConstraints(max_length=255, pattern=NoNul)] = ""
    project: Name
    pool: Name | None = None
    gpu: Annotated[str, StringConstraints(min_length=1, max_length=32)]


class IdleView(Wire):
    """What the service makes of a notebook's use.

    ``verdict`` is busy, idle or unknown, ``reason`` and ``message`` say why; ``stage`` is what is under way: in_use,
    reported, warned, freeing, freed or stopping. ``free_in_ms``: how long the countdown still runs, null without
    one. ``used_ms``: since the GPU was last seen to be used, null where that is not known; ``keeps_left``: how often
    the warning can still be postponed. ``noticed``: its person is told that a busy kernel leaves the GPU unused.
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
    ``idle`` says why it is busy, idle or unknown, and what follows; null before it was judged. ``utilised_milli`` is
    what it uses of its slice by the newest reading, null with ``utilised_unknown`` as the reason where nobody knows.
    ``warning``: what the police of shares says to one that holds more memory than its share.
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
    """What one person may start a notebook with: a project, its pool and the sizes that its quota admits.

    ``devices``: how many of the pool can be given out; null from a service that does not say. ``user_left_milli``: what
    the ceilings for each user leave this person, the project's and its department's; null where there is none.
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
    """Every answer of 4xx and 5xx."""

    status: int
    message: str
    reason: str


class Pagination(Wire):
    offset: int
    limit: int
    total: int


class ProjectPoolView(Wire):
    """One project or department in one pool: what it has now, what it uses, what it could have.

    ``in_force_training_milli`` is its training quota, or less of it while not everybody can have theirs.
    ``fair_share_milli`` is what its jobs may claim now: that, and of the surplus what it asks for and is due.
    ``utilised_milli`` is what its notebooks and jobs really use of what they hold, by the newest readings; null, with
    ``utilised_unknown`` as the reason, where that is not known of all of it.
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
    """A department, with the use of all its projects together."""

    name: str
    priority: int
    pools: list[ProjectPoolView]


class ProjectView(Wire):
    """A project; ``department`` is null where the quota file has none."""

    name: str
    priority: int
    pools: list[ProjectPoolView]
    role: str | None
    department: DepartmentView | None = None


class HolderView(Wire):
    """Who holds a part of a device; ``user`` and ``workload`` are null for work of projects one is not a member of.

    ``name`` is a job's; null for a notebook, for what is hidden, and from a service that does not say. ``enforcement``
    is how the part is held to its share; null for what is hidden. ``utilised_milli`` is what it uses of the device by
    the newest reading, null with ``utilised_unknown`` as the reason where that is not known, and for what is hidden.
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
    """One device. ``trouble`` is why it is not healthy, ``utilisation_unknown`` why its use is null.

    ``foreign_why`` is what else there is to say of foreign use: who would have it booked on somebody, say.
    ``upkeep`` is that of its node: while that is cordoned or draining, nothing new starts on what is free.
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
    """``GET usage``: what a project, user, pool, device or workload had and used in some time, or all in an hour.

    Amounts are milli-GPU times hours. ``used_milli_h`` is of the time that readings speak for, ``coverage_percent`` of
    the time for which it had any; ``utilisation_percent`` is what it used in that time of what it had in it. The two
    are null, with ``used_unknown`` as the reason, where nothing was read. The same in milli-GPU times seconds is exact,
    where less than a thousandth of a GPU hour is 0 in hours; null from a service that does not say.
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
    """A machine. ``schedulable``: new work may start there; ``upkeep`` is what an admin said of it."""

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
    """``POST nodes/{id}/actions/drain``: after the deadline (a duration) work that may not be preempted leaves too."""

    deadline: Annotated[str, StringConstraints(max_length=100)] | None = None
    dry_run: Annotated[bool, Field(strict=True)] = False


class NodeChangeView(Wire):
    """A node as it is after a change, everybody whom that moves, and whose training quota is less in force."""

    node: NodeView
    changed: bool
    affected: list[AffectedView]
    guarantees: list[str]


class PoolView(Wire):
    """One pool. ``utilised_milli`` is what is used of its healthy devices, null where that is not known of each."""

    name: str
    devices: int
    capacity_milli: int
    free_milli: int
    models: list[str]
    simulated: bool
    utilised_milli: int | None = None
    utilised_unknown: str | None = None


class AffectedView(Wire):
    """A job or notebook to which something would happen; ``job`` is its id, null where the reader may not see it."""

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
    """The smallest change of one kind that would start it, in words."""

    kind: str
    message: str


class ExplainView(Wire):
    """``GET explain/{id}``: why a workload is where it is, what would start it, and when it starts at the latest."""

    id: str
    state: str
    reason: ReasonView
    would_start: list[WouldStart]
    estimate_at: datetime | None


class DryRunView(Wire):
    """The answer to a job request with ``dry_run``.

    ``charged_milli`` is with all its ranks; ``charged_least_milli`` with the fewest that an elastic job runs with, null
    for one that is not elastic.
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
    """``POST jobs/{id}/actions/clone`` and ``rerun``: what the new job has otherwise than the old one.

    ``cpu_milli`` and ``memory_mib`` are per node, as in :class:`JobRequest`. With ``dry_run`` nothing is stored.
    """

    name: Name | None = None
    gpu: Annotated[str, StringConstraints(min_length=1, max_length=32)] | None = None
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] | None = None
    cpu_milli: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] | None = None
    memory_mib: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] | None = None
    nodes: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    time_limit: Annotated[str, StringConstraints(max_length=32)] | None = None
    dry_run: Annotated[bool, Field(strict=True)] = False
    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NoNul)] | None = None


class BundleView(Wire):
    """The answer to ``PUT bundles/{digest}``."""

    digest: str
    size_bytes: int
    existed: bool


class VerifiedView(Wire):
    """``GET audit/verify``: whether every row of the audit follows from the one before, and that in words."""

    whole: bool
    rows: int | None
    message: str


class ChangedView(Wire):
    """The data of the event ``changed``: the whole present views of what changed and may be seen."""

    version: int
    jobs: list[JobView]
    notebooks: list[NotebookView]
    devices: list[DeviceView]
