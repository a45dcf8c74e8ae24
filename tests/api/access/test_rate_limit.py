"""How often one person may change something: some at once, so many a second, then 429 with a rest that clients take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.api.access.permissions import Scope
from jupyter_gpu_quota.api.access.rate_limit import RateLimit
from jupyter_gpu_quota.api.routes import ROUTES
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.client import Client, Refused
from tests.api.world import Reply, ServiceWorld, service_world
from tests.client.fake_service import TOKEN, World, served

JOB = {"command": ["x"]}


class Slow:
    """A service that accepts three changes at once, then two a second; its clock is the test's."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.now = world, world.clock()
        world.clock = lambda: self.now

    def sends(self, times: int, who: str = "bob") -> list[int]:
        return [self.world.post("jobs", who, JOB).status for _ in range(times)]

    def jobs(self) -> int:
        total: int = self.world.get("jobs").json["_pagination"]["total"]
        return total


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Slow]:
    with service_world(tmp_path, changes_per_s=2, changes_at_once=3) as world:
        yield Slow(world)


def refusal(reply: Reply) -> tuple[int, str, str]:
    return reply.status, reply.json["reason"], reply.headers["retry-after"]


def test_a_user_over_the_rate_limit_gets_429_with_retry_after_and_nothing_is_stored(service: Slow) -> None:
    assert service.sends(3) == [201] * 3
    reply = service.world.post("jobs", "bob", JOB)
    assert refusal(reply) == (429, "too_often", "1")
    assert reply.json["message"] == (
        "bob exceeded the rate limit of 2 changes per second with a burst of 3; nothing was stored. Try again in 1 s."
    )
    assert service.jobs() == 3
    service.now += 1000
    assert service.sends(3) == [201, 201, 429]
    service.now += 60_000
    assert service.sends(4) == [201, 201, 201, 429]


def test_each_user_has_a_separate_rate_limit(service: Slow) -> None:
    assert service.sends(4) == [201, 201, 201, 429]
    assert service.sends(3, "olga") == [201] * 3


def test_the_rate_limit_applies_to_admins_too(service: Slow) -> None:
    answers = [service.world.post("jobs", "ann", {**JOB, "project": "vision"}).status for _ in range(4)]
    assert answers[3] == 429 and 429 not in answers[:3]


def test_reads_do_not_count(service: Slow) -> None:
    assert service.sends(4)[-1] == 429
    assert [service.world.get("jobs").status for _ in range(20)] == [200] * 20


@pytest.mark.parametrize("act", ["hold", "release", "cancel", "clone", "rerun"])
def test_every_change_of_a_job_counts(service: Slow, act: str) -> None:
    job = service.world.post("jobs", "bob", JOB).json["id"]
    assert service.sends(3) == [201, 201, 429]
    assert refusal(service.world.post(f"jobs/{job}/actions/{act}", "bob", {})) == (429, "too_often", "1")
    assert service.world.get(f"jobs/{job}").json["state"] == "queued"


def test_changes_by_users_and_by_programs_have_separate_rate_limits() -> None:
    own = {"notebooks/{id}/activity", "notebooks/{id}/actions/wake"}
    changing = {route.path for route in ROUTES if route.scope is Scope.SUBMIT} - own
    assert {route.path for route in ROUTES if route.rate_limited} == changing
    assert "notebooks/{id}/actions/keep" in changing


def test_a_rate_limit_with_fractions_of_a_millisecond_is_exact() -> None:
    now = [0]
    limit = RateLimit(lambda: now[0], burst=10, interval_ms=1000 / 2500)
    taken = 0
    for now[0] in range(1000):
        while limit.allows("ann"):
            taken += 1
    assert 2490 <= taken <= 2510
    assert 0 < limit.wait_ms("ann") <= 0.4 and limit.wait_ms("bob") == 0


# --- those who send -----------------------------------------------------------------------------------------------
def test_the_client_obeys_retry_after_until_all_its_jobs_are_queued(tmp_path: Path) -> None:
    with service_world(tmp_path, changes_per_s=20, changes_at_once=5) as world:
        bob = Client(f"http://127.0.0.1:{world.port}", "token-bob", environment={})
        began = time.monotonic()
        jobs = {bob.submit("x", dir=None).id for _ in range(30)}
        assert len(jobs) == 30 == world.get("jobs").json["_pagination"]["total"]
        assert time.monotonic() - began >= 1


@pytest.fixture
def fake() -> Iterator[World]:
    with served() as found:
        yield found


def test_the_client_gives_up_once_its_time_is(fake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, rests = Client(fake.url, TOKEN, timeout_s=20, environment={}), list[float]()
    monkeypatch.setattr(ann._connection, "sleep", rests.append)
    fake.often = 2
    assert ann.submit("x", dir=None).id == "J1"
    assert rests == [7, 7]
    fake.often = 9
    with pytest.raises(Refused, match="rate limit of 50 changes") as refused:
        ann.submit("x", dir=None)
    assert (rests, refused.value.retry_after_s) == ([7, 7] * 2, 7)


def test_a_refusal_that_a_retry_cannot_change_is_raised_at_once(fake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, rests = Client(fake.url, TOKEN, environment={}), list[float]()
    monkeypatch.setattr(ann._connection, "sleep", rests.append)
    monkeypatch.setattr("tests.client.fakes.resource.OFTEN", {})
    fake.often = 1
    with pytest.raises(Refused):
        ann.submit("x", dir=None)
    assert rests == []


def test_the_command_line_rests_too(tmp_path: Path) -> None:
    with service_world(tmp_path, changes_per_s=1, changes_at_once=1) as world:
        environment = {"JUPYTER_GPU_QUOTA_URL": f"http://127.0.0.1:{world.port}", "JUPYTERHUB_API_TOKEN": "token-bob"}
        (code := tmp_path / "code").mkdir()
        (code / "x").touch()
        for _ in range(2):
            done = CliRunner().invoke(main, ["submit", "--dir", str(code), "--", "x"], env=environment)
            assert done.exit_code == 0, done.stderr
