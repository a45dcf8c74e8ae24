"""A real node leaves nothing on the machine: no process, mount, link or cgroup, and no kernel parameter."""

from __future__ import annotations

from pathlib import Path

from tests.kube.control_plane import ControlPlane
from tests.node import machine
from tests.node.images import PAUSE_IMAGE, pause_image
from tests.node.node import RealNode
from tests.patience import until


def test_a_machine_is_left_as_it_was_found(plane: ControlPlane, tmp_path: Path) -> None:
    before = machine.machine()
    node = RealNode(plane, 4)
    try:
        node.start([pause_image(tmp_path)])
        run_pod(plane, node)
        assert machine.machine().links > before.links, "the pod has a link"
        assert machine.processes_in(node.namespace) and machine.cgroups_of(node.cgroup)
    finally:
        node.stop()
    assert machine.machine() == before
    assert not machine.processes_in(node.namespace) and not machine.cgroups_of(node.cgroup)
    assert not node.folder.exists()
    assert plane.request("GET", f"/api/v1/nodes/{node.name}")[0] == 404


def run_pod(plane: ControlPlane, node: RealNode) -> None:
    """A pod that runs when the node stops."""
    namespace = plane.new_namespace()
    container = {"name": "c", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
    spec = {"containers": [container], "nodeName": node.name, "automountServiceAccountToken": False}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.make(pods, {"metadata": {"name": "stays"}, "spec": spec})
    until(lambda: plane.get(f"{pods}/stays")["status"]["phase"] == "Running", what=node.errors)
