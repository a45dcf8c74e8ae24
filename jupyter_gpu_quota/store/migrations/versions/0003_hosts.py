"""What a rank of a job needs of its node: CPU and host memory, 0 where that was not stated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("cpu_milli", "memory_mib"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
