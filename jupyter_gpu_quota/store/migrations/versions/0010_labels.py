"""How the share of each allocation is held, as was read back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "share_labels",
        sa.Column("allocation", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False, server_default="local"),
        sa.Column("hub", sa.Text(), nullable=False, server_default="local"),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("memory", "compute", "why")),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("allocation", name="pk_share_labels"),
    )
