"""What a reading tells beside utilisation: memory by holder and of nobody, temperature, power, and why figures lack."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("samples", "latest_samples"):
        for name in ("workload_memory_mib", "why"):
            op.add_column(table, sa.Column(name, sa.Text(), nullable=False, server_default="{}"))
        for name in ("foreign_mib", "temperature_c", "power_w"):
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=True))
