"""Rows in dictionaries: the store of simulations and unit tests, with the same transactions as the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from .database.tables import HEAD, TABLES, Head, Key, Table, TableWrites, Value, Where
from .records.calls import Page
from .records.ids import new_ulid
from .transactions import Store

R = TypeVar("R")


class _MemoryTable:
    """The rows of one table, with its indexes, in the order in which they last changed."""

    def __init__(self, table: Table[Any]) -> None:
        self.table = table
        self.rows: dict[Key, Any] = {}
        self.live: dict[Key, None] = {}
        self.indexes: dict[str, dict[Value, dict[Key, None]]] = {
            column: {} for column in table.indexes + table.live_indexes
        }
        self._ended = table.fields[table.ended] if table.ended else None

    def is_live(self, row: Any) -> bool:
        return self._ended is None or self._ended(row) is None

    def insert(self, row: Any) -> None:
        key = self.table.key(row)
        if key in self.rows:
            raise KeyError(f"{self.table.name} already has a row {key}")
        self.rows[key] = row
        live = self.is_live(row)
        if live:
            self.live[key] = None
        for column, index in self.indexes.items():
            if live or column not in self.table.live_indexes:
                index.setdefault(self.table.fields[column](row), {})[key] = None

    def delete(self, key: Key) -> None:
        row = self.rows.pop(key)
        self.live.pop(key, None)
        for column, index in self.indexes.items():
            value = self.table.fields[column](row)
            keys = index.get(value, {})
            keys.pop(key, None)
            if not keys:
                index.pop(value, None)

    def update(self, row: Any) -> None:
        self.delete(self.table.key(row))
        self.insert(row)


class _MemoryScope:
    """A transaction; the caller holds the lock."""

    def __init__(self, tables: dict[str, _MemoryTable]) -> None:
        self._tables = tables

    def get_many(self, table: Table[R], keys: Sequence[Key]) -> dict[Key, R]:
        rows = self._tables[table.name].rows
        return {key: rows[key] for key in keys if key in rows}

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        stored = self._tables[table.name]
        index = stored.indexes[column]
        return [stored.rows[key] for value in dict.fromkeys(values) for key in index.get(value, ())]

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        stored, found = self._tables[table.name], []
        changed_of = table.fields["changed"]
        for key in reversed(stored.live if live else stored.rows):
            row = stored.rows[key]
            if changed_of(row) <= since:
                break
            found.append(row)
        return found

    def listing(self, table: Table[R], where: Where, page: Page) -> tuple[list[R], int]:
        rows = [row for row in self._tables[table.name].rows.values() if _matches(table, where, row)]
        rows.sort(key=lambda row: [table.fields[column](row) for column in table.order], reverse=True)
        return rows[page.offset : page.offset + page.limit], len(rows)

    def ended(self, table: Table[R], before: int, limit: int, after: tuple[int, str] | None = None) -> list[R]:
        ended_of = table.fields[table.ended or ""]
        rows = [(ended_of(row), key, row) for key, row in self._tables[table.name].rows.items()]
        rows = sorted(one for one in rows if one[0] is not None and one[0] < before)
        behind = None if after is None else (after[0], (after[1],))
        return [row for at, key, row in rows if behind is None or (at, key) > behind][:limit]

    def ended_after(
        self, table: Table[R], after: tuple[int, str], column: str, values: Sequence[Value], limit: int
    ) -> list[R]:
        ended_of, value_of, behind = table.fields[table.ended or ""], table.fields[column], (after[0], (after[1],))
        rows = [row for row in self._tables[table.name].rows.values() if value_of(row) in values]
        found = [((ended, table.key(row)), row) for row in rows if (ended := ended_of(row)) is not None]
        return [row for at, row in sorted(found, key=lambda one: one[0]) if at > behind][:limit]

    def pick(self, table: Table[R], columns: Sequence[str], where: Where) -> list[tuple[Any, ...]]:
        values_of = [table.fields[column] for column in columns]
        rows = (row for row in self._tables[table.name].rows.values() if _matches(table, where, row))
        return [tuple(value_of(row) for value_of in values_of) for row in rows]

    def distinct(self, table: Table[R], column: str) -> set[Value]:
        value_of = table.fields[column]
        return {value_of(row) for row in self._tables[table.name].rows.values()}

    def scan(self, table: Table[R]) -> Iterator[R]:
        rows = self._tables[table.name].rows
        return (rows[key] for key in sorted(rows))

    def apply(self, writes: Sequence[TableWrites]) -> None:
        for change in writes:
            stored = self._tables[change.table.name]
            for row in change.inserts:
                stored.insert(row)
            for row in change.updates:
                stored.update(row)
            for key in change.deletes:
                stored.delete(key)

    def delete_below(self, table: Table[R], column: str, value: int, limit: int) -> int:
        stored, value_of = self._tables[table.name], table.fields[column]
        keys = [key for key, row in stored.rows.items() if (at := value_of(row)) is not None and at < value][:limit]
        for key in keys:
            stored.delete(key)
        return len(keys)


def _matches(table: Table[R], where: Where, row: R) -> bool:
    value = table.fields
    if where.live and table.ended and value[table.ended](row) is not None:
        return False
    return (
        all(value[column](row) in values for column, values in where.among.items())
        and all(any(value[column](row) in values for column, values in one.items()) for one in where.either)
        and all((at := value[column](row)) is not None and at >= least for column, least in where.at_least.items())
        and all((at := value[column](row)) is not None and at < bound for column, bound in where.below.items())
        and (not where.text or any(_has_text(_text(table, column, row), *text) for column, text in where.text.items()))
    )


def _text(table: Table[R], column: str, row: R) -> str:
    """A field as the text that a database stores; empty for NULL."""
    value, codec = table.fields[column](row), table.codecs.get(column)
    return str(value or "") if codec is None or value is None else str(codec.encode(value))


def _has_text(value: str, text: str, at_start: bool) -> bool:
    return value.startswith(text) if at_start else text in value


class MemoryRows:
    """Rows of one process. Transactions run one after the other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tables = {table.name: _MemoryTable(table) for table in TABLES}
        self._tables[HEAD.name].insert(Head())

    @contextmanager
    def reading(self) -> Iterator[_MemoryScope]:
        with self._lock:
            yield _MemoryScope(self._tables)

    @contextmanager
    def writing(self, *, repeatable: bool = False) -> Iterator[_MemoryScope]:
        with self.reading() as scope:
            yield scope

    def settle(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to close."""


class MemoryStore(Store):
    """The store without a disk. ``new_id`` makes ids from an instant; give a counter for runs that repeat exactly."""

    def __init__(self, *, new_id: Callable[[int], str] = new_ulid) -> None:
        super().__init__(MemoryRows(), new_id=new_id)
