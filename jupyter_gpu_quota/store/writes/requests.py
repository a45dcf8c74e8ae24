"""Record requests: each one changes its rows, or is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ...core.canonical import digest
from ..database.tables import BUNDLES, IDEMPOTENCY, JOBS, NOTEBOOKS, QUOTA, BundleRow, Table, Where
from ..database.unit_of_work import UnitOfWork
from ..records import activity, commands
from ..records.commands import Recorded, Refusal, Refused, Request
from ..records.notifications import ChangeNotification, QueueJobNotifications
from ..records.recovery import AcceptRecovery, ForgetUnknownWork, HoldDecisions
from ..records.rows import QuotaRevision
from .activity import keep_notes, postpone_warning, record_idle_state, record_report, wake_notebook
from .allocations import record_labels
from .inventory import change_node, set_inventory
from .jobs import change_job, outputs_expired, remove_outputs, submit_job
from .notebooks import record_memory_enforcement, request_notebook, request_slice_again, return_notebook
from .notification_queue import change_notification, queue_job_notifications
from .recovery import accept_recovery, forget_unknown_work, hold_decisions
from .removed_rows import forget_gone, remove_gone


def record_all(work: UnitOfWork, requests: Sequence[Request]) -> list[Recorded | Refusal]:
    """Record requests in order; a refused one does not affect the others."""
    readable = [request for request in requests if _is_text(request)]
    submits = [request for request in readable if isinstance(request, commands.SubmitJob)]
    work.fetch(
        JOBS, [(request.job,) for request in readable if isinstance(request, commands.SubmitJob | commands.ChangeJob)]
    )
    work.fetch(IDEMPOTENCY, [(s.user, s.idempotency_key) for s in submits if s.idempotency_key is not None])
    return [_record(work, request) for request in requests]


def _is_text(request: Request) -> bool:
    """Whether every id, name and sentence of the request can be a value of a column in any database."""
    try:
        return not any(b"\0" in text.encode() for text in _texts(request))
    except UnicodeEncodeError:
        return False


def _texts(row: Request | commands.JobSpec) -> Iterator[str]:
    """The texts in a request that columns have as they are; in the JSON of others, NUL is an escape sequence."""
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, commands.JobSpec):
            yield from (*value.command, *_texts(value))


def _record(work: UnitOfWork, request: Request) -> Recorded | Refusal:
    """Record one request; a refusal, text that no database stores and an illegal transition leave no trace."""
    if not _is_text(request):
        sentence = "The request was not stored: it holds text that is not Unicode, or the character NUL."
        return Refusal(code="invalid", message=sentence)
    mark = work.mark()
    try:
        return HANDLERS[type(request)](work, request)
    except Refused as refused:
        work.undo(mark)
        return refused.refusal
    except ValueError as error:
        work.undo(mark)
        return Refusal(code="invalid", message=f"The request was not stored: {error}.")


def _apply_quota(work: UnitOfWork, request: commands.ApplyQuota) -> Recorded:
    present = work.head.quota_revision
    if (message := request.why_stale(present)) is not None:
        raise Refused("stale", message)
    _refuse_new_work(work, request)
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
    return work.recorded(str(revision))


def _refuse_new_work(work: UnitOfWork, request: commands.ApplyQuota) -> None:
    """Refuse an edit if work in what it removes began after the edit was checked."""
    for section, names in request.removed.items():
        newest = {"changed": request.checked + 1}
        where = Where(among={section: names}, at_least=newest, live=True)
        tables: tuple[Table[Any], ...] = (JOBS, NOTEBOOKS)
        for table in tables:
            if work.count(table, where, partial(_is_new, table, section, names, request.checked)):
                raise Refused(
                    "stale",
                    f"Work in {section} {' or '.join(names)}, which the quota edit removes, began or changed after the"
                    " edit was checked. Preview the edit again, then apply it.",
                )


def _is_new(table: Table[Any], section: str, names: Sequence[str], checked: int, row: Any) -> bool:
    """Whether a row is live work in what an edit removes, and changed after the edit was checked."""
    value = table.fields
    is_live = value[table.ended or ""](row) is None
    return is_live and value[section](row) in names and value["changed"](row) > checked


def _keep_bundle(work: UnitOfWork, request: commands.KeepBundle) -> Recorded:
    """Record a bundle that was stored; one that is stored again is as new."""
    existed = work.get(BUNDLES, (request.digest, request.user)) is not None
    row = BundleRow(digest=request.digest, user=request.user, size_bytes=request.size_bytes, kept_at=work.now)
    work.put(BUNDLES, row)
    work.stamp()
    return work.recorded(request.digest, existed=existed)


def _forget_bundles(work: UnitOfWork, request: commands.ForgetBundles) -> Recorded:
    work.fetch(BUNDLES, request.bundles)
    for key in request.bundles:
        row = work.get(BUNDLES, key)
        if row is not None and row.kept_at < request.kept_before:
            work.delete(BUNDLES, key)
    return work.recorded("bundles")


HANDLERS: Mapping[type, Callable[[UnitOfWork, Any], Recorded]] = {
    commands.SubmitJob: submit_job,
    commands.ChangeJob: change_job,
    commands.RemoveOutputs: remove_outputs,
    commands.OutputsExpired: outputs_expired,
    commands.RequestNotebook: request_notebook,
    commands.ReturnNotebook: return_notebook,
    commands.RequestSliceAgain: request_slice_again,
    commands.RecordIdleState: record_idle_state,
    commands.RecordMemoryEnforcement: record_memory_enforcement,
    commands.RecordEnforcementLabels: record_labels,
    activity.RecordReport: record_report,
    activity.PostponeWarning: postpone_warning,
    activity.WakeNotebook: wake_notebook,
    activity.KeepNotes: keep_notes,
    ChangeNotification: change_notification,
    QueueJobNotifications: queue_job_notifications,
    HoldDecisions: hold_decisions,
    AcceptRecovery: accept_recovery,
    ForgetUnknownWork: forget_unknown_work,
    commands.ApplyQuota: _apply_quota,
    commands.SetInventory: set_inventory,
    commands.ChangeNode: change_node,
    commands.RemoveGone: remove_gone,
    commands.ForgetGone: forget_gone,
    commands.KeepBundle: _keep_bundle,
    commands.ForgetBundles: _forget_bundles,
}
"""The function that records each request. It raises Refused, or ValueError for an illegal transition."""
