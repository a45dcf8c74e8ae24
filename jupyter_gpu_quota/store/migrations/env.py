"""Runs the migrations on the connection and in the transaction that ``store.database.migrate`` opened."""

from __future__ import annotations

from alembic import context

from jupyter_gpu_quota.store.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
