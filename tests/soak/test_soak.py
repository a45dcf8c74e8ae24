"""Random kills of all processes of the product, under a stream of real jobs: no job is lost, none runs twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.controllers.reconciliation import EVERY_MS, GRACE_MS
from jupyter_gpu_quota.demo.observer import ProcessObserver
from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.patience import PATIENCE_S, until
from tests.soak.fire_hub import burning_hub, watched
from tests.soak.killer import Killer
from tests.soak.rest_calls import insist
from tests.soak.stream import Stream
from tests.soak.verdict import broken_promises, wait_for_rest

RECONCILED_S = 2 * (GRACE_MS + EVERY_MS) / 1000 + PATIENCE_S
"""Seconds until reconciliation returns a slice whose server ended while the service was dead."""

SEED = int(os.environ.get("GPU_QUOTA_SEED", "42"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[TemporaryHub]:
    with burning_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def observer(stage: TemporaryHub) -> Iterator[ProcessObserver]:
    with watched(stage) as looking:
        yield looking


@pytest.mark.hub
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_random_kills_lose_nothing(stage: TemporaryHub, observer: ProcessObserver, tmp_path: Path) -> None:
    under_fire(stage, observer, tmp_path, kills=20)


@pytest.mark.hub
@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_hundred_random_kills_lose_nothing(stage: TemporaryHub, observer: ProcessObserver, tmp_path: Path) -> None:
    under_fire(stage, observer, tmp_path, kills=100)


def under_fire(stage: TemporaryHub, observer: ProcessObserver, tmp_path: Path, *, kills: int) -> None:
    tokens = {name: stage.token_of(name) for name in stage.users.everybody}
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
    print(f"{observer.reads} looks, at most {observer.highest} milli on a device")
    assert stream.faults == []
    assert list(broken_promises(stream.sent, known, diary)) == []
    assert observer.violations == []
    assert stream.sent
    check_the_books(stage)


def check_the_books(stage: TemporaryHub) -> None:
    """The audit's chain verifies, and no slice without a server stays booked."""
    verified = insist("GET", f"{stage.service_api}/audit/verify", stage.admin_token)
    assert verified.status == 200, verified.text
    insist("DELETE", f"{stage.hub_api}/users/carol/server", stage.admin_token)
    until(
        lambda: not _booked(stage), RECONCILED_S, lambda: f"slices without a server are still booked: {_booked(stage)}"
    )


def _booked(stage: TemporaryHub) -> list[str]:
    listed = insist("GET", f"{stage.service_api}/notebooks", stage.admin_token)
    return [one["id"] for one in listed.body["items"] if one["state"] in ("requested", "booked")]
