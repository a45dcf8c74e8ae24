"""Orders against an API server in memory: which requests a start and a stop wait for, and what a repetition does."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import (
    LOGS_AT_ONCE,
    AlreadyExists,
    NotFound,
    RequestFailed,
    Unavailable,
    failure,
)
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.kubernetes.jobs.jobs import MAX_OF_A_KIND, STOPS_AT_ONCE, KubernetesJobs
from jupyter_gpu_quota.backends.kubernetes.jobs.records import REFUSED, STARTED, STOP, data_of
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import JobVolume
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from tests.backends.worlds import order, stop
from tests.patience import until

Json = dict[str, Any]
SETTINGS = PodSettings(namespace="jobs", hub="test", image="none", volume_claim="jobs")


class MemoryServer:
    """The objects of an API server. Requests that nothing waits for wait for ``later``, creations of pods for ``pods``.

    ``broken``: parts of the paths of objects that cannot be created or changed, or of logs; ``failed`` are the paths of
    such requests, and ``why`` is the answer. A log is sent by each node but ``hung``; ``logs`` are the containers whose
    logs were read.
    """

    newest_leader = 0

    def __init__(self) -> None:
        self.objects = dict[str, Json]()
        self.created, self.broken, self._version = list[str](), set[str](), 0
        self.failed, self.logs = list[str](), list[str | None]()
        self.why: RequestFailed = Unavailable(0, "away")
        self._logs_at_once = asyncio.Semaphore(LOGS_AT_ONCE)
        self.later, self.pods = asyncio.Event(), asyncio.Event()
        self.pods.set()

    def _stored(self, path: str, found: Json) -> Json:
        self._version += 1
        metadata = {"uid": path, "creationTimestamp": "2026-11-24T10:00:00Z"} | found["metadata"]
        self.objects[path] = found | {"metadata": metadata | {"resourceVersion": str(self._version)}}
        return self.objects[path]

    def _fail(self, path: str) -> None:
        if any(part in path for part in self.broken):
            self.failed.append(path)
            raise self.why

    async def create(self, path: str, body: Json) -> Json:
        name = f"{path}/{body['metadata']['name']}"
        self.created.append(name)
        if path.endswith("/pods"):
            await self.pods.wait()
        self._fail(name)
        if name in self.objects:
            raise AlreadyExists(409, name)
        return self._stored(name, body)

    async def get(self, path: str) -> Json:
        if path not in self.objects:
            raise NotFound(404, path)
        return self.objects[path]

    async def patch(self, path: str, body: Json, *, later: bool = False) -> Json:
        if later:
            await self.later.wait()
        self._fail(path)
        known = await self.get(path)
        metadata = known["metadata"] | {
            "annotations": known["metadata"]["annotations"] | body["metadata"]["annotations"]
        }
        return self._stored(path, known | {"metadata": metadata, "data": known.get("data", {}) | body.get("data", {})})

    async def read_log(self, path: str, limit: int, *, newest: bool, container: str | None = None) -> bytes:
        self._fail(path)
        self.logs.append(container)
        async with self._logs_at_once:
            if self.objects[path.removesuffix("/log")]["spec"]["nodeName"] == "hung":
                await self.later.wait()
            return b"log"

    async def delete(self, path: str, body: Json, *, later: bool = False) -> Json:
        known = await self.get(path)
        if "gracePeriodSeconds" not in body:
            return self.objects.pop(path)
        marks = {"deletionTimestamp": "2026-11-24T11:00:00Z", "deletionGracePeriodSeconds": body["gracePeriodSeconds"]}
        return self._stored(path, known | {"kind": "Pod", "metadata": known["metadata"] | marks})

    def of(self, kind: str) -> dict[str, Json]:
        return {path.rpartition("/")[2]: found for path, found in self.objects.items() if f"/{kind}/" in path}


class MemoryFence:
    """The number in the cluster."""

    server, newest = None, 0

    async def raise_to(self, fencing: int) -> int:
        self.newest = max(self.newest, fencing)
        return self.newest


class OrdersWorld:
    """The jobs of one leader, and the server."""

    def __init__(self, folder: Path, server: MemoryServer | None = None) -> None:
        self.server, self.thread = server or MemoryServer(), LoopThread()
        self.jobs = KubernetesJobs(
            self.server, self.thread, None, JobVolume(str(folder)), SETTINGS, lambda: None, dict, lambda node: None,  # type: ignore[arg-type]
        )  # fmt: skip
        self.jobs._fencing = 1

    def fence(self, fence: MemoryFence, fencing: int) -> None:
        """Take over, where all that there is was read."""

        async def nothing(server: object) -> None: ...

        self.jobs._fence, self.jobs.objects.read_all = fence, nothing  # type: ignore[assignment,method-assign]
        self.jobs.fence(fencing)

    def open(self, gate: asyncio.Event) -> None:
        self.thread.call(self._set(gate), 5.0)

    async def _set(self, gate: asyncio.Event) -> None:
        gate.set()

    def record(self, name: str) -> dict[str, str]:
        return data_of(self.server.of("configmaps").get(name, {}))

    def see(self, name: str, phase: str, state: Json, node: str = "n", **status: object) -> None:
        """A kubelet reports the state of a pod's container."""
        self.thread.call(self._see(name, phase, state, node, status), 5.0)

    async def _see(self, name: str, phase: str, state: Json, node: str, more: Json) -> None:
        path = next(path for path in self.server.objects if path.endswith(f"/pods/{name}"))
        status = {"phase": phase, "containerStatuses": [{"name": "job", "state": state}], **more}
        seen = self.server.objects[path] | {"spec": {"nodeName": node}, "status": status}
        self.jobs.objects.pods.note(self.server._stored(path, seen))

    def remove(self, name: str) -> None:
        """A pod is removed by force."""
        self.thread.call(self._remove(name), 5.0)

    async def _remove(self, name: str) -> None:
        self.server.objects = {path: each for path, each in self.server.objects.items() if f"/pods/{name}" not in path}
        self.jobs.objects.pods._remove(name)

    def ended(self, *task: object) -> bool:
        return task not in self.thread._busy

    def close(self) -> None:
        for gate in (self.server.later, self.server.pods):
            self.open(gate)
        until(lambda: self.thread._busy <= {("progress",)}, what=lambda: self.thread._busy)
        self.thread.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OrdersWorld]:
    made = OrdersWorld(tmp_path)
    yield made
    made.close()


def test_a_stop_does_not_wait_until_the_start_of_its_job_is_recorded(world: OrdersWorld) -> None:
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods"))
    world.jobs.stop(stop("J"))
    until(lambda: world.jobs.stop_ordered_at("J", 1), what=lambda: world.server.objects)
    assert STARTED not in world.record("gq-j-1")
    world.open(world.server.later)
    until(lambda: STARTED in world.record("gq-j-1"))
    assert world.record("gq-j-1")[STOP] == "reclaimed", "the later request changes no other field"


def test_a_pod_has_the_grace_of_its_start_order(world: OrdersWorld) -> None:
    world.jobs.start(order("J", "runs on", grace_s=600))
    until(lambda: world.server.of("pods"))
    assert world.server.of("pods")["gq-j-1-0"]["spec"]["terminationGracePeriodSeconds"] == 600


def test_an_order_that_is_repeated_before_its_start_is_recorded_creates_nothing(world: OrdersWorld) -> None:
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    created = list(world.server.created)
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.ended("start", "J", 1))
    assert world.server.created == created and STARTED not in world.record("gq-j-1")


def test_a_gang_of_which_one_rank_began_is_created_whole_by_the_repeated_order(world: OrdersWorld) -> None:
    world.server.broken.add("gq-j-1-1")
    world.jobs.start(order("J", "runs on", ranks=2))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.server.broken.clear()
    world.jobs.start(order("J", "runs on", ranks=2))
    until(lambda: len(world.server.of("pods")) == 2, what=lambda: world.server.created)


FORBIDDEN = 'pods "gq-j-1-1" is forbidden: '


def test_a_rank_whose_pod_is_forbidden_now_has_that_trouble_and_is_created_by_the_repeated_order(
    world: OrdersWorld,
) -> None:
    full = FORBIDDEN + "exceeded quota: all, requested: pods=1, used: pods=9, limited: pods=9"
    world.server.why = failure(403, full)
    world.server.broken.add("/pods/gq-j-1-1")
    world.jobs.start(order("J", "runs on", ranks=2))
    (fact,) = until(world.jobs.observe)
    assert (fact.rank, fact.trouble) == (1, f"NotCreated: {full}")
    assert (fact.refused, fact.ended_at, fact.tree_gone) == (None, None, False)
    until(lambda: world.ended("start", "J", 1))
    assert not {REFUSED, STARTED} & world.record("gq-j-1").keys()
    world.server.broken.clear()
    world.jobs.start(order("J", "runs on", ranks=2))
    until(lambda: len(world.server.of("pods")) == 2)
    until(lambda: [fact.trouble for fact in world.jobs.facts.newest.values()] == [None])


def test_a_rank_that_began_gets_no_second_pod_while_another_one_is_forbidden(world: OrdersWorld) -> None:
    world.server.why = failure(403, FORBIDDEN + "not yet ready to handle request")
    world.server.broken.add("/pods/gq-j-1-1")
    world.jobs.start(order("J", "runs on", ranks=2))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.see("gq-j-1-0", "Running", {"running": {"startedAt": "2026-11-24T10:00:01Z"}})
    until(lambda: any(fact.started_at for fact in world.jobs.observe()))
    world.remove("gq-j-1-0")
    world.server.broken.clear()
    world.jobs.start(order("J", "runs on", ranks=2))
    until(lambda: "gq-j-1-1" in world.server.of("pods") and world.ended("start", "J", 1))
    assert world.server.of("pods").keys() == {"gq-j-1-1"}, "its container may still run"


def test_a_job_that_is_stopped_before_its_pod_is_allowed_ends_without_one(world: OrdersWorld) -> None:
    world.server.why = failure(403, FORBIDDEN + "not yet ready to handle request")
    world.server.broken.add("/pods/gq-j-1-0")
    world.jobs.start(order("J", "runs on"))
    until(lambda: [fact for fact in world.jobs.observe() if fact.trouble])
    world.jobs.stop(stop("J"))
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.started_at, fact.pause_requested, fact.refused) == (None, True, None)


def test_a_pod_that_a_policy_refuses_is_the_end_of_its_rank(world: OrdersWorld) -> None:
    world.server.why = failure(403, FORBIDDEN + 'violates PodSecurity "restricted:latest": runAsNonRoot != true')
    world.server.broken.add("/pods/gq-j-1-0")
    world.jobs.start(order("J", "runs on"))
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert fact.refused == f"the cluster does not accept its pod: {world.server.why}"


def test_what_a_refused_attempt_has_in_the_cluster_is_removed_and_a_late_order_creates_nothing(
    world: OrdersWorld,
) -> None:
    world.server.why = failure(403, FORBIDDEN + "maximum memory usage per Container is 1Gi, but limit is 8Gi")
    world.server.broken.add("/pods/gq-j-1-0")
    world.open(world.server.later)
    given = order("J", "runs on", secrets={"TOKEN": "x"})
    world.jobs.start(given)
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert fact.refused == f"the cluster does not accept its pod: {world.server.why}"
    (secret,) = world.server.of("secrets").values()
    assert [each["name"] for each in secret["metadata"]["ownerReferences"]] == ["gq-j-1"], "it is removed with that"
    world.jobs.settled("J", 1)
    until(lambda: not world.server.of("configmaps") and world.ended("settled", "J", 1))
    world.server.broken.clear()
    world.jobs.start(given)
    world.thread.call(asyncio.sleep(0), 5)  # the order has begun
    until(lambda: world.ended("start", "J", 1))
    assert not world.server.of("configmaps") and not world.server.of("pods")


NO_IMAGE = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image"}}


def test_a_refused_rank_ends_when_its_pod_is_over_and_the_deletion_of_that_is_repeated(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.PUBLISH_EVERY_S", 0.01)
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.server.broken.add("/pods/gq-j-1-0")
    world.see("gq-j-1-0", "Pending", NO_IMAGE)
    until(lambda: REFUSED in world.record("gq-j-1") and world.server.failed and world.ended("end", "J", 1, 0))
    until(lambda: [fact.trouble for fact in world.jobs.observe()] == ["InvalidImageName: couldn't parse image"])
    world.server.broken.clear()
    world.thread.run(("progress",), world.jobs.publish_forever)
    until(lambda: "deletionTimestamp" in world.server.of("pods")["gq-j-1-0"]["metadata"])
    assert not [fact for fact in world.jobs.observe() if fact.refused or fact.tree_gone]
    world.see("gq-j-1-0", "Failed", {})
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.refused, fact.ended_at) == ("InvalidImageName: couldn't parse image", None)


def test_a_rank_that_begins_while_it_is_refused_ends_as_its_container_does(world: OrdersWorld) -> None:
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.server.broken.add("/pods/gq-j-1-0")
    world.see("gq-j-1-0", "Pending", NO_IMAGE)
    until(lambda: REFUSED in world.record("gq-j-1") and world.ended("end", "J", 1, 0))
    world.see("gq-j-1-0", "Running", {"running": {"startedAt": "2026-11-24T10:00:01Z"}})
    until(lambda: [fact for fact in world.jobs.observe() if fact.started_at])
    world.server.broken.clear()
    world.see("gq-j-1-0", "Succeeded", {"terminated": ENDED})
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.exit_status, fact.refused) == (0, None)


def test_the_next_leader_records_the_starts_that_the_one_before_did_not(
    world: OrdersWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.PUBLISH_EVERY_S", 0.01)
    again = OrdersWorld(tmp_path, world.server)
    again.jobs._fencing = 2
    for informer, kind in ((again.jobs.objects.records, "configmaps"), (again.jobs.objects.pods, "pods")):
        for found in world.server.of(kind).values():
            informer.note(found)
    world.open(world.server.later)
    again.thread.run(("progress",), again.jobs.publish_forever)
    until(lambda: STARTED in world.record("gq-j-1"), what=lambda: world.server.objects)
    again.close()


def test_a_stop_waits_behind_few_of_thousands_of_starts(world: OrdersWorld) -> None:
    """Each start has several requests; all of them at once would stand before those of the stop."""
    world.server.pods.clear()
    for number in range(4 * MAX_OF_A_KIND):
        world.jobs.start(order(f"J{number}", "runs on"))
    until(lambda: len([name for name in world.server.created if "/pods/" in name]) == MAX_OF_A_KIND)
    assert len(world.server.of("configmaps")) == MAX_OF_A_KIND
    for number in range(STOPS_AT_ONCE):  # these wait for the locks of their attempts
        world.jobs.stop(stop(f"J{number}"))
    last = f"J{4 * MAX_OF_A_KIND - 1}"
    world.jobs.stop(stop(last))
    until(lambda: STOP in world.record(f"gq-{last.lower()}-1"))
    world.open(world.server.pods)
    until(lambda: world.ended("start", last, 1))
    assert f"gq-{last.lower()}-1-0" not in world.server.of("pods"), "it was stopped before it had a pod"


def test_at_most_so_many_stops_send_requests_at_the_same_time(world: OrdersWorld) -> None:
    began, go = list[str](), asyncio.Event()

    async def wait(job: str, *_: object) -> dict[str, object]:
        began.append(job)
        await go.wait()
        raise NotFound(404, "the attempt was settled")

    async def read_from_disk() -> None:
        for _ in range(4 * STOPS_AT_ONCE):  # behind what the stops read
            await asyncio.to_thread(len, "")

    world.jobs.objects.make_record = wait  # type: ignore[assignment]
    for number in range(2 * STOPS_AT_ONCE):
        world.jobs.stop(stop(f"J{number}"))
    until(lambda: len(began) >= STOPS_AT_ONCE)
    world.thread.call(read_from_disk(), 10.0)
    assert len(began) == STOPS_AT_ONCE
    world.open(go)
    until(lambda: len(began) == 2 * STOPS_AT_ONCE)


def test_a_pod_that_is_removed_by_force_before_its_start_is_recorded_is_lost(world: OrdersWorld) -> None:
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.see("gq-j-1-0", "Running", {"running": {"startedAt": "2026-11-24T10:00:01Z"}})
    until(lambda: any(fact.started_at for fact in world.jobs.observe()))

    world.remove("gq-j-1-0")
    facts = until(lambda: [fact for fact in world.jobs.observe() if fact.ended_at is not None])
    assert [(fact.rank, fact.exit_status) for fact in facts] == [(0, None)]
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.ended("start", "J", 1))
    assert not world.server.of("pods"), "its container may still run"


def test_the_checkpoints_of_a_gang_are_measured_once_in_a_reading(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[str]()
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.volume._newest_change", measured.append)
    world.jobs.start(order("J", "runs on", ranks=20))
    until(lambda: len(world.server.of("pods")) == 20 and world.ended("start", "J", 1))
    for rank in range(20):
        world.see(f"gq-j-1-{rank}", "Running", {"running": {"startedAt": "2026-11-24T10:00:01Z"}})
    until(lambda: len(world.jobs.facts.newest) == 20 and not world.jobs._dirty and world.ended("publish"))
    measured.clear()
    found = world.thread.call(world.jobs.facts.read([("J", 1)]), 5.0)
    assert len(found) == 20 and len(measured) == 1


def test_the_log_of_an_end_is_that_of_the_job_s_container(world: OrdersWorld) -> None:
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods"))
    world.see("gq-j-1-0", "Succeeded", {"terminated": ENDED})
    until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert world.server.logs == ["job"]


def test_an_end_is_observed_while_the_logs_of_another_node_do_not_come(world: OrdersWorld) -> None:
    names = [f"J{number}" for number in range(2 * LOGS_AT_ONCE)]
    for name in [*names, "W"]:
        world.jobs.start(order(name, "runs on"))
    until(lambda: len(world.server.of("pods")) == len(names) + 1)
    for name in [*names, "W"]:
        ended = {"exitCode": 0, "finishedAt": "2026-11-24T10:00:02Z", "startedAt": "2026-11-24T10:00:01Z"}
        world.see(f"gq-{name.lower()}-1-0", "Succeeded", {"terminated": ended}, "well" if name == "W" else "hung")
    found = until(lambda: [fact for fact in world.jobs.observe() if fact.ended_at is not None])
    assert {fact.job for fact in found} == {"W"}
    world.open(world.server.later)
    until(lambda: {fact.job for fact in world.jobs.observe() if fact.ended_at is not None} == {"W", *names})


def test_the_files_of_a_job_are_in_the_trash_before_its_rows_are_removed(world: OrdersWorld, tmp_path: Path) -> None:
    """A process may be killed as soon as the order returns, and no file of a job without rows is looked for."""
    home, go = tmp_path / "jobs" / "J", threading.Event()
    (home / "outputs").mkdir(parents=True)
    (tmp_path / "trash").mkdir()
    world.thread._loop.call_soon_threadsafe(go.wait)
    try:
        world.jobs.forget("J")
        assert not home.exists() and [each.name.partition(".")[0] for each in (tmp_path / "trash").iterdir()] == ["J"]
    finally:
        go.set()
    until(lambda: not list((tmp_path / "trash").iterdir()))


def test_a_job_is_kept_while_an_attempt_of_it_is_in_the_cluster(world: OrdersWorld, tmp_path: Path) -> None:
    world.open(world.server.later)
    (tmp_path / "trash").mkdir()
    world.jobs.objects.pods.is_synced = world.jobs.objects.records.is_synced = True
    world.jobs.start(order("J", "runs on"))
    until(lambda: STARTED in world.record("gq-j-1"))
    with pytest.raises(OSError, match="job J still has an attempt in the cluster"):
        world.jobs.forget("J")
    world.see("gq-j-1-0", "Succeeded", {"terminated": ENDED})
    until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    world.jobs.settled("J", 1)
    until(lambda: world.ended("settled", "J", 1) and not world.server.objects)
    assert (tmp_path / "jobs" / "J" / "outputs").is_dir()
    world.jobs.objects.records.objects.clear()  # as its watch does
    world.jobs.forget("J")
    assert not (tmp_path / "jobs" / "J").exists()


def test_a_rank_without_a_pod_ends_on_a_volume_that_stays_full(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.volume.write_record", is_full)
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.volume.FULL_DISK_S", 0.5)
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.PUBLISH_EVERY_S", 0.01)
    world.jobs.stop(stop("J"))
    world.thread.run(("progress",), world.jobs.publish_forever)
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.started_at, fact.pause_requested) == (None, True)


ENDED = {"exitCode": 0, "finishedAt": "2026-11-24T10:00:02Z", "startedAt": "2026-11-24T10:00:01Z"}


def test_what_an_attempt_has_in_the_cluster_is_removed_also_after_a_request_that_failed(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.PUBLISH_EVERY_S", 0.01)
    world.open(world.server.later)
    world.jobs.start(order("J", "runs on"))
    until(lambda: STARTED in world.record("gq-j-1"))
    world.see("gq-j-1-0", "Succeeded", {"terminated": ENDED})
    until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    world.server.broken.add("/configmaps/gq-j-1")
    world.jobs.settled("J", 1)
    until(lambda: world.server.failed and world.ended("settled", "J", 1))
    assert world.server.objects.keys() == {
        f"/api/v1/namespaces/jobs/{name}" for name in ("configmaps/gq-j-1", "pods/gq-j-1-0")
    }
    world.server.broken.clear()
    world.thread.run(("progress",), world.jobs.publish_forever)
    until(lambda: not world.server.objects, what=lambda: world.server.objects)


AT_10_00 = 1_795_514_400_000
NO_GPU = {"reason": "UnexpectedAdmissionError", "message": "no GPU"}


@pytest.mark.parametrize(
    ("before_s", "is_refused"),
    [
        pytest.param([], False, id="once"),
        pytest.param([20], False, id="again, while its kubelet may not know its devices yet"),
        pytest.param([20, 40], True, id="for longer"),
    ],
)
def test_a_rank_that_kubelets_do_not_admit_is_queued_again_for_a_while(
    world: OrdersWorld, tmp_path: Path, before_s: list[int], is_refused: bool
) -> None:
    why, attempt = "UnexpectedAdmissionError: no GPU", len(before_s) + 1
    for at, seconds in enumerate(before_s):
        ended = {"ended_at": AT_10_00 - seconds * 1000, "exit_status": None, "why_lost": why}
        JobVolume(str(tmp_path)).record_end({"job": "J", "attempt": attempt - 1 - at, "rank": 0, **ended}, b"")
    world.jobs.start(order("J", "runs on", attempt=attempt))
    until(lambda: world.server.of("pods"))
    world.see(f"gq-j-{attempt}-0", "Failed", {}, **NO_GPU)
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.refused, fact.why_lost) == ((why, None) if is_refused else (None, why))


@pytest.fixture
def standby(world: OrdersWorld, tmp_path: Path) -> Iterator[OrdersWorld]:
    """A process without the lease, which follows the same objects and has the same volume."""
    made = OrdersWorld(tmp_path, world.server)
    made.jobs._fencing = 0
    yield made
    made.close()


def follow(world: OrdersWorld, standby: OrdersWorld) -> None:
    async def take() -> None:
        for informer, kind in ((standby.jobs.objects.records, "configmaps"), (standby.jobs.objects.pods, "pods")):
            for found in world.server.of(kind).values():
                informer.note(found)

    standby.thread.call(take(), 5.0)
    until(lambda: not standby.jobs._dirty and standby.ended("publish"))


def test_only_the_leader_keeps_ends_and_a_new_one_keeps_those_that_it_saw_before(
    world: OrdersWorld, standby: OrdersWorld, tmp_path: Path
) -> None:
    volume = JobVolume(str(tmp_path))
    for name in ("J", "K"):
        world.jobs.start(order(name, "runs on"))
    until(lambda: len(world.server.of("pods")) == 2 and world.ended("start", "K", 1))
    world.jobs._fencing = 0
    world.see("gq-j-1-0", "Succeeded", {"terminated": ENDED})
    world.open(world.server.later)
    until(lambda: all(STARTED in world.record(f"gq-{name}-1") for name in ("j", "k")))
    world.server.objects = {path: each for path, each in world.server.objects.items() if "/pods/gq-k" not in path}
    follow(world, standby)
    assert not any("keep end" in key for key in standby.thread._busy if isinstance(key, tuple))
    assert volume.ended("J", 1, 0) is None and volume.ended("K", 1, 0) is None
    assert not [fact for fact in standby.jobs.observe() if fact.ended_at is not None]
    known = standby.thread.call(standby.jobs.facts.statuses("K", 1), 5.0)
    assert "ended_at" in known[0] and volume.ended("K", 1, 0) is None, "a comparison before the term changes nothing"

    standby.fence(MemoryFence(), 2)
    until(lambda: {fact.job for fact in standby.jobs.observe() if fact.ended_at is not None} == {"J", "K"})
    assert volume.ended("J", 1, 0) is not None and volume.ended("K", 1, 0) is not None


def test_a_leader_that_sees_the_object_of_a_newer_one_leads_no_more(world: OrdersWorld, standby: OrdersWorld) -> None:
    standby.jobs._fencing = 2
    standby.jobs.start(order("J", "runs on", fencing=2))
    until(lambda: world.server.of("pods"))
    assert world.jobs.fencing == 1
    follow(standby, world)
    assert (world.jobs.fencing, standby.jobs.fencing) == (0, 2)


def test_a_process_with_a_lower_number_than_the_one_in_the_cluster_does_not_lead(
    world: OrdersWorld, standby: OrdersWorld
) -> None:
    fence = MemoryFence()
    standby.fence(fence, 7)
    with pytest.raises(OSError, match="leader 5 was replaced: the newest in the cluster is 7"):
        world.fence(fence, 5)
    standby.fence(fence, 5)
    assert (world.jobs.fencing, standby.jobs.fencing) == (0, 7), "a lower number than its own changes nothing"


def test_a_new_term_begins_the_patience_for_logs_and_records_anew(world: OrdersWorld) -> None:
    failing, recording = world.jobs.facts.logs._failing_since, world.jobs.facts._recording_since
    failing["J", 1, 0] = recording["J", 1, 0] = 0.0
    world.fence(MemoryFence(), 2)
    assert not failing and not recording


def test_every_rank_of_a_gang_that_is_stopped_before_it_started_ends(world: OrdersWorld) -> None:
    world.jobs.stop(stop("J", ranks=2))
    until(lambda: world.jobs.facts.of_attempt("J", 1).keys() == {("J", 1, 0), ("J", 1, 1)})
    facts = world.jobs.facts.of_attempt("J", 1).values()
    assert [(fact.tree_gone, fact.started_at, fact.pause_requested) for fact in facts] == [(True, None, True)] * 2
