"""The newest report of each notebook's server, and what the controllers note for their successor."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notebook_reports",
        sa.Column("notebook", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False, server_default="local"),
        sa.Column("hub", sa.Text(), nullable=False, server_default="local"),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("body", "gone")),
        sa.PrimaryKeyConstraint("notebook", name="pk_notebook_reports"),
    )
    op.create_index("ix_notebook_reports_at", "notebook_reports", ["at"])
    op.create_table(
        "controller_notes",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("slot", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False, server_default="local"),
        sa.Column("hub", sa.Text(), nullable=False, server_default="local"),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", "slot", name="pk_controller_notes"),
    )
    op.create_index("ix_controller_notes_subject", "controller_notes", ["subject"])
    op.create_index("ix_controller_notes_kind_at", "controller_notes", ["kind", "at"])
