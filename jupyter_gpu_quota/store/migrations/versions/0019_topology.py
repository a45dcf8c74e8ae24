"""The groups of close nodes that each node is in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("topology", sa.Text(), nullable=False, server_default="[]"))
