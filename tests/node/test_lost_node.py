"""The loss of a real node: its kubelet is killed while a job writes, and comes back while that job's container runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client, Job
from tests.api.world import FakeAccount
from tests.kube.control_plane import ControlPlane
from tests.kube.jobs.test_service import OUTSIDE, pods
from tests.kube.service import KubernetesService
from tests.kube.world import install
from tests.node.images import JOB_IMAGE, PREFIX
from tests.node.node import MODEL, READY_WITHIN_S, RealNode, node_of
from tests.node.world import NEVER_PULLED, device_of
from tests.patience import until

QUOTA = f"""\
version: 1
pools:
  - {{name: train, selector: {{gpu_model: [{MODEL}]}}, uses: [training]}}
projects:
  - {{name: vision, members: {{users: [bob]}}, quota: {{train: {{training: 4}}}}}}
"""

SAVES = """
cd "$GPU_QUOTA_CHECKPOINT_DIR"
n=$(cat n 2>/dev/null || echo 0)
echo "from $n on $NVIDIA_VISIBLE_DEVICES"
while [ ! -e end ]; do
  echo $GPU_QUOTA_ATTEMPT > writer
  n=$((n + 1)); echo $n > part; mv part n; sleep 0.2
  [ "$(cat writer)" = $GPU_QUOTA_ATTEMPT ] || echo $GPU_QUOTA_ATTEMPT >> doubled
done
"""
"""A job that saves its count all the time, and notes when another attempt writes to its checkpoint."""

SOON = {
    "terminationGracePeriodSeconds": 2,
    "tolerations": [
        {
            "key": f"node.kubernetes.io/{why}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 2,
        }
        for why in ("unreachable", "not-ready")
    ],
}
"""Kubernetes deletes the pods of a lost node after two seconds: 300 by default."""


@pytest.fixture
def namespace(plane: ControlPlane, node: RealNode, driver_node: RealNode, tmp_path: Path) -> str:
    return install(plane, str(tmp_path / "state"))


@pytest.fixture
def service(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[KubernetesService]:
    settings = {
        **OUTSIDE, "kubernetes_config": plane.kubeconfig(namespace), "kubernetes_namespace": namespace,
        "kubernetes_image": JOB_IMAGE, "kubernetes_path": f"{PREFIX}/bin", "kubernetes_container": NEVER_PULLED,
        "kubernetes_pod": SOON, "state_dir": str(tmp_path / "state"),
    }  # fmt: skip
    made = KubernetesService(tmp_path, settings, quota=QUOTA)
    made.hub.users["root"] = FakeAccount(admin=True)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.end()


def number(path: Path) -> int:
    return int(path.read_text()) if path.exists() and path.read_text() else 0


def end(client: Client, job: Job, checkpoint: Path) -> None:
    (checkpoint / "end").touch()
    until(lambda: client.job(job.id).state == "succeeded", what=lambda: client.job(job.id))


def test_the_job_of_a_lost_node_continues_on_the_other_one_and_nothing_is_doubled(
    plane: ControlPlane, namespace: str, node: RealNode, service: KubernetesService, tmp_path: Path
) -> None:
    bob, root = service.client("bob"), service.client("root")

    def checkpoint(job: Job) -> Path:
        return tmp_path / "state/jobs" / job.id / "checkpoint"

    jobs = [bob.submit(["sh", "-c", SAVES], gpu="1", dir=None) for _ in range(4)]
    lost = next(job for job in jobs if node_of(device_of(bob, job)) == str(node.number))
    for job in jobs:
        if job is not lost:
            end(bob, job, checkpoint(job))
    until(lambda: number(checkpoint(lost) / "n") > 3)

    node.lose_kubelet()
    until(lambda: bob.job(lost.id).attempt == 2, READY_WITHIN_S, what=service.log)
    assert node_of(device_of(bob, lost, 2)) != str(node.number)
    first = bob.job(lost.id).rank_records[0]
    assert re.fullmatch(
        rf"lost: node {node.name} is lost: its kubelet has not answered since \d{{4}}-\S+Z", first.exit_text or ""
    )
    (shown,) = [each.what for each in root.audit(action="attempt.end") if each.subject == lost.id]
    assert f"node {node.name} is lost" in shown and "queued again" in shown
    of_node = [each for each in bob.devices() if each.node == node.name]
    assert [(each.health, each.free_milli) for each in of_node] == [("unavailable", 0)] * 2
    assert all("has not answered since" in (each.trouble or "") for each in of_node)

    own, left = checkpoint(lost), tmp_path / "state/jobs" / lost.id / "detached/1/checkpoint"
    resumed = int(lost.logs(attempt=2).split()[1])
    assert resumed > 3
    abandoned = number(left / "n")
    until(lambda: number(left / "n") > abandoned, what="the container on the lost node writes on")
    until(lambda: number(own / "n") > resumed + 5, what="the job goes on")

    node.start_kubelet()
    until(node.is_ready, READY_WITHIN_S, what=node.errors)
    until(lambda: len(pods(plane, namespace)) == 1, READY_WITHIN_S, what=node.errors)
    until(lambda: not left.exists(), what="what the old container wrote is removed")
    assert not (own / "doubled").exists(), "one attempt writes to the checkpoint"
    until(lambda: {each.health for each in bob.devices()} == {"healthy"}, what=bob.devices)
    end(bob, lost, own)
    assert bob.job(lost.id).attempt == 2
    until(lambda: not pods(plane, namespace), what="no pod is left")
