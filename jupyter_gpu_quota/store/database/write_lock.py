"""The write lock of the database: polling with a yield for SQLite, a row lock for PostgreSQL.

SQLite has no queue of writers. Its busy handler ends up polling every 100 ms, and so misses the gap between two long
transactions of another process until its time-out.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

POLL_INTERVAL_S = 0.003
"""Interval at which a waiting writer tries to take the lock."""

LONG_HOLD_S = 0.050
"""A process that held the lock for this long waits before it takes the lock again."""

YIELD_PART, YIELD_LIMITS_S = 0.2, (0.010, 0.100)
"""The wait is this part of the time that the lock was held, within these limits."""


class WriteLock:
    """The write lock of one SQLite file, for one process. The caller lets one thread at a time write."""

    def __init__(self) -> None:
        self._free_from = 0.0

    @contextmanager
    def of(self, connection: Connection) -> Iterator[None]:
        """Begin a writing transaction, which the caller ends. Raises OperationalError after the busy time-out."""
        time.sleep(max(0.0, self._free_from - time.monotonic()))
        _begin(connection)
        begun = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._free_from = ended + _yield_s(ended - begun)


def _yield_s(held_s: float) -> float:
    """Seconds to leave the lock to other processes after it was held for ``held_s``."""
    least, most = YIELD_LIMITS_S
    return min(max(held_s * YIELD_PART, least), most) if held_s >= LONG_HOLD_S else 0.0


def _begin(connection: Connection) -> None:
    """Take the lock, waiting at most for the connection's time-out."""
    with no_lock_wait(connection) as timeout_s:
        until = time.monotonic() + timeout_s
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError as error:
                is_busy = str(getattr(error.orig, "sqlite_errorname", "")).startswith("SQLITE_BUSY")
                if not is_busy or time.monotonic() >= until:
                    raise
                time.sleep(POLL_INTERVAL_S)
            else:
                return


@contextmanager
def no_lock_wait(connection: Connection) -> Iterator[float]:
    """Set the busy time-out of a connection to 0 inside the block; yields its usual value, in seconds.

    The statements go to the driver directly: through the engine they cost half of a small transaction.
    """
    driver = _driver_of(connection)
    (timeout_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute("PRAGMA busy_timeout=0")
    try:
        yield timeout_ms / 1000
    finally:
        driver.execute(f"PRAGMA busy_timeout={timeout_ms}")


@contextmanager
def relaxed_sync(connection: Connection) -> Iterator[None]:
    """Commit inside the block without waiting for the disk; the next commit that waits writes these transactions too.

    A killed process loses nothing. A loss of power loses whole transactions, the newest first. Source: SQLite's
    documentation of ``PRAGMA synchronous`` for a write-ahead log.
    """
    driver = _driver_of(connection)
    driver.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        driver.rollback()  # of an interrupted transaction or commit: SQLite ignores the pragma inside one
        driver.execute("PRAGMA synchronous=FULL")


def lock_head(connection: Connection) -> None:
    """PostgreSQL's write lock: the row that every writer changes, until the transaction ends.

    Raises OperationalError after ``lock_timeout``.
    """
    connection.exec_driver_sql("SELECT id FROM head FOR UPDATE")


def _driver_of(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection), "only SQLite is used without the engine"
    return driver
