"""Backup and restore of the SQLite database at a URL, while the service runs or is stopped."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from .database.copies import copy_database
from .database.db_errors import openable
from .database.migrate import NewerDatabase
from .database.restore import (
    NOT_RESTORED,
    check_database,
    check_tables,
    copy_of_backup,
    is_sound,
    put_in_place,
    replace_rows,
)
from .open import open_store
from .records.calls import StoreUnavailable


def backup(url: str, file: Path) -> None:
    """Write a copy of the database with the state of one instant. Raises StoreUnavailable."""
    source = _file_of(url, "pg_dump")
    if not source.exists():
        raise StoreUnavailable(f"There is no database {source}; name its state folder with --state-dir.")
    if file.exists():
        raise StoreUnavailable(f"{file} exists already; give another name.")
    if not file.parent.is_dir():
        raise StoreUnavailable(f"There is no folder {file.parent} for the backup; create it, or give another name.")
    try:
        check_database(source, outcome="no backup was made")
        copy_database(source, file)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"The backup cannot be written to {file}: {error}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """``before``: the copy of the previous database; None if ``database`` was created.

    ``moved``: the files of a database that could not be used, under their present names; empty if there was none.
    """

    database: Path
    before: Path | None
    moved: tuple[Path, ...] = ()


def restore(url: str, file: Path, *, now: int, above: int = 0) -> Restored:
    """Put a backup in place of the database; decisions are held until an admin accepts the differences.

    A backup of an older release is migrated. A database that is damaged, or that a newer release wrote, is moved aside.
    ``above``: a fencing number that was used already, by a leader that neither database may know. Raises
    StoreUnavailable, and leaves the database unchanged.
    """
    target, file = _file_of(url, "pg_restore, into an empty database and with the hub stopped"), file.absolute()
    if not file.exists():
        raise StoreUnavailable(f"There is no file {file}; {NOT_RESTORED}.")
    if target.exists() and target.samefile(file):
        raise StoreUnavailable(f"{file} is the database itself; {NOT_RESTORED}.")
    if not target.parent.is_dir():
        raise StoreUnavailable(f"There is no folder {target.parent} for the database: create it; {NOT_RESTORED}.")
    check_database(file, outcome=NOT_RESTORED)
    try:
        with copy_of_backup(file, target) as copy:
            _migrate(copy, file)
            check_tables(copy, file)
            if target.exists() and _is_usable(url, target):
                before = replace_rows(target, copy, keeps_copy=True, file=file.name, now=now, above=above)
                return Restored(database=target, before=before)
            new = copy.with_name(f"{copy.name}.new")
            open_store(f"sqlite:///{new}").close()
            replace_rows(new, copy, keeps_copy=False, file=file.name, now=now, above=above)
            return Restored(database=target, before=None, moved=put_in_place(new, target, now))
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{file} was not restored: {error}. The database {target} is unchanged.") from error


def _is_usable(url: str, target: Path) -> bool:
    """Whether this release can replace the rows of a database; an older one is migrated. Raises StoreUnavailable."""
    if not is_sound(target):
        return False
    try:
        open_store(url).close()
    except NewerDatabase:
        return False
    return True


def _migrate(copy: Path, file: Path) -> None:
    try:
        open_store(f"sqlite:///{copy}").close()
    except StoreUnavailable as error:
        raise StoreUnavailable(str(error).replace(str(copy), str(file)), error.detail) from error


def _file_of(url: str, program: str) -> Path:
    with openable(url):
        parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise StoreUnavailable(f"This command is for SQLite; for the database of this service use {program}.")
    return Path(parsed.database).absolute()
