"""Random kills of everything that is ours, under a stream of real jobs: nothing is lost, nothing runs twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.demo.stage import Cast, Stage
from jupyter_gpu_quota.demo.witness import Witness, belongs_to
from tests.soak.doors import insist
from tests.soak.killer import Killer
from tests.soak.stream import TEAMS, Stream
from tests.soak.verdict import broken_promises, wait_for_rest

SEED = int(os.environ.get("GPU_QUOTA_SEED", "42"))

QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}
  - {name: build, selector: {gpu_model: [Simulated 16G]}, uses: [notebook]}
projects:
  - {name: red, members: {users: [ann]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
  - {name: blue, members: {users: [ben]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
  - {name: green, members: {users: [carol]}, quota: {build: {notebook: 0.5}}, defaults: {pool: {notebook: build}}}
policy:
  preemption: {min_runtime: 0s, grace: 1s, lent_grace: 1s, max_pauses: 50, per: 24h}
"""

CONFIG = """\
c.GPUQuota.quota_file = "{quota}"
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated 80G", "memory_mib": 81920, "count": 2}},
    {{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}},
]
# The hub looks every 30 s whether its services live, and this cannot be set from here; the soak has no time for that.
from traitlets import Integer
from jupyterhub.services import service as _service
class _Watched(_service._ServiceSpawner):
    poll_interval = Integer(1)
_service._ServiceSpawner = _Watched
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    quota = tmp_path / "quota.yaml"
    quota.write_text(QUOTA)
    cast = Cast(groups={}, users=(*TEAMS, "carol"))
    hub = Stage(tmp_path / "hub", cast=cast, extra_config=CONFIG.format(quota=quota))
    try:
        hub.start()
        yield hub
    finally:
        hub.end()


@pytest.fixture
def witness(stage: Stage) -> Iterator[Witness]:
    looking = Witness(belongs_to(stage.folder, f"http://127.0.0.1:{stage.ports.hub}/"))
    looking.start()
    yield looking
    looking.leave()


@pytest.mark.hub
@pytest.mark.timeout(400)
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
    stage.wait_until_ready(90)
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
    deadline = time.monotonic() + 60
    insist("DELETE", f"{stage.hub_api}/users/carol/server", stage.admin_token)
    while booked := _booked(stage):
        assert time.monotonic() < deadline, f"slices that no server uses are still booked: {booked}"
        time.sleep(0.5)


def _booked(stage: Stage) -> list[str]:
    listed = insist("GET", f"{stage.service_api}/notebooks", stage.admin_token)
    return [one["id"] for one in listed.body["items"] if one["state"] in ("requested", "booked")]
