"""The stored readings of one device over REST and in the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.api.world import ServiceWorld, service_world

BEGIN = 1_800_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.clock = lambda: BEGIN + 60_000
        for number in range(5):
            rows = [_sample(device, number) for device in ("train-0", "train-1")]
            made.store.add_samples("node-1", number + 1, rows, now=BEGIN + 60_000)
        yield made


def _sample(device: str, number: int) -> DeviceSample:
    return DeviceSample(
        node="node-1", device=device, at=BEGIN + 10_000 * number, utilisation_percent=None if number == 2 else number,
        memory_used_mib=number, coverage_permille=1000, simulated=True, workloads={"01SECRET": 5},
    )  # fmt: skip


def client(world: ServiceWorld) -> Client:
    return Client(f"http://127.0.0.1:{world.port}", "token-bob", environment={})


def test_the_readings_of_a_device_are_listed_newest_first_and_unknown_stays_unknown(world: ServiceWorld) -> None:
    found = client(world).device_history("train-0")
    assert [each.utilisation_percent for each in found] == [4, 3, None, 1, 0]
    assert {each.device for each in found} == {"train-0"}


def test_a_period_includes_its_begin_and_not_its_end(world: ServiceWorld) -> None:
    found = client(world).device_history("train-0", since="2027-01-15T08:00:10Z", until="2027-01-15T08:00:30Z")
    assert [each.memory_used_mib for each in found] == [2, 1]


def test_the_readings_have_pages(world: ServiceWorld) -> None:
    page = world.get("samples?device=train-1&limit=2&offset=1").json
    assert ([each["memory_used_mib"] for each in page["items"]], page["_pagination"]["total"]) == ([3, 2], 5)


def test_the_work_on_a_device_is_in_no_reading(world: ServiceWorld) -> None:
    assert b"01SECRET" not in world.get("samples?device=train-0").body


@pytest.mark.parametrize(
    ("query", "status"),
    [
        pytest.param("device=no-such-device", 404, id="an unknown device"),
        pytest.param("from=2027-01-15T08:00:10Z", 400, id="a period without a device"),
        pytest.param("device=train-0&from=yesterday", 400, id="a begin that is no instant"),
    ],
)
def test_a_wrong_query_is_refused(world: ServiceWorld, query: str, status: int) -> None:
    assert world.get(f"samples?{query}").status == status


def test_a_reading_has_what_was_allocated_at_its_instant(world: ServiceWorld) -> None:
    now = BEGIN + 25_000  # between the readings 2 and 3
    world.clock = lambda: now
    world.apply()
    job = world.submit(gpu="0.5")["id"]
    world.step()
    (device,) = (part["device"] for part in world.get(f"jobs/{job}").json["allocations"])
    assert _allocated(world, device, BEGIN + 60_000) == [500, 500, 0, 0, 0]
    world.see_running(job)
    world.clock = lambda: BEGIN + 35_000
    world.see(
        RankFact(job=job, attempt=1, rank=0, handle="1", started_at=1, ended_at=2, exit_status=0, tree_gone=True,
                 completed=True)
    )  # fmt: skip
    assert _allocated(world, device, BEGIN + 60_000) == [0, 500, 0, 0, 0]


def _allocated(world: ServiceWorld, device: str, now: int) -> list[int]:
    world.clock = lambda: now
    return [each["allocated_milli"] for each in world.get(f"samples?device={device}").json["items"]]


def test_the_newest_reading_of_every_device_has_no_allocations(world: ServiceWorld) -> None:
    assert {each["allocated_milli"] for each in world.get("samples").json["items"]} == {None}
