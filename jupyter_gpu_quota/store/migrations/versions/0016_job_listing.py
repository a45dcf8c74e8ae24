"""The first start of each job, and the text of it that a search reads."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

MAX_SEARCHED = 4_000


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_started_at", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("searched", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE jobs SET first_started_at = (SELECT min(started_at) FROM ranks WHERE ranks.job = jobs.id)")
    jobs = sa.table("jobs", *(sa.column(name, sa.Text()) for name in ("id", "spec", "searched")))
    for id, text in op.get_bind().execute(sa.select(jobs.c.id, jobs.c.spec)).all():
        spec = json.loads(text)
        found = "\n".join([spec["name"], *spec["command"]])[:MAX_SEARCHED].lower()
        op.execute(jobs.update().where(jobs.c.id == id).values(searched=found))
