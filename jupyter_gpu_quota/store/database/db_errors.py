"""Errors of the database as StoreUnavailable, with the cause and the remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnection

from ..records.calls import StoreUnavailable

LOCKED_ADVICE = "another process has kept it locked; if this continues, look for a backup or a shell that holds it"
ADVICE = {
    "SQLITE_FULL": "the disk is full; make room on it, and the next request goes through",
    "SQLITE_BUSY": LOCKED_ADVICE,
    "SQLITE_LOCKED": LOCKED_ADVICE,
    "SQLITE_READONLY": "it is read-only; give the service's account write permission on the file, on its -wal and -shm "
    "beside it, and on their folder",
    "SQLITE_IOERR": "the disk answers with errors; see the system log, and restore a backup if this continues",
    "SQLITE_CANTOPEN": "its file cannot be opened; check that it exists and that the service's account may use it",
    "SQLITE_CORRUPT": "its file is damaged; stop the service and restore a backup",
    "SQLITE_NOTADB": "its file is not a database; stop the service and restore a backup",
    "SQLITE_PERM": "access was refused; give the service's account permission on the file and its folder",
    "SQLITE_AUTH": "access was refused; give the service's account permission on the file and its folder",
    "SQLITE_PROTOCOL": "its locks do not work here; put the file on a local disk, not on a network file system",
    "SQLITE_NOMEM": "the process is out of memory; give the service more",
}
"""By SQLite's primary result code; extended ones (SQLITE_IOERR_FSYNC) begin with it."""

SERVER_ADVICE = {
    "08": "the connection to it was lost; the next request makes a new one",
    "25006": "it is read-only; connect to the primary server, not to a replica",
    "28": "it refused the login; correct the user and the password in its address",
    "42501": "access was refused; give the service's account all rights on this database",
    "53100": "the disk of its server is full; make room on it, and the next request goes through",
    "53300": "its server has too many connections; raise max_connections or stop other programs",
    "55P03": "another process has kept it locked; if this continues, look for a session that holds the lock",
    "57014": "the statement took too long and was stopped; look at the load of its server",
    "57P": "its server is stopping or starting; try again",
}
"""By the beginning of PostgreSQL's SQLSTATE."""

CALLER_ERRORS = (IntegrityError, ProgrammingError, DataError)
"""Errors that a wrong statement of ours causes; they are raised unchanged."""


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn every error of the database inside the block into a StoreUnavailable."""
    try:
        yield
    except CALLER_ERRORS as error:
        if _server_advice(error) is None:
            raise
        raise _unavailable(url, error) from error
    except NoConnection as error:
        message = f"The database {name_of(url)} has no free connection: too many calls at once; try again."
        raise StoreUnavailable(message) from error
    except DBAPIError as error:
        raise _unavailable(url, error) from error


@contextmanager
def commit_translated(url: URL) -> Iterator[None]:
    """The error of a connection that was lost during a commit: the server may have written the transaction."""
    try:
        yield
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        message = (
            f"The connection to the database {name_of(url)} was lost before it confirmed this change, which may have"
            " been written; repeat it with the same id or key."
        )
        raise StoreUnavailable(message, _detail(url, error)) from error


@contextmanager
def openable(address: str) -> Iterator[None]:
    """Turn the error of an address that no driver here can open into a StoreUnavailable."""
    kind = address.partition(":")[0]
    try:
        yield
    except ImportError as error:  # once the driver is installed the next attempt succeeds
        extra = "; install jupyter-gpu-quota with its extra postgresql" if "postgres" in kind else ""
        message = f"The driver for a database_url that begins with {kind}: is not installed{extra}."
        raise StoreUnavailable(message, str(error)) from error
    except ArgumentError as error:
        forms = "sqlite:////FOLDER/FILE or postgresql://USER:PASSWORD@HOST/NAME"
        raise StoreUnavailable(f"The setting database_url is not the address of a database: {forms}.") from error


def is_read_only(error: StoreUnavailable) -> bool:
    """Whether the database could be read and not written."""
    original = getattr(error.__cause__, "orig", None)
    return str(getattr(original, "sqlite_errorname", "")).startswith("SQLITE_READONLY")


def missing_file(path: str) -> StoreUnavailable:
    """The sentence for a database file that is not where it was."""
    return StoreUnavailable(f"The database {path} no longer exists; restore the file or a backup, then try again.")


def name_of(url: URL) -> str:
    """A database as sentences name it: its file, or its name on the server."""
    return url.database or f"of the kind {url.get_backend_name()}"


def _unavailable(url: URL, error: DBAPIError) -> StoreUnavailable:
    return StoreUnavailable(f"The database {name_of(url)} cannot be used now: {_why(error)}.", _detail(url, error))


def _detail(url: URL, error: DBAPIError) -> str:
    address = url.render_as_string(hide_password=True)
    return "" if isinstance(error.orig, sqlite3.Error) else " ".join(f"{address}: {error.orig}".split())


def _server_advice(error: DBAPIError) -> str | None:
    state = str(getattr(error.orig, "sqlstate", None) or "")
    return next((advice for code, advice in SERVER_ADVICE.items() if state.startswith(code)), None)


def _why(error: DBAPIError) -> str:
    original = error.orig
    code = getattr(original, "sqlite_errorname", "") if isinstance(original, sqlite3.Error) else ""
    for name, advice in ADVICE.items():
        if code == name or code.startswith(f"{name}_"):
            return advice
    if isinstance(original, sqlite3.Error):
        return f"{original}; check that this service may use it"
    return _server_advice(error) or "its server cannot be reached, or refused the connection; the service's log has why"
