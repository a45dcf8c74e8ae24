"""Why a rank was lost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ranks", sa.Column("why_lost", sa.Text(), nullable=True))
