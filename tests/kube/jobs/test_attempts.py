"""The attempts that the cluster has records of, for a database that may be older."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import Unavailable
from jupyter_gpu_quota.backends.kubernetes.client.informer import Informer
from jupyter_gpu_quota.backends.kubernetes.jobs import attempts as attempts_module
from jupyter_gpu_quota.backends.kubernetes.jobs.attempt_objects import AttemptObjects
from jupyter_gpu_quota.backends.kubernetes.readers import kubernetes_readers
from jupyter_gpu_quota.backends.protocol import JobRefused
from tests.backends.contract import Controller
from tests.kube.control_plane import ControlPlane
from tests.kube.world import KubernetesWorld
from tests.patience import until


@pytest.fixture
def world(control_plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesWorld]:
    made = KubernetesWorld(control_plane, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_attempts_are_found_by_a_controller_that_knows_none_of_them(world: KubernetesWorld) -> None:
    controller = Controller(world)
    world.backend.jobs.fence(3)
    controller.start("R", "runs on", fencing=3, attempt=2)
    controller.start("S", "runs on", fencing=3)
    controller.start("E", "ends with 3", fencing=3)
    controller.began("R", "runs on")
    controller.began("S", "runs on")
    controller.gone("E")
    controller.stop("S", fencing=3)
    controller.gone("S")
    controller.orders.clear()
    world.backend.jobs.settled("E", 1)
    record = f"/api/v1/namespaces/{world.namespace}/configmaps/gq-e-1"
    until(lambda: world.plane.request("GET", record)[0] == 404, what="it is settled")
    attempts = world.another().attempts
    assert attempts.unsettled() == {("R", 2), ("S", 1)}, "the records were read before this is answered"
    found = {each.job: each for each in attempts.newest(["E", "never"])}
    assert attempts.newest_fence() == 3
    assert {(each.job, each.attempt, each.runs, each.stop_reason) for each in found.values()} == {
        ("E", 1, False, None), ("R", 2, True, None), ("S", 1, False, "reclaimed"),
    }  # fmt: skip
    assert [fact.exit_status for fact in found["E"].facts] == [3]
    assert found["R"].placements is not None and [part.device for part in found["R"].placements] == ["d0"]


def test_a_pod_that_waits_counts_as_running(world: KubernetesWorld) -> None:
    world.kubelet.ignored.add("gq-j-1-0")
    Controller(world).start("J", "runs on")
    until(world.pods)
    (found,) = world.another().attempts.newest([])
    assert (found.job, found.runs, found.facts[0].started_at) == ("J", True, None)


def test_records_that_cannot_be_read_are_an_error_and_no_lost_work(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that has just started would count every running job as lost, and hold all decisions."""
    listed = Informer.list

    async def without_records(informer: Informer) -> None:
        await (asyncio.sleep(1000) if informer.path.endswith("/configmaps") else listed(informer))

    monkeypatch.setattr(Informer, "list", without_records)
    monkeypatch.setattr(attempts_module, "TIMEOUT_S", 0.5)
    with pytest.raises(OSError, match="could not be read within"):
        world.another().attempts.newest(["J"])


def test_an_end_is_compared_without_its_log(world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader has thousands of them to compare; their logs are kept afterwards."""

    async def no_log(objects: AttemptObjects, pod: object, limit: int) -> bytes:
        raise Unavailable(0, "the kubelet does not answer")

    monkeypatch.setattr(AttemptObjects, "read_log", no_log)
    Controller(world).start("E", "ends with 3")
    until(lambda: world.pods() and world.pods()[0]["status"]["phase"] == "Failed", what=world.pods)
    (found,) = world.another().attempts.newest([])
    assert (found.runs, [fact.exit_status for fact in found.facts]) == (False, [3])


@pytest.mark.parametrize("step", ["create", "delete", "release"])
def test_the_requests_for_the_ranks_of_a_gang_do_not_wait_for_each_other(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Each would be behind thousands of requests for other jobs: a gang of 250 would wait 250 times as long."""
    real, waiting, go = getattr(AttemptObjects, step), list[object](), asyncio.Event()

    async def together(objects: AttemptObjects, about: object, *more: object) -> object:
        if about == "pods" or step != "create":
            waiting.append(about)
            if len(waiting) >= 2:
                go.set()
            await go.wait()
        return await real(objects, about, *more)

    monkeypatch.setattr(AttemptObjects, step, together)
    controller = Controller(world)
    controller.start("G", "runs on", ranks=2)
    for rank in range(2):
        controller.until(lambda fact, rank=rank: fact.rank == rank and fact.started_at)  # type: ignore[misc]
    controller.stop("G", grace_s=1)
    for rank in range(2):
        controller.until(lambda fact, rank=rank: fact.rank == rank and fact.tree_gone)  # type: ignore[misc]
    controller.orders.clear()
    world.backend.jobs.settled("G", 1)
    until(lambda: not world.pods())
    assert len(waiting) >= 2


def test_a_record_that_is_known_before_its_pod_is_no_end(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller(world)
    controller.start("J", "runs on")
    controller.began("J", "runs on")
    watch = Informer.run

    async def without_pods(informer: Informer) -> None:
        await (asyncio.sleep(1000) if informer.path.endswith(f"{world.namespace}/pods") else watch(informer))

    monkeypatch.setattr(Informer, "run", without_pods)
    (fact,) = until(world.another().jobs.observe)
    assert (fact.handle, fact.ended_at) == ("gq-j-1-0", None)


def test_a_reader_of_another_process_reads_a_running_and_an_ended_log(world: KubernetesWorld) -> None:
    readers = kubernetes_readers(world.folder, world.settings, kubeconfig=world.plane.kubeconfig(world.namespace))
    controller = Controller(world)
    controller.start("R", "saves and stops")
    controller.start("W", "writes")
    controller.began("R", "saves and stops")
    controller.gone("W")
    assert readers.outputs.log("R", 1, 0).data == b"ready\n"
    assert readers.outputs.log("W", 1, 0, -4).data == b"two\n"
    readers.submissions.check_user("ann")
    with pytest.raises(JobRefused, match="leave out --live"):
        readers.submissions.live_directory("ann", ".")


def test_an_end_while_no_controller_runs_is_observed_by_the_next(world: KubernetesWorld) -> None:
    controller = Controller(world)
    slow = "trap 'sleep 1; exit 75' TERM; echo ready; while :; do sleep 0.02; done"
    controller.start("J", "", command=("sh", "-c", slow))
    controller.began("J", "saves and stops")
    controller.stop("J")
    controller.until(lambda fact: fact.pause_requested)
    world.leave()
    until(lambda: not world.pods() or world.pods()[0]["status"]["phase"] == "Failed")
    world.backend = world.leader()
    fact = controller.gone("J")
    assert (fact.exit_status, fact.pause_requested) == (75, True)
