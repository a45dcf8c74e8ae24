"""Since when the cluster of a node cannot be read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("unread_since_at", sa.BigInteger(), nullable=True))
