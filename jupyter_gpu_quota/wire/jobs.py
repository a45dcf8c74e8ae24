"""Jobs: requests, views, bundles, outputs and explanations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from .fields import (
    AffectedView,
    AllocationView,
    Argument,
    Count,
    Digest,
    Duration,
    Enforcement,
    Flag,
    Gpu,
    IdempotencyKey,
    Models,
    Name,
    Priority,
    ReasonView,
    VariableName,
    Wire,
)

MAX_TEXT = 65_536
"""Characters of a job's command, variables and secrets together."""

SHOWN = 40
"""Characters of a wrong command in the message."""


NotifiedEvent = Literal["ended", "failed", "paused"]
"""``ended``: in any way, a failure included."""

DataNames = Annotated[list[Name], Field(max_length=200)]


class JobRequest(Wire):
    """``POST jobs``. ``gpu`` is per node: "0.5", "1/3", "2" or "8GiB"; a node's ``processes`` share it evenly.

    ``cpu_milli`` and ``memory_mib`` are per node too; 0 is the GPU's part of its node. ``gpu_model`` is one or several,
    separated by commas. The job has ``nodes`` x ``processes`` ranks, each with devices on one node. With ``min_nodes``
    it is elastic: it runs with the ranks of at least so many nodes, and with more if GPUs are idle.

    ``project`` and ``pool`` default to the user's only or default ones. ``time_limit`` is seconds or "90m", "24h".
    ``notify``: the events of which you are notified by the channels of the site; null: those of its settings.
    ``data``: names of data of the quota file; null: all that you may use, an empty list: none.
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
    notify: Annotated[list[NotifiedEvent], Field(max_length=3)] | None = None
    data: DataNames | None = None
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
        if size > MAX_TEXT:
            raise ValueError(f"the command, variables and secrets have {size} characters; at most {MAX_TEXT} fit")
        return self


class ProgressView(Wire):
    """The progress that a job reported."""

    done: int
    total: int


class RankView(Wire):
    """One rank of one attempt, with its node and its end.

    ``handle`` is the backend's name for its first process, such as a process id; null before it began.
    ``exit_text``: its exit status in words, "lost" without one; null until it ended, and from an older service.
    ``trouble``: why it has not begun yet, in the words of its node or cluster; else null.
    """

    attempt: int
    rank: int
    node: str
    handle: str | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None
    exit_text: str | None = None
    trouble: str | None = None


class JobView(Wire):
    """One job in listings and events, without values of variables and secrets.

    ``private`` jobs are visible to their owner, leads and admins. ``gpu_milli`` is of one rank. An elastic job runs
    with ``min_ranks`` to ``ranks`` ranks, at present with ``held_ranks``; both are null for other jobs. ``reason``
    explains the present state; ``paused_because`` is the cause of a pause, independent of the present reason.
    ``utilised_milli`` is the use of its devices by the newest readings; null with the cause in ``utilised_unknown`` if
    it is unknown, and null without devices.

    ``stopped_by``: the person who held or cancelled it, by name. ``queue_position``: its position, from 1, in the order
    in which its pool's waiting jobs are served; null for other jobs, and until the next decision. ``estimate_at``: its
    planned start, where the last decision has one, in ``estimate_text`` as a sentence with its condition.
    ``grace_ends_at``: when a pausing job is killed if it has not ended, by the present grace; null for other jobs. An
    older service leaves out the fields with a default.
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
    notify: list[str] | None = None
    data: list[str] = []
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
    first_started_at: datetime | None = None
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
    stopped_by: str | None = None
    grace_ends_at: datetime | None = None
    queue_position: int | None = None
    estimate_at: datetime | None = None
    estimate_text: str | None = None

    @property
    def whole_milli(self) -> int:
        """The GPU of its present ranks, or of all ranks while it does not run."""
        return self.gpu_milli * (self.held_ranks or self.ranks)


class JobDetail(JobView):
    """``GET jobs/{id}``: the job with its variables and the ranks of all attempts."""

    variables: dict[str, str]
    rank_records: list[RankView]


class CloneRequest(Wire):
    """``POST jobs/{id}/actions/clone`` and ``rerun``: the changes for the new job.

    ``cpu_milli`` and ``memory_mib`` are per node, as in :class:`JobRequest`. ``data`` null: that of the old job.
    ``secrets`` are not kept, so those of the old job are given again. With ``dry_run`` nothing is stored.
    """

    name: Name | None = None
    gpu: Gpu | None = None
    priority: Priority | None = None
    cpu_milli: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] | None = None
    memory_mib: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] | None = None
    nodes: Count | None = None
    data: DataNames | None = None
    secrets: Annotated[dict[VariableName, Argument], Field(max_length=100)] = {}
    time_limit: Duration | None = None
    dry_run: Flag = False
    idempotency_key: IdempotencyKey | None = None


class PointView(Wire):
    """The values in one slot of a series, which begins at ``at``: their mean, the least and the greatest."""

    at: datetime
    mean: float
    min: float
    max: float


class DeviceSeriesView(Wire):
    """The use of one device by a job, in thousandths of the device, and its memory there; unknown is left out."""

    device: str
    utilised_milli: list[PointView]
    memory_mib: list[PointView]


class MetricsView(Wire):
    """``GET jobs/{id}/metrics``: what a job reported, and the use of its devices, from the first report on.

    A slot without values is left out. ``width_s`` is the width of the slots, which grows with the job; null before the
    first report. ``progress`` is the ``done`` that the job reported.
    """

    width_s: int | None
    metrics: dict[str, list[PointView]]
    progress: list[PointView]
    devices: list[DeviceSeriesView]


class DataStateView(Wire):
    """Data at a start: the first line of its file VERSION, else the number, size and newest time of its files.

    ``is_complete``: every file was looked at; otherwise the figures are of the first ones.
    """

    name: str
    path: str
    version: str | None
    files: int | None
    bytes: int | None
    newest_at: datetime | None
    is_complete: bool


class ProvenanceView(Wire):
    """``GET jobs/{id}/provenance``: what an attempt was made of.

    ``python`` is the interpreter of the command; with ``python_from`` "PATH" that of the job's PATH, because the
    command is neither a Python nor a script of one. ``distributions`` are those of its site-packages folders, by name.
    ``environment_digest`` is of the version and the distributions; equal ones are equal environments. ``image`` is that
    of a pod by its digest, once the attempt has ended. All are null or empty where they were not recorded.
    """

    attempt: int
    command: list[str]
    directory: str
    bundle: str | None
    live: bool
    environment: str | None
    python: str | None = None
    python_from: str | None = None
    python_version: str | None = None
    distributions: dict[str, str] = {}
    environment_digest: str | None = None
    image: str | None = None
    data: list[DataStateView]


class OutputView(Wire):
    path: str
    size_bytes: int
    modified_at: datetime


class BundleView(Wire):
    """The answer to ``PUT bundles/{digest}``."""

    digest: str
    size_bytes: int
    existed: bool


class WouldStart(Wire):
    """The smallest change of one kind that would start a workload, as a sentence and in figures.

    ``by_milli``: the GPU that is freed or added, by which an amount is raised, or by which the request is smaller.
    ``to_milli``: the amount, capacity or request after the change. ``ends``: the work whose end frees it, without work
    that you may not see; ``any_ends``: so does every other set of running work with that much GPU.
    ``started_first``: the waiting jobs that start before it then, and without which less would do.
    ``time_limit_s``: a shorter time limit. ``at``: when the calendar brings the amounts. ``is_smallest``: every smaller
    change was tried, which takes too long in a large pool, or for amounts without a common divisor; ``is_minimal``:
    one milli less, or one workload less, would not do.
    """

    kind: str
    message: str
    by_milli: int | None = None
    to_milli: int | None = None
    ends: list[str] = []
    any_ends: bool = False
    started_first: list[str] = []
    time_limit_s: int | None = None
    at: datetime | None = None
    is_smallest: bool = True
    is_minimal: bool = True


class UncheckedRankView(Wire):
    """The rank of a waiting job, and the largest rank on one node that its training quota can always have."""

    rank_milli: int
    checked_milli: int


class QuotaInForceView(Wire):
    """A training quota of which only a part is in force, of a project or department in a pool."""

    owner: str
    is_department: bool
    pool: str
    set_milli: int
    in_force_milli: int


class ExplainView(Wire):
    """``GET explain/{id}``: the reason of a workload's state, changes that would start it, and when it starts.

    ``estimate_at``: the start by the time limits of the work that runs. ``estimate_is_bound``: no work that
    waits or may claim its quota can delay it; otherwise other work may. ``estimate_text``: both as a sentence.
    ``unchecked_rank``: the job fits its training quota, but its rank is too large to be always available on one node.
    ``in_force``: the training quotas it is measured by that are in force only in part.
    ``ended_early``: the kinds of changes of which not every one was tried, because the pool is large.
    """

    id: str
    state: str
    reason: ReasonView
    would_start: list[WouldStart]
    estimate_at: datetime | None
    estimate_is_bound: bool = False
    estimate_text: str | None = None
    unchecked_rank: UncheckedRankView | None = None
    in_force: list[QuotaInForceView] = []
    ended_early: list[str] = []

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.reason.message, self.estimate_text)))


class DryRunView(Wire):
    """The answer to a job request with ``dry_run``.

    ``charged_milli`` is the charge with all ranks, ``charged_least_milli`` that with the fewest ranks of an elastic
    job, null for other jobs. ``estimate_at``: the start of a job that would wait, by the time limits of running work;
    null if they give none. ``estimate_is_bound``: it would start no later. ``estimate_text``: both as a sentence.
    """

    starts_now: bool
    pauses: list[AffectedView]
    reason: ReasonView
    charged_milli: int
    charged_least_milli: int | None = None
    estimate_at: datetime | None = None
    estimate_text: str | None = None
    estimate_is_bound: bool = False
