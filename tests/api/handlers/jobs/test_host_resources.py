"""CPU and host memory of a job, from the request over the store to the plan and back to the page that shows it."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.facts import RankFact
from tests.api.world import ServiceWorld

CPU, MEMORY = 8000, 65_536
"""The world's one node; of its five devices four are in the pool for training, which has as much of it."""


def asked(job: dict[str, int]) -> tuple[int, int]:
    return job["cpu_milli"], job["memory_mib"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param({}, (CPU // 5, MEMORY // 5), id="a GPU has its part of the node"),
        pytest.param({"gpu": "0.5"}, (CPU // 10, MEMORY // 10), id="half a GPU has half of that"),
        pytest.param({"gpu": "2"}, (CPU * 2 // 5, MEMORY * 2 // 5), id="two have twice as much"),
        pytest.param({"cpu_milli": 6400}, (6400, MEMORY // 5), id="one is named, the other by default"),
        pytest.param({"cpu_milli": 1, "memory_mib": 5}, (1, 5), id="both are named"),
        pytest.param({"gpu": "2", "processes": 2, "cpu_milli": 3001}, (1501, MEMORY // 5), id="processes share it"),
    ],
)
def test_the_cpu_and_memory_of_each_rank_are_shown(
    world: ServiceWorld, request_: dict[str, object], expected: tuple[int, int]
) -> None:
    job = world.submit(**request_)
    assert asked(job) == expected
    assert asked(world.get(f"jobs/{job['id']}").json) == expected


@pytest.mark.parametrize(
    ("more", "asked", "most"),
    [({"cpu_milli": 6401}, "6.401 CPU", "6.4 CPU"), ({"memory_mib": 52_429}, "52429 MiB", "52428 MiB")],
    ids=["CPU alone", "memory alone"],
)
def test_a_request_larger_than_every_node_is_refused_at_once(
    world: ServiceWorld, more: dict[str, int], asked: str, most: str
) -> None:
    world.submit(cpu_milli=6400, memory_mib=52_428)
    refused = world.post("jobs", "bob", {"command": ["x"], **more})
    assert (refused.status, refused.json["reason"]) == (409, "never_fits")
    assert refused.json["message"] == (
        f"{asked} for a rank can never be allocated in the pool train: its largest node, node-1, gives it {most}, as 4"
        " of the node's 5 devices are in it. Request at most that for each rank, or choose another pool. Nothing was"
        " stored."
    )


def test_a_job_waits_for_the_cpu_of_another_with_that_reason(world: ServiceWorld) -> None:
    first = world.submit(cpu_milli=4000)["id"]
    second = world.submit(cpu_milli=2401)["id"]
    world.step()
    assert [world.get(f"jobs/{job}").json["state"] for job in (first, second)] == ["starting", "queued"]
    found = world.get(f"explain/{second}").json["reason"]["message"]
    assert "2.401 CPU" in found
    world.see(_ended(first))
    world.step()
    assert world.get(f"jobs/{second}").json["state"] == "starting"


def test_a_request_for_exactly_the_remaining_cpu_starts(world: ServiceWorld) -> None:
    jobs = [world.submit(cpu_milli=cpu)["id"] for cpu in (4000, 2400)]
    world.step()
    assert [world.get(f"jobs/{job}").json["state"] for job in jobs] == ["starting", "starting"]


def test_jobs_that_name_no_cpu_use_every_gpu(world: ServiceWorld) -> None:
    jobs = [world.submit()["id"] for _ in range(4)]
    world.step()
    assert {world.get(f"jobs/{job}").json["state"] for job in jobs} == {"starting"}


def test_a_clone_requests_the_same_host_resources_unless_its_gpu_differs(world: ServiceWorld) -> None:
    old = world.submit(gpu="2", processes=2, cpu_milli=3000, memory_mib=1000)["id"]
    again, larger = ({"name": "again"}, {"gpu": "4"})
    assert asked(world.post(f"jobs/{old}/actions/clone", "bob", again).json) == (1500, 500)
    assert asked(world.post(f"jobs/{old}/actions/clone", "bob", larger).json) == (2 * CPU // 5, 2 * MEMORY // 5)


def _ended(job: str) -> RankFact:
    return RankFact(job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=0, tree_gone=True)
