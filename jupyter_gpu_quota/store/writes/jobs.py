"""Requests on jobs: submit, hold, release, cancel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...core.canonical import digest
from ...core.lifecycle import FINAL, HOLDS_GPU, JobEvent, next_job_state
from ...core.model import JobState, JobTarget
from ...core.reasons import CancelledByUser, HeldByUser, Reason
from ..database.tables import IDEMPOTENCY, JOBS, NOTES, SECRETS, IdempotencyRow, SecretsRow, Where
from ..database.unit_of_work import UnitOfWork
from ..records.activity import Note
from ..records.commands import (
    MAX_NUMBER,
    ChangeJob,
    OutputsExpired,
    Recorded,
    Refused,
    RemoveOutputs,
    SubmitJob,
    queue_full,
)
from ..records.rows import JobRecord
from .allocations import drop_reservation, put_job
from .observe import evaluate_released

NOT_STARTED = (JobState.QUEUED, JobState.PAUSED, JobState.HELD)


def submit_job(work: UnitOfWork, request: SubmitJob) -> Recorded:
    """Queue a job; a repeated request changes nothing."""
    if request.idempotency_key is not None:
        earlier = work.get(IDEMPOTENCY, (request.user, request.idempotency_key))
        if earlier is not None:
            return work.recorded(earlier.job, existed=True)
    known = work.get(JOBS, (request.job,))
    if known is not None and known.job.user != request.user:
        raise Refused("exists", f"The id {request.job} belongs to a job of another user; submit again with a new id.")
    if known is not None:
        return work.recorded(request.job, existed=True)
    _check_ranges(request)
    _check_waiting(work, request)
    _audit_submit(work, request)
    spec, secret_names = request.spec, tuple(sorted(request.secrets))
    record = JobRecord(
        job=spec.queued(request.job, request.user, work.now),
        spec=replace(spec, secret_names=secret_names or spec.secret_names),
        account=request.account,
        retries_left=spec.retries,
        clone_of=request.clone_of,
    )
    put_job(work, record)
    if request.secrets:
        digest(request.secrets)  # raises ValueError for text that is not Unicode
        work.put(SECRETS, SecretsRow(job=request.job, values=dict(request.secrets)))
    if request.idempotency_key is not None:
        row = IdempotencyRow(user=request.user, key=request.idempotency_key, job=request.job, sent=request.sent)
        work.put(IDEMPOTENCY, row)
    return work.recorded(request.job)


MIN_VALUES: Mapping[str, int] = {"gpu_milli": 1, "ranks": 1, "priority": 0, "time_limit_s": 1, "retries": 0}


def _check_ranges(request: SubmitJob) -> None:
    """Refuse numbers that a database cannot hold, and those of a job that could never run."""
    spec = request.spec
    for name, least in MIN_VALUES.items():
        value = getattr(spec, name)
        if not least <= value <= MAX_NUMBER:
            message = f"{name} was {value}; it must be from {least} to {MAX_NUMBER}. Nothing was stored."
            raise Refused("invalid", message)
    if spec.min_ranks is not None and not 1 <= spec.min_ranks <= spec.ranks:
        message = f"min_ranks was {spec.min_ranks}; it must be from 1 to the {spec.ranks} ranks. Nothing was stored."
        raise Refused("invalid", message)


def _check_waiting(work: UnitOfWork, request: SubmitJob) -> None:
    """Refuse a job above the limit per person: a loop that submits would fill the disk and the queue."""
    if request.most_waiting is None:
        return
    user = request.user
    waiting = work.count(JOBS, waiting_of(user), lambda row: row.job.user == user and row.job.state in NOT_STARTED)
    if (refusal := queue_full(user, waiting, request.most_waiting)) is not None:
        raise Refused(refusal.code, refusal.message)


def waiting_of(user: str) -> Where:
    """The jobs of a user that have not started, or are paused."""
    return Where(among={"user": [user], "state": [state.value for state in NOT_STARTED]}, live=True)


AUDITED = (
    "pool", "gpu_asked", "gpu_milli", "gpu_model", "ranks", "min_ranks", "priority", "preemptible", "time_limit_s",
    "bundle", "live", "private", "data",
)  # fmt: skip
"""Fields of a specification that the audit shows; its digest covers the others."""


def _audit_submit(work: UnitOfWork, request: SubmitJob) -> None:
    """Values of variables and the account are left out: the audit outlives the job and holds no names of people."""
    spec = request.spec
    payload: dict[str, object] = {name: getattr(spec, name) for name in AUDITED}
    payload |= {
        "clone_of": request.clone_of,
        "spec": digest((spec, request.account, request.idempotency_key)),
    }
    work.audit(request.user, "job.submit", request.job, payload, spec.project)


def change_job(work: UnitOfWork, request: ChangeJob) -> Recorded:
    """Hold, release or cancel a job that has not ended."""
    record = work.get(JOBS, (request.job,))
    if record is None:
        raise Refused.unknown("job", request.job)
    if request.change == "cancel" and record.job.state is JobState.CANCELLED:
        return work.recorded(request.job, existed=True)
    if record.job.state in FINAL:
        again = (
            f" `jupyter gpu-quota clone {request.job}` submits it as a new job." if request.change == "release" else ""
        )
        raise Refused("ended", f"Job {request.job} has ended ({record.job.state}); nothing was changed.{again}")
    changed = _changed(work, record, request)
    if changed == record:
        return work.recorded(request.job, existed=True)
    put_job(work, changed)
    if changed.job.state in FINAL or changed.job.state is JobState.HELD:
        drop_reservation(work, request.job)
    payload: dict[str, object] = {"was": record.job.state, "is": changed.job.state, "target": changed.job.target}
    if request.why is not None:
        payload["reason"] = request.why
    work.audit(request.actor, f"job.{request.change}", request.job, payload, record.job.project)
    if request.change == "release":
        evaluate_released(work, changed)
    return work.recorded(request.job)


def remove_outputs(work: UnitOfWork, request: RemoveOutputs) -> Recorded:
    """Record that the outputs of an ended job are to be removed; retention does it."""
    record = work.get(JOBS, (request.job,))
    if record is None:
        raise Refused.unknown("job", request.job)
    if record.job.state not in FINAL:
        what = f"Job {request.job} is {record.job.state}; the outputs of a job can be removed when it has ended."
        raise Refused("in_use", f"{what} Nothing was changed.")
    notes = [(kind, request.job, 0) for kind in ("outputs", "outputs_removal")]
    work.fetch(NOTES, notes)
    kept, asked = (work.get(NOTES, key) for key in notes)
    if asked is not None or (kept is not None and kept.document["removed_at"] is not None):
        return work.recorded(request.job, existed=True)
    document = {"requested_by": request.actor}
    work.put(NOTES, Note(kind="outputs_removal", subject=request.job, at=work.now, document=document))
    work.stamp()
    work.audit(request.actor, "job.remove_outputs", request.job, {}, record.job.project)
    return work.recorded(request.job)


def outputs_expired(work: UnitOfWork, request: OutputsExpired) -> Recorded:
    """Audit a removal that no user requested."""
    work.audit("system:controller", "job.remove_outputs", request.job, {}, request.project)
    return work.recorded(request.job)


def _changed(work: UnitOfWork, record: JobRecord, request: ChangeJob) -> JobRecord:
    match request.change:
        case "hold":
            return _held(record, request.why or HeldByUser(by=request.actor))
        case "release":
            return _released(record)
        case "cancel":
            return _cancelled(work, record, request.actor)
        case _:
            raise ValueError(f"a job can be held, released or cancelled, not {request.change!r}")


def _held(record: JobRecord, reason: Reason) -> JobRecord:
    job = record.job
    if job.state is JobState.HELD or job.target in (JobTarget.CANCELLED, JobTarget.FAILED):
        return record  # a job that is about to end is not held first
    if job.state not in HOLDS_GPU:
        job = replace(job, state=next_job_state(job.state, JobEvent.HOLD))
    elif job.target is JobTarget.HELD:
        return record
    return replace(record, job=replace(job, target=JobTarget.HELD), reason=reason)


def _released(record: JobRecord) -> JobRecord:
    job = record.job
    if job.target is not JobTarget.HELD:
        return record
    if job.state is JobState.HELD:
        job = replace(job, state=next_job_state(job.state, JobEvent.RELEASE))
    if job.state is JobState.PAUSING:  # the hold stays the reason of this pause
        return replace(record, job=replace(job, target=JobTarget.PAUSED))
    return replace(record, job=replace(job, target=JobTarget.RUNNING), reason=None)


def _cancelled(work: UnitOfWork, record: JobRecord, actor: str) -> JobRecord:
    job, reason = record.job, CancelledByUser(by=actor)
    if job.state in HOLDS_GPU:
        if job.target is JobTarget.CANCELLED:
            return record
        return replace(record, job=replace(job, target=JobTarget.CANCELLED), reason=reason)
    job = replace(job, state=next_job_state(job.state, JobEvent.CANCEL), target=JobTarget.CANCELLED)
    return replace(record, job=job, reason=reason, ended_at=work.now)
