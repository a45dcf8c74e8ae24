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
from tests.soak.checks import broken_promises, check_audit, wait_for_rest
from tests.soak.killer import Killer
from tests.soak.rest_calls import request_until_answered
from tests.soak.soak_hub import observed, soak_hub
from tests.soak.stream import Stream

RECONCILED_S = 2 * (GRACE_MS + EVERY_MS) / 1000 + PATIENCE_S
"""Seconds until reconciliation returns a slice whose server ended while the service was dead."""

SEED = int(os.environ.get("GPU_QUOTA_SEED", "42"))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[TemporaryHub]:
    with soak_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def observer(hub: TemporaryHub) -> Iterator[ProcessObserver]:
    with observed(hub) as running:
        yield running


@pytest.mark.hub
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_random_kills_lose_nothing(hub: TemporaryHub, observer: ProcessObserver, tmp_path: Path) -> None:
    run_with_kills(hub, observer, tmp_path, kills=20)


@pytest.mark.hub
@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_hundred_random_kills_lose_nothing(hub: TemporaryHub, observer: ProcessObserver, tmp_path: Path) -> None:
    run_with_kills(hub, observer, tmp_path, kills=100)


def run_with_kills(hub: TemporaryHub, observer: ProcessObserver, tmp_path: Path, *, kills: int) -> None:
    tokens = {name: hub.token_of(name) for name in hub.users.everybody}
    diary = tmp_path / "diary"
    stream = Stream(hub, diary, tokens, seed=SEED)
    killer = Killer(hub, seed=SEED)
    begun = time.monotonic()
    stream.start()
    while sum(killer.kills.values()) < kills and not stream.faults:
        killer.kill_one()
    killed_s = time.monotonic() - begun
    killer.wait_until_ready()
    stream.end()
    known = wait_for_rest(hub, stream.sent, 120)
    attempts, pauses = (sum(record.get(what, 0) for record in known.values()) for what in ("attempt", "pauses"))
    print(f"seed {SEED}: {killer.kills} in {killed_s:.0f} s, {killer.in_grace_period} inside a grace period")
    ended_s = time.monotonic() - begun
    print(f"{len(stream.sent)} jobs, {attempts} attempts, {pauses} pauses; all ended after {ended_s:.0f} s")
    print(f"{observer.reads} readings, at most {observer.highest} milli on a device")
    assert stream.faults == []
    assert list(broken_promises(stream.sent, known, diary)) == []
    assert observer.violations == []
    assert observer.reads and observer.highest, "nothing was seen on any device"
    assert stream.sent
    check_audit_state_and_notebooks(hub)


def check_audit_state_and_notebooks(hub: TemporaryHub) -> None:
    """The audit's chain verifies, no slice without a server stays booked, and no decided state broke an invariant."""
    check_audit(hub.service_api, hub.admin_token)
    logged = (hub.folder / "hub.log").read_text(errors="replace")
    assert "violates an invariant" not in logged, [line for line in logged.splitlines() if "invariant" in line][:10]
    request_until_answered("DELETE", f"{hub.hub_api}/users/carol/server", hub.admin_token)
    until(lambda: not _booked(hub), RECONCILED_S, lambda: f"slices without a server are still booked: {_booked(hub)}")


def _booked(hub: TemporaryHub) -> list[str]:
    listed = request_until_answered("GET", f"{hub.service_api}/notebooks", hub.admin_token)
    return [one["id"] for one in listed.body["items"] if one["state"] in ("requested", "booked")]
