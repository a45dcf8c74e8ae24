"""The first schema: quota, jobs, notebooks, devices, what they hold, the audit chain, samples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index(op.f("ix_audit_project_seq"), "audit", ["project", "seq"], unique=False)
    op.create_table(
        "bundles",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kept_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("digest", "user", name=op.f("pk_bundles")),
    )
    op.create_table(
        "head",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("quota_revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("quota_changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_hash", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("fencing", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("expires_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_head_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_head")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("gpu_milli", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ranks", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("gpu_model", sa.Text(), nullable=True),
        sa.Column("priority", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("preemptible", sa.Boolean(), nullable=False),
        sa.Column("time_limit_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("checkpoint_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("pausing_since_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("paused_for", sa.Text(), nullable=True),
        sa.Column("paused_at", sa.Text(), nullable=False),
        sa.Column("borrower", sa.Boolean(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=True),
        sa.Column("private_to", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("retries_left", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ended_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("exit_status", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("done", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("total", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("clone_of", sa.Text(), nullable=True),
        sa.Column("pauses", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.CheckConstraint("gpu_milli > 0 AND ranks > 0", name=op.f("ck_jobs_asks_for_something")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_bundle"), "jobs", ["bundle"], unique=False)
    op.create_index(op.f("ix_jobs_changed"), "jobs", ["changed"], unique=False)
    op.create_index(op.f("ix_jobs_ended_at"), "jobs", ["ended_at"], unique=False)
    op.create_index(op.f("ix_jobs_project_submitted_at"), "jobs", ["project", "submitted_at"], unique=False)
    op.create_index(op.f("ix_jobs_submitted_at_id"), "jobs", ["submitted_at", "id"], unique=False)
    op.create_table(
        "latest_samples",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("utilisation_percent", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("memory_used_mib", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("coverage_permille", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("workloads", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_latest_samples")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cpu_milli", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("schedulable", sa.Boolean(), nullable=False),
        sa.Column("changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_index(op.f("ix_nodes_changed"), "nodes", ["changed"], unique=False)
    op.create_table(
        "notebooks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("gpu_milli", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("requested_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("booked_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("ended_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.CheckConstraint("gpu_milli > 0", name=op.f("ck_notebooks_asks_for_something")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notebooks")),
    )
    op.create_index(op.f("ix_notebooks_changed"), "notebooks", ["changed"], unique=False)
    op.create_index(op.f("ix_notebooks_ended_at"), "notebooks", ["ended_at"], unique=False)
    op.create_index(op.f("ix_notebooks_user"), "notebooks", ["user"], unique=False)
    op.create_table(
        "quota_revisions",
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_quota_revisions")),
    )
    op.create_table(
        "reservations",
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("placements", sa.Text(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("workload", name=op.f("pk_reservations")),
    )
    op.create_index(op.f("ix_reservations_changed"), "reservations", ["changed"], unique=False)
    op.create_table(
        "sample_batches",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("node", "sequence", name=op.f("pk_sample_batches")),
    )
    op.create_index(op.f("ix_sample_batches_at"), "sample_batches", ["at"], unique=False)
    op.create_table(
        "samples",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("utilisation_percent", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("memory_used_mib", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("coverage_permille", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("workloads", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("device", "at", name=op.f("pk_samples")),
    )
    op.create_index(op.f("ix_samples_at"), "samples", ["at"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("uuid", sa.Text(), nullable=True),
        sa.Column("health", sa.Text(), nullable=False),
        sa.Column("foreign_milli", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name=op.f("fk_devices_node")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
    )
    op.create_index(op.f("ix_devices_changed"), "devices", ["changed"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_idempotency_job")),
        sa.PrimaryKeyConstraint("user", "key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_job"), "idempotency", ["job"], unique=False)
    op.create_table(
        "ranks",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("pid_started", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("started_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("ended_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("exit_status", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("fencing", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tree_gone", sa.Boolean(), nullable=False),
        sa.Column("pause_requested", sa.Boolean(), nullable=False),
        sa.Column("completed", sa.Boolean(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_ranks_job")),
        sa.PrimaryKeyConstraint("job", "attempt", "rank", name=op.f("pk_ranks")),
    )
    op.create_table(
        "secrets",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_secrets_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_secrets")),
    )
    op.create_table(
        "allocations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="local", nullable=False),
        sa.Column("hub", sa.Text(), server_default="local", nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.Column("gpu_milli", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("allocated_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("released_at", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("changed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.CheckConstraint(
            "gpu_milli BETWEEN 1 AND 1000 AND memory_mib >= 0", name=op.f("ck_allocations_within_a_device")
        ),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name=op.f("fk_allocations_device")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
    )
    op.create_index(op.f("ix_allocations_changed"), "allocations", ["changed"], unique=False)
    op.create_index(op.f("ix_allocations_device_released_at"), "allocations", ["device", "released_at"], unique=False)
    op.create_index(op.f("ix_allocations_released_at"), "allocations", ["released_at"], unique=False)
    op.create_index(
        op.f("ix_allocations_workload_released_at"), "allocations", ["workload", "released_at"], unique=False
    )
    op.execute(
        "INSERT INTO head (id, version, quota_revision, quota_changed, audit_seq, audit_hash, fencing, expires_at)"
        " VALUES (1, 0, 0, 0, 0, '', 0, 0)"
    )
