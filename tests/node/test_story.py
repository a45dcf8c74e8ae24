"""The whole path on two real nodes: jobs by REST, a reclaim, a checkpoint, and the rest of the work afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client, Job
from tests.api.world import FakeAccount
from tests.kube.control_plane import ControlPlane
from tests.kube.service import KubernetesService
from tests.kube.test_service import OUTSIDE, pods
from tests.kube.world import install
from tests.node.images import JOB_IMAGE, PREFIX
from tests.node.node import MODEL, RealNode
from tests.node.world import NEVER_PULLED
from tests.patience import until

QUOTA = f"""\
version: 1
pools:
  - {{name: train, selector: {{gpu_model: [{MODEL}]}}, uses: [training]}}
projects:
  - {{name: vision, members: {{users: [bob]}}, quota: {{train: {{training: 1}}}}}}
  - {{name: speech, members: {{users: [patty]}}, quota: {{train: {{training: 3}}}}}}
"""

COUNTS = """
cd "$GPU_QUOTA_CHECKPOINT_DIR"
n=$(cat n 2>/dev/null || echo 0)
trap 'echo $n > n; exit 75' TERM
echo "from $n on $NVIDIA_VISIBLE_DEVICES"
while [ ! -e end ]; do n=$((n + 1)); sleep 0.2; done
"""
"""A job that counts until a file ends it; after a pause it continues with the number that it saved."""


@pytest.fixture
def namespace(plane: ControlPlane, node: RealNode, driver_node: RealNode, tmp_path: Path) -> str:
    """With four devices: two that a plugin counts, and two of a DRA driver on another node."""
    return install(plane, str(tmp_path / "state"))


@pytest.fixture
def service(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[KubernetesService]:
    settings = {
        **OUTSIDE, "kubernetes_config": plane.kubeconfig(namespace), "kubernetes_namespace": namespace,
        "kubernetes_image": JOB_IMAGE, "kubernetes_path": f"{PREFIX}/bin", "kubernetes_container": NEVER_PULLED,
        "state_dir": str(tmp_path / "state"),
    }  # fmt: skip
    made = KubernetesService(tmp_path, settings, quota=QUOTA)
    made.hub.users["patty"] = FakeAccount()
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.end()


def counts(client: Client) -> Job:
    return client.submit(["sh", "-c", COUNTS], gpu="1", dir=None)


def test_a_reclaimed_job_saves_and_continues_when_its_device_is_free(
    plane: ControlPlane, namespace: str, service: KubernetesService, tmp_path: Path
) -> None:
    bob, patty = service.client("bob"), service.client("patty")

    def checkpoint(job: Job, name: str) -> Path:
        return tmp_path / "state/jobs" / job.id / "checkpoint" / name

    def has(client: Client, job: Job, state: str) -> None:
        until(lambda: client.job(job.id).state == state, what=lambda: (client.job(job.id), service.log()))

    hers = [counts(patty) for _ in range(4)]
    for job in hers:
        has(patty, job, "running")
    until(lambda: all(job.logs() for job in hers), what="each job has begun")
    seen = [job.logs().split()[-1] for job in hers]
    assert len(set(seen)) == 4 and all(each.startswith("GPU-fake-") for each in seen), "on all devices of both nodes"

    his = counts(bob)
    has(bob, his, "running")
    (paused,) = [job for job in hers if patty.job(job.id).state != "running"]
    saved = int(checkpoint(paused, "n").read_text())
    checkpoint(his, "end").touch()
    has(bob, his, "succeeded")

    until(lambda: patty.job(paused.id).attempt == 2 and paused.logs(attempt=2), what=service.log)
    assert paused.logs(attempt=2).startswith(f"from {saved} on GPU-fake-") and saved > 0
    for job in hers:
        checkpoint(job, "end").touch()
    for job in hers:
        has(patty, job, "succeeded")
    until(lambda: not pods(plane, namespace), what="no pod is left")
