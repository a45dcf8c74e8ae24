"""The audit's chain of hashes: each row covers the one before it, and the head covers the last."""

from __future__ import annotations

from collections.abc import Iterable

from ..database.tables import Head
from ..database.unit_of_work import audit_hash
from ..records.rows import AuditRow


def verify(head: Head, rows: Iterable[AuditRow]) -> int | str:
    """The number of rows if none was edited, deleted, added or moved; else a sentence that names the first such row."""
    seq, previous = 0, ""
    for row in rows:
        seq += 1
        if row.seq == seq - 1:
            return f"Audit row {row.seq} exists twice."
        if row.seq != seq:
            return f"Audit row {seq} is missing: the next stored one is row {row.seq}."
        if row.previous != previous:
            return f"Audit row {seq} does not follow row {seq - 1}: one of the two was replaced or moved."
        if row.hash != audit_hash(row):
            return f"Audit row {seq} ({row.kind} of {row.subject}) was edited: its hash does not match its content."
        previous = row.hash
    if (seq, previous) != (head.audit_seq, head.audit_hash):
        return f"The audit ends at row {seq}, but {head.audit_seq} rows were written: the rows after it were removed."
    return seq
