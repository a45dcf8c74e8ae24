"""A consistent copy of an SQLite database that is in use, and the copy that is kept before a migration."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection

from ..records.calls import StoreUnavailable

log = logging.getLogger(__name__)


def copy_database(source: Path, target: Path) -> None:
    """Copy a database to a file with the state of one instant; the file appears complete or not at all.

    The copy is readable by its owner alone. Raises OSError and sqlite3.Error.
    """
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        address = f"file:{quote(str(source))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as reader, closing(sqlite3.connect(part)) as writer:
            reader.backup(writer)  # all in one step: in WAL mode that blocks no writer
            writer.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def keep_copy_before_migration(connection: Connection, revision: str) -> None:
    """Keep a copy of the database, with its schema revision in the name, beside its file. A server's is not copied.

    Raises StoreUnavailable where the copy cannot be written; the database is then not migrated.
    """
    url = connection.engine.url
    if connection.dialect.name != "sqlite":
        log.warning("the database is migrated from schema %s without a copy: its server has the backups", revision)
        return
    source = Path(str(url.database)).absolute()
    target = source.with_name(f"{source.name}.schema-{revision}")
    try:
        copy_database(source, target)
    except (OSError, sqlite3.Error) as error:
        message = f"The database {source} has the schema of an older release and was not migrated: a copy of it cannot"
        raise StoreUnavailable(f"{message} be written to {target} ({error}). Make room there.") from error
    log.info("the database is migrated from schema %s; its copy is %s", revision, target)
