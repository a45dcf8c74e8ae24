"""``GET jobs/{id}/metrics``: the series of a job in the API and the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.api.world import ServiceWorld, service_world

T0 = 1_800_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.clock = lambda: T0
        yield made


def test_a_job_shows_its_metrics_and_the_use_of_its_devices(world: ServiceWorld) -> None:
    job = world.submit("bob", private=True)["id"]
    client = Client(f"http://127.0.0.1:{world.port}", "token-bob", environment={})
    empty = client.metrics(job)
    assert (empty.width_s, empty.metrics, empty.progress, empty.devices) == (None, {}, [], [])
    world.step()
    device = next(part.device for part in world.store.changes(0).allocations)
    for seconds, loss in ((0, 4.0), (5, 2.0), (20, 1.0)):
        world.clock = lambda at=T0 + seconds * 1000: at  # type: ignore[misc]
        world.see_running(job, done=seconds, total=20, metrics={"loss": loss})
        row = DeviceSample(
            node="node-1", device=device, at=world.clock(), utilisation_percent=40, memory_used_mib=1,
            coverage_permille=1000, simulated=True, workloads={job: 40}, workload_memory_mib={job: 512},
        )  # fmt: skip
        world.store.add_samples("node-1", seconds, [row], now=world.clock())
    found = client.metrics(job)
    assert found.width_s == 10
    assert [(point.mean, point.min, point.max) for point in found.metrics["loss"]] == [(3.0, 2.0, 4.0), (1.0, 1.0, 1.0)]
    assert [point.at.timestamp() for point in found.metrics["loss"]] == [T0 / 1000, T0 / 1000 + 20]
    assert [point.max for point in found.progress] == [5.0, 20.0]
    (use,) = found.devices
    assert (use.device, [point.mean for point in use.utilised_milli]) == (device, [400.0, 400.0])
    assert [point.mean for point in use.memory_mib] == [512.0, 512.0]
    assert world.get(f"jobs/{job}/metrics", "olga").status == 404
    assert world.get(f"jobs/{job}/metrics", "patty").status == 404
