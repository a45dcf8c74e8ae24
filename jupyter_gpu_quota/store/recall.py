"""Rows that a process remembers, so that it does not read back what it wrote: for the scheduler, the chief writer.

The head, read anew in every transaction, says whether what is remembered is all there is. What others wrote since is
read, once, by its version. Anything that cannot be told by versions (another reign, a restored backup, a failed commit)
makes it forget everything. Ranks carry no version: only who decides writes them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from .protocol import Page
from .rows import (
    ALLOCATIONS,
    AUDIT,
    DEVICES,
    HEAD,
    HEAD_KEY,
    JOBS,
    NODES,
    NOTEBOOKS,
    RANKS,
    RESERVATIONS,
    Head,
    Key,
    Rows,
    Scope,
    Table,
    TableWrites,
    Value,
    Where,
    WriteScope,
)

R = TypeVar("R")
VERSIONED: tuple[Table[Any], ...] = (NODES, DEVICES, JOBS, NOTEBOOKS, ALLOCATIONS, RESERVATIONS)
REMEMBERED = {table.name for table in (*VERSIONED, RANKS)}
WHOLE = {RESERVATIONS.name}
"""Remembered with what is over: what is not remembered is not there. Of the others only live rows are remembered."""
JOURNAL_VERSIONS = 16
"""What changed in so many versions is remembered for those who ask what is new."""


class _Known:
    """What is remembered, as of ``head``; None: nothing is."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self.head: Head | None = None
        self.floor = 0
        self.rows: dict[str, dict[Key, Any]] = {name: {} for name in REMEMBERED}
        self.live: dict[str, dict[Value, dict[Key, None]]] = {column: {} for column in ALLOCATIONS.live_indexes}
        self.ranks: dict[str, set[Key]] = {}
        self.journal: deque[tuple[int, str, Key, Any]] = deque()

    def follow(self, scope: Scope, head: Head) -> None:
        """Be as the head says: by what changed since, or from the beginning."""
        if self.head is not None and (head.fencing != self.head.fencing or not _is_later(scope, head, self.head)):
            self.forget()
        if self.head is None:
            for table in VERSIONED:
                for row in scope.changed(table, -1, live=table.ended is not None and table.name not in WHOLE):
                    self.put(table, row)
            self.journal.clear()
            self.floor = head.version
        elif head.version > self.head.version:
            for table in VERSIONED:
                for row in scope.changed(table, self.head.version, live=False):
                    self.put(table, row)
        self.head = head

    def absorb(self, writes: Iterable[TableWrites]) -> None:
        """Remember what was just committed."""
        for change in writes:
            if change.table is HEAD:
                self.head = change.updates[0]
            elif change.table.name in REMEMBERED:
                for row in (*change.inserts, *change.updates):
                    self.put(change.table, row)
                for key in change.deletes:
                    self.drop(change.table, key)
        while self.head and self.journal and self.journal[0][0] <= self.head.version - JOURNAL_VERSIONS:
            self.floor = max(self.floor, self.journal.popleft()[0])

    def put(self, table: Table[Any], row: Any) -> None:
        """A row is there, or is another now."""
        key, rows = table.key(row), self.rows[table.name]
        if table is RANKS:
            self.ranks.setdefault(row.record.job, set()).add(key)
        else:
            self.journal.append((row.changed, table.name, key, row))
        is_over = table.ended is not None and table.fields[table.ended](row) is not None
        if is_over and table.name not in WHOLE:
            self.drop(table, key)
            return
        rows[key] = row
        if table is ALLOCATIONS:
            for column, index in self.live.items():
                index.setdefault(table.fields[column](row), {})[key] = None

    def drop(self, table: Table[Any], key: Key) -> None:
        """A row is gone, or is of no interest any more."""
        row = self.rows[table.name].pop(key, None)
        if table is JOBS:
            for rank in self.ranks.pop(str(key[0]), ()):
                self.rows[RANKS.name].pop(rank, None)
        if table is ALLOCATIONS and row is not None:
            for column, index in self.live.items():
                value = table.fields[column](row)
                index[value].pop(key, None)
                if not index[value]:
                    del index[value]

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        """The rows that changed after a version which the journal reaches back to, as they are now, the latest last."""
        found: dict[Key, R] = {}
        for changed, name, key, row in self.journal:
            if changed > since and name == table.name:
                found.pop(key, None)
                found[key] = row
        if live and table.ended is not None:
            ended = table.fields[table.ended]
            return [row for row in found.values() if ended(row) is None]
        return list(found.values())


def _is_later(scope: Scope, head: Head, known: Head) -> bool:
    """Whether a head continues the history that is known: the last audit row of then is still what it was."""
    if head == known:
        return True
    if head.version < known.version or head.audit_seq < known.audit_seq:
        return False
    last = scope.get_many(AUDIT, [(known.audit_seq,)]).get((known.audit_seq,))
    return not known.audit_seq or (last is not None and last.hash == known.audit_hash)


class _RecalledScope:
    """A transaction that answers from memory what it can."""

    def __init__(self, scope: WriteScope, known: _Known) -> None:
        self._scope, self._known = scope, known
        self.applied: list[TableWrites] = []
        known.follow(scope, scope.get_many(HEAD, [HEAD_KEY])[HEAD_KEY])

    def get_many(self, table: Table[R], keys: Sequence[Key]) -> dict[Key, R]:
        if table.name == HEAD.name:
            return {HEAD_KEY: cast("R", self._known.head)}
        if table.name not in REMEMBERED:
            return self._scope.get_many(table, keys)
        rows: dict[Key, R] = self._known.rows[table.name]
        here = {key: rows[key] for key in keys if key in rows}
        missing = [key for key in keys if key not in here] if table.name not in WHOLE else []
        return here | self._scope.get_many(table, missing) if missing else here

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        if table.name != ALLOCATIONS.name or column not in self._known.live:
            return self._scope.find(table, column, values)
        index, rows = self._known.live[column], self._known.rows[table.name]
        return [rows[key] for value in dict.fromkeys(values) for key in index.get(value, ())]

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        if table.name == RANKS.name or since < self._known.floor:
            return self._scope.changed(table, since, live=live)
        return self._known.changed(table, since, live=live)

    def listing(self, table: Table[R], where: Where, page: Page) -> tuple[list[R], int]:
        return self._scope.listing(table, where, page)

    def distinct(self, table: Table[R], column: str) -> set[Value]:
        return self._scope.distinct(table, column)

    def pick(self, table: Table[R], columns: Sequence[str], where: Where) -> list[tuple[Value, ...]]:
        return self._scope.pick(table, columns, where)

    def scan(self, table: Table[R]) -> Iterator[R]:
        return self._scope.scan(table)

    def apply(self, writes: Sequence[TableWrites]) -> None:
        self._scope.apply(writes)
        self.applied += writes

    def delete_below(self, table: Table[R], column: str, value: int, limit: int) -> int:
        return self._scope.delete_below(table, column, value, limit)


class RecalledRows:
    """Rows of which this process remembers the live ones. One transaction after the other."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._known, self._lock = rows, _Known(), threading.RLock()
        self.settle: Callable[[], bool] = rows.settle
        self.close: Callable[[], None] = rows.close

    @contextmanager
    def reading(self) -> Iterator[_RecalledScope]:
        with self._lock, self._rows.reading() as scope:
            yield _RecalledScope(cast("WriteScope", scope), self._known)

    @contextmanager
    def writing(self) -> Iterator[_RecalledScope]:
        with self._lock:
            try:
                with self._rows.writing() as scope:
                    recalled = _RecalledScope(scope, self._known)
                    yield recalled
            except BaseException:  # whether it was committed is not known
                self._known.forget()
                raise
            self._known.absorb(recalled.applied)
