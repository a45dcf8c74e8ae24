"""A reservation may have a planned start: it is the backfill reservation of its pool."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reservations", sa.Column("starts_at", sa.BigInteger(), nullable=True))
