"""The position of a database in its history, by which an older database is recognised."""

from __future__ import annotations

from ..records.rows import Position
from .tables import AUDIT, Head, Scope


def position_of(head: Head) -> Position:
    return Position(audit_seq=head.audit_seq, audit_hash=head.audit_hash)


def has_position(scope: Scope, position: Position) -> bool:
    """Whether the audit chain contains this row: rows are never removed or changed."""
    if not position.audit_seq:
        return True
    row = scope.get_many(AUDIT, [(position.audit_seq,)]).get((position.audit_seq,))
    return row is not None and row.hash == position.audit_hash
