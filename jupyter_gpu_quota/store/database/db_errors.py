"""The database's troubles as sentences that say what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnection

from ..records.protocol import StoreUnavailable

WHAT_TO_DO = {
    "SQLITE_FULL": "the disk is full; make room on it, and the next request goes through",
    "SQLITE_BUSY": "another process has kept it locked; if this goes on, look for a backup or a shell that holds it",
    "SQLITE_LOCKED": "another process has kept it locked; if this goes on, look for a backup or a shell that holds it",
    "SQLITE_READONLY": "it is read-only; give the service's account write permission on the file, on its -wal and -shm "
    "beside it, and on their folder",
    "SQLITE_IOERR": "the disk answers with errors; look into the system log, and restore a backup if it stays so",
    "SQLITE_CANTOPEN": "its file cannot be opened; see that it is there and that the service's account may use it",
    "SQLITE_CORRUPT": "its file is damaged; stop the service and restore a backup",
    "SQLITE_NOTADB": "its file is not a database; stop the service and restore a backup",
    "SQLITE_PERM": "access was refused; give the service's account permission on the file and its folder",
    "SQLITE_AUTH": "access was refused; give the service's account permission on the file and its folder",
    "SQLITE_PROTOCOL": "its locks do not work here; put the file on a local disk, not on a network file system",
    "SQLITE_NOMEM": "the process is out of memory; give the service more",
}
"""By SQLite's primary result code; extended ones (SQLITE_IOERR_FSYNC) begin with it."""

A_BUG = (IntegrityError, ProgrammingError, DataError)
"""What the database refuses because we asked for nonsense: never the database's trouble."""


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn every failing of the database inside the block into a StoreUnavailable."""
    try:
        yield
    except A_BUG:
        raise
    except NoConnection as error:
        message = f"The database {_name(url)} has no free connection: too many calls at once; try again."
        raise StoreUnavailable(message) from error
    except DBAPIError as error:
        raise StoreUnavailable(f"The database {_name(url)} cannot be used now: {_why(error)}.") from error


def is_read_only(error: StoreUnavailable) -> bool:
    """Whether the database could be read and not written."""
    original = getattr(error.__cause__, "orig", None)
    return str(getattr(original, "sqlite_errorname", "")).startswith("SQLITE_READONLY")


def gone(path: str) -> StoreUnavailable:
    """The sentence for a database file that is not where it was."""
    return StoreUnavailable(
        f"The database {path} is not there any more; put it back or restore a backup, then ask again."
    )


def _name(url: URL) -> str:
    return url.database or url.render_as_string(hide_password=True)


def _why(error: DBAPIError) -> str:
    original = error.orig
    code = getattr(original, "sqlite_errorname", "") if isinstance(original, sqlite3.Error) else ""
    for name, advice in WHAT_TO_DO.items():
        if code == name or code.startswith(f"{name}_"):
            return advice
    return f"{original}; see that it runs and that this service may use it"
