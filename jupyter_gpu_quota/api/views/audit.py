"""Audit rows in words: the operation and its subject. The row itself, its figures and its hash stay as they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ...messages import audit
from ...messages.audit import PARTS, AuditEntry
from ...store.records.rows import AuditRow, JobRecord, NotebookRecord
from ...store.transactions import Store
from ...wire import AuditView
from ..state.store_view import StoreView
from .records import copied

Subjects = Mapping[str, JobRecord | NotebookRecord]


def subjects_of(store: Store, rows: Iterable[AuditRow]) -> Subjects:
    """The jobs and notebooks of audit rows, ended ones too; those that retention removed are missing."""
    names = {row.subject for row in rows if row.project is not None}
    found = {name: store.job(name) or store.notebook(name) for name in names}
    return {name: record for name, record in found.items() if record is not None}


def audit_view(row: AuditRow, subjects: Subjects, store_view: StoreView) -> AuditView:
    """A recorded row, with its sentence: ``who`` is a person's name or a part of the service."""
    record, thing, payload = subjects.get(row.subject), row.subject, json.loads(row.payload)
    if isinstance(record, JobRecord):
        thing = f'{store_view.name_of(record.job.user)}\'s job "{record.spec.name}"'
    elif isinstance(record, NotebookRecord):
        thing = f"{store_view.name_of(record.notebook.user)}'s notebook"
    actor = store_view.name_of(row.actor)
    entry = AuditEntry(kind=row.kind, subject=row.subject, payload=payload, thing=thing, name_of=store_view.name_of)
    words = {"who": PARTS.get(row.actor) or actor.removeprefix("system:"), "what": audit.action_text(entry)}
    return AuditView(**copied(AuditView, row) | words | {"actor": actor, "payload": payload})
