"""One writing transaction: it reads through to the rows, collects the writes until its end, and can undo them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from ...core.canonical import canonical, digest
from ...core.frozen import with_changes
from ..records.calls import Page
from ..records.commands import Recorded
from ..records.rows import AuditRow
from .tables import AUDIT, HEAD, HEAD_KEY, TABLES, Head, Key, Scope, Table, TableWrites, Value, Where

R = TypeVar("R")
_ABSENT: Any = object()
Mark = tuple[int, Head, tuple[int, str], bool]


def audit_hash(row: AuditRow) -> str:
    """The link of the chain: SHA-256 over the canonical JSON of every field and the previous link."""
    return digest((row.seq, row.at, row.actor, row.kind, row.subject, row.project, row.payload, row.previous))


class UnitOfWork:
    """The rows as one transaction reads and leaves them.

    ``now`` is the caller's instant; ``new_id`` makes ULIDs. Nothing reaches the rows before :meth:`writes` is
    applied, so a refused request, a stale plan and a raised error leave no trace.
    """

    def __init__(self, scope: Scope, *, now: int, new_id: Callable[[int], str]) -> None:
        self.now = now
        self.scope = scope
        self._new_id = new_id
        self._read: dict[str, dict[Key, Any]] = {table.name: {} for table in TABLES}
        self._written: dict[str, dict[Key, Any]] = {table.name: {} for table in TABLES}
        self._counted: dict[tuple[str, str], int] = {}
        self._journal: list[tuple[dict[Key, Any], Key, Any]] = []
        self._sought: dict[tuple[str, str], dict[Value, list[Key]]] = defaultdict(dict)
        self._put_under: dict[tuple[str, str], dict[Value, list[Key]]] = defaultdict(dict)
        self._stamped = False
        self._before = self.head = scope.get_many(HEAD, [HEAD_KEY])[HEAD_KEY]
        self.last_link = self.head.audit_seq, self.head.audit_hash
        """Number and hash of the audit's last row, as this transaction would leave it; the head has them at its end."""

    # --- reading ----------------------------------------------------------------------------------------------------
    def fetch(self, table: Table[R], keys: Iterable[Key]) -> None:
        """Read many rows in one query, so that each :meth:`get` of one that follows needs none."""
        read = self._read[table.name]
        missing = [key for key in dict.fromkeys(keys) if key not in read]
        if missing:
            found = self.scope.get_many(table, missing)
            for key in missing:
                read[key] = found.get(key)

    def get(self, table: Table[R], key: Key) -> R | None:
        written = self._written[table.name]
        if key in written:
            return cast("R | None", written[key])
        read = self._read[table.name]
        if key not in read:
            self.fetch(table, [key])
        return cast("R | None", read[key])

    def find_ahead(self, table: Table[R], column: str, values: Iterable[Value]) -> None:
        """Read the rows of many values in one query, so that each :meth:`find` of one that follows needs none."""
        sought = self._sought[table.name, column]
        missing = [value for value in dict.fromkeys(values) if value not in sought]
        if not missing:
            return
        read, value_of = self._read[table.name], table.fields[column]
        sought |= {value: [] for value in missing}
        for row in self.scope.find(table, column, missing):
            key = table.key(row)
            read.setdefault(key, row)
            sought[value_of(row)].append(key)

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        """Rows with one of these values in an indexed column, as this transaction would leave them."""
        self.find_ahead(table, column, values)
        written, read = self._written[table.name], self._read[table.name]
        sought, put = self._sought[table.name, column], self._put_under[table.name, column]
        value_of = table.fields[column]
        ended = table.fields[table.ended] if table.ended and column in table.live_indexes else None
        found: dict[Key, R] = {}
        for value in dict.fromkeys(values):
            for key in (*sought[value], *put.get(value, ())):
                row = written.get(key, _ABSENT)
                if row is _ABSENT:
                    row = read.get(key)
                if row is not None and value_of(row) == value and (ended is None or ended(row) is None):
                    found[key] = row
        return list(found.values())

    def every(self, table: Table[R]) -> list[R]:
        """All rows of a small versioned table, as this transaction would leave them."""
        read, written = self._read[table.name], self._written[table.name]
        for row in self.scope.changed(table, -1, live=False):
            read.setdefault(table.key(row), row)
        return [row for row in (read | written).values() if row is not None]

    def live(self, table: Table[R]) -> list[R]:
        """The rows of a versioned table that have not ended, as this transaction would leave them."""
        read, ended = self._read[table.name], table.fields[table.ended or ""]
        for row in self.scope.changed(table, -1, live=True):
            read.setdefault(table.key(row), row)
        return [row for row in (read | self._written[table.name]).values() if row is not None and ended(row) is None]

    def count(self, table: Table[R], where: Where, matches: Callable[[R], bool]) -> int:
        """How many rows match, as this transaction would leave them; both arguments are the same condition."""
        condition = (table.name, str(where))
        if condition not in self._counted:
            self._counted[condition] = self.scope.listing(table, where, Page(limit=0))[1]
        read, count = self._read[table.name], self._counted[condition]
        for key, row in self._written[table.name].items():
            before = read.get(key)
            count += (row is not None and matches(row)) - (before is not None and matches(before))
        return count

    def ended(self, table: Table[R], before: int, limit: int) -> list[R]:
        """Rows that ended before an instant, at most ``limit`` of them, those that ended first."""
        rows = self.scope.ended(table, before, limit)
        self._read[table.name].update((table.key(row), row) for row in rows)
        return rows

    def some(self, table: Table[R], where: Where, limit: int) -> tuple[list[R], int]:
        """At most ``limit`` of the stored rows for which conditions hold, and how many there are."""
        rows, count = self.scope.listing(table, where, Page(limit=limit))
        self._read[table.name].update((table.key(row), row) for row in rows)
        return rows, count

    # --- writing ----------------------------------------------------------------------------------------------------
    def put(self, table: Table[R], row: R) -> None:
        """Insert or replace. A row that may be there already must have been read in this transaction."""
        self._set(table, table.key(row), row)

    def delete(self, table: Table[R], key: Key) -> None:
        if self.get(table, key) is not None:
            self._set(table, key, None)

    def _set(self, table: Table[R], key: Key, row: R | None) -> None:
        written = self._written[table.name]
        self._journal.append((written, key, written.get(key, _ABSENT)))
        written[key] = row
        if row is not None:
            for column in (*table.indexes, *table.live_indexes):
                self._put_under[table.name, column].setdefault(table.fields[column](row), []).append(key)

    def stamp(self) -> int:
        """The version this transaction makes, for ``changed``; the call makes the version grow."""
        self._stamped = True
        return self._before.version + 1

    def version(self) -> int:
        """The version as this transaction would leave it."""
        return self._before.version + (1 if self._stamped else 0)

    def new_id(self) -> str:
        return self._new_id(self.now)

    def recorded(self, id: str, *, existed: bool = False) -> Recorded:
        """The answer to a request, at the version as this transaction would leave it."""
        return Recorded(id=id, version=self.version(), existed=existed)

    def audit(self, actor: str, kind: str, subject: str, payload: Mapping[str, object], project: str | None) -> None:
        """Append one row to the chain. ``payload`` holds ids, never names or secrets."""
        seq, previous = self.last_link
        text = canonical(payload).decode()
        row = AuditRow(
            seq=seq + 1, at=self.now, actor=actor, kind=kind, subject=subject, project=project, payload=text,
            previous=previous, hash="",
        )  # fmt: skip
        row = with_changes(row, hash=audit_hash(row))
        self.put(AUDIT, row)
        self.last_link = row.seq, row.hash

    # --- ending -----------------------------------------------------------------------------------------------------
    def mark(self) -> Mark:
        """A point to which :meth:`undo` can go back."""
        return len(self._journal), self.head, self.last_link, self._stamped

    def undo(self, mark: Mark) -> None:
        length, self.head, self.last_link, self._stamped = mark
        while len(self._journal) > length:
            written, key, before = self._journal.pop()
            if before is _ABSENT:
                del written[key]
            else:
                written[key] = before

    def writes(self) -> list[TableWrites]:
        """All writes of this transaction, table by table; empty if it changes nothing."""
        seq, link = self.last_link
        head = replace(self.head, version=self.version(), audit_seq=seq, audit_hash=link)
        if head != self._before:
            self._read[HEAD.name][HEAD_KEY] = self._before
            self.put(HEAD, head)
        return [self._writes_of(table) for table in TABLES if self._written[table.name]]

    def _writes_of(self, table: Table[Any]) -> TableWrites:
        read, writes = self._read[table.name], TableWrites(table=table, inserts=[], updates=[], deletes=[])
        for key, row in self._written[table.name].items():
            is_stored = read.get(key) is not None
            if row is not None:
                (writes.updates if is_stored else writes.inserts).append(row)
            elif is_stored:
                writes.deletes.append(key)
        return writes
