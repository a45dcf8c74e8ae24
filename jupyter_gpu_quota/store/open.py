"""Open the store behind a URL: connections with the pragmas we rely on, and the schema brought up to date."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import QueuePool

from .database.db_errors import gone, translated
from .database.migrate import migrate
from .database.row_cache import RecalledRows
from .database.sql import SqlRows
from .records.protocol import StoreUnavailable
from .transactions import LedgerStore

BUSY_TIMEOUT_MS = 2_000
"""Shorter than the longest lease: who waits for a lock may still hold the lease afterwards."""

PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",  # a secret that was deleted is not left in a free page
    "cache_size=-16000",
    "wal_autocheckpoint=8000",  # 32 MiB: every tick changes the same pages, and each is copied back once for many
)


def open_store(url: str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS, recalls: bool = False) -> LedgerStore:
    """The store at a database URL (``sqlite:////var/lib/gpu-quota/store.sqlite``), made or migrated if need be.

    ``recalls``: it remembers live rows, for a process that writes most of them.
    Raises StoreUnavailable when the database cannot be used, NewerDatabase when a newer release wrote it, and
    ValueError for SQLite without a file (use :class:`.memory.MemoryStore`).
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        engine = create_engine(parsed, pool_pre_ping=True, pool_size=8, pool_timeout=10)
        return _opened(engine, lambda: None, recalls=recalls)
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError("SQLite needs a file, such as sqlite:////var/lib/gpu-quota/store.sqlite")
    path = Path(parsed.database).absolute()
    _make(path)
    engine = _sqlite_engine(parsed, path, busy_timeout_ms)
    return _opened(engine, _SameFile(path, engine).check, recalls=recalls)


def _opened(engine: Engine, ready: Callable[[], None], *, recalls: bool) -> LedgerStore:
    with translated(engine.url):
        migrate(engine)
    rows = SqlRows(engine, ready=ready)
    return LedgerStore(RecalledRows(rows) if recalls else rows)


def _make(path: Path) -> None:
    """Make the file, for its owner alone: it holds secrets. Connections never make it, so a lost one is noticed."""
    if path.exists():
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        message = f"The database {path} cannot be made: {error.strerror}; see that its folder is there and writable."
        raise StoreUnavailable(message) from error


def _sqlite_engine(url: URL, path: Path, busy_timeout_ms: int) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,  # we say BEGIN ourselves
            check_same_thread=False,  # the pool lends a connection to one thread at a time
        )
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    return create_engine(url, creator=connect, poolclass=QueuePool, pool_size=8, max_overflow=24, pool_timeout=10)


class _SameFile:
    """Whether the path still names the file that the connections are on: SQLite would write on into a deleted one."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self._path, self._engine = path, engine
        self._file = self._now()

    def _now(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise gone(str(self._path)) from error
        return status.st_dev, status.st_ino

    def check(self) -> None:
        """Raises StoreUnavailable while the file is away; another file in its place is opened anew."""
        file = self._now()
        if file != self._file:
            self._engine.dispose()
            self._file = file
