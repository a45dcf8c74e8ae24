"""The series of each job: its metrics and progress, and the use of its devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_series",
        sa.Column("job", sa.Text(), sa.ForeignKey("jobs.id", name="fk_job_series_job"), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False, server_default="local"),
        sa.Column("hub", sa.Text(), nullable=False, server_default="local"),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("begins_at", "width_ms")),
        sa.Column("series", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_job_series"),
    )
