"""Whose turn it is to write to an SQLite file: who waits looks often, and who held the lock for long steps back.

SQLite has no queue. Left alone, one that waits looks every 100 ms at last, and misses the moment between two long
transactions of another process each time, until its patience ends.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

LOOK_S = 0.003
"""Who waits for the lock looks so often."""

LONG_S = 0.050
"""Who held the lock for so long lets others have it first."""

STEP_BACK_PART, STEP_BACK_S = 0.2, (0.010, 0.100)
"""For such a part of that time, within these limits: on a busy machine who waits looks late."""


class Turns:
    """The turns of one process at one file; its writers take turns among themselves."""

    def __init__(self) -> None:
        self._free_from = 0.0

    @contextmanager
    def of(self, connection: Connection) -> Iterator[None]:
        """A writing transaction, begun here and ended by the caller. Raises OperationalError when patience ends."""
        time.sleep(max(0.0, self._free_from - time.monotonic()))
        _begin(connection)
        begun = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._free_from = ended + _step_back_s(ended - begun)


def _step_back_s(held_s: float) -> float:
    """How long to leave the lock to others after holding it for so long."""
    least, most = STEP_BACK_S
    return min(max(held_s * STEP_BACK_PART, least), most) if held_s >= LONG_S else 0.0


def _begin(connection: Connection) -> None:
    """Take the lock; waits as long as the connection's time-out says."""
    with impatient(connection) as patience_s:
        until = time.monotonic() + patience_s
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= until:
                    raise
                time.sleep(LOOK_S)
            else:
                return


def _is_busy(error: OperationalError) -> bool:
    return str(getattr(error.orig, "sqlite_errorname", "")).startswith("SQLITE_BUSY")


@contextmanager
def impatient(connection: Connection) -> Iterator[float]:
    """A connection that waits for no lock while this is open; yields how long it did before, in seconds.

    The driver is asked itself: these three would be half of the statements of a small transaction.
    """
    driver = _driver_of(connection)
    (patience_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute("PRAGMA busy_timeout=0")
    try:
        yield patience_ms / 1000
    finally:
        driver.execute(f"PRAGMA busy_timeout={patience_ms}")


@contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """A connection whose transactions do not wait for the disk while this is open; the next that does waits for all.

    Killed processes take nothing back, a loss of power does: whole transactions, the newest first. Source: SQLite's
    documentation of ``PRAGMA synchronous`` for a write-ahead log.
    """
    driver = _driver_of(connection)
    driver.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        driver.rollback()  # of what broke off, a commit too: the driver changes nothing inside a transaction
        driver.execute("PRAGMA synchronous=FULL")


def _driver_of(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection), "only SQLite is spoken to past the engine"
    return driver
