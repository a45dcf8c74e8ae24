"""Ends and delays of pods that a job cannot cause itself. The tests write what a kubelet would, where it says so."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.informer import version_of
from jupyter_gpu_quota.backends.protocol import DataSource, StartOrder, StopNotebookOrder
from jupyter_gpu_quota.backends.rendering.pods import REQUIRED
from jupyter_gpu_quota.core.model import Device, Placement
from tests.backends.contract import Controller
from tests.backends.test_trash import failing_rm
from tests.backends.worlds import order
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.world import KubernetesWorld
from tests.patience import until

ON_A_MACHINE = DataSource(
    variable="IMAGES", path="/data/images", claim=None, sub_path=None, mount="/data/images", read_only=True
)


@pytest.fixture
def world(control_plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesWorld]:
    """A node with two whole GPUs that a device plugin counts."""
    made = KubernetesWorld(control_plane, tmp_path, kubelet={"capacity": {"nvidia.com/gpu": "2"}})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def impatient(world: KubernetesWorld) -> KubernetesWorld:
    """Verdicts on pods are final after a second, except those that a cache may explain."""
    world.restart(patience_s=1)
    return world


@pytest.fixture
def controller(world: KubernetesWorld) -> Controller:
    return Controller(world)


def whole(job: str, *slots: int, command: str = "exec sleep 1000", **more: Any) -> StartOrder:
    """A job of one rank on whole devices of the node."""
    devices = tuple(
        Device(id=f"here/{slot}", node="here", index=slot, model="GPU", memory_mib=0, pool="train") for slot in slots
    )
    parts = tuple(Placement(rank=0, device=each.id, gpu_milli=1000, memory_mib=0) for each in devices)
    return StartOrder(
        job=job, attempt=1, fencing=1, command=("sh", "-c", command), placements=parts, devices=devices, **more
    )


def pod_path(world: KubernetesWorld, job: str) -> str:
    return f"/api/v1/namespaces/{world.namespace}/pods/gq-{job.lower()}-1-0"


def write_status(world: KubernetesWorld, job: str, status: dict[str, Any]) -> None:
    """Write a pod's status as its kubelet would."""
    world.plane.patch(f"{pod_path(world, job)}/status", {"status": status})


def ended(code: int, reason: str) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}}
    container = {"name": "job", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Failed", "containerStatuses": [container]}


def test_whole_devices_are_requested_of_the_cluster(world: KubernetesWorld, controller: Controller) -> None:
    devices = (world.backend.jobs.inventory() or ((), ()))[1]
    assert [each.id for each in devices] == ["here/0", "here/1"]
    controller.give(whole("J", 0, 1))
    controller.until(lambda fact: fact.started_at is not None)
    (pod,) = world.pods()
    assert pod["spec"]["nodeName"] == "here"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_a_mig_instance_is_requested_by_its_profile(control_plane: ControlPlane, tmp_path: Path) -> None:
    capacity = {"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-3g.40gb": "1"}
    world = KubernetesWorld(control_plane, tmp_path, kubelet={"capacity": capacity})
    try:
        controller = Controller(world)
        *_, device = (world.backend.jobs.inventory() or ((), ()))[1]
        assert device.id == "here/mig-3g.40gb-0"
        placement = Placement(rank=0, device=device.id, gpu_milli=1000, memory_mib=0)
        controller.give(replace(whole("J", 0), placements=(placement,), devices=(device,)))
        controller.until(lambda fact: fact.started_at is not None)
        (pod,) = world.pods()
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}
    finally:
        world.close()


@pytest.mark.parametrize(
    ("site", "more", "message"),
    [
        pytest.param(
            {"nodeSelector": {"rack": 1}}, {}, "does not accept its pod: .*nodeSelector", id="a number as text"
        ),
        pytest.param({}, {"secrets": {"not a name": "x"}}, "does not accept its secret .*not a name", id="a secret"),
    ],
)
def test_a_job_with_an_object_that_the_api_server_cannot_take_is_refused(
    world: KubernetesWorld, controller: Controller, site: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    world.settings = replace(world.settings, pod=site)
    world.restart()
    controller.give(whole("J", 0, **more))
    assert re.search(message, str(controller.until(lambda fact: fact.refused is not None).refused))


def test_a_job_that_its_node_cannot_take_is_lost_and_so_queued_again(
    impatient: KubernetesWorld, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.SHOWN_S", 0)
    world = impatient
    foreign = {
        "metadata": {"name": "foreign"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    }
    world.kubelet.ignored.add("foreign")
    world.plane.make(f"/api/v1/namespaces/{world.namespace}/pods", foreign)
    until(lambda: any(pod["spec"].get("nodeName") for pod in world.pods()))
    controller.give(whole("J", 0))
    fact = controller.until(lambda fact: fact.trouble is not None)
    assert str(fact.trouble).startswith("Unschedulable: ") and "Insufficient nvidia.com/gpu" in str(fact.trouble)
    fact = controller.gone("J")
    assert (fact.started_at, fact.exit_status, fact.pause_requested, fact.refused) == (None, None, False, None)
    assert "Insufficient nvidia.com/gpu" in str(fact.why_lost), "it is stored with the end"
    users = dict.fromkeys((world.backend.jobs.inventory() or ((), ()))[1], ())

    def foreign() -> dict[str, int | None]:
        samples = world.backend.samples.samples(users, now=0) or ()
        assert [(each.utilisation_percent, each.coverage_permille) for each in samples] == [(None, 0)] * 2
        return {fact.device: fact.foreign_milli for fact in world.backend.samples.device_facts()}

    until(lambda: foreign() == {"here/0": 1000, "here/1": 1000}, what=foreign)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        pytest.param("InvalidImageName", "couldn't parse image", id="a name that is no image is refused at once"),
        pytest.param("ImagePullBackOff", "not found", id="an image that cannot be pulled is refused after a while"),
    ],
)
def test_a_rank_that_never_starts_is_refused_with_the_reason(
    impatient: KubernetesWorld, controller: Controller, reason: str, message: str
) -> None:
    world = impatient
    world.kubelet.ignored.add("gq-j-1-0")
    controller.give(whole("J", 0))
    until(lambda: any(pod["spec"].get("nodeName") for pod in world.pods()))
    waiting = {"name": "job", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
               "state": {"waiting": {"reason": reason, "message": message}}}  # fmt: skip
    write_status(world, "J", {"phase": "Pending", "containerStatuses": [waiting]})
    until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in world.pods()))
    fact = controller.until(lambda fact: fact.trouble is not None)
    assert (fact.trouble, fact.refused) == (f"{reason}: {message}", None), "until its pod is over it may begin"
    write_status(world, "J", {"phase": "Failed"})
    fact = controller.until(lambda fact: fact.refused is not None)
    assert (fact.refused, fact.handle, fact.tree_gone) == (f"{reason}: {message}", None, True)


def test_a_job_whose_node_does_not_prepare_its_pod_is_queued_again(
    impatient: KubernetesWorld, controller: Controller
) -> None:
    """As with a volume that cannot be mounted: the pod stays in ContainerCreating for ever."""
    world = impatient
    world.kubelet.ignored.add("gq-j-1-0")
    world.plane.patch("/api/v1/nodes/here/status", {"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}})
    controller.give(whole("J", 0))
    until(lambda: any(pod["spec"].get("nodeName") for pod in world.pods()))
    waiting = {"name": "job", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
               "state": {"waiting": {"reason": "ContainerCreating"}}}  # fmt: skip
    condition = {"type": "PodReadyToStartContainers", "status": "False"}
    write_status(world, "J", {"phase": "Pending", "containerStatuses": [waiting], "conditions": [condition]})
    until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in world.pods()))
    write_status(world, "J", {"phase": "Failed"})
    fact = controller.gone("J")
    assert (fact.started_at, fact.exit_status, fact.refused) == (None, None, None)
    assert str(fact.why_lost).startswith("NotPrepared: its node has not mounted its volumes")


NO_CLAIM = '0/1 nodes are available: persistentvolumeclaim "late" not found.'


@pytest.fixture
def unscheduled(world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> KubernetesWorld:
    """The tests do what kube-scheduler would: the real one may look at a pod again after five minutes only."""
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.CACHE_S", 3)
    world.settings = replace(world.settings, pod={"schedulerName": "nobody"})
    world.restart(patience_s=1)
    return world


def judge(world: KubernetesWorld, attempt: int) -> str:
    """Write that the claim of a volume is missing, as kube-scheduler would; returns the path of the pod."""
    path = f"/api/v1/namespaces/{world.namespace}/pods/gq-j-{attempt}-0"
    until(lambda: world.plane.request("GET", path)[0] == 200)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_CLAIM}
    world.plane.patch(f"{path}/status", {"status": {"conditions": [condition]}})
    return path


def test_a_claim_that_kube_scheduler_sees_late_delays_a_job(
    unscheduled: KubernetesWorld, controller: Controller
) -> None:
    controller.give(whole("J", 0))
    path = judge(unscheduled, 1)
    unscheduled.pass_ms(unscheduled.wait_ms)
    unscheduled.plane.make(
        f"{path}/binding", {"metadata": {"name": "gq-j-1-0"}, "target": {"kind": "Node", "name": "here"}}
    )
    controller.until(lambda fact: fact.started_at is not None)


def test_a_claim_that_never_comes_is_the_reason_of_a_refusal_in_the_second_attempt(
    unscheduled: KubernetesWorld, controller: Controller
) -> None:
    controller.give(whole("J", 0))
    judge(unscheduled, 1)
    lost = controller.gone("J")
    assert (lost.exit_status, lost.refused) == (None, None), "another pod may be judged by a newer cache"
    assert str(lost.why_lost).startswith("VolumeClaimNotFound: ")
    controller.orders.clear()
    controller.give(replace(whole("J", 0), attempt=2))
    judge(unscheduled, 2)
    fact = controller.until(lambda fact: fact.refused is not None)
    assert str(fact.refused).startswith("VolumeClaimNotFound: ")


@pytest.mark.parametrize(
    ("status", "exit_status", "cause"),
    [
        pytest.param(ended(137, "OOMKilled"), -9, "out_of_memory", id="killed for its memory"),
        pytest.param({**ended(137, "Error"), "reason": "Evicted"}, None, None, id="evicted by its node: lost"),
    ],
)
def test_an_end_that_the_node_decides(
    world: KubernetesWorld, controller: Controller, status: dict[str, Any], exit_status: int | None, cause: str | None
) -> None:
    world.kubelet.ignored.add("gq-j-1-0")
    controller.give(whole("J", 0))
    until(lambda: any(pod["spec"].get("nodeName") for pod in world.pods()))
    write_status(world, "J", status)
    fact = controller.gone("J")
    assert (fact.exit_status, fact.cause) == (exit_status, cause)


def test_a_pod_that_is_deleted_by_hand_is_lost(world: KubernetesWorld, controller: Controller) -> None:
    controller.give(whole("J", 0))
    controller.began("J", "runs on")
    assert world.plane.request("DELETE", pod_path(world, "J"), {"gracePeriodSeconds": 1})[0] == 200
    fact = controller.gone("J")
    assert (fact.exit_status, fact.pause_requested) == (None, False)
    controller.wait()
    assert world.pods()[0]["metadata"]["finalizers"] == ["gpu-quota.jupyter.org/exit-status"], "not settled yet"


def test_a_pod_that_is_removed_by_force_is_lost(world: KubernetesWorld, controller: Controller) -> None:
    controller.give(whole("J", 0))
    controller.began("J", "runs on")
    world.plane.patch(pod_path(world, "J"), {"metadata": {"finalizers": None}})
    assert world.plane.request("DELETE", pod_path(world, "J"), {"gracePeriodSeconds": 0})[0] == 200
    fact = controller.gone("J")
    assert (fact.exit_status, fact.pause_requested) == (None, False)


def test_a_pause_is_announced_in_the_pause_file_before_sigterm(world: KubernetesWorld, controller: Controller) -> None:
    trap = "trap 'cat \"$GPU_QUOTA_PAUSE_FILE\"; exit 75' TERM; echo ready; while :; do sleep 0.02; done"
    controller.give(whole("J", 0, command=trap))
    controller.began("J", "saves and stops")
    controller.stop("J")
    assert controller.gone("J").exit_status == 75
    assert world.backend.outputs.log("J", 1, 0).data == b"ready\nreclaimed\n"


def test_progress_and_checkpoints_are_reported_while_it_runs(world: KubernetesWorld, controller: Controller) -> None:
    progress = 'echo \'{"done": 1, "total": 3}\' > "$GPU_QUOTA_PROGRESS_FILE"'
    controller.give(whole("J", 0, command=f'{progress}; touch "$GPU_QUOTA_CHECKPOINT_DIR/a"; exec sleep 1000'))
    fact = controller.until(lambda fact: fact.done == 1)
    assert (fact.total, fact.tree_gone, fact.saved_at is not None) == (3, False, True)


def test_a_job_that_exceeds_the_limit_of_its_outputs_is_stopped_with_a_line_in_its_log(
    world: KubernetesWorld, controller: Controller
) -> None:
    world.backend.jobs.fence(1)
    writes = 'echo ready; head -c 2000000 /dev/zero > "$GPU_QUOTA_OUTPUT_DIR/x"; exec sleep 1000'
    controller.give(whole("J", 0, command=writes, outputs_limit_mib=1))
    fact = controller.gone("J")
    assert (fact.exit_status, fact.cause, fact.pause_requested) == (-signal.SIGXFSZ, "storage_limit", False)
    first, notice = world.backend.outputs.log("J", 1, 0).data.decode().splitlines()
    assert first == "ready"
    assert re.fullmatch(r".*the job was stopped: its outputs hold \d+ bytes, and its limit is 1048576 bytes", notice)


def test_only_the_leader_enforces_the_limit_of_outputs(world: KubernetesWorld, controller: Controller) -> None:
    world.leave()
    world.backend = world.another()
    writes = 'head -c 2000000 /dev/zero > "$GPU_QUOTA_OUTPUT_DIR/x"; exec sleep 1000'
    controller.give(whole("J", 0, command=writes, outputs_limit_mib=1))
    written = world.folder / "jobs" / "J" / "outputs" / "x"
    until(lambda: written.exists() and written.stat().st_size == 2_000_000)
    controller.began("J", "runs on")
    world.pass_ms(2 * world.wait_ms)
    assert not controller.facts["J", 1, 0].tree_gone


def test_log_and_end_are_kept_after_the_pod_is_gone(world: KubernetesWorld, controller: Controller) -> None:
    controller.give(whole("J", 0, command="echo kept; exit 3"))
    controller.gone("J")
    controller.orders.clear()
    world.backend.jobs.settled("J", 1)
    until(lambda: not world.pods())
    record = f"/api/v1/namespaces/{world.namespace}/configmaps/gq-j-1"
    until(lambda: world.plane.request("GET", record)[0] == 404, what="the record is removed after its pods")
    assert world.backend.outputs.log("J", 1, 0).data == b"kept\n"
    controller.give(whole("J", 0))
    world.pass_ms(world.wait_ms)
    assert world.pods() == [], "an attempt that ended is not started again"


def test_no_file_is_removed_while_the_pods_are_not_known(world: KubernetesWorld, controller: Controller) -> None:
    controller.start("J", "runs on")
    controller.began("J", "runs on")
    jobs = world.another().jobs
    until(lambda: jobs.objects.pods_of("J", 1))
    pod = f"/api/v1/namespaces/{world.namespace}/pods/gq-j-1-0"
    changed = version_of(world.plane.patch(pod, {"metadata": {"annotations": {"seen": "by the watch"}}}))
    until(lambda: version_of(jobs.objects.pods_of("J", 1)[0]) >= changed, what="the watch is open")
    jobs.objects.pods.objects.clear()
    jobs.objects.pods.is_synced = False
    with pytest.raises(OSError, match="still has an attempt in the cluster"):
        jobs.forget("J")
    world.pass_ms(world.wait_ms)
    assert jobs.objects.record_of("J", 1) is not None
    assert (world.folder / "jobs" / "J" / "work").is_dir()
    jobs._thread.call(jobs.objects.pods.list(), 10)
    world.pass_ms(world.wait_ms)
    assert (world.folder / "jobs" / "J" / "work").is_dir(), "it runs"


def test_a_site_s_node_affinity_does_not_move_a_pod_to_another_node(world: KubernetesWorld) -> None:
    resources = {"capacity": {"nvidia.com/gpu": "2"}, "labels": {"zone": "b"}}
    other = FakeKubelet(world.plane, world.namespace, "other", world.folder, **resources)
    other.start()
    in_zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [in_zone]}}}
    world.settings = replace(world.settings, pod={"affinity": affinity})
    world.restart(patience_s=1)
    try:
        controller = Controller(world)
        controller.give(whole("J", 0))
        fact = controller.until(lambda fact: fact.job == "J" and fact.tree_gone)
        assert fact.started_at is None, "it waits for the chosen node, which the site excludes"
    finally:
        other.stop()


def test_files_that_cannot_be_removed_are_removed_later(
    world: KubernetesWorld, controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.TRASH_AGAIN_S", 0.1)
    controller.give(whole("J", 0, command="exit 0"))
    controller.gone("J")
    trash = world.folder / "trash"
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{failing_rm(world.folder / 'bin')}:/usr/bin:/bin")
        controller.forget("J")
        until(lambda: "Stale file handle" in caplog.text, what="the failure is logged")
        assert [path.name.partition(".")[0] for path in trash.iterdir()] == ["J"]
    until(lambda: not list(trash.iterdir()), what="it is removed by a later attempt")


def test_a_name_of_the_site_that_the_pod_has_already_is_the_reason_of_a_refusal(world: KubernetesWorld) -> None:
    world.settings = replace(world.settings, pod={"volumes": [{"name": "jobs", "emptyDir": {}}]})
    world.restart()
    controller = Controller(world)
    controller.give(whole("J", 0))
    fact = controller.until(lambda fact: fact.refused is not None)
    assert "kubernetes_pod has an entry of volumes with the name jobs" in str(fact.refused)


def test_secret_variables_are_in_a_secret_and_not_in_the_pod(world: KubernetesWorld, controller: Controller) -> None:
    controller.give(whole("J", 0, command='echo "$TOKEN"; exit 0', secrets={"TOKEN": "hunter2"}))
    controller.gone("J")
    assert world.backend.outputs.log("J", 1, 0).data == b"hunter2\n"
    assert "hunter2" not in str(world.pods())


def test_a_gang_has_a_service_and_one_pod_for_each_rank(world: KubernetesWorld, controller: Controller) -> None:
    controller.start("J", "runs on", ranks=2)
    controller.until(lambda fact: fact.rank == 1 and fact.started_at is not None)
    service = world.plane.get(f"/api/v1/namespaces/{world.namespace}/services/gq-j-1")
    assert service["spec"]["clusterIP"] == "None"
    assert sorted(pod["spec"]["hostname"] for pod in world.pods()) == ["gq-j-1-0", "gq-j-1-1"]


def test_a_notebook_is_stopped_by_deleting_its_pod(world: KubernetesWorld) -> None:
    labels = {"gpu-quota.jupyter.org/hub": "test", "gpu-quota.jupyter.org/notebook": "N"}
    world.kubelet.ignored.add("notebook")
    pod = {"metadata": {"name": "notebook", "labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    world.plane.make(f"/api/v1/namespaces/{world.namespace}/pods", pod)
    world.backend.jobs.fence(7)
    world.backend.enforcement.stop_notebook(StopNotebookOrder(notebook="N", fencing=6, reason="over_share"))
    world.pass_ms(world.wait_ms)
    assert "deletionTimestamp" not in world.pods()[0]["metadata"]
    world.backend.enforcement.stop_notebook(StopNotebookOrder(notebook="N", fencing=7, reason="over_share"))
    until(lambda: not world.pods() or "deletionTimestamp" in world.pods()[0]["metadata"])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({"live": True}, "pods do not have the folders of users", id="a live job"),
        pytest.param(
            {"data": (ON_A_MACHINE,)},
            "the quota file names no claim of pods for the data of IMAGES",
            id="data without a claim",
        ),
    ],
)
def test_a_job_that_pods_cannot_run_is_refused_with_the_reason(
    world: KubernetesWorld, controller: Controller, more: dict[str, Any], why: str
) -> None:
    controller.give(whole("J", 0, **more))
    fact = controller.until(lambda fact: fact.refused is not None)
    assert str(fact.refused).startswith(why)
    assert world.pods() == []


def test_a_full_quota_of_the_cluster_is_a_trouble_of_the_job(world: KubernetesWorld, controller: Controller) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    world.plane.make(f"/api/v1/namespaces/{world.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{world.namespace}/resourcequotas/none/status"
    world.plane.patch(path, {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    controller.give(order("J", "runs on"))
    fact = controller.until(lambda fact: fact.trouble is not None)
    assert str(fact.trouble).startswith("NotCreated: ") and "exceeded quota" in str(fact.trouble)
    assert fact.refused is None
