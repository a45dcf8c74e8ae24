"""Notebooks as real pods: a real hub with KubeSpawner, a server in a container, and a kernel that sees its share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.amounts import memory_share_mib
from tests.hub.real_hub import RealHub
from tests.kube.control_plane import ControlPlane
from tests.kube.jobs.test_service import pods
from tests.kube.world import install
from tests.node.hub import node_hub, seen_by_kernel
from tests.node.node import MEMORY_MIB, MODEL, RealNode
from tests.patience import until

QUOTA = f"""\
version: 1
pools:
  - {{name: build, selector: {{gpu_model: [{MODEL}]}}, uses: [notebook]}}
projects:
  - name: build
    members: {{groups: [builders]}}
    quota: {{build: {{notebook: 1}}}}
"""


@pytest.fixture
def namespace(plane: ControlPlane, tmp_path: Path) -> str:
    return install(plane, str(tmp_path))


@pytest.fixture
def hub(plane: ControlPlane, node: RealNode, namespace: str, tmp_path: Path) -> Iterator[RealHub]:
    with node_hub(plane, namespace, tmp_path, QUOTA, node) as found:
        yield found


def enforcement(hub: RealHub) -> str | None:
    """The level of ann's share of memory, as the controllers read it from her running pod."""
    (found,) = hub.slices("ann")
    level: str | None = (found["enforcement"] or {}).get("memory")
    return level


@pytest.mark.hub
def test_a_notebook_with_an_eighth_rides_on_a_reservation(plane: ControlPlane, namespace: str, hub: RealHub) -> None:
    hub.start("ann", {"gpu_size": "1/8"})
    by_name = {pod["metadata"]["name"]: pod for pod in pods(plane, namespace)}
    (reservation,) = [pod for name, pod in by_name.items() if name.startswith("gq-device-")]
    limits = [pod["spec"]["containers"][0]["resources"].get("limits", {}) for pod in by_name.values()]
    assert [each for each in limits if "nvidia.com/gpu" in each] == [{"nvidia.com/gpu": "1"}], "the reservation's alone"
    seen = seen_by_kernel(hub, "ann")
    uuid = reservation["metadata"]["annotations"]["gpu-quota.jupyter.org/device-uuid"]
    assert uuid.startswith("GPU-fake-")
    assert seen == {
        "uid": 1000, "NVIDIA_VISIBLE_DEVICES": uuid, "GPU_QUOTA_MILLI": "125",
        "GPU_QUOTA_MEMORY_MIB": str(memory_share_mib(MEMORY_MIB, 125)),
    }  # fmt: skip
    until(lambda: enforcement(hub) == "cooperative", what=lambda: hub.slices("ann"))
    hub.stop("ann")
    until(lambda: not pods(plane, namespace), what="the reservation goes after its last share")
