"""A rank, and a process of a reading, has the backend's own name for it instead of a process id."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ranks", sa.Column("handle", sa.Text(), nullable=True))
    op.execute("UPDATE ranks SET handle = CAST(pid AS TEXT)")
    op.drop_column("ranks", "pid")
    op.drop_column("ranks", "pid_started")
    _rename_in_readings()


def _rename_in_readings() -> None:
    """The newest reading of each device lists its processes as JSON."""
    latest = sa.table("latest_samples", sa.column("device", sa.Text()), sa.column("processes", sa.Text()))
    for device, text in op.get_bind().execute(sa.select(latest.c.device, latest.c.processes)).all():
        processes = json.loads(text)
        for process in (each for listed in processes.values() for each in listed):
            process["handle"] = str(process.pop("pid"))
        op.execute(latest.update().where(latest.c.device == device).values(processes=json.dumps(processes)))
