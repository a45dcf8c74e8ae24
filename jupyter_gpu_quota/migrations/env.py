"""Runs the migrations on the connection, and in the transaction, that :mod:`jupyter_gpu_quota.store.migrate` opened."""

from __future__ import annotations

from alembic import context

from jupyter_gpu_quota.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
