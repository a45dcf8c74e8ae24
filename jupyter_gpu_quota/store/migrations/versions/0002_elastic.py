"""Elastic jobs: the fewest ranks that a job runs with, and how many it has now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("min_ranks", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("held_ranks", sa.BigInteger(), nullable=True))
