"""Rows in an SQL database, SQLite or PostgreSQL. They differ in the begin and the commit of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Dialect,
    Engine,
    Insert,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy import (
    Table as SqlTable,
)

from ..records.calls import Page, StoreUnavailable
from .codecs import Columns
from .db_errors import commit_translated, is_read_only, translated
from .schema import metadata
from .tables import TABLES, Key, Table, TableWrites, Value, Where
from .write_lock import WriteLock, lock_head, no_lock_wait, relaxed_sync

R = TypeVar("R")
KEYS_PER_QUERY = 500
"""Keys in one query, well below the limit of parameters of every database."""


def _sql(table: Table[Any]) -> SqlTable:
    return metadata.tables[table.name]


def _is_same(table: Table[Any]) -> ColumnElement[bool]:
    """Whether a row's key is that of the parameters."""
    return and_(*(_sql(table).c[name] == bindparam(f"key_{name}") for name in table.keys))


SELECTS: Mapping[str, Select[Any]] = {
    table.name: select(*(_sql(table).c[name] for name in table.coding.names)) for table in TABLES
}
ONE: Mapping[str, Select[Any]] = {table.name: SELECTS[table.name].where(_is_same(table)) for table in TABLES}
"""The row with a key. Every transaction reads the head this way: the prepared query takes a quarter of the time of one
that is made for a number of keys."""

Verb = Literal["insert", "update", "delete"]
STATEMENTS: Mapping[Verb, Callable[[Table[Any]], Insert | Update | Delete]] = {
    "insert": lambda table: insert(_sql(table)),
    "update": lambda table: update(_sql(table)).where(_is_same(table)),
    "delete": lambda table: delete(_sql(table)).where(_is_same(table)),
}


class _Texts:
    """The texts of statements for the driver, each made once: a plan writes thousands of rows."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: dict[tuple[Verb, str, tuple[str, ...]], tuple[str, list[str] | None]] = {}

    def of(self, verb: Verb, table: Table[Any], names: tuple[str, ...]) -> tuple[str, list[str] | None]:
        """The statement for the parameters ``names``, and their order where the driver takes them by position."""
        key = (verb, table.name, names)
        if key not in self._known:
            columns = [name for name in names if not name.startswith("key_")]
            compiled = STATEMENTS[verb](table).compile(dialect=self._dialect, column_keys=columns)
            self._known[key] = (compiled.string, compiled.positiontup if compiled.positional else None)
        return self._known[key]


class SqlScope:
    """One transaction on one connection."""

    def __init__(self, connection: Connection, texts: _Texts) -> None:
        self._connection, self._texts = connection, texts

    def _rows(self, table: Table[R], query: Select[Any], given: Mapping[str, Value] | None = None) -> list[R]:
        result = self._connection.execute(query, given)
        row_of = table.coding.row
        return [row_of(values) for values in result]

    def _in_chunks(self, table: Table[R], column: Any, values: Sequence[Any], *also: ColumnElement[bool]) -> list[R]:
        rows: list[R] = []
        for start in range(0, len(values), KEYS_PER_QUERY):
            some = values[start : start + KEYS_PER_QUERY]
            rows += self._rows(table, SELECTS[table.name].where(column.in_(some), *also))
        return rows

    # --- reading ----------------------------------------------------------------------------------------------------
    def get_many(self, table: Table[R], keys: Sequence[Key]) -> dict[Key, R]:
        columns = [_sql(table).c[name] for name in table.keys]
        if len(keys) == 1:
            names = [f"key_{name}" for name in table.keys]
            rows = self._rows(table, ONE[table.name], dict(zip(names, keys[0], strict=True)))
        elif len(columns) == 1:
            rows = self._in_chunks(table, columns[0], [key[0] for key in keys])
        else:
            rows = []
            for start in range(0, len(keys), KEYS_PER_QUERY):
                some = keys[start : start + KEYS_PER_QUERY]
                # With conditions on whole keys alone, SQLite would read the whole table; with one on each of three
                # columns, it would look up every combination of their values.
                parts = [column.in_({key[at] for key in some}) for at, column in enumerate(columns[:2])]
                rows += self._rows(table, SELECTS[table.name].where(tuple_(*columns).in_(list(some)), *parts))
        return {table.key(row): row for row in rows}

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        also = [_is_live(table)] if column in table.live_indexes else []
        return self._in_chunks(table, _sql(table).c[column], list(dict.fromkeys(values)), *also)

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        query = SELECTS[table.name].where(_sql(table).c.changed > since)
        return self._rows(table, query.where(_is_live(table)) if live else query)

    def listing(self, table: Table[R], where: Where, page: Page) -> tuple[list[R], int]:
        conditions = _conditions(table, where)
        order = [_sql(table).c[name].desc() for name in table.order]
        query = SELECTS[table.name].where(*conditions).order_by(*order).limit(page.limit).offset(page.offset)
        count = select(func.count()).select_from(_sql(table)).where(*conditions)
        return self._rows(table, query), self._connection.execute(count).scalar_one()

    def ended(self, table: Table[R], before: int, limit: int, after: tuple[int, str] | None = None) -> list[R]:
        order = [_sql(table).c[name] for name in (table.ended or "", *table.keys)]
        query = SELECTS[table.name].where(order[0] < before)
        if after is not None:
            query = query.where(tuple_(*order) > tuple_(*after))
        return self._rows(table, query.order_by(*order).limit(limit))

    def ended_after(
        self, table: Table[R], after: tuple[int, str], column: str, values: Sequence[Value], limit: int
    ) -> list[R]:
        order = [_sql(table).c[name] for name in (table.ended or "", *table.keys)]
        # As an expression: SQLite would otherwise read all rows with these values by their index, and sort them.
        has_value = _sql(table).c[column].concat("").in_(list(values))
        query = SELECTS[table.name].where(tuple_(*order) > tuple_(*after), has_value)
        return self._rows(table, query.order_by(*order).limit(limit))

    def pick(self, table: Table[R], columns: Sequence[str], where: Where) -> list[tuple[Any, ...]]:
        names = [_sql(table).c[column] for column in columns]
        return [tuple(row) for row in self._connection.execute(select(*names).where(*_conditions(table, where)))]

    def distinct(self, table: Table[R], column: str) -> set[Value]:
        return set(self._connection.execute(select(_sql(table).c[column]).distinct()).scalars())

    def scan(self, table: Table[R]) -> Iterator[R]:
        columns = [_sql(table).c[name] for name in table.keys]
        query = SELECTS[table.name].order_by(*columns).execution_options(yield_per=1000)
        result = self._connection.execute(query)
        row_of = table.coding.row
        return (row_of(values) for values in result)

    # --- writing ----------------------------------------------------------------------------------------------------
    def apply(self, writes: Sequence[TableWrites]) -> None:
        """Insert and update parents before children; then delete children before parents."""
        for change in writes:
            table, coding = change.table, change.table.coding
            self._run("insert", table, [coding.columns(row) for row in change.inserts])
            self._run("update", table, [_with_key(table, coding.changing(row)) for row in change.updates])
        for change in reversed(writes):
            names = [f"key_{name}" for name in change.table.keys]
            self._run("delete", change.table, [dict(zip(names, key, strict=True)) for key in change.deletes])

    def _run(self, verb: Verb, table: Table[Any], rows: Sequence[Columns]) -> None:
        """One statement for all rows; each names the same columns in the same order."""
        if not rows:
            return
        text, order = self._texts.of(verb, table, tuple(rows[0]))
        given = rows if order is None else [tuple([row[name] for name in order]) for row in rows]
        result = self._connection.exec_driver_sql(text, given)
        if verb == "update" and 0 <= result.rowcount < len(rows):  # another process deleted a row of this one's cache
            raise StoreUnavailable(f"Rows of {table.name} were removed meanwhile, so nothing was written; try again.")

    def delete_below(self, table: Table[R], column: str, value: int, limit: int) -> int:
        sql = _sql(table)
        keys = [sql.c[name] for name in table.keys]
        old = select(*keys).where(sql.c[column] < value).limit(limit)
        result = self._connection.execute(delete(sql).where(tuple_(*keys).in_(old)))
        return cast("CursorResult[Any]", result).rowcount


def _with_key(table: Table[Any], columns: Columns) -> Columns:
    """The columns, with those of the key under the names that the condition has: they are not set."""
    for name in table.keys:
        columns[f"key_{name}"] = columns.pop(name)
    return columns


def _is_live(table: Table[Any]) -> ColumnElement[bool]:
    return _sql(table).c[table.ended or ""].is_(None)


def _conditions(table: Table[Any], where: Where) -> list[ColumnElement[bool]]:
    columns = _sql(table).c
    conditions: list[ColumnElement[bool]] = [columns[name].in_(list(values)) for name, values in where.among.items()]
    conditions += [or_(*(columns[name].in_(list(values)) for name, values in one.items())) for one in where.either]
    conditions += [columns[name] >= least for name, least in where.at_least.items()]
    conditions += [columns[name] < bound for name, bound in where.below.items()]
    if where.text:
        conditions.append(or_(*(_has_text(columns[name], *text) for name, text in where.text.items())))
    return [*conditions, _is_live(table)] if where.live and table.ended else conditions


def _has_text(column: Any, text: str, at_start: bool) -> ColumnElement[bool]:
    has = column.startswith if at_start else column.contains
    return cast("ColumnElement[bool]", has(text, autoescape=True))


class SqlRows:
    """Rows behind one engine. Every failure of the database is a StoreUnavailable."""

    def __init__(self, engine: Engine, *, ready: Callable[[], None]) -> None:
        self._engine = engine
        self._ready = ready
        self._write_lock = WriteLock()
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._texts = _Texts(engine.dialect)

    @contextmanager
    def reading(self) -> Iterator[SqlScope]:
        with translated(self._engine.url), self._connected() as connection:
            if self._is_sqlite:
                connection.exec_driver_sql("BEGIN")
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield SqlScope(connection, self._texts)

    @contextmanager
    def writing(self, *, repeatable: bool = False) -> Iterator[SqlScope]:
        try:
            with translated(self._engine.url), self._begun(repeatable) as connection:
                yield SqlScope(connection, self._texts)
                with commit_translated(self._engine.url):
                    connection.commit()
        except StoreUnavailable as error:
            if is_read_only(error):  # an open connection stays read-only when the file becomes writable
                self._engine.dispose()
            raise

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        self._ready()
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _begun(self, repeatable: bool) -> Iterator[Connection]:
        """A connection that has the write lock until it is left."""
        with self._connected() as connection:
            if not self._is_sqlite:
                lock_head(connection)
                yield connection
                return
            with relaxed_sync(connection) if repeatable else nullcontext(), self._write_lock.of(connection):
                yield connection

    def settle(self) -> bool:
        """Empty SQLite's write-ahead file, which may contain deleted rows."""
        if not self._is_sqlite:
            return True
        try:
            with translated(self._engine.url), self._engine.connect() as connection, no_lock_wait(connection):
                return not connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar_one()
        except StoreUnavailable:
            return False

    def close(self) -> None:
        self._engine.dispose()
