"""The tables of the database, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _text(name: str, *, key: bool = False, null: bool = False) -> Column[str]:
    return Column(name, Text, primary_key=key, nullable=null)


def _number(name: str, *, key: bool = False, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, primary_key=key, nullable=null, autoincrement=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def _where() -> tuple[Column[str], Column[str]]:
    """Which cluster and which hub a row belongs to."""
    return (
        Column("cluster", Text, nullable=False, server_default="local"),
        Column("hub", Text, nullable=False, server_default="local"),
    )


head = Table(
    "head",
    metadata,
    _number("id", key=True),
    _number("version"),
    _number("quota_revision"),
    _number("quota_changed"),
    _number("audit_seq"),
    _text("audit_hash"),
    _text("holder", null=True),
    _number("fencing"),
    _number("expires_at"),
    CheckConstraint("id = 1", name="one_row"),
)
users = Table(
    "users",
    metadata,
    _text("id", key=True),
    *_where(),
    _text("name", null=True),
    _number("seen_at"),
    UniqueConstraint("name"),
)
nodes = Table(
    "nodes",
    metadata,
    _text("id", key=True),
    *_where(),
    _text("name"),
    _number("cpu_milli"),
    _number("memory_mib"),
    _flag("schedulable"),
    _text("upkeep"),
    _number("drain_by_at", null=True),
    _number("changed"),
    Index(None, "changed"),
)
devices = Table(
    "devices",
    metadata,
    _text("id", key=True),
    *_where(),
    Column("node", Text, ForeignKey("nodes.id"), nullable=False),
    _number("index"),
    _text("model"),
    _number("memory_mib"),
    _text("pool", null=True),
    _text("uuid", null=True),
    _text("health"),
    _text("trouble", null=True),
    _number("foreign_milli"),
    _flag("simulated"),
    _text("fault", null=True),
    _text("fault_loaded", null=True),
    _number("changed"),
    Index(None, "changed"),
)
jobs = Table(
    "jobs",
    metadata,
    _text("id", key=True),
    *_where(),
    _text("project"),
    _text("user"),
    _text("account", null=True),
    _text("pool"),
    _number("gpu_milli"),
    _number("ranks"),
    _number("min_ranks", null=True),
    _number("held_ranks", null=True),
    _text("gpu_model", null=True),
    _number("cpu_milli"),
    _number("memory_mib"),
    _number("priority"),
    _flag("preemptible"),
    _number("time_limit_s"),
    _number("submitted_at"),
    _text("state"),
    _text("target"),
    _number("attempt"),
    _number("started_at", null=True),
    _number("checkpoint_at", null=True),
    _number("pausing_since_at", null=True),
    _text("paused_for", null=True),
    _text("paused_at"),
    _flag("borrower"),
    _text("spec"),
    _text("bundle", null=True),
    _text("private_to"),
    _text("reason", null=True),
    _number("retries_left"),
    _number("ended_at", null=True),
    _number("exit_status", null=True),
    _number("done", null=True),
    _number("total", null=True),
    _text("metrics"),
    _text("clone_of", null=True),
    _number("pauses"),
    _number("changed"),
    CheckConstraint("gpu_milli > 0 AND ranks > 0", name="asks_for_something"),
    Index(None, "changed"),
    Index(None, "ended_at"),
    Index(None, "submitted_at", "id"),
    Index(None, "project", "submitted_at"),
    Index(None, "bundle"),
)
notebooks = Table(
    "notebooks",
    metadata,
    _text("id", key=True),
    *_where(),
    _text("project"),
    _text("user"),
    _text("server"),
    _text("pool"),
    _number("gpu_milli"),
    _number("requested_at"),
    _text("state"),
    _text("activity"),
    _flag("seen_empty"),
    _text("device", null=True),
    _number("lent_at", null=True),
    _text("stage", null=True),
    _text("reason", null=True),
    _number("booked_at", null=True),
    _number("ended_at", null=True),
    _number("changed"),
    CheckConstraint("gpu_milli > 0", name="asks_for_something"),
    Index(None, "changed"),
    Index(None, "user"),
    Index(None, "ended_at"),
)
allocations = Table(
    "allocations",
    metadata,
    _text("id", key=True),
    *_where(),
    _text("workload"),
    _number("rank"),
    Column("device", Text, ForeignKey("devices.id"), nullable=False),
    _text("device_uuid", null=True),
    _number("gpu_milli"),
    _number("memory_mib"),
    _number("attempt"),
    _number("allocated_at"),
    _number("released_at", null=True),
    _number("changed"),
    CheckConstraint("gpu_milli BETWEEN 1 AND 1000 AND memory_mib >= 0", name="within_a_device"),
    Index(None, "changed"),
    Index(None, "device", "released_at"),
    Index(None, "workload", "released_at"),
    Index(None, "released_at"),
)
notices = Table(
    "notices",
    metadata,
    _text("id", key=True),
    *_where(),
    _text("notebook"),
    _text("event"),
    _text("channel"),
    _text("facts"),
    _number("at"),
    _number("until"),
    _text("state"),
    _number("attempts"),
    _number("next_at"),
    _number("ended_at", null=True),
    _text("fault"),
    Index(None, "channel", "ended_at"),
    Index(None, "ended_at"),
)
reservations = Table(
    "reservations",
    metadata,
    _text("workload", key=True),
    *_where(),
    _text("placements"),
    _number("reserved_at"),
    _number("dropped_at", null=True),
    _number("changed"),
    Index(None, "changed"),
)
ranks = Table(
    "ranks",
    metadata,
    Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
    _number("attempt", key=True),
    _number("rank", key=True),
    *_where(),
    _text("node"),
    _number("pid", null=True),
    _number("pid_started", null=True),
    _number("started_at", null=True),
    _number("ended_at", null=True),
    _number("exit_status", null=True),
    _number("fencing"),
    _flag("tree_gone"),
    _flag("pause_requested"),
    _flag("completed"),
    _text("refused", null=True),
)
secrets = Table(
    "secrets",
    metadata,
    Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
    _text("values"),
)
idempotency = Table(
    "idempotency",
    metadata,
    _text("user", key=True),
    _text("key", key=True),
    Column("job", Text, ForeignKey("jobs.id"), nullable=False),
    Index(None, "job"),
)
bundles = Table(
    "bundles",
    metadata,
    _text("digest", key=True),
    _text("user", key=True),
    *_where(),
    _number("size_bytes"),
    _number("kept_at"),
)
quota_revisions = Table(
    "quota_revisions",
    metadata,
    _number("revision", key=True),
    _text("text"),
    _text("document"),
    _text("policy"),
    _text("actor"),
    _number("at"),
    _text("comment"),
)
audit = Table(
    "audit",
    metadata,
    _number("seq", key=True),
    _number("at"),
    _text("actor"),
    _text("kind"),
    _text("subject"),
    _text("project", null=True),
    _text("payload"),
    _text("previous"),
    _text("hash"),
    Index(None, "at"),
    Index(None, "project", "seq"),
)


def _sample_columns() -> tuple[Column[str] | Column[int] | Column[bool], ...]:
    return (
        *_where(),
        _text("node"),
        _number("utilisation_percent", null=True),
        _number("memory_used_mib", null=True),
        _number("coverage_permille", null=True),
        _flag("simulated"),
        _text("workloads"),
        Column("workload_memory_mib", Text, nullable=False, server_default="{}"),
        _number("foreign_mib", null=True),
        _number("temperature_c", null=True),
        _number("power_w", null=True),
        Column("why", Text, nullable=False, server_default="{}"),
    )


samples = Table(
    "samples", metadata, _text("device", key=True), _number("at", key=True), *_sample_columns(), Index(None, "at")
)
latest_samples = Table(
    "latest_samples",
    metadata,
    _text("device", key=True),
    _number("at"),
    *_sample_columns(),
    Column("processes", Text, nullable=False, server_default="{}"),
)
usage_hours = Table(
    "usage_hours",
    metadata,
    _number("hour_at", key=True),
    _text("workload", key=True),
    _text("device", key=True),
    *_where(),
    _text("user"),
    _text("project"),
    _text("pool"),
    _number("allocated_milli_s"),
    _number("allocated_s"),
    _number("used_milli_s"),
    _number("seen_s"),
)
share_labels = Table(
    "share_labels",
    metadata,
    _text("allocation", key=True),
    *_where(),
    _text("memory"),
    _text("compute"),
    _text("why"),
    _number("read_at"),
)
sample_batches = Table(
    "sample_batches",
    metadata,
    _text("node", key=True),
    _number("sequence", key=True),
    *_where(),
    _number("at"),
    Index(None, "at"),
)
