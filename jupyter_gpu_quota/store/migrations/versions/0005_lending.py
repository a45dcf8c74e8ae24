"""How a notebook is used, and where and since when its slice is lent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("notebooks", sa.Column("activity", sa.Text(), nullable=False, server_default="unknown"))
    op.add_column("notebooks", sa.Column("seen_empty", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("notebooks", sa.Column("device", sa.Text(), nullable=True))
    op.add_column("notebooks", sa.Column("lent_at", sa.BigInteger(), nullable=True))
