"""The audit of data after a recovery: an adopted attempt has the same rows as one that was started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.recovery.differences import AttemptRecord
from jupyter_gpu_quota.store.records.recovery import AcceptRecovery, HoldDecisions
from tests.store.worlds import KINDS, World, opened, placements


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


def test_an_adopted_attempt_uses_its_data_until_its_end(world: World) -> None:
    world.submit("j", data=("images",), data_groups=("team",))
    world.submit("plain")
    world.record(HoldDecisions(why=(), differences=()), AcceptRecovery(actor="admin"))
    runs = [
        AttemptRecord(
            job=job, attempt=2, ranks=1, placements=placements(device),
            facts=(RankFact(job=job, attempt=2, rank=0, handle="7", started_at=world.now),),
        )
        for job, device in (("j", "d0"), ("plain", "d1"))
    ]  # fmt: skip
    assert world.store.recover(runs, lease=world.lease, now=world.now)
    world.see(world.gone("j", 0))
    rows = [row for row in reversed(world.store.audit()[0]) if row.kind.startswith("data.")]
    used = {"attempt": 2, "data": ["images"]}
    assert [(row.kind, row.subject, row.actor, json.loads(row.payload)) for row in rows] == [
        ("data.use", "j", "bob", used | {"revision": None}),
        ("data.end", "j", "bob", used),
    ]
