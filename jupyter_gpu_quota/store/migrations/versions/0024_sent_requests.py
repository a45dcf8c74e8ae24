"""The fields of a request that has an idempotency key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("idempotency", sa.Column("sent", sa.Text(), nullable=False, server_default="{}"))
