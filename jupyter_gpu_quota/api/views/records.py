"""Records as views of the REST API. Values of secrets never come here; what a person may not see is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pydantic import BaseModel

from ...core.enforcement.levels import STRONGEST_FIRST, EnforcementLevel
from ...core.frozen import with_changes
from ...core.job_ends import JobEnd, job_end
from ...core.lifecycle import FINAL, HOLDS_GPU, HOLDS_SLICE, WAITING
from ...core.model import (
    MS_PER_S,
    OWN_CLUSTER,
    WHOLE_DEVICE,
    Allocation,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    NotebookState,
    Upkeep,
)
from ...core.reason_codes import HELD_BY_ENFORCEMENT, ReasonCode
from ...core.reason_figures import code_of, figures_of
from ...core.reasons import ByUser, Reason
from ...core.samples import DeviceSample
from ...messages.exit_status import exit_text, newest_trouble, trouble_sentence
from ...messages.planned_start import start_sentence
from ...messages.reasons import sentence, with_user_name
from ...store.records.rows import JobRecord, NotebookRecord, QuotaRevision, RankRecord
from ...wire import (
    AllocationView,
    DeviceView,
    Enforcement,
    HolderView,
    JobDetail,
    JobView,
    NodeView,
    NotebookView,
    ProgressView,
    RankView,
    ReasonView,
)
from ...wire.quota import QuotaView
from ...wire.samples import SampleView
from ..access.permissions import Person, may_see
from ..state.store_view import StoreView
from ..state.utilisation import NOTHING_HELD
from .work_names import of_project, with_work_names

NOT_READ_BACK = "it was not read back yet"

EARLIEST, LATEST = 0, 253_402_300_799_000
"""The years 1970 and 9999."""


def instant(at: int) -> datetime:
    """Milliseconds since 1970 as a UTC datetime; the nearest one for an instant that a wrong clock gave."""
    return datetime.fromtimestamp(min(max(at, EARLIEST), LATEST) / 1000, UTC)


def instant_or_none(at: int | None) -> datetime | None:
    return None if at is None else instant(at)


@cache
def _shared(view: type[BaseModel], record: type[Any]) -> tuple[tuple[str, bool], ...]:
    """(name, whether it is an instant) of a view's fields that a record has under the same name."""
    known = view.model_fields
    kinds = {each.name: known[each.name].annotation for each in fields(record) if each.name in known}
    return tuple((name, kind in (datetime, datetime | None)) for name, kind in kinds.items())


def copied(view: type[BaseModel], *records: Any) -> dict[str, Any]:
    """The fields of a view that records have under the same name, instants as datetimes; later records win."""
    return {
        name: instant_or_none(getattr(record, name)) if is_instant else getattr(record, name)
        for record in records
        for name, is_instant in _shared(view, record.__class__)
    }


def reason_view(
    reason: Reason, store_view: StoreView, *, project: str | None = None, began: bool = False, ended: bool = False
) -> ReasonView:
    """A reason for every member of a project, with people and its jobs by their names.

    ``began``: of started work; ``ended``: of ended work.
    """
    reason = with_user_name(reason, store_view.name_of)
    said = with_work_names(sentence(reason, began=began, ended=ended), store_view, of_project(project))
    return ReasonView.model_construct(code=code_of(reason), figures=figures_of(reason), message=said)


def job_reason(record: JobRecord, store_view: StoreView) -> ReasonView | None:
    """Why a job is where it is: the present reason of a waiting job, else the recorded one while it holds."""
    job = record.job
    waits = store_view.waits.get(job.id) if job.state in WAITING else None
    began, ended = job.state in HOLDS_GPU, job.state in FINAL
    reason = end_reason(record) if ended else waits or store_view.removal_reason_of(job) or present_reason(record)
    return None if reason is None else reason_view(reason, store_view, project=job.project, began=began, ended=ended)


def pause_reason(record: JobRecord, store_view: StoreView) -> ReasonView | None:
    """Why a paused job was paused; None for one that ended its attempt itself."""
    paused, reason = record.job.state is JobState.PAUSED, record.reason
    if not paused or reason is None or reason.code in STARTED:
        return None
    return reason_view(reason, store_view, project=record.job.project)


def notebook_reason(record: NotebookRecord, store_view: StoreView) -> ReasonView | None:
    """Why a slice waits, or was refused, or how it came to be."""
    notebook = record.notebook
    waits = store_view.waits.get(notebook.id) if notebook.state in AWAITED else None
    reason = waits or store_view.removal_reason_of(notebook) or record.reason
    began = notebook.state in HOLDS_SLICE
    return None if reason is None else reason_view(reason, store_view, project=notebook.project, began=began)


AWAITED = frozenset({NotebookState.REQUESTED, NotebookState.LENT})
"""States in which a slice may have a reason to wait; a lent one has one only while its owner waits for it."""


def present_reason(record: JobRecord) -> Reason | None:
    """The recorded reason while it holds: not of a hold after the release."""
    reason, job = record.reason, record.job
    if reason is None or reason.code not in _TARGETS:
        return reason
    if job.target is not _TARGETS[ReasonCode(reason.code)]:
        return None
    return _settled(reason) if job.state is JobState.HELD and reason.code not in HELD_BY_ENFORCEMENT else reason


def end_reason(record: JobRecord) -> Reason | None:
    """Why a job ended; None for one that succeeded.

    Earlier releases kept the reason of the last start or pause. Of such a failed job the exit status is known.
    """
    reason, state = record.reason, record.job.state
    if state is JobState.CANCELLED:
        of_cancel = reason is not None and reason.code is ReasonCode.CANCELLED_BY_USER
        return _settled(reason) if reason is not None and of_cancel else None
    if state is not JobState.FAILED or isinstance(reason, JobEnd):
        return reason if state is JobState.FAILED else None
    if reason is not None and reason.code is ReasonCode.TIME_LIMIT:
        return reason
    return None if record.exit_status is None else job_end(record.exit_status)


def _settled(reason: Reason) -> Reason:
    """The reason of a hold or a cancel that is complete: without the grace period."""
    return with_changes(reason, user=None, grace_s=None) if isinstance(reason, ByUser) else reason


STARTED = frozenset(
    {
        ReasonCode.WITHIN_GUARANTEE,
        ReasonCode.WITHIN_FAIR_SHARE,
        ReasonCode.IDLE_SURPLUS,
        ReasonCode.NON_PREEMPTIBLE_WITHIN_QUOTA,
        ReasonCode.BORROWS_NOTEBOOK_QUOTA,
        ReasonCode.BORROWS_RESERVED_DEVICES,
    }
)
"""Reasons of a start; an ended job does not show them."""

_TARGETS = {
    ReasonCode.HELD_BY_USER: JobTarget.HELD,
    ReasonCode.OVER_SHARE: JobTarget.HELD,
    ReasonCode.ENFORCEMENT_TOO_WEAK: JobTarget.HELD,
    ReasonCode.ENFORCEMENT_UNAVAILABLE: JobTarget.HELD,
    ReasonCode.DATA_UNAVAILABLE: JobTarget.HELD,
    ReasonCode.CODE_UNAVAILABLE: JobTarget.HELD,
    ReasonCode.CANCELLED_BY_USER: JobTarget.CANCELLED,
}
"""The target of a job for as long as it has this reason."""


def enforcement_view(held: Sequence[Allocation], store_view: StoreView) -> Enforcement | None:
    """The weakest enforcement of these allocations; None without any."""
    labels = [store_view.labels.get(part.id) for part in held]
    if not labels:
        return None
    known = [each for each in labels if each is not None]
    if len(known) < len(labels):
        return Enforcement(memory="none", compute="none", why=NOT_READ_BACK)
    weakest = max(known, key=lambda each: STRONGEST_FIRST.index(EnforcementLevel(each.memory)))
    compute = max((EnforcementLevel(each.compute) for each in known), key=STRONGEST_FIRST.index)
    return Enforcement(memory=weakest.memory, compute=compute, why=weakest.why or None)


def _of_allocations(held: Sequence[Allocation], store_view: StoreView) -> dict[str, Any]:
    """The fields of a view about the allocations of a workload."""
    views = []
    for part in held:
        device = store_view.mirror.devices.get(part.device)
        of_device = (
            {"device_uuid": device.uuid, "device_memory_mib": device.memory_mib} if device else {"device_uuid": None}
        )
        views.append(AllocationView(**copied(AllocationView, part), **of_device))
    return {"allocations": views, "enforcement": enforcement_view(held, store_view), **_utilised(held, store_view)}


def _utilised(held: Sequence[Allocation], store_view: StoreView) -> dict[str, Any]:
    found = store_view.utilised(held) if held else NOTHING_HELD
    return {"utilised_milli": found.milli, "utilised_unknown": found.why}


def stopped_by(record: JobRecord, store_view: StoreView) -> str | None:
    """The name of the user who held or cancelled a job."""
    by = record.reason.by if isinstance(record.reason, ByUser) else None
    is_stopped = record.job.target in (JobTarget.HELD, JobTarget.CANCELLED)
    return store_view.name_of(by) if by is not None and is_stopped else None


def grace_ends_at(job: Job, store_view: StoreView) -> datetime | None:
    """When a pausing job is killed if it has not ended; None for any other job."""
    quota, since = store_view.quota, job.pausing_since_at
    if job.state is not JobState.PAUSING or since is None or quota is None:
        return None
    rules = quota.policy.preemption
    return instant(since + (rules.lent_grace_s if job.borrower else rules.grace_s) * MS_PER_S)


def _of_queue(record: JobRecord, store_view: StoreView) -> dict[str, Any]:
    """The position and the planned start of a waiting job, by the last decision."""
    if record.job.state not in WAITING:
        return {}
    job = record.job.id
    at, reason = store_view.estimates.get(job), store_view.waits.get(job)
    return {
        "queue_position": store_view.positions.get(job),
        "estimate_at": instant_or_none(at),
        "estimate_text": None if at is None or reason is None else start_sentence(at, reason),
    }


def _job_fields(view: type[JobView], record: JobRecord, store_view: StoreView) -> dict[str, Any]:
    job, spec, done, total = record.job, record.spec, record.done, record.total
    return {
        **copied(view, job, record, spec),
        **_of_allocations(store_view.allocations_of(job.id), store_view),
        **_of_queue(record, store_view),
        "stopped_by": stopped_by(record, store_view),
        "grace_ends_at": grace_ends_at(job, store_view),
        "user": store_view.name_of(job.user),
        "command": list(spec.command),
        "secret_names": list(spec.secret_names),
        "data": list(spec.data),
        "notify": None if spec.notify is None else list(spec.notify),
        "gpu": spec.gpu_asked,
        "metrics": dict(record.metrics),
        "reason": job_reason(record, store_view),
        "paused_because": pause_reason(record, store_view),
        "progress": None if done is None or total is None else ProgressView(done=done, total=total),
        "simulated": store_view.is_simulated(spec.pool),
    }


def job_view(record: JobRecord, store_view: StoreView) -> JobView:
    return JobView.model_construct(None, **_job_fields(JobView, record, store_view))


def job_detail(record: JobRecord, ranks: Sequence[RankRecord], store_view: StoreView) -> JobDetail:
    views = [RankView(**copied(RankView, rank), exit_text=_exit_text(rank)) for rank in ranks]
    found = _job_fields(JobDetail, record, store_view) | {"variables": dict(record.spec.variables)}
    found["reason"] = with_trouble(found["reason"], record, ranks)
    return JobDetail.model_construct(None, **found, rank_records=views)


def _exit_text(rank: RankRecord) -> str | None:
    return None if rank.ended_at is None else exit_text(rank.exit_status, rank.why_lost)


MAY_HAVE_TROUBLE = (JobState.QUEUED, JobState.STARTING)


def with_trouble(reason: ReasonView | None, record: JobRecord, ranks: Sequence[RankRecord]) -> ReasonView | None:
    """The reason of a job, with the trouble of its newest attempt while it starts or is queued again."""
    job = record.job
    found = newest_trouble(ranks, job.attempt) if job.state in MAY_HAVE_TROUBLE else None
    if found is None:
        return reason
    text = trouble_sentence(found, job.held_ranks or job.ranks)
    if reason is None:
        return ReasonView(code=str(job.state), figures={}, message=text)
    return reason.model_copy(update={"message": f"{reason.message} {text}"})


def notebook_view(record: NotebookRecord, store_view: StoreView) -> NotebookView:
    notebook = record.notebook
    found = copied(NotebookView, record, notebook) | _of_allocations(store_view.allocations_of(notebook.id), store_view)
    found |= {"user": store_view.name_of(notebook.user), "reason": notebook_reason(record, store_view)}
    memory = store_view.memory_used_mib(store_view.allocations_of(notebook.id))
    return NotebookView(
        **found,
        simulated=store_view.is_simulated(notebook.pool),
        memory_used_mib=memory,
        borrowed=store_view.is_borrowed(notebook),
    )


NO_SAMPLE = "it was not read yet"
FOREIGN = "processes that this service did not start, or jobs that its database does not have (`recover` lists these)"


def device_view(
    device: Device, held: Sequence[Allocation], person: Person, store_view: StoreView, where: tuple[str, str]
) -> DeviceView:
    """One device with its allocations, work of other projects hidden. ``where`` is (cluster, hub)."""
    sample, node = store_view.samples.get(device.id), store_view.nodes.get(device.node)
    used = sum(part.gpu_milli for part in held) + device.foreign_milli
    return DeviceView(
        **copied(DeviceView, device) | _availability(device, store_view),
        upkeep=node.upkeep if node else Upkeep.NONE,
        gone_at=instant_or_none(store_view.mirror.gone_devices.get(device.id)),
        foreign_why=(sample.why.get("foreign") if sample else None) or (FOREIGN if device.foreign_milli else None),
        free_milli=max(0, WHOLE_DEVICE - used) if store_view.is_available(device) else 0,
        holders=[holder_view(part, person, store_view) for part in held],
        utilisation_percent=sample.utilisation_percent if sample else None,
        utilisation_unknown=sample.why.get("utilisation_percent") if sample else NO_SAMPLE,
        memory_used_mib=sample.memory_used_mib if sample else None,
        sampled_at=instant(sample.at) if sample else None,
        cluster=_cluster_of(node, where),
        hub=where[1],
    )


UNAVAILABLE, NODE_UNAVAILABLE = "unavailable", "its node is gone, or cannot be read now"


def _availability(device: Device, store_view: StoreView) -> dict[str, str]:
    """The health of a device whose node takes no work; nothing is known of the device itself then."""
    if device.health is not Health.HEALTHY or store_view.is_available(device):
        return {}
    return {"health": UNAVAILABLE, "trouble": device.trouble or NODE_UNAVAILABLE}


def holder_view(part: Allocation, person: Person, store_view: StoreView) -> HolderView:
    """The workload of an allocation. Of work that this person may not see only the amount is shown."""
    mirror = store_view.mirror
    record = mirror.jobs.get(part.workload) or mirror.notebooks.get(part.workload)
    if record is None or not may_see(person, record):
        return HolderView(
            kind="hidden", workload=None, user=None, project=None, gpu_milli=part.gpu_milli, state="hidden"
        )
    is_job = isinstance(record, JobRecord)
    work = record.job if isinstance(record, JobRecord) else record.notebook
    return HolderView(
        kind="job" if is_job else "notebook",
        workload=work.id,
        user=store_view.name_of(work.user),
        project=work.project,
        gpu_milli=part.gpu_milli,
        state=work.state,
        name=record.spec.name if isinstance(record, JobRecord) else None,
        enforcement=enforcement_view([part], store_view),
        **_utilised([part], store_view),
    )


def node_view(node: Node, devices: int, store_view: StoreView, where: tuple[str, str]) -> NodeView:
    """One node with the number of its devices that are reported. ``where`` is (cluster, hub)."""
    found = copied(NodeView, node) | {"schedulable": node.is_open, "drain_by": instant_or_none(node.drain_by_at)}
    found |= {"gone_at": instant_or_none(store_view.mirror.gone_nodes.get(node.id))}
    found |= {"unread_since": instant_or_none(node.unread_since_at), "cluster": _cluster_of(node, where)}
    return NodeView(**found, devices=devices, hub=where[1])


def _cluster_of(node: Node | None, where: tuple[str, str]) -> str:
    """The cluster of a node: a further one, or the one that the deployment is in."""
    return where[0] if node is None or node.cluster == OWN_CLUSTER else node.cluster


def quota_view(revision: QuotaRevision, store_view: StoreView) -> QuotaView:
    return QuotaView(**copied(QuotaView, revision), author=store_view.name_of(revision.actor))


def sample_view(row: DeviceSample) -> SampleView:
    # the reasons of workloads are for readers who may see these
    why = {figure: text for figure, text in row.why.items() if figure not in row.workloads}
    return SampleView(**copied(SampleView, row) | {"why": why})
