"""Since when a node or device is no longer reported, and when it was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("nodes", "devices"):
        for name in ("gone_at", "removed_at"):
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=True))
