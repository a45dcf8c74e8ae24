"""Bring a database to the schema of this release."""

from __future__ import annotations

from functools import cache

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

from ..records.calls import StoreUnavailable
from .copies import keep_copy_before_migration
from .db_errors import name_of
from .schema import metadata

MIGRATION_LOCK = 6_714_802
"""Number of the advisory lock that a PostgreSQL migration holds; any number that nothing else uses."""

MIGRATION_WAIT_MS = 60_000

INTO_EMPTY_DATABASE = " into an empty database with pg_restore, and set c.GPUQuota.database_url to that one"
"""How a backup is restored on a server, where `restore` does not put it in place of a database."""


class NewerDatabase(StoreUnavailable):
    """A newer release wrote the database; this one cannot read it."""


def migrate(engine: Engine) -> None:
    """Apply the migrations that are missing, all or none; several processes may call it at once."""
    head = _revisions()[0]
    with engine.connect() as connection:
        if _revision(connection) == head:
            return
        connection.rollback()
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {MIGRATION_WAIT_MS}")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        revision = _revision(connection)
        if revision != head:  # another process may have migrated it
            if revision is None and _has_foreign_tables(connection):
                raise _foreign(connection)
            if revision is not None:
                keep_copy_before_migration(connection, revision)
            config = _config()
            config.attributes["connection"] = connection  # in the open transaction: a kill leaves all as it was
            command.upgrade(config, "head")
        connection.commit()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "jupyter_gpu_quota:store/migrations")
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """All revisions that this release knows, the newest first. Reading them runs the script of each."""
    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _revision(connection: Connection) -> str | None:
    """The revision of the database; None before the first. Raises StoreUnavailable for one that cannot be migrated."""
    revisions = sorted(MigrationContext.configure(connection).get_current_heads())
    if len(revisions) > 1:
        message = (
            f"The database {name_of(connection.engine.url)} has {len(revisions)} schema revisions in its table"
            f" alembic_version ({', '.join(revisions)}); one is expected, and a restore over existing tables makes"
            " more. Stop the service and restore a backup into an empty database."
        )
        raise StoreUnavailable(message)
    if not revisions:
        return None
    if revisions[0] not in _revisions():
        if not _tables(connection) & metadata.tables.keys():
            raise _foreign(connection)
        message = (
            f"The database {name_of(connection.engine.url)} is at schema {revisions[0]}, which this release does not"
            " know: a newer release wrote it. Install that release again, or restore a backup made before the upgrade"
        )
        is_file = connection.dialect.name == "sqlite"
        raise NewerDatabase(f"{message}{'' if is_file else INTO_EMPTY_DATABASE}.")
    return revisions[0]


def _tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def _has_foreign_tables(connection: Connection) -> bool:
    """Whether a database without a revision has tables: any in a file, those with our names on a server."""
    found = _tables(connection) - {"alembic_version"}
    return bool(found if connection.dialect.name == "sqlite" else found & metadata.tables.keys())


def _foreign(connection: Connection) -> StoreUnavailable:
    return StoreUnavailable(
        f"The database {name_of(connection.engine.url)} is not a database of this service: another program made its"
        " tables. None of them was changed. Set c.GPUQuota.database_url to another file or another database."
    )
