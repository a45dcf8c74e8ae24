"""Bring a database to the schema of this release."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from ..records.calls import StoreUnavailable

MIGRATION_LOCK = 6_714_802
"""Number of the advisory lock that a PostgreSQL migration holds; any number that nothing else uses."""

MIGRATION_WAIT_MS = 60_000


class NewerDatabase(StoreUnavailable):
    """A newer release wrote the database; this one cannot read it."""


def migrate(engine: Engine) -> None:
    """Apply the migrations that are missing, all or none; several processes may call it at once."""
    config = Config()
    config.set_main_option("script_location", "jupyter_gpu_quota:store/migrations")
    script = ScriptDirectory.from_config(config)
    with engine.connect() as connection:
        if _revision(connection, script) == script.get_current_head():
            return
        connection.rollback()
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {MIGRATION_WAIT_MS}")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        if _revision(connection, script) != script.get_current_head():  # another process may have migrated it
            config.attributes["connection"] = (
                connection  # in the open transaction: a kill leaves the database as it was
            )
            command.upgrade(config, "head")
        connection.commit()


def _revision(connection: Connection, script: ScriptDirectory) -> str | None:
    """The revision the database is at. Raises NewerDatabase for one that this release does not have."""
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and revision not in {known.revision for known in script.walk_revisions()}:
        message = (
            f"The database is at schema {revision}, which this release does not know: a newer release wrote it."
            " Install that release again, or restore a backup made before the upgrade."
        )
        raise NewerDatabase(message)
    return revision
