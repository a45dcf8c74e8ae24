"""The whole path on two real nodes: a login, a notebook with an eighth, a reclaim, a checkpoint, the other node.

The volume of the jobs is a folder of this machine, which both nodes mount: it stands for a volume that several nodes
mount at once (ReadWriteMany).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client, Job
from tests.hub.real_hub import RealHub
from tests.kube.control_plane import ControlPlane
from tests.kube.jobs.test_service import pods
from tests.kube.world import install
from tests.node.hub import node_hub, seen_by_kernel, state_dir
from tests.node.node import MODEL, RealNode, node_of
from tests.node.world import device_of
from tests.patience import until

QUOTA = f"""\
version: 1
pools:
  - {{name: gpus, selector: {{gpu_model: [{MODEL}]}}, uses: [notebook, training]}}
projects:
  - {{name: lab, members: {{users: [ann]}}, quota: {{gpus: {{notebook: 1}}}}}}
  - {{name: vision, members: {{users: [ben]}}, quota: {{gpus: {{training: 1}}}}}}
  - {{name: speech, members: {{users: [cat]}}, quota: {{gpus: {{training: 2}}}}}}
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
    return install(plane, str(state_dir(tmp_path)))


@pytest.fixture
def hub(plane: ControlPlane, namespace: str, node: RealNode, tmp_path: Path) -> Iterator[RealHub]:
    with node_hub(plane, namespace, tmp_path, QUOTA, node) as found:
        yield found


class Work:
    """The jobs of one user."""

    def __init__(self, hub: RealHub, user: str, folder: Path) -> None:
        self._client = Client(hub.stage.url, hub.person(user).token, environment={})
        self._folder = folder

    def counts(self) -> Job:
        return self._client.submit(["sh", "-c", COUNTS], gpu="1", dir=None)

    def state(self, job: Job) -> str:
        return self._client.job(job.id).state

    def has(self, job: Job, state: str) -> None:
        until(lambda: self.state(job) == state, what=lambda: self._client.job(job.id))

    def reason(self, job: Job) -> str:
        found = self._client.job(job.id).reason
        return "" if found is None else found.message

    def device(self, job: Job, attempt: int = 1) -> str:
        return device_of(self._client, job, attempt)

    def saved(self, job: Job) -> int:
        return int((self._folder / "jobs" / job.id / "checkpoint/n").read_text())

    def end(self, job: Job) -> None:
        (self._folder / "jobs" / job.id / "checkpoint/end").touch()
        self.has(job, "succeeded")


def record(what: str) -> None:
    """A line of the transcript, which ``pytest -s`` shows."""
    print(f"{datetime.now():%H:%M:%S} {what}")


@pytest.mark.hub
def test_from_a_login_to_a_job_that_continues_on_the_other_node(
    plane: ControlPlane, namespace: str, hub: RealHub, tmp_path: Path
) -> None:
    assert "ann" in hub.browser("ann").get("/hub/home"), "she logged in"
    record("ann logs in to the hub and starts a server with 1/8 of a GPU")
    hub.start("ann", {"gpu_size": "1/8"})
    seen = seen_by_kernel(hub, "ann")
    record(f"its kernel sees {seen['NVIDIA_VISIBLE_DEVICES']}, GPU_QUOTA_MILLI={seen['GPU_QUOTA_MILLI']}")
    assert seen["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-fake-") and seen["GPU_QUOTA_MILLI"] == "125"

    ben, cat = (Work(hub, name, state_dir(tmp_path)) for name in ("ben", "cat"))
    hers = [cat.counts() for _ in range(3)]
    on = {job.id: cat.device(job) for job in hers}
    for job in hers:
        record(f"job {job.id} of cat (speech) runs on {on[job.id]} of {node_of(on[job.id])}")
    assert len({*on.values(), seen["NVIDIA_VISIBLE_DEVICES"]}) == 4, "all devices of both nodes are in use"

    his = ben.counts()
    record(f"ben (vision) submits job {his.id}: no device is free, and vision has a training quota of 1")
    ben.has(his, "running")
    (paused,) = [job for job in hers if cat.state(job) != "running"]
    saved, before = cat.saved(paused), node_of(on[paused.id])
    assert saved > 0
    record(f"job {paused.id} is paused with {saved} saved: {cat.reason(paused)}")
    record(f"job {his.id} runs on {ben.device(his)} of {node_of(ben.device(his))}")

    elsewhere = next(job for job in hers if node_of(on[job.id]) != before)
    cat.end(elsewhere)
    record(f"job {elsewhere.id} succeeds and leaves {on[elsewhere.id]} of {node_of(on[elsewhere.id])}")
    assert cat.device(paused, attempt=2) == on[elsewhere.id], "its volume is there, too"
    assert paused.logs(attempt=2).startswith(f"from {saved} on ")
    assert node_of(cat.device(paused, attempt=2)) != before
    record(f"job {paused.id}, attempt 2, on {node_of(cat.device(paused, attempt=2))}: {paused.logs(attempt=2).strip()}")

    ben.end(his)
    for job in hers:
        if job is not elsewhere:
            cat.end(job)
    hub.stop("ann")
    until(lambda: not pods(plane, namespace), what="no pod is left")
    record("all jobs succeeded, the server is stopped, and no pod is left")
