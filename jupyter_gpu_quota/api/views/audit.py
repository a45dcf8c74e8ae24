"""Audit rows in words: what was done, and to whom. The row itself, with its figures and its hash, stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ...messages import audit
from ...messages.audit import PARTS, AuditEntry
from ...store.records.protocol import Store
from ...store.records.rows import AuditRow, JobRecord, NotebookRecord
from ...wire import AuditView
from .records import Picture, instant

Subjects = Mapping[str, JobRecord | NotebookRecord]


def subjects_of(store: Store, rows: Iterable[AuditRow]) -> Subjects:
    """The jobs and notebooks that rows speak of, ended ones too; what retention removed is left out."""
    names = {row.subject for row in rows if row.project is not None}
    found = {name: store.job(name) or store.notebook(name) for name in names}
    return {name: record for name, record in found.items() if record is not None}


def audit_view(row: AuditRow, subjects: Subjects, picture: Picture) -> AuditView:
    """A row as it is recorded, with what it says in words."""
    return AuditView(
        seq=row.seq,
        at=instant(row.at),
        actor=picture.name_of(row.actor),
        who=who(row.actor, picture),
        what=what(row, subjects, picture),
        kind=row.kind,
        subject=row.subject,
        project=row.project,
        payload=json.loads(row.payload),
        previous=row.previous,
        hash=row.hash,
    )


def who(actor: str, picture: Picture) -> str:
    """A person by name, a part of the service by what it does."""
    return PARTS.get(actor) or picture.name_of(actor).removeprefix("system:")


def what(row: AuditRow, subjects: Subjects, picture: Picture) -> str:
    """What was done, and to whom: the rest of a sentence that begins with the actor."""
    thing = _thing(row.subject, subjects, picture)
    payload = json.loads(row.payload)
    return audit.what(
        AuditEntry(kind=row.kind, subject=row.subject, payload=payload, thing=thing, name_of=picture.name_of)
    )


def _thing(subject: str, subjects: Subjects, picture: Picture) -> str:
    """Whose job or notebook a row speaks of."""
    record = subjects.get(subject)
    if isinstance(record, JobRecord):
        return f'{picture.name_of(record.job.user)}\'s job "{record.spec.name}"'
    if isinstance(record, NotebookRecord):
        return f"{picture.name_of(record.notebook.user)}'s notebook"
    return subject
