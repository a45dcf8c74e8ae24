"""What an admin said of a node, and what is wrong with a device that is not healthy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("upkeep", sa.Text(), nullable=False, server_default="none"))
    op.add_column("nodes", sa.Column("drain_by_at", sa.BigInteger(), nullable=True))
    op.add_column("devices", sa.Column("trouble", sa.Text(), nullable=True))
