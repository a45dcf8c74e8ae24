"""Live rows kept in memory, so that the process that writes most of them does not read them back.

The cache is valid for one head, the row that every writer changes. Each transaction reads the head first:

* it is the cached head: the cache is complete;
* it is a later head of the same history: the rows that other processes changed are read by their version;
* the leader or the history is another one (a restored backup), or a transaction failed: the cache starts empty.

Rows that have ended are read from the database. Ranks have no version. Only the leader writes them, and the cache is
cleared when the leader changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, TypeVar, cast

from .tables import (
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
    WriteScope,
)

R = TypeVar("R")
VERSIONED: tuple[Table[Any], ...] = (NODES, DEVICES, JOBS, NOTEBOOKS, ALLOCATIONS, RESERVATIONS)
CACHED = {table.name for table in (*VERSIONED, RANKS)}
CACHED_WHOLE = {table.name for table in VERSIONED if table.ended is None} | {RESERVATIONS.name}
"""Cached with their ended rows: a row of these that is not cached does not exist."""

RECENT_VERSIONS, RECENT_ROWS = 16, 5_000
"""Recent changes cover at least so many versions, and more while they have at most so many rows."""


class _RecentChanges:
    """The rows that changed in the last versions, as they are now; complete after version ``since``."""

    def __init__(self, since: int) -> None:
        self.since = since
        self._rows: dict[str, OrderedDict[Key, Any]] = {table.name: OrderedDict() for table in VERSIONED}

    def add(self, table: Table[Any], key: Key, row: Any) -> None:
        """Takes rows in the order of their versions."""
        rows = self._rows[table.name]
        rows[key] = row
        rows.move_to_end(key)

    def remove(self, table: Table[Any], keys: Iterable[Key]) -> None:
        """Remove ended rows that were deleted."""
        for key in keys if table.name in self._rows else ():
            self._rows[table.name].pop(key, None)

    def of(self, table: Table[R], since: int) -> list[R]:
        """The present rows that changed after a version, which is not before ``since``; the latest last."""
        found = list(takewhile(lambda row: row.changed > since, reversed(self._rows[table.name].values())))
        return found[::-1]

    def trim(self, version: int) -> None:
        """Remove the oldest changes, as of a version."""
        while sum(map(len, self._rows.values())) > RECENT_ROWS:
            oldest = min(_oldest(rows) for rows in self._rows.values() if rows)
            if oldest > version - RECENT_VERSIONS:
                return
            for rows in self._rows.values():
                while rows and _oldest(rows) == oldest:
                    rows.popitem(last=False)
            self.since = oldest


def _oldest(rows: OrderedDict[Key, Any]) -> int:
    changed: int = next(iter(rows.values())).changed
    return changed


class _Cache:
    """The cached rows, valid for ``head``; None: the cache is empty."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Remove all rows."""
        self.head: Head | None = None
        self.recent = _RecentChanges(0)
        self.rows: dict[str, dict[Key, Any]] = {name: {} for name in CACHED}
        self.live: dict[str, dict[Value, dict[Key, None]]] = {column: {} for column in ALLOCATIONS.live_indexes}
        self.ranks: dict[str, set[Key]] = {}

    def follow(self, scope: Scope, head: Head) -> None:
        """Bring the cache to a head: read the changes, or everything."""
        if self.head is None or not _continues(scope, head, self.head):
            self.forget()  # also what a first load that failed had put: rows may have ended since
            for table in VERSIONED:
                self._put_all(table, scope.changed(table, -1, live=table.name not in CACHED_WHOLE))
            self.recent = _RecentChanges(head.version)
        elif head.version > self.head.version:
            for table in VERSIONED:
                self._put_all(table, scope.changed(table, self.head.version, live=False))
        self.head = head

    def absorb(self, writes: Iterable[TableWrites]) -> None:
        """Apply writes that were just committed, or forget all rows where they changed the leader.

        A process that followed the versions still has the rows of removed hardware that the previous leader deleted.
        """
        for change in writes:
            if change.table is HEAD:
                head: Head = change.updates[0]
                if self.head is None or head.fencing != self.head.fencing:
                    self.forget()
                    return
                self.head = head
            elif change.table.name in CACHED:
                self._put_all(change.table, (*change.inserts, *change.updates))
                for key in change.deletes:
                    self._drop(change.table, key)
                self.recent.remove(change.table, change.deletes)
        if self.head is not None:
            self.recent.trim(self.head.version)

    def _put_all(self, table: Table[Any], rows: Sequence[Any]) -> None:
        for row in rows if table is RANKS else sorted(rows, key=lambda row: row.changed):
            self._put(table, row)

    def _put(self, table: Table[Any], row: Any) -> None:
        """Add or replace a row."""
        key = table.key(row)
        if table is RANKS:
            if (row.job,) in self.rows[JOBS.name]:  # a rank is cached as long as its job, which is written before it
                self.ranks.setdefault(row.job, set()).add(key)
                self.rows[table.name][key] = row
            return
        self.recent.add(table, key, row)
        if table.name not in CACHED_WHOLE and _has_ended(table, row):
            self._drop(table, key)
            return
        self.rows[table.name][key] = row
        if table is ALLOCATIONS:
            for column, index in self.live.items():
                index.setdefault(table.fields[column](row), {})[key] = None

    def _drop(self, table: Table[Any], key: Key) -> None:
        """Remove a row that was deleted or has ended."""
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

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R] | None:
        """The answer to a scope's ``changed``; None: the database must answer."""
        if table.name not in self.rows or table is RANKS:
            return None
        if since >= self.recent.since:
            rows = self.recent.of(table, since)
        elif live or table.name in CACHED_WHOLE:
            rows = [row for row in self.rows[table.name].values() if row.changed > since]
        else:
            return None
        return [row for row in rows if not _has_ended(table, row)] if live else rows


def _has_ended(table: Table[R], row: R) -> bool:
    return table.ended is not None and table.fields[table.ended](row) is not None


def _continues(scope: Scope, head: Head, known: Head) -> bool:
    """Whether a head is a later one of the same history: the last audit row that is known has not changed."""
    if head == known:
        return True
    if head.fencing != known.fencing or head.version < known.version or head.audit_seq < known.audit_seq:
        return False
    last = scope.get_many(AUDIT, [(known.audit_seq,)]).get((known.audit_seq,))
    return not known.audit_seq or (last is not None and last.hash == known.audit_hash)


class _CachedScope:
    """A transaction that reads cached rows from memory, and all others from the database."""

    def __init__(self, scope: WriteScope, known: _Cache) -> None:
        self._scope, self._known = scope, known
        self.listing, self.distinct, self.pick, self.scan = scope.listing, scope.distinct, scope.pick, scope.scan
        self.ended, self.ended_after, self.delete_below = scope.ended, scope.ended_after, scope.delete_below
        self.applied: list[TableWrites] = []
        known.follow(scope, scope.get_many(HEAD, [HEAD_KEY])[HEAD_KEY])

    def get_many(self, table: Table[R], keys: Sequence[Key]) -> dict[Key, R]:
        if table.name == HEAD.name:
            return {HEAD_KEY: cast("R", self._known.head)}
        if table.name not in CACHED:
            return self._scope.get_many(table, keys)
        rows: dict[Key, R] = self._known.rows[table.name]
        here = {key: rows[key] for key in keys if key in rows}
        missing = [key for key in keys if key not in here] if table.name not in CACHED_WHOLE else []
        return here | self._scope.get_many(table, missing) if missing else here

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        if table.name != ALLOCATIONS.name or column not in self._known.live:
            return self._scope.find(table, column, values)
        index, rows = self._known.live[column], self._known.rows[table.name]
        return [rows[key] for value in dict.fromkeys(values) for key in index.get(value, ())]

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        known = self._known.changed(table, since, live=live)
        return self._scope.changed(table, since, live=live) if known is None else known

    def apply(self, writes: Sequence[TableWrites]) -> None:
        self._scope.apply(writes)
        self.applied += writes


class CachedRows:
    """Rows whose live ones are cached in this process. Transactions run one after the other."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._known, self._lock = rows, _Cache(), threading.RLock()
        self.settle: Callable[[], bool] = rows.settle
        self.close: Callable[[], None] = rows.close

    @contextmanager
    def reading(self) -> Iterator[_CachedScope]:
        with self._lock, self._rows.reading() as scope:
            yield _CachedScope(cast("WriteScope", scope), self._known)

    @contextmanager
    def writing(self, *, repeatable: bool = False) -> Iterator[_CachedScope]:
        with self._lock:
            try:
                with self._rows.writing(repeatable=repeatable) as scope:
                    cached = _CachedScope(scope, self._known)
                    yield cached
            except BaseException:  # the commit may have succeeded or failed
                self._known.forget()
                raise
            self._known.absorb(cached.applied)
