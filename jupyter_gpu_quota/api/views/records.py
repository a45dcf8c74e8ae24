"""Records as the REST door shows them. Values of secrets never come here; what a person may not see is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from ...core.enforcement import STRONGEST_FIRST, EnforcementLevel
from ...core.lifecycle import FINAL, HOLDS_GPU, HOLDS_SLICE, WAITING
from ...core.model import (
    WHOLE_DEVICE,
    Allocation,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Policy,
)
from ...core.reason_figures import code_of, figures_of, reason_from
from ...core.reasons import HELD_BY_ENFORCEMENT, Reason, ReasonCode
from ...core.samples import DeviceSample
from ...messages.reasons import named, sentence
from ...store.records.commands import AllocationLabel
from ...store.records.rows import JobRecord, NotebookRecord, QuotaRevision, RankRecord
from ...wire import (
    AllocationView,
    DepartmentView,
    DeviceView,
    Enforcement,
    HolderView,
    JobDetail,
    JobView,
    NodeView,
    NotebookView,
    ProgressView,
    ProjectPoolView,
    RankView,
    ReasonView,
)
from ...wire.quota import QuotaView
from ...wire.samples import SampleView
from ..access.permissions import Person, sees_work
from ..state.utilisation import NOTHING_HELD, Utilised

NOT_READ_BACK = "it was not read back yet"


class Picture(Protocol):
    """What the views look up beside the record itself."""

    @property
    def samples(self) -> Mapping[str, DeviceSample]: ...

    def name_of(self, user: str) -> str: ...

    def allocations_of(self, workload: str) -> Sequence[Allocation]: ...

    def device(self, name: str) -> Device | None: ...

    def label_of(self, allocation: str) -> AllocationLabel | None:
        """How a share is held, as was read back; None before that."""

    def utilised(self, parts: Sequence[Allocation]) -> Utilised:
        """What is used of these parts of devices, by the newest readings."""

    def is_simulated(self, pool: str) -> bool: ...

    def wait_of(self, workload: str) -> Reason | None:
        """Why something waits now, as far as was thought of."""

    def outlives(self, work: Job | Notebook) -> Reason | None:
        """Why no quota covers what something holds; None where one does."""


EARLIEST, LATEST = 0, 253_402_300_799_000
"""The years 1970 and 9999."""


def instant(at: int) -> datetime:
    """Milliseconds since 1970 as a UTC datetime; the nearest that there is where a clock went astray."""
    return datetime.fromtimestamp(min(max(at, EARLIEST), LATEST) / 1000, UTC)


def maybe_instant(at: int | None) -> datetime | None:
    return None if at is None else instant(at)


def reason_view(reason: Reason, picture: Picture, *, began: bool = False, ended: bool = False) -> ReasonView:
    """A reason with people by their names. ``began``: of what has started; ``ended``: of what is over."""
    reason = named(reason, picture.name_of)
    said = sentence(reason, began=began, ended=ended)
    return ReasonView.model_construct(code=code_of(reason), figures=figures_of(reason), message=said)


def job_reason(record: JobRecord, picture: Picture) -> ReasonView | None:
    """Why a job is where it is: while it waits, what it waits for now; else what was recorded, as far as it holds."""
    job = record.job
    waits = picture.wait_of(job.id) if job.state in WAITING else None
    reason = waits or picture.outlives(job) or present_reason(record)
    began, ended = job.state in HOLDS_GPU, job.state in FINAL
    return None if reason is None else reason_view(reason, picture, began=began, ended=ended)


def pause_reason(record: JobRecord, picture: Picture) -> ReasonView | None:
    """Why a paused job was paused, whatever it waits for since; None for one that left of its own accord."""
    paused, reason = record.job.state is JobState.PAUSED, record.reason
    return reason_view(reason, picture) if paused and reason is not None and reason.code not in STARTED else None


def notebook_reason(record: NotebookRecord, picture: Picture) -> ReasonView | None:
    """Why a slice waits, or was refused, or how it came to be."""
    notebook = record.notebook
    waits = picture.wait_of(notebook.id) if notebook.state in AWAITED else None
    reason = waits or picture.outlives(notebook) or record.reason
    return None if reason is None else reason_view(reason, picture, began=notebook.state in HOLDS_SLICE)


AWAITED = frozenset({NotebookState.REQUESTED, NotebookState.LENT})
"""States in which a slice may be waited for; of a lent one nothing is known while its owner leaves it alone."""


def present_reason(record: JobRecord) -> Reason | None:
    """What was recorded, as far as it still holds: who is released is held by nobody, what has ended starts not."""
    reason, job = record.reason, record.job
    if reason is not None and reason.code in STARTED and job.state in FINAL:
        return None
    if reason is None or reason.code not in _BY_PERSON:
        return reason
    target, settled = _BY_PERSON[ReasonCode(reason.code)]
    if job.target is not target or (job.state in FINAL and job.state is not settled):
        return None
    told_whole = job.state is not settled or reason.code in HELD_BY_ENFORCEMENT
    return reason if told_whole else reason_from(code_of(reason))


STARTED = frozenset(
    {
        ReasonCode.WITHIN_GUARANTEE,
        ReasonCode.WITHIN_FAIR_SHARE,
        ReasonCode.IDLE_SURPLUS,
        ReasonCode.BORROWS_NOTEBOOK_QUOTA,
    }
)
"""Why a job starts now: no reason for where it is once it has ended."""

_BY_PERSON = {
    ReasonCode.HELD_BY_PERSON: (JobTarget.HELD, JobState.HELD),
    ReasonCode.OVER_SHARE: (JobTarget.HELD, JobState.HELD),
    ReasonCode.ENFORCEMENT_TOO_WEAK: (JobTarget.HELD, JobState.HELD),
    ReasonCode.ENFORCEMENT_UNAVAILABLE: (JobTarget.HELD, JobState.HELD),
    ReasonCode.CANCELLED_BY_PERSON: (JobTarget.CANCELLED, JobState.CANCELLED),
}


def enforcement_view(held: Sequence[Allocation], picture: Picture) -> Enforcement | None:
    """How what somebody holds is held to its share: of several parts the weakest. None for who holds nothing."""
    labels = [picture.label_of(part.id) for part in held]
    if not labels:
        return None
    known = [each for each in labels if each is not None]
    if len(known) < len(labels):
        return Enforcement(memory="none", compute="none", why=NOT_READ_BACK)
    weakest = max(known, key=lambda each: STRONGEST_FIRST.index(EnforcementLevel(each.memory)))
    compute = max((EnforcementLevel(each.compute) for each in known), key=STRONGEST_FIRST.index)
    return Enforcement(memory=weakest.memory, compute=compute, why=weakest.why or None)


def allocation_views(held: Sequence[Allocation], picture: Picture) -> list[AllocationView]:
    return [
        AllocationView(
            rank=part.rank,
            device=part.device,
            device_uuid=device.uuid if (device := picture.device(part.device)) else None,
            gpu_milli=part.gpu_milli,
            memory_mib=part.memory_mib,
        )
        for part in held
    ]


def _job_fields(record: JobRecord, picture: Picture) -> dict[str, object]:
    job, spec = record.job, record.spec
    held = allocation_views(picture.allocations_of(job.id), picture)
    progress = (
        None if record.done is None or record.total is None else ProgressView(done=record.done, total=record.total)
    )
    return {
        **_asked(record),
        "user": picture.name_of(job.user),
        "state": job.state,
        "target": job.target,
        "reason": job_reason(record, picture),
        "paused_because": pause_reason(record, picture),
        "attempt": job.attempt,
        "pauses": record.pauses,
        "retries_left": record.retries_left,
        "submitted_at": instant(job.submitted_at),
        "started_at": maybe_instant(job.started_at),
        "ended_at": maybe_instant(record.ended_at),
        "exit_status": record.exit_status,
        "progress": progress,
        "metrics": dict(record.metrics),
        "allocations": held,
        "borrower": job.borrower,
        "enforcement": enforcement_view(picture.allocations_of(job.id), picture),
        "simulated": picture.is_simulated(spec.pool),
        **_utilised(picture.allocations_of(job.id), picture),
    }


def _utilised(parts: Sequence[Allocation], picture: Picture) -> dict[str, Any]:
    """What is used of them, for a view; nothing is said of nothing."""
    found = picture.utilised(parts) if parts else NOTHING_HELD
    return {"utilised_milli": found.milli, "utilised_unknown": found.why}


def _asked(record: JobRecord) -> dict[str, object]:
    """The part of a job's view that was settled when it was submitted."""
    spec = record.spec
    return {
        "id": record.job.id,
        "name": spec.name,
        "project": spec.project,
        "pool": spec.pool,
        "command": list(spec.command),
        "gpu": spec.gpu_asked,
        "gpu_milli": spec.gpu_milli,
        "ranks": spec.ranks,
        "min_ranks": spec.min_ranks,
        "held_ranks": record.job.held_ranks,
        "gpu_model": spec.gpu_model,
        "cpu_milli": spec.cpu_milli,
        "memory_mib": spec.memory_mib,
        "priority": spec.priority,
        "preemptible": spec.preemptible,
        "private": spec.private,
        "live": spec.live,
        "bundle": spec.bundle,
        "directory": spec.directory,
        "environment": spec.environment,
        "secret_names": list(spec.secret_names),
        "time_limit_s": spec.time_limit_s,
        "retries": spec.retries,
        "clone_of": record.clone_of,
        "cluster": record.cluster,
        "hub": record.hub,
    }


def job_view(record: JobRecord, picture: Picture) -> JobView:
    return JobView.model_construct(None, **_job_fields(record, picture))


def job_detail(record: JobRecord, ranks: Sequence[RankRecord], picture: Picture) -> JobDetail:
    return JobDetail.model_construct(
        None,
        **_job_fields(record, picture),
        variables=dict(record.spec.variables),
        rank_records=[rank_view(rank) for rank in ranks],
    )


def rank_view(rank: RankRecord) -> RankView:
    return RankView(
        attempt=rank.attempt,
        rank=rank.rank,
        node=rank.node,
        pid=rank.pid,
        started_at=maybe_instant(rank.started_at),
        ended_at=maybe_instant(rank.ended_at),
        exit_status=rank.exit_status,
    )


def notebook_view(record: NotebookRecord, picture: Picture) -> NotebookView:
    notebook = record.notebook
    held = allocation_views(picture.allocations_of(notebook.id), picture)
    return NotebookView(
        id=notebook.id,
        user=picture.name_of(notebook.user),
        server=record.server,
        project=notebook.project,
        pool=notebook.pool,
        gpu_milli=notebook.gpu_milli,
        state=notebook.state,
        reason=notebook_reason(record, picture),
        requested_at=instant(notebook.requested_at),
        booked_at=maybe_instant(record.booked_at),
        ended_at=maybe_instant(record.ended_at),
        allocations=held,
        activity=notebook.activity,
        enforcement=enforcement_view(picture.allocations_of(notebook.id), picture),
        simulated=picture.is_simulated(notebook.pool),
        cluster=record.cluster,
        hub=record.hub,
        **_utilised(picture.allocations_of(notebook.id), picture),
    )


NO_SAMPLE = "it was not read yet"


def device_view(
    device: Device,
    held: Sequence[tuple[Allocation, JobRecord | NotebookRecord | None]],
    person: Person,
    picture: Picture,
    where: tuple[str, str],
) -> DeviceView:
    """One device with its holders, those of other projects hidden. ``where`` is (cluster, hub)."""
    sample = picture.samples.get(device.id)
    used = sum(part.gpu_milli for part, _ in held) + device.foreign_milli
    free = max(0, WHOLE_DEVICE - used) if device.health is Health.HEALTHY else 0
    return DeviceView(
        id=device.id,
        uuid=device.uuid,
        node=device.node,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        pool=device.pool,
        health=device.health,
        trouble=device.trouble,
        simulated=device.simulated,
        foreign_milli=device.foreign_milli,
        foreign_why=sample.why.get("foreign") if sample else None,
        free_milli=free,
        holders=[holder_view(part, record, person, picture) for part, record in held],
        utilisation_percent=sample.utilisation_percent if sample else None,
        utilisation_unknown=sample.why.get("utilisation_percent") if sample else NO_SAMPLE,
        memory_used_mib=sample.memory_used_mib if sample else None,
        sampled_at=instant(sample.at) if sample else None,
        cluster=where[0],
        hub=where[1],
    )


def holder_view(
    part: Allocation, record: JobRecord | NotebookRecord | None, person: Person, picture: Picture
) -> HolderView:
    """Who holds a part of a device; of work that one may not see only that it is there."""
    hidden = HolderView(kind="hidden", workload=None, user=None, project=None, gpu_milli=part.gpu_milli, state="hidden")
    if record is None:
        return hidden
    is_job = isinstance(record, JobRecord)
    work = record.job if isinstance(record, JobRecord) else record.notebook
    private = isinstance(record, JobRecord) and record.spec.private
    if not sees_work(person, project=work.project, owner=work.user, private=private):
        return hidden
    return HolderView(
        kind="job" if is_job else "notebook",
        workload=work.id,
        user=picture.name_of(work.user),
        project=work.project,
        gpu_milli=part.gpu_milli,
        state=work.state,
        name=record.spec.name if isinstance(record, JobRecord) else None,
        enforcement=enforcement_view([part], picture),
        **_utilised([part], picture),
    )


def node_view(node: Node, devices: int, where: tuple[str, str]) -> NodeView:
    return NodeView(
        id=node.id,
        name=node.name,
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        schedulable=node.is_open,
        upkeep=node.upkeep,
        drain_by=maybe_instant(node.drain_by_at),
        devices=devices,
        cluster=where[0],
        hub=where[1],
    )


def rows_by_owner(rows: Mapping[tuple[str, str], ProjectPoolView]) -> dict[str, list[ProjectPoolView]]:
    """The rows of each project, or of each department, by pool."""
    found = defaultdict[str, list[ProjectPoolView]](list)
    for (name, _), row in sorted(rows.items(), key=lambda item: item[0]):
        found[name].append(row)
    return dict(found)


def department_views(policy: Policy, rows: Mapping[tuple[str, str], ProjectPoolView]) -> dict[str, DepartmentView]:
    """The departments by name, each with its row in every pool where it has one."""
    of = rows_by_owner(rows)
    return {
        department.name: DepartmentView(
            name=department.name, priority=department.priority, pools=of.get(department.name, [])
        )
        for department in policy.departments
    }


def quota_view(revision: QuotaRevision, picture: Picture) -> QuotaView:
    return QuotaView(
        revision=revision.revision,
        text=revision.text,
        author=picture.name_of(revision.actor),
        at=instant(revision.at),
        comment=revision.comment,
    )


def sample_view(row: DeviceSample) -> SampleView:
    return SampleView(
        node=row.node,
        device=row.device,
        at=instant(row.at),
        utilisation_percent=row.utilisation_percent,
        memory_used_mib=row.memory_used_mib,
        coverage_permille=row.coverage_permille,
        simulated=row.simulated,
        foreign_mib=row.foreign_mib,
        temperature_c=row.temperature_c,
        power_w=row.power_w,
        why={figure: text for figure, text in row.why.items() if figure not in row.workloads},  # those are not for all
    )
