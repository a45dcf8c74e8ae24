"""Tables, columns and indexes get the names of the glossary. No row changes."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

INDEXED = (["channel", "ended_at"], ["ended_at"])


def upgrade() -> None:
    op.alter_column("notebooks", "stage", new_column_name="idle_state")
    op.alter_column("jobs", "gpu_model", new_column_name="gpu_models")
    op.rename_table("share_labels", "enforcement_labels")
    for columns in INDEXED:
        op.drop_index(f"ix_notices_{'_'.join(columns)}", "notices")
    op.rename_table("notices", "notifications")
    for columns in INDEXED:
        op.create_index(f"ix_notifications_{'_'.join(columns)}", "notifications", columns)
