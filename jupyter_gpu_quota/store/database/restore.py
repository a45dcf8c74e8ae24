"""Replaces the rows of an SQLite database that is in use by those of a backup.

All rows are replaced in one transaction of SQLite, so that every other process sees the rows before or after it, and a
kill leaves the rows unchanged. The transaction ends the lease, raises the fencing number and holds all decisions, so a
leader cannot commit a decision that it made on the earlier rows. A file whose rows cannot be replaced is moved aside.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from urllib.parse import quote

from ...core.recovery.evidence import BackupRestored
from ..records.calls import StoreUnavailable
from ..records.recovery import Hold
from .copies import copy_database
from .schema import metadata

LOCK_TIMEOUT_S = 30.0
BEFORE, RESTORING = "before-restore", "restoring"
"""Suffixes of a copy that is kept, before its instant, and of the backup while it is read."""
NOT_RESTORED = "nothing was restored"
DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR")
"""Beginnings of SQLite's result codes for a file that cannot be read, with neither a permission nor a lock as cause."""


def check_database(file: Path, *, outcome: str) -> None:
    """Raise StoreUnavailable for a file that is not a database of this service, or is damaged.

    ``outcome`` ends each message: what did not happen.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreUnavailable(f"{file} is damaged ({found}); {outcome}.")
            if not {"alembic_version", "head", "audit", "jobs"} <= _tables(connection):
                raise StoreUnavailable(f"{file} is not a database of this service; {outcome}.")
            if connection.execute("SELECT count(*) FROM head").fetchone() != (1,):
                raise StoreUnavailable(f"{file} is not complete: it has no head row; {outcome}.")
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{file} cannot be read as a database ({error}); {outcome}.") from error


def check_tables(copy: Path, file: Path) -> None:
    """Raise StoreUnavailable if a migrated copy of a backup lacks a table of this release; ``file`` is the backup."""
    with closing(sqlite3.connect(f"file:{quote(str(copy))}?mode=ro", uri=True)) as connection:
        missing = metadata.tables.keys() - _tables(connection)
    if missing:
        names = ", ".join(sorted(missing))
        raise StoreUnavailable(f"{file} is not complete: it lacks {names}; {NOT_RESTORED}.")


def is_sound(target: Path) -> bool:
    """Whether SQLite finds no damage in a database; True also where it cannot look now, as the next access reports."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(target))}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.Error as error:
        return not getattr(error, "sqlite_errorname", "").startswith(DAMAGED)


def _tables(connection: sqlite3.Connection) -> set[str]:
    """The names of the tables of a database."""
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@contextmanager
def copy_of_backup(file: Path, target: Path) -> Iterator[Path]:
    """A copy of the backup beside the database, which may be migrated; it is removed at the end."""
    copy = target.with_name(f"{target.name}.{RESTORING}")
    _remove(copy)
    try:
        copy_database(file, copy)
        yield copy
    finally:
        _remove(copy)


def _remove(copy: Path) -> None:
    for path in [copy, *copy.parent.glob(f"{copy.name}*")]:
        with suppress(FileNotFoundError):
            path.unlink()


def _new_name(target: Path, now: int) -> Path:
    """The name of a copy of the database as it is now, beside it; no file has this name."""
    stem = f"{target.name}.{BEFORE}-{datetime.fromtimestamp(now / 1000, UTC):%Y%m%dT%H%M%SZ}"
    names = (target.with_name(f"{stem}-{number}" if number > 1 else stem) for number in count(1))
    return next(name for name in names if not name.exists())


def put_in_place(new: Path, target: Path, now: int) -> tuple[Path, ...]:
    """Move the files of a database aside, and another one to their place. Returns the new names of those files.

    The log goes before the database: it would be applied to the other one. Raises OSError, and moves nothing.
    """
    before, moved = _new_name(target, now), list[tuple[Path, Path]]()
    try:
        for end in ("-wal", "-shm", "-journal", ""):
            present, kept = (path.with_name(f"{path.name}{end}") for path in (target, before))
            if present.exists():
                moved.append((present, present.rename(kept)))
        new.rename(target)
    except OSError:
        for present, kept in reversed(moved):
            kept.rename(present)
        raise
    return tuple(kept for _, kept in reversed(moved))


def replace_rows(target: Path, copy: Path, *, keeps_copy: bool, file: str, now: int, above: int) -> Path | None:
    """Replace all rows of a database by those of a copy with the same schema. Returns the copy of the old rows, if any.

    ``file`` is the name of the backup; the fencing number will be above ``above``. Raises OSError and sqlite3.Error,
    and keeps no copy, where the rows cannot be replaced.
    """
    with closing(_connection(target)) as connection:
        connection.execute("ATTACH DATABASE ? AS backup", (str(copy),))
        connection.execute("BEGIN IMMEDIATE")
        before = _new_name(target, now) if keeps_copy else None  # the transaction has the write lock
        with _kept_copy(target, before):
            _replace(connection, Hold(since=now, why=(BackupRestored(file=file, at=now),)), now, above)
            connection.execute("COMMIT")
    return before


@contextmanager
def _kept_copy(target: Path, before: Path | None) -> Iterator[None]:
    """Copy the database to ``before``, if any, and remove it if the body fails: the database is then as it was."""
    if before is not None:
        copy_database(target, before)
    try:
        yield
    except (OSError, sqlite3.Error):
        if before is not None:
            before.unlink(missing_ok=True)
        raise


def _connection(target: Path) -> sqlite3.Connection:
    """A connection that waits for the write lock; foreign keys are not checked, since all tables are replaced."""
    address = f"file:{quote(str(target))}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    for pragma in ("foreign_keys=OFF", "synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _replace(connection: sqlite3.Connection, hold: Hold, now: int, above: int) -> None:
    (fencing,) = connection.execute("SELECT fencing FROM head").fetchone()
    for table in metadata.tables.values():  # "kept.": SQLite reads a missing column without it as a text, its own name
        columns, values = (", ".join(f'{of}"{column.name}"' for column in table.columns) for of in ("", "kept."))
        connection.execute(f'DELETE FROM main."{table.name}"')  # noqa: S608 - the names are those of the schema
        connection.execute(
            f'INSERT INTO main."{table.name}" ({columns}) SELECT {values} FROM backup."{table.name}" kept'  # noqa: S608
        )
    connection.execute(
        "UPDATE head SET holder = NULL, expires_at = 0, fencing = max(fencing, ?, ?) + 1", (fencing, above)
    )  # fmt: skip
    note = hold.note(now)
    connection.execute("DELETE FROM controller_notes WHERE kind = ?", (note.kind,))
    connection.execute(
        "INSERT INTO controller_notes (kind, subject, slot, at, document) VALUES (?, ?, ?, ?, ?)",
        (note.kind, note.subject, note.slot, note.at, json.dumps(note.document)),
    )
