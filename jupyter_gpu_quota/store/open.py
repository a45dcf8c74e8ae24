"""Open the store at a URL: connections with their settings, and a schema of this release."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import QueuePool

from .database.db_errors import missing_file, openable, translated
from .database.migrate import migrate
from .database.row_cache import CachedRows
from .database.sql import SqlRows
from .records.calls import StoreUnavailable
from .transactions import Store

BUSY_TIMEOUT_MS = 2_000
"""Shorter than the longest lease: a controller that waits for the lock may still hold its lease afterwards."""

CONNECT_TIMEOUT_S = 5
TCP_TIMEOUT_MS = 10_000
SERVER_TIMEOUTS_MS = {"statement_timeout": 30_000, "idle_in_transaction_session_timeout": 10_000}
"""The second one ends the transaction of a process that is frozen while it holds the write lock."""

PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",  # deleted secrets do not stay in free pages
    "cache_size=-16000",
    "wal_autocheckpoint=8000",  # 32 MiB: each tick changes the same pages, and many changes are copied back at once
)


def open_store(url: str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS, cache_rows: bool = False) -> Store:
    """The store at a database URL (``sqlite:////var/lib/gpu-quota/store.sqlite``), made or migrated if need be.

    ``postgresql://`` addresses are opened with psycopg 3. ``busy_timeout_ms``: how long a writer waits for another one.
    ``cache_rows``: keep live rows in memory, for the process that writes most of them.
    Raises StoreUnavailable when the database cannot be used or the URL is not one of a database (for SQLite without a
    file use :class:`.memory.MemoryStore`), and NewerDatabase when a newer release wrote it.
    """
    rows = _rows_at(url, busy_timeout_ms)
    return Store(CachedRows(rows) if cache_rows else rows)


def open_both(url: str) -> tuple[Store, Store]:
    """Two stores on the same connections, each with its live rows in memory: for one thread, and for all others.

    A transaction of one waits for no transaction of the other. The copies of live work that several threads have of the
    second store share its rows.

    The connections are shared because SQLite opens a file that was read-only for writing only after a process has
    closed all its connections to it. Raises as :func:`open_store`.
    """
    rows = _rows_at(url, BUSY_TIMEOUT_MS)
    return Store(CachedRows(rows)), Store(CachedRows(rows))


def _rows_at(url: str, busy_timeout_ms: int) -> SqlRows:
    with openable(url):
        parsed = make_url(url)
        engine = None if parsed.get_backend_name() == "sqlite" else _server_engine(parsed, busy_timeout_ms)
    if engine is not None:
        return _migrated(engine, lambda: None)
    if not parsed.database or parsed.database == ":memory:":
        raise StoreUnavailable("SQLite needs a file: set database_url to sqlite:////var/lib/gpu-quota/store.sqlite.")
    path = Path(parsed.database).absolute()
    _create_file(path)
    engine = _sqlite_engine(parsed, path, busy_timeout_ms)
    return _migrated(engine, _SameFile(path, engine).check)


def _migrated(engine: Engine, check: Callable[[], None]) -> SqlRows:
    with translated(engine.url):
        migrate(engine)
    return SqlRows(engine, ready=check)


def _create_file(path: Path) -> None:
    """Create the file for its owner alone, since it has secrets. Connections never create it."""
    if path.exists():
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        message = (
            f"The database {path} cannot be created: {error.strerror}; check that its folder exists and is writable."
        )
        raise StoreUnavailable(message) from error


def _server_engine(url: URL, busy_timeout_ms: int) -> Engine:
    """Connections to PostgreSQL; every call has a time-out."""
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    timeouts = {**SERVER_TIMEOUTS_MS, "lock_timeout": busy_timeout_ms}
    options = " ".join(f"-c {name}={value}" for name, value in timeouts.items())
    connect_args = {"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": TCP_TIMEOUT_MS, "options": options}
    return create_engine(
        url, connect_args=connect_args, pool_pre_ping=True, pool_size=8, max_overflow=24, pool_timeout=10
    )


def _sqlite_engine(url: URL, path: Path, busy_timeout_ms: int) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,  # BEGIN is explicit
            check_same_thread=False,  # the pool lends a connection to one thread at a time
        )
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    return create_engine(url, creator=connect, poolclass=QueuePool, pool_size=8, max_overflow=24, pool_timeout=10)


class _SameFile:
    """Whether the path is still the file of the connections: SQLite would continue to write into a deleted file."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self._path, self._engine = path, engine
        self._file = self._now()

    def _now(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise missing_file(str(self._path)) from error
        return status.st_dev, status.st_ino

    def check(self) -> None:
        """Open the file again where another has its path. Raises StoreUnavailable while there is none."""
        file = self._now()
        if file != self._file:
            self._engine.dispose()
            self._file = file
