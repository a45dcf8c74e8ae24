"""An API server that is away, or answers with errors: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import ApiServer, Json, TokenBucket
from jupyter_gpu_quota.backends.kubernetes.client.informer import Informer
from tests.backends.contract import Controller
from tests.kube.control_plane import ControlPlane
from tests.kube.faults.proxy import FaultyProxy
from tests.kube.world import KubernetesWorld
from tests.patience import until, until_in_loop


@pytest.fixture
def world(control_plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesWorld]:
    made = KubernetesWorld(control_plane, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_jobs_go_on_while_the_api_server_is_away(world: KubernetesWorld) -> None:
    controller = Controller(world)
    controller.start("J", "runs on")
    controller.start("K", "ends with 3")
    before = controller.began("J", "runs on"), controller.gone("K")
    world.plane.end("kube-apiserver")
    try:
        controller.stop("J")
        controller.start("L", "ends with 0")
        with pytest.raises(OSError, match="the fencing number 2 cannot be stored"):
            world.backend.jobs.fence(2)
        until(lambda: world.backend.jobs.inventory() is None, what="the nodes are unknown")
        controller.wait()
        assert (controller.facts["J", 1, 0], controller.facts["K", 1, 0]) == before
    finally:
        world.plane.start_again()
    assert controller.gone("J").pause_requested
    assert controller.gone("L").exit_status == 0
    until(world.backend.jobs.inventory)


def test_a_job_takes_four_requests_until_its_end_and_four_to_settle(world: KubernetesWorld) -> None:
    controller, jobs = Controller(world), [f"J{number}" for number in range(10)]
    server = world.backend._server  # type: ignore[attr-defined]
    until(lambda: server.requests == 14, what="seven lists and seven watches")
    before = server.requests
    for job in jobs:
        controller.start(job, "ends with 3")
    for job in jobs:
        controller.gone(job)
    controller.wait()
    assert server.requests - before == 4 * len(jobs), "record, pod, record again; at the end its log"
    controller.orders.clear()
    for job in jobs:
        world.backend.jobs.settled(job, 1)
    until(lambda: not world.pods())
    until(lambda: server.requests - before >= 8 * len(jobs))
    world.pass_ms(world.wait_ms)
    assert server.requests - before == 8 * len(jobs), "marked as settled, finalizer, pod, record"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_random_errors_lose_and_double_nothing(control_plane: ControlPlane, tmp_path: Path, seed: int) -> None:
    proxy = FaultyProxy(control_plane, seed)
    world = KubernetesWorld(control_plane, tmp_path, kubeconfig=proxy.kubeconfig)
    try:
        controller = Controller(world)
        for number in range(4):
            controller.start(f"E{number}", "ends with 3")
        controller.start("S", "saves and stops")
        controller.start("G", "runs on", ranks=2)
        controller.began("S", "saves and stops")
        for rank in range(2):
            controller.until(lambda fact, rank=rank: (fact.job, fact.rank) == ("G", rank) and fact.started_at)  # type: ignore[misc]
        controller.stop("S")
        controller.stop("G")
        assert [controller.gone(f"E{number}").exit_status for number in range(4)] == [3] * 4
        assert controller.gone("S").exit_status == 75
        for rank in range(2):
            controller.until(lambda fact, rank=rank: (fact.job, fact.rank) == ("G", rank) and fact.tree_gone)  # type: ignore[misc]
        assert sorted(pod["metadata"]["name"] for pod in world.pods()) == [
            *(f"gq-e{number}-1-0" for number in range(4)), "gq-g-1-0", "gq-g-1-1", "gq-s-1-0",
        ]  # fmt: skip
        assert proxy.errors > 5
    finally:
        world.close()
        proxy.stop()


async def test_an_informer_begins_again_after_a_version_that_is_too_old(world: KubernetesWorld) -> None:
    path = f"/api/v1/namespaces/{world.namespace}/configmaps"
    world.plane.end("kube-apiserver")
    world.plane.start_again()  # it remembers no change before now
    old = f"{path}?watch=true&resourceVersion=1&timeoutSeconds=1"
    until(lambda: world.plane.request("GET", old)[1].get("object", {}).get("code") == 410)
    server = ApiServer(world.plane.kubeconfig("admin"))
    await server.open()
    seen: dict[str, Json | None] = {}
    informer = Informer(server, path, lambda name, now, before: seen.update({name: now}))
    informer._version = "1"
    task = asyncio.create_task(informer.run())
    try:
        await until_in_loop(lambda: "gpu-quota-fence" in seen)
        world.plane.make(path, {"metadata": {"name": "later"}})
        await until_in_loop(lambda: "later" in seen)
        world.plane.request("DELETE", f"{path}/later")
        await until_in_loop(lambda: seen["later"] is None)
    finally:
        task.cancel()
        await server.close()


async def test_a_list_is_read_in_pages(world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.client.informer.PAGE", 2)
    path = f"/api/v1/namespaces/{world.namespace}/configmaps"
    for number in range(5):
        world.plane.make(path, {"metadata": {"name": f"m{number}"}})
    server = ApiServer(world.plane.kubeconfig("admin"))
    await server.open()
    informer = Informer(server, path, lambda *change: None)
    await informer.list()
    assert {f"m{number}" for number in range(5)} <= informer.objects.keys()
    assert server.requests >= 3
    await server.close()


async def test_the_rate_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    bucket = TokenBucket(rate=10, burst=5)
    for _ in range(15):
        await bucket.take()
    assert len(waited) == 10
    assert 0.9 < waited[-1] <= 1.0
