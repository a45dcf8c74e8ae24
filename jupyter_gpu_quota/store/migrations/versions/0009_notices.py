"""Messages that leave the hub, and what became of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TEXTS = ("notebook", "event", "channel", "facts", "state", "fault")
NUMBERS = ("at", "until", "attempts", "next_at")


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False, server_default="local"),
        sa.Column("hub", sa.Text(), nullable=False, server_default="local"),
        *(sa.Column(name, sa.Text(), nullable=False) for name in TEXTS),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in NUMBERS),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
    )
    op.create_index("ix_notices_channel_ended_at", "notices", ["channel", "ended_at"])
    op.create_index("ix_notices_ended_at", "notices", ["ended_at"])
