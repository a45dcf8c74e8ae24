"""The cluster: projects, pools, nodes, devices and their use."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import StringConstraints

from .fields import AffectedView, Enforcement, Flag, Wire


class ProjectPoolView(Wire):
    """One project or department in one pool: its quotas, its use and its fair share.

    ``in_force_training_milli`` is its training quota, reduced while the quotas do not fit the pool.
    ``fair_share_milli`` is the amount that its jobs may claim: the quota in force and its part of the surplus.
    ``utilised_milli`` is the use of its devices by the newest readings; null with the cause in ``utilised_unknown`` if
    a part of it is unknown. ``user_jobs_milli`` and ``user_notebook_milli`` are the ceilings of each user, null without
    one; ``own_jobs_milli`` and ``own_notebook_milli`` are the reader's use. An older service leaves out the fields with
    a default.
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
    user_jobs_milli: int | None = None
    user_notebook_milli: int | None = None
    own_jobs_milli: int = 0
    own_notebook_milli: int = 0


class DepartmentView(Wire):
    """A department with the use of all its projects."""

    name: str
    priority: int
    pools: list[ProjectPoolView]


class ModelView(Wire):
    """The reported devices of one model in a pool; ``memory_mib`` is that of one device."""

    model: str
    memory_mib: int
    devices: int


class SubmitPoolView(Wire):
    """A pool in which jobs of a project may run; ``time_limit_s`` is that of jobs that name none.

    ``quota_left_milli`` is what may still start within the training quota in force, ``limit_left_milli`` within the
    limit, and ``user_left_milli`` within the reader's ceiling, each of the project and of its department; null: without
    limit or ceiling. A dry run says whether that much is free.
    """

    pool: str
    models: list[ModelView]
    simulated: bool
    time_limit_s: int
    max_time_limit_s: int | None
    quota_left_milli: int
    limit_left_milli: int | None
    user_left_milli: int | None


class SubmitView(Wire):
    """The choices of a job in a project, for the reader. A default is null where the request must name one.

    ``priority`` is that of jobs that name none, ``max_priority`` the greatest that the reader may request.
    """

    pools: list[SubmitPoolView]
    default_pool: str | None
    environments: list[str]
    data: list[str] = []
    default_environment: str | None
    priority: int
    max_priority: int


class StorageView(Wire):
    """The outputs of a project's ended jobs. ``limit_mib``: the space that they may take, null: no limit.

    ``used_mib``: their measured space, null while some of it was not measured or without a limit, and 2^40 or more
    where folders are nested too deeply to be measured. ``keep_s``: how long after its end a job's outputs are kept,
    null: as long as the job is listed.
    """

    limit_mib: int | None
    used_mib: int | None
    keep_s: int | None


class ProjectView(Wire):
    """A project; ``department`` is null if the quota file has none.

    ``submit`` is null for readers who are not members, and from an older service. ``storage``: null if the quota file
    does not limit it, and from an older service. ``position``: among the projects of the file, from 0, the same for
    every reader, for a colour.
    """

    name: str
    priority: int
    pools: list[ProjectPoolView]
    role: str | None
    department: DepartmentView | None = None
    submit: SubmitView | None = None
    storage: StorageView | None = None
    position: int | None = None


class PoolView(Wire):
    """One pool. ``capacity_milli`` and ``free_milli`` count the healthy devices of nodes that take work.

    ``allocated_milli`` is what work has on all of its devices, null from an older service. ``utilised_milli`` is the
    use of the healthy devices, null if one of them is unknown.

    The jobs are those of all projects: on GPUs, waiting and held; null from an older service.
    """

    name: str
    devices: int
    capacity_milli: int
    free_milli: int
    models: list[str]
    simulated: bool
    utilised_milli: int | None = None
    utilised_unknown: str | None = None
    running_jobs: int | None = None
    waiting_jobs: int | None = None
    held_jobs: int | None = None
    allocated_milli: int | None = None


class NodeView(Wire):
    """A node. ``schedulable``: new work may start there; ``upkeep`` is set by an admin.

    ``gone_at``: since when no reading reports it, null while one does. ``unread_since``: since when its cluster cannot
    be read, null while it can, and from an older service. ``devices`` are those that are reported.
    """

    id: str
    name: str
    cpu_milli: int
    memory_mib: int
    schedulable: bool
    upkeep: str = "none"
    drain_by: datetime | None = None
    gone_at: datetime | None = None
    unread_since: datetime | None = None
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


class RemovedView(Wire):
    """A node or device that was removed."""

    id: str


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
    draining. ``gone_at``: since when its node does not report it, null while it does; a gone device is in no sum.
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
    gone_at: datetime | None = None
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


class EnvironmentView(Wire):
    """An environment of the quota file: the image, or the interpreter on one machine, of jobs that name it.

    ``projects`` are the sender's that may use it; jobs of those in ``default_of`` use it if they name none. ``image``
    is that of pods, null on one machine. ``python`` is a path there, or in the image, whose first one it is when null.
    """

    name: str
    image: str | None
    python: str | None
    projects: list[str]
    default_of: list[str]


class DataView(Wire):
    """Data of the quota file that the sender's jobs may use, by some of their ``groups``.

    ``until`` is the last day on which a job may start with it, in UTC. ``variable`` has the ``path`` in a job. On one
    machine file permissions decide who can read and write there, whatever ``read_only`` is; pods mount it so.
    """

    name: str
    path: str
    read_only: bool
    groups: list[str]
    until: date | None
    has_ended: bool
    variable: str


class CostView(Wire):
    """A sum in thousandths of one currency."""

    currency: str
    amount_milli: int


class UsageView(Wire):
    """``GET usage``: allocated and used GPU by one key, in the hours that begin from ``begins_at`` up to ``ends_at``.

    ``name`` is "" for work whose owner has no department or group; the work of a user is counted in each of their
    groups. Amounts are milli-GPU hours. ``coverage_percent`` is the part of the allocated time with readings;
    ``used_milli_h`` and ``utilisation_percent`` are of that part, and null with the cause in ``used_unknown`` without
    readings. Milli-GPU seconds are exact, where hours round small amounts to 0. ``wait_mean_s`` and ``wait_max_s`` are
    of the jobs that started for the first time in these hours, from submit to start; null if there are none.
    ``costs`` are those of the allocated time, at the present prices of the pools that have one. ``job_name`` is that of
    the job whose id is ``name``. An older service leaves out the fields with a default.
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
    started_jobs: int | None = None
    wait_mean_s: int | None = None
    wait_max_s: int | None = None
    costs: list[CostView] = []
    begins_at: datetime | None = None
    ends_at: datetime | None = None
    job_name: str | None = None
