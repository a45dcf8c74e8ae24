"""Hours of use; the processes on a device; events that end a device until somebody says otherwise."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TEXTS = ("workload", "device", "user", "project", "pool")
NUMBERS = ("allocated_milli_s", "allocated_s", "used_milli_s", "seen_s")


def upgrade() -> None:
    op.add_column("latest_samples", sa.Column("processes", sa.Text(), nullable=False, server_default="{}"))
    for name in ("fault", "fault_loaded"):
        op.add_column("devices", sa.Column(name, sa.Text(), nullable=True))
    op.create_table(
        "usage_hours",
        sa.Column("hour_at", sa.BigInteger(), nullable=False, autoincrement=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in TEXTS),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in NUMBERS),
        sa.Column("cluster", sa.Text(), nullable=False, server_default="local"),
        sa.Column("hub", sa.Text(), nullable=False, server_default="local"),
        sa.PrimaryKeyConstraint("hour_at", "workload", "device", name="pk_usage_hours"),
    )
