"""Random kills of everything that is ours, under a stream of real jobs: nothing is lost, nothing runs twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.controllers.reconciliation import EVERY_MS, GRACE_MS
from jupyter_gpu_quota.demo.observer import Witness
from jupyter_gpu_quota.demo.temporary_hub import Stage
from tests.patience import PATIENCE_S, until
from tests.soak.doors import insist
from tests.soak.fire_hub import burning_hub, watched
from tests.soak.killer import Killer
from tests.soak.stream import Stream
from tests.soak.verdict import broken_promises, wait_for_rest

RECONCILED_S = 2 * (GRACE_MS + EVERY_MS) / 1000 + PATIENCE_S
"""A slice that the hub could not give back, because its service was dead, is one without a server for so long."""

SEED = int(os.environ.get("GPU_QUOTA_SEED", "42"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with burning_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def witness(stage: Stage) -> Iterator[Witness]:
    with watched(stage) as looking:
        yield looking


@pytest.mark.hub
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_random_kills_lose_nothing(stage: Stage, witness: Witness, tmp_path: Path) -> None:
    under_fire(stage, witness, tmp_path, kills=20)


@pytest.mark.hub
@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_hundred_random_kills_lose_nothing(stage: Stage, witness: Witness, tmp_path: Path) -> None:
    under_fire(stage, witness, tmp_path, kills=100)


def under_fire(stage: Stage, witness: Witness, tmp_path: Path, *, kills: int) -> None:
    tokens = {name: stage.token_of(name) for name in stage.cast.everybody}
    diary = tmp_path / "diary"
    stream = Stream(stage, diary, tokens, seed=SEED)
    killer = Killer(stage, seed=SEED)
    begun = time.monotonic()
    stream.start()
    while sum(killer.kills.values()) < kills and not stream.faults:
        killer.kill_one()
    fired_s = time.monotonic() - begun
    killer.wait_until_it_works()
    stream.end()
    known = wait_for_rest(stage, stream.sent, 120)
    attempts, pauses = (sum(record.get(what, 0) for record in known.values()) for what in ("attempt", "pauses"))
    print(f"seed {SEED}: {killer.kills} in {fired_s:.0f} s, {killer.in_grace} inside a grace period")
    print(
        f"{len(stream.sent)} jobs, {attempts} attempts, {pauses} pauses; quiet after {time.monotonic() - begun:.0f} s"
    )
    print(f"{witness.looks} looks, at most {witness.highest} milli on a device")
    assert stream.faults == []
    assert list(broken_promises(stream.sent, known, diary)) == []
    assert witness.violations == []
    assert stream.sent
    check_the_books(stage)


def check_the_books(stage: Stage) -> None:
    """The audit's chain holds, and every slice is back where no server runs."""
    verified = insist("GET", f"{stage.service_api}/audit/verify", stage.admin_token)
    assert verified.status == 200, verified.text
    insist("DELETE", f"{stage.hub_api}/users/carol/server", stage.admin_token)
    until(
        lambda: not _booked(stage), RECONCILED_S, lambda: f"slices without a server are still booked: {_booked(stage)}"
    )


def _booked(stage: Stage) -> list[str]:
    listed = insist("GET", f"{stage.service_api}/notebooks", stage.admin_token)
    return [one["id"] for one in listed.body["items"] if one["state"] in ("requested", "booked")]
