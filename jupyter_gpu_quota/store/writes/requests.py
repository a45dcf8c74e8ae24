"""What each request changes. Every function answers Recorded, or a Refusal with nothing written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import assert_never

from ...core.canonical import digest
from ...core.facts import NotebookFact
from ...core.lifecycle import FINAL, HOLDS_GPU, JobEvent, after
from ...core.model import Activity, JobState, JobTarget, Notebook, NotebookState
from ...core.reasons import CancelledByPerson, HeldByPerson, Reason
from ..database.tables import (
    BUNDLES,
    IDEMPOTENCY,
    JOBS,
    NOTEBOOKS,
    QUOTA,
    SECRETS,
    BundleRow,
    IdempotencyRow,
    SecretsRow,
    Where,
)
from ..database.unit_of_work import UnitOfWork
from ..records.activity import KeepNotes, PostponeWarning, RecordReport, WakeNotebook
from ..records.commands import (
    ApplyQuota,
    ChangeJob,
    ChangeNode,
    KeepBundle,
    Recorded,
    RecordEnforcementLabels,
    RecordIdleState,
    RecordMemoryEnforcement,
    Refusal,
    Request,
    RequestNotebook,
    RequestSliceAgain,
    ReturnNotebook,
    SetInventory,
    SubmitJob,
)
from ..records.notifications import ChangeNotification
from ..records.rows import JobRecord, NotebookRecord, QuotaRevision
from .activity import forget_activity, keep_notes, postpone_warning, record_report, wake_notebook
from .allocations import drop_reservation, move_notebook, observe_notebook, put_job, release_devices
from .enforcement_labels import record_labels
from .idle_state import record_idle_state
from .inventory import change_node, set_inventory
from .memory_enforcement import is_stopped, record_memory_enforcement, why_it_ended
from .notification_queue import change_notification
from .slice_requests import close, request_slice_again


def record_all(work: UnitOfWork, requests: Sequence[Request]) -> list[Recorded | Refusal]:
    """Record requests in order; each stands or falls by itself."""
    readable = {id(request) for request in requests if _is_text(request)}
    _read_ahead(work, [request for request in requests if id(request) in readable])
    return [_record_one(work, request) if id(request) in readable else NOT_TEXT for request in requests]


NOT_TEXT = Refusal(code="invalid", message="The request was not stored: it holds text that is not Unicode.")


def _is_text(request: Request) -> bool:
    """Whether every id and name of the request can be looked up in any database."""
    values = (getattr(request, field.name) for field in fields(request))
    try:
        return all(value.encode() is not None for value in values if isinstance(value, str))
    except UnicodeEncodeError:
        return False


def _read_ahead(work: UnitOfWork, requests: Sequence[Request]) -> None:
    """Read in a few queries what these requests will look at one by one."""
    submits = [request for request in requests if isinstance(request, SubmitJob)]
    named = [request.job for request in requests if isinstance(request, ChangeJob)]
    work.fetch(JOBS, [(job,) for job in [submit.job for submit in submits] + named])
    work.fetch(IDEMPOTENCY, [(s.user, s.idempotency_key) for s in submits if s.idempotency_key is not None])


def _record_one(work: UnitOfWork, request: Request) -> Recorded | Refusal:
    """Record one request; what a ValueError says (a text that is not Unicode, a move that is illegal) is a Refusal."""
    mark = work.mark()
    try:
        return _record(work, request)
    except ValueError as error:
        work.undo(mark)
        return Refusal(code="invalid", message=f"The request was not stored: {error}.")


def _record(work: UnitOfWork, request: Request) -> Recorded | Refusal:
    match request:
        case SubmitJob():
            return _submit(work, request)
        case ChangeJob():
            return _change_job(work, request)
        case RequestNotebook():
            return _request_notebook(work, request)
        case ReturnNotebook():
            return _return_notebook(work, request)
        case RequestSliceAgain():
            return request_slice_again(work, request)
        case RecordIdleState():
            return record_idle_state(work, request)
        case RecordMemoryEnforcement():
            return record_memory_enforcement(work, request)
        case RecordEnforcementLabels():
            return record_labels(work, request)
        case RecordReport():
            return record_report(work, request)
        case PostponeWarning():
            return postpone_warning(work, request)
        case WakeNotebook():
            return wake_notebook(work, request)
        case KeepNotes():
            return keep_notes(work, request)
        case ChangeNotification():
            return change_notification(work, request)
        case ApplyQuota():
            return _apply_quota(work, request)
        case SetInventory():
            return set_inventory(work, request)
        case ChangeNode():
            return change_node(work, request)
        case KeepBundle():
            return _keep_bundle(work, request)
        case _:
            assert_never(request)


def _done(work: UnitOfWork, id: str) -> Recorded:
    return Recorded(id=id, version=work.stamp())


def _existed(work: UnitOfWork, id: str) -> Recorded:
    return Recorded(id=id, version=work.version(), existed=True)


def _unknown(kind: str, id: str) -> Refusal:
    return Refusal(code="unknown", message=f"There is no {kind} {id}; it was never recorded, or retention removed it.")


# --- jobs -----------------------------------------------------------------------------------------------------------
def _submit(work: UnitOfWork, request: SubmitJob) -> Recorded | Refusal:
    if request.idempotency_key is not None:
        earlier = work.get(IDEMPOTENCY, (request.user, request.idempotency_key))
        if earlier is not None:
            return _existed(work, earlier.job)
    there = work.get(JOBS, (request.job,))
    if there is not None:
        return _existed(work, request.job) if there.job.user == request.user else _taken(request.job)
    if refusal := _out_of_range(request) or _queue_full(work, request):
        return refusal
    _audit_submit(work, request)
    put_job(work, _queued(work, request))
    if request.secrets:
        _check_text(request.secrets)
        work.put(SECRETS, SecretsRow(job=request.job, values=dict(request.secrets)))
    if request.idempotency_key is not None:
        row = IdempotencyRow(user=request.user, key=request.idempotency_key, job=request.job)
        work.put(IDEMPOTENCY, row)
    return _done(work, request.job)


NOT_STARTED = (JobState.QUEUED, JobState.PAUSED, JobState.HELD)


def _queue_full(work: UnitOfWork, request: SubmitJob) -> Refusal | None:
    """Refuse one job too many of one person: a loop that submits would else fill the disk and everybody's queue."""
    if request.most_waiting is None:
        return None
    where = Where(among={"user": [request.user], "state": [state.value for state in NOT_STARTED]}, live=True)
    waiting = work.count(JOBS, where, lambda row: row.job.user == request.user and row.job.state in NOT_STARTED)
    if waiting < request.most_waiting:
        return None
    message = (
        f"{request.user} has {waiting} jobs that are queued, paused or held, and {request.most_waiting} is the most "
        "for one person; cancel some, or submit again when some have started. Nothing was stored."
    )
    return Refusal(code="queue_full", message=message)


def _taken(job: str) -> Refusal:
    return Refusal(code="exists", message=f"The id {job} is another person's job; submit again with a new id.")


BIGGEST = 2**31 - 1
"""What a number of a request may be at most, so that every database can hold it."""


def _out_of_range(request: SubmitJob) -> Refusal | None:
    spec = request.spec
    least = {"gpu_milli": 1, "ranks": 1, "priority": 0, "time_limit_s": 1, "retries": 0}
    for name, bound in least.items():
        value = getattr(spec, name)
        if not bound <= value <= BIGGEST:
            message = f"{name} was {value}; it must be from {bound} to {BIGGEST}. Nothing was stored."
            return Refusal(code="invalid", message=message)
    if spec.min_ranks is not None and not 1 <= spec.min_ranks <= spec.ranks:
        message = f"min_ranks was {spec.min_ranks}; it must be from 1 to the {spec.ranks} ranks. Nothing was stored."
        return Refusal(code="invalid", message=message)
    return None


def _check_text(values: object) -> None:
    """Raises ValueError for text that has no UTF-8, before it could fail a whole transaction."""
    digest(values)


def _queued(work: UnitOfWork, request: SubmitJob) -> JobRecord:
    spec = request.spec
    return JobRecord(
        job=spec.queued(request.job, request.user, work.now),
        spec=replace(spec, secret_names=tuple(sorted(request.secrets)) or spec.secret_names),
        account=request.account,
        reason=None,
        retries_left=spec.retries,
        ended_at=None,
        exit_status=None,
        done=None,
        total=None,
        metrics={},
        clone_of=request.clone_of,
        pauses=0,
        changed=0,
    )


def _audit_submit(work: UnitOfWork, request: SubmitJob) -> None:
    """Values of variables and the account stay out: the audit outlives the job and holds nobody's name."""
    spec = request.spec
    payload = {
        "pool": spec.pool,
        "gpu_asked": spec.gpu_asked,
        "gpu_milli": spec.gpu_milli,
        "gpu_model": spec.gpu_model,
        "ranks": spec.ranks,
        "min_ranks": spec.min_ranks,
        "priority": spec.priority,
        "preemptible": spec.preemptible,
        "time_limit_s": spec.time_limit_s,
        "bundle": spec.bundle,
        "live": spec.live,
        "private": spec.private,
        "clone_of": request.clone_of,
        "spec": digest((spec, request.account, request.idempotency_key)),
    }
    work.audit(request.user, "job.submit", request.job, payload, spec.project)


def _change_job(work: UnitOfWork, request: ChangeJob) -> Recorded | Refusal:
    record = work.get(JOBS, (request.job,))
    if record is None:
        return _unknown("job", request.job)
    if record.job.state in FINAL:
        if request.change == "cancel" and record.job.state is JobState.CANCELLED:
            return _existed(work, request.job)
        return Refusal(code="ended", message=f"Job {request.job} is already {record.job.state}; nothing was changed.")
    changed = _changed(work, record, request)
    if changed == record:
        return _existed(work, request.job)
    put_job(work, changed)
    if changed.job.state in FINAL or changed.job.state is JobState.HELD:
        drop_reservation(work, request.job)
    payload: dict[str, object] = {"was": record.job.state, "is": changed.job.state, "target": changed.job.target}
    if request.why is not None:
        payload["reason"] = request.why
    work.audit(request.actor, f"job.{request.change}", request.job, payload, record.job.project)
    return _done(work, request.job)


def _changed(work: UnitOfWork, record: JobRecord, request: ChangeJob) -> JobRecord:
    match request.change:
        case "hold":
            return _held(record, request.why or HeldByPerson())
        case "release":
            return _released(record)
        case "cancel":
            return _cancelled(work, record)
        case _:
            raise ValueError(f"a job can be held, released or cancelled, not {request.change!r}")


def _held(record: JobRecord, reason: Reason) -> JobRecord:
    job = record.job
    if job.state is JobState.HELD or job.target in (JobTarget.CANCELLED, JobTarget.FAILED):
        return record  # what is on its way out for good is not held on the way
    if job.state not in HOLDS_GPU:
        job = replace(job, state=after(job.state, JobEvent.HOLD))
    elif job.target is JobTarget.HELD:
        return record
    return replace(record, job=replace(job, target=JobTarget.HELD), reason=reason)


def _released(record: JobRecord) -> JobRecord:
    job = record.job
    if job.target is not JobTarget.HELD:
        return record
    if job.state is JobState.HELD:
        job = replace(job, state=after(job.state, JobEvent.RELEASE))
    if job.state is JobState.PAUSING:  # it was asked to leave for a person, and that stays why it is paused
        return replace(record, job=replace(job, target=JobTarget.PAUSED))
    return replace(record, job=replace(job, target=JobTarget.RUNNING), reason=None)


def _cancelled(work: UnitOfWork, record: JobRecord) -> JobRecord:
    job, reason = record.job, CancelledByPerson()
    if job.state in HOLDS_GPU:
        if job.target is JobTarget.CANCELLED:
            return record
        return replace(record, job=replace(job, target=JobTarget.CANCELLED), reason=reason)
    job = replace(job, state=after(job.state, JobEvent.CANCEL), target=JobTarget.CANCELLED)
    return replace(record, job=job, reason=reason, ended_at=work.now)


# --- notebooks ------------------------------------------------------------------------------------------------------
def _request_notebook(work: UnitOfWork, request: RequestNotebook) -> Recorded | Refusal:
    if not 1 <= request.gpu_milli <= BIGGEST:
        return Refusal(code="invalid", message=f"A notebook asked for {request.gpu_milli} milli-GPU; 1 is the least.")
    if work.get(NOTEBOOKS, (request.notebook,)) is not None:
        return _existed(work, request.notebook)
    wanted = (request.project, request.pool, request.gpu_milli)
    for earlier in work.find(NOTEBOOKS, "user", [request.user]):
        if earlier.server != request.server:
            continue
        has = (earlier.notebook.project, earlier.notebook.pool, earlier.notebook.gpu_milli)
        if has == wanted and not is_stopped(earlier):
            return (
                _wake(work, earlier)
                if earlier.notebook.state is NotebookState.LENT
                else _existed(work, earlier.notebook.id)
            )
        _end_notebook(work, earlier, actor=request.user, why=ASKED_ANEW if has == wanted else ASKED_OTHERWISE)
    work.put(NOTEBOOKS, _requested(work, request))
    payload = {"server": request.server, "pool": request.pool, "gpu_milli": request.gpu_milli}
    work.audit(request.user, "notebook.request", request.notebook, payload, request.project)
    return _done(work, request.notebook)


ASKED_OTHERWISE, ASKED_ANEW = (
    "the same server asked for another slice",
    "the server was stopped and asked for a slice anew",
)


def _wake(work: UnitOfWork, record: NotebookRecord) -> Recorded:
    """A server that asks for the slice that it lent is not idle."""
    observe_notebook(work, NotebookFact(notebook=record.notebook.id, activity=Activity.BUSY))
    return _existed(work, record.notebook.id)


def _requested(work: UnitOfWork, request: RequestNotebook) -> NotebookRecord:
    notebook = Notebook(
        id=request.notebook,
        project=request.project,
        user=request.user,
        pool=request.pool,
        gpu_milli=request.gpu_milli,
        requested_at=work.now,
    )
    return NotebookRecord(
        notebook=notebook, server=request.server, reason=None, booked_at=None, ended_at=None, changed=work.stamp()
    )


def _return_notebook(work: UnitOfWork, request: ReturnNotebook) -> Recorded | Refusal:
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None:
        return _unknown("notebook slice", request.notebook)
    if record.ended_at is not None:
        return _done(work, request.notebook) if close(work, record) else _existed(work, request.notebook)
    _end_notebook(work, record, actor=request.actor, why=request.why)
    return _done(work, request.notebook)


def _end_notebook(work: UnitOfWork, record: NotebookRecord, *, actor: str, why: str) -> None:
    """Give a slice back at once: the hub says that its server is gone, so nobody uses the devices any more."""
    notebook = record.notebook
    move_notebook(work, record, "return", why_it_ended(record, work.now))
    release_devices(work, notebook.id)
    drop_reservation(work, notebook.id)
    forget_activity(work, notebook.id)
    work.audit(actor, "notebook.return", notebook.id, {"was": notebook.state, "why": why}, notebook.project)


# --- quota and bundles ----------------------------------------------------------------------------------------------
def _apply_quota(work: UnitOfWork, request: ApplyQuota) -> Recorded | Refusal:
    present = work.head.quota_revision
    if (message := request.why_stale(present)) is not None:
        return Refusal(code="stale", message=message)
    revision = present + 1
    row = QuotaRevision(
        revision=revision,
        text=request.text,
        document=dict(request.document),
        policy=replace(request.policy, revision=revision),
        actor=request.actor,
        at=work.now,
        comment=request.comment,
    )
    payload = {"text": digest(request.text), "policy": digest(row.policy), "comment": request.comment}
    work.audit(request.actor, "quota.apply", str(revision), payload, None)
    work.put(QUOTA, row)
    work.head = replace(work.head, quota_revision=revision, quota_changed=work.stamp())
    return _done(work, str(revision))


def _keep_bundle(work: UnitOfWork, request: KeepBundle) -> Recorded:
    if work.get(BUNDLES, (request.digest, request.user)) is not None:
        return _existed(work, request.digest)
    row = BundleRow(digest=request.digest, user=request.user, size_bytes=request.size_bytes, kept_at=work.now)
    work.put(BUNDLES, row)
    return _done(work, request.digest)
